"""template-api 18.8: lists, details, PATCH and DELETE of templates."""
import json
import re
import unittest

from server import NIL_UUID
from template_case import UNKNOWN, UNKNOWN_TEMPLATE, TemplateCase

ROW = {"templateID", "buildID", "cpuCount", "memoryMB", "diskSizeMB", "public", "aliases", "names", "createdAt", "updatedAt", "createdBy",
       "lastSpawnedAt", "spawnCount", "buildCount", "envdVersion", "buildStatus"}
TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z$")


class Lists(TemplateCase):
    def team(self, slug, names=("one", "two", "three")):
        """A team with a registered build of each name: its key, the builds."""
        key = self.server.team(slug)
        return key, [self.create(n, key) for n in names]

    def rows(self, key, path="/templates"):
        return self.expect(200, "GET", path, key=key).json

    def test_127_list(self):
        key, builds = self.team("lister127")
        rows = self.rows(key)
        self.assertEqual([r["templateID"] for r in rows], [b["templateID"] for b in builds])
        for row in rows + self.rows(key, "/v2/templates"):
            self.assertEqual(set(row), ROW)
            self.assertRegex(row["createdAt"], TIME)
            self.assertRegex(row["updatedAt"], TIME)
            self.assertEqual((row["createdBy"], row["lastSpawnedAt"], row["spawnCount"], row["public"]), (None, None, 0, False))
        self.assertEqual((rows[0]["aliases"], rows[0]["names"]), (["one"], ["lister127/one"]))
        self.assertEqual(self.rows(self.server.team("empty127")), [])

    def test_127_counts_builds(self):
        key, _ = self.team("lister127b", ["one"])
        self.create("one", key)
        self.assertEqual(self.rows(key)[0]["buildCount"], 2)

    def test_128_without_ready_build(self):
        key, builds = self.team("lister128", ["one"])
        row = self.rows(key)[0]
        nothing = {"buildID": NIL_UUID, "cpuCount": 0, "memoryMB": 0, "diskSizeMB": 0, "envdVersion": ""}
        self.assertEqual({k: row[k] for k in nothing}, nothing)
        self.assertEqual(row["buildStatus"], "waiting")
        self.server.records("start", builds[0]["buildID"])
        self.assertEqual(self.rows(key)[0]["buildStatus"], "building")
        self.server.records("ready", builds[0]["buildID"])
        row = self.rows(key)[0]
        self.assertEqual((row["buildID"], row["cpuCount"], row["memoryMB"], row["buildStatus"]), (builds[0]["buildID"], 2, 1024, "ready"))
        self.assertTrue(row["envdVersion"] and row["diskSizeMB"])
        b = self.started("one", key)  # a newer build that fails: the row keeps the ready one and tells of the failure
        self.server.records("fail", b["buildID"], reason="x")
        row = self.rows(key)[0]
        self.assertEqual((row["buildID"], row["buildStatus"]), (builds[0]["buildID"], "error"))

    def test_129_team_parameter(self):
        key, _ = self.team("lister129")
        team = [t for t in json.loads(self.server.admin("list-teams", "--json").stdout) if t["slug"] == "lister129"][0]
        for path in ["/templates", "/v2/templates"]:
            self.assertEqual(len(self.rows(key, f"{path}?teamID={team['id']}")), 3)
            r = self.expect(400, "GET", f"{path}?teamID={UNKNOWN}", key=key)
            self.assertEqual(r.message, "Team ID param mismatch with the API key")

    def paged(self, path, key, limit, rows=lambda r: r.json):
        """The pages, each a list, as clients follow X-Next-Token."""
        pages, token = [], None
        while True:
            r = self.expect(200, "GET", f"{path}?limit={limit}" + (f"&nextToken={token}" if token else ""), key=key)
            pages.append(rows(r))
            token = r.headers["X-Next-Token"]
            if token is None:
                return pages
            self.assertEqual(len(pages[-1]), limit)

    def test_130_pages(self):
        key, builds = self.team("lister130")
        newest_first = [b["templateID"] for b in builds[::-1]]
        pages = self.paged("/v2/templates", key, 1)
        self.assertEqual([[t["templateID"] for t in p] for p in pages], [[t] for t in newest_first])
        for limit in [2, 3, 100]:
            pages = self.paged("/v2/templates", key, limit)
            self.assertEqual([t["templateID"] for p in pages for t in p], newest_first)
            self.assertTrue(pages[-1])

    def test_130_pages_while_templates_come_and_go(self):
        key, builds = self.team("lister130b", ["a", "b", "c", "d"])
        r = self.expect(200, "GET", "/v2/templates?limit=2", key=key)
        token = r.headers["X-Next-Token"]
        self.expect(204, "DELETE", f"/templates/{r.json[1]['templateID']}", key=key)  # the cursor's own row
        self.create("e", key)
        r = self.expect(200, "GET", f"/v2/templates?nextToken={token}", key=key)
        self.assertEqual([t["templateID"] for t in r.json], [builds[1]["templateID"], builds[0]["templateID"]])

    def test_131_limits(self):
        t = self.create("lim")["templateID"]
        for path in ["/v2/templates", f"/templates/{t}"]:
            for bad in ["0", "101", "-1", "x", ""]:
                self.expect(400, "GET", f"{path}?limit={bad}", message="validation error")
            self.expect(200, "GET", path + "?limit=100")

    def test_132_bad_token(self):
        t = self.create("tok")["templateID"]
        for path in ["/v2/templates", f"/templates/{t}"]:
            for bad in ["zzz", "%ff", "x" * 10000, "MjAyNi0wMS0wMQ", "%25"]:
                self.assertEqual(self.expect(400, "GET", f"{path}?nextToken={bad}").message, "Invalid next token")

    def test_133_details(self):
        builds = [self.create("det", tags=[f"t{i}"]) for i in range(5)]
        self.server.make_ready(builds[0]["buildID"])
        self.server.records("start", builds[1]["buildID"])
        self.server.records("fail", builds[1]["buildID"], reason="x")
        self.server.records("start", builds[2]["buildID"])
        t = builds[0]["templateID"]
        r = self.expect(200, "GET", f"/templates/{t}")
        self.assertEqual(set(r.json), {"templateID", "public", "aliases", "names", "createdAt", "updatedAt", "lastSpawnedAt", "spawnCount", "builds"})
        self.assertEqual((r.json["names"], r.json["aliases"], r.json["lastSpawnedAt"]), (["acme/det"], ["det"], None))
        self.assertEqual([b["buildID"] for b in r.json["builds"]], [b["buildID"] for b in builds[::-1]])
        self.assertEqual([b["status"] for b in r.json["builds"]], ["waiting", "waiting", "building", "error", "ready"])
        basic = {"buildID", "status", "createdAt", "updatedAt", "cpuCount", "memoryMB"}
        self.assertEqual([set(b) - basic for b in r.json["builds"]],
                         [set(), set(), set(), {"finishedAt"}, {"finishedAt", "diskSizeMB", "envdVersion"}])
        self.assertIsNone(r.headers["X-Next-Token"])
        pages = self.paged(f"/templates/{t}", None, 2, lambda a: a.json["builds"])
        self.assertEqual([b["buildID"] for p in pages for b in p], [b["buildID"] for b in builds[::-1]])

    def test_134_by_alias(self):
        self.create("nid")
        for name in ["nid", "acme%2Fnid"]:
            self.expect(404, "GET", f"/templates/{name}", message="Template ")
        self.assertEqual(self.expect(404, "GET", f"/templates/{UNKNOWN_TEMPLATE}").message, f"Template {UNKNOWN_TEMPLATE} not found")

    def test_135_another_team(self):
        self.expect(403, "GET", f"/templates/{self.create('det135')['templateID']}", key=self.G)


class Update(TemplateCase):
    def public(self, alias):
        return [t["public"] for t in self.expect(200, "GET", "/templates").json if t["aliases"] == [alias]][0]

    def test_136_publish(self):
        self.create("pub")
        self.assertEqual(self.expect(200, "PATCH", "/v2/templates/pub", {"public": True}).json, {"names": ["acme/pub"]})
        self.assertTrue(self.public("pub"))

    def test_136_by_id(self):
        t = self.create("pub2")["templateID"]
        self.assertEqual(self.publish(t), ["acme/pub2"])
        self.assertTrue(self.public("pub2"))

    def test_137_nothing_to_change(self):
        self.create("pub3")
        self.publish("pub3")
        for body in [{}, {"public": None}, {"foo": 1}, None]:
            self.assertEqual(self.expect(200, "PATCH", "/v2/templates/pub3", body).json, {"names": ["acme/pub3"]})
        self.assertTrue(self.public("pub3"))

    def test_138_wrong_type(self):
        self.create("pub4")
        for path in ["/v2/templates/pub4", "/templates/pub4"]:
            for value in ["yes", 1, []]:
                self.expect(400, "PATCH", path, {"public": value}, message="validation error")
            self.expect(400, "PATCH", path, "{")
        self.assertFalse(self.public("pub4"))

    def test_139_v1(self):
        self.create("pub5")
        for public in [True, False]:
            r = self.expect(200, "PATCH", "/templates/pub5", {"public": public})
            self.assertEqual(r.body, b"null")
            self.assertEqual(self.public("pub5"), public)

    def test_140_unknown_and_foreign(self):
        t = self.create("pub6")["templateID"]
        for path in ["/v2/templates/", "/templates/"]:
            for unknown in ["nope", UNKNOWN_TEMPLATE]:
                self.assertEqual(self.expect(404, "PATCH", path + unknown, {"public": True}).message, f"template '{unknown}' not found")
            for public in [False, True]:
                self.publish("pub6", public)
                for reference in [t, "acme%2Fpub6"]:
                    r = self.expect(403, "PATCH", path + reference, {"public": False}, key=self.G)
                    self.assertTrue(r.message.startswith("You don't have access to template '"), r.message)
            self.expect(400, "PATCH", path + "pub6!", {"public": True}, message="Invalid template ID: ")

    def test_141_system_team_publishes(self):
        b = self.ready("base141", self.S)
        self.alias(404, "base141")
        self.assertEqual(self.publish("base141", key=self.S), ["sys/base141", "base141"])
        self.alias(403, "base141")  # it resolves, and is another team's
        row = [r for r in self.expect(200, "GET", "/templates", key=self.S).json if r["templateID"] == b["templateID"]][0]
        self.assertEqual((row["names"], row["aliases"]), (["sys/base141", "base141"], ["base141"]))

    def test_142_system_team_unpublishes(self):
        self.ready("base142", self.S)
        self.publish("base142", key=self.S)
        self.assertEqual(self.publish("base142", False, key=self.S), ["sys/base142"])
        self.alias(404, "base142")
        self.alias(403, "sys%2Fbase142")

    def test_141_142_flag_of_the_team(self):
        """15.6: bare aliases follow the flag too; one that is taken stays with its holder."""
        key, other = self.server.team("flag"), self.server.team("flag2", "--system")
        self.ready("mine", key)
        self.ready("both", key)
        self.ready("both", other)
        self.assertEqual(self.publish("both", key=other), ["flag2/both", "both"])
        for name in ["mine", "both"]:
            self.publish(name, key=key)
        self.alias(404, "mine")
        self.server.admin("set-system", "flag")
        self.alias(403, "mine")
        self.assertEqual(self.publish("both", key=key), ["flag/both"])
        self.server.admin("unset-system", "flag2")  # sets both's bare alias free; the next who publishes gets it
        self.alias(404, "both")
        self.assertEqual(self.publish("both", key=key), ["flag/both", "both"])
        self.expect(204, "DELETE", "/templates/both", key=key)
        self.alias(404, "both")
        self.server.admin("unset-system", "flag")
        self.alias(404, "mine")
        self.alias(403, "flag%2Fmine")

    def test_143_ordinary_team_publishes(self):
        self.ready("web143")
        self.publish("web143")
        self.alias(404, "web143", key=self.G)
        self.alias(403, "acme%2Fweb143", key=self.G)


class Delete(TemplateCase):
    def test_144_delete(self):
        b = self.ready("del:v1")
        r = self.expect(204, "DELETE", "/templates/del")
        self.assertEqual((r.body, r.headers["Transfer-Encoding"]), (b"", None))
        self.expect(404, "DELETE", "/templates/del", message="template 'del' not found")
        self.expect(404, "DELETE", f"/templates/{b['templateID']}")
        for path in [f"/templates/{b['templateID']}", f"/templates/{b['templateID']}/tags", "/templates/aliases/del", f"/templates/aliases/{b['templateID']}"]:
            self.expect(404, "GET", path)
        self.assertEqual([t for t in self.expect(200, "GET", "/templates").json if t["templateID"] == b["templateID"]], [])
        self.expect(400, "DELETE", "/templates/del!", message="Invalid template ID: ")

    def test_145_alias_of_another_team(self):
        self.create("web145")
        self.expect(404, "DELETE", "/templates/web145", key=self.G)
        self.expect(403, "DELETE", "/templates/acme%2Fweb145", key=self.G)
        self.alias(200, "web145")

    def test_146_id_of_another_team(self):
        t = self.create("web146")["templateID"]
        for public in [False, True]:
            self.publish("web146", public)
            self.expect(403, "DELETE", f"/templates/{t}", key=self.G)
        self.alias(200, "web146")

    def test_149_create_again(self):
        old = self.ready("web149:v1")
        self.expect(204, "DELETE", "/templates/web149")
        new = self.create("web149")
        self.assertNotEqual(new["templateID"], old["templateID"])
        self.assertEqual(self.expect(200, "GET", "/templates/web149/tags").json, [])
        self.assertEqual(len(self.expect(200, "GET", f"/templates/{new['templateID']}").json["builds"]), 1)
        self.alias(404, "web149%3Av1")


if __name__ == "__main__":
    unittest.main()
