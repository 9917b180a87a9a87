"""template-api 18.3, 18.4 and what of 18.10 needs no build: registering builds, names, resources, limits."""
import sqlite3
import json
import os
import time
import unittest

from server import UUID
from template_case import UNKNOWN, UNKNOWN_TEMPLATE, TemplateCase


class Create(TemplateCase):
    def refuse(self, body, message=None, status=400):
        return self.expect(status, "POST", "/v3/templates", body, message=message)

    def test_022_first(self):
        a = self.create("first")
        self.assertEqual((a["names"], a["aliases"], a["tags"], a["public"]), (["acme/first"], ["first"], ["default"], False))
        self.assertRegex(a["templateID"], r"^[a-z0-9]{20}$")
        self.assertRegex(a["buildID"], UUID)
        self.assertEqual(set(a), {"templateID", "buildID", "public", "names", "aliases", "tags"})

    def test_023_again(self):
        a, b = self.create("web"), self.create("web")
        self.assertEqual(a["templateID"], b["templateID"])
        self.assertNotEqual(a["buildID"], b["buildID"])

    def test_024_lower_cased(self):
        a, b = self.create("web"), self.create("Web")
        self.assertEqual((a["templateID"], b["names"]), (b["templateID"], ["acme/web"]))

    def test_025_blanks_around_the_parts(self):
        a = self.create("  web  :  v1  ")
        self.assertEqual((a["aliases"], a["tags"]), (["web"], ["v1"]))

    def test_026_tags_are_a_set(self):
        tags = self.create("web:v1", tags=["stable", "V1", "stable"])["tags"]
        self.assertEqual(tags, ["v1", "stable"])  # in a stable order

    def test_027_default_written_out(self):
        self.assertEqual(self.create("web:default")["tags"], ["default"])

    def test_028_tags_without_default(self):
        self.assertEqual(self.create("web", tags=["v9"])["tags"], ["v9"])

    def test_029_own_namespace(self):
        self.assertEqual(self.create("acme/web")["templateID"], self.create("web")["templateID"])
        self.assertEqual(self.create("ACME / web")["templateID"], self.create("web")["templateID"])

    def test_030_foreign_namespace(self):
        self.refuse({"name": "globex/web"}, "namespace 'globex' must match your team 'acme'")

    def test_031_alias_field(self):
        self.assertEqual(self.expect(202, "POST", "/v3/templates", {"alias": "web:v1"}).json["tags"], ["v1"])

    def test_032_name_wins(self):
        self.assertEqual(self.create("a1", alias="b1")["aliases"], ["a1"])

    def test_033_no_name(self):
        for body in [{}, {"name": None}, {"tags": ["x"]}]:
            self.refuse(body, "Name is required")

    def test_034_empty_name(self):
        self.refuse({"name": ""}, "Invalid name: invalid template ID: ")

    def test_035_empty_tag(self):
        self.refuse({"name": "web:"}, "Invalid name: invalid tag: ")

    def test_036_empty_namespace(self):
        self.refuse({"name": "/web"}, "Invalid name: invalid namespace: ")

    def test_037_two_slashes(self):
        self.refuse({"name": "a/b/c"}, "Invalid name: invalid template ID: b/c")

    def test_038_foreign_characters(self):
        for name in ["web!", "my web", "w\u00e9b", "\u212aeb", "web\u0000", "a%2Fb"]:
            self.refuse({"name": name})

    def test_039_dot_in_alias(self):
        self.refuse({"name": "web.v1"}, "Invalid name: invalid template ID: web.v1")

    def test_040_tag_characters(self):
        self.assertEqual(self.create("web:v1.0_x-y")["tags"], ["v1.0_x-y"])

    def test_041_uuid_as_tag_of_the_name(self):
        self.refuse({"name": f"web:{UNKNOWN}"}, "Invalid tag: tag cannot be a UUID")

    def test_042_uuid_in_tags(self):
        for uuid in [UNKNOWN, UNKNOWN.upper()]:
            self.refuse({"name": "web", "tags": [uuid]}, "Invalid tag: tag cannot be a UUID")

    def test_043_bad_tags(self):
        for tag in ["", "a b", "v1!", "a:b", "a/b"]:
            self.refuse({"name": "web", "tags": [tag]}, "Invalid tag: invalid tag: ")
        for tags in ["x", [1], {"a": 1}, [None]]:
            self.refuse({"name": "web", "tags": tags}, "validation error")

    def test_044_longest_name(self):
        self.create("a" * 128)
        self.refuse({"name": "a" * 129}, "validation error")
        self.refuse({"alias": "a" * 129}, "validation error")

    def test_045_no_cpu(self):
        self.refuse({"name": "web", "cpuCount": 0}, "validation error")
        self.refuse({"name": "web", "cpuCount": -1}, "validation error")

    def test_046_odd_cpus(self):
        self.assertEqual(self.refuse({"name": "web", "cpuCount": 3}).message, "CPU count must be 1 or an even number")

    def test_047_one_cpu(self):
        self.create("web", cpuCount=1)

    def test_048_more_than_32_cpus(self):
        for n in [34, 1024]:
            self.assertEqual(self.refuse({"name": "web", "cpuCount": n}).message, "CPU count must be at most 32")

    def test_049_cpus_of_the_team(self):
        self.refuse({"name": "web", "cpuCount": 16}, "CPU count can't be higher than 8")
        self.create("web", cpuCount=8)

    def test_050_little_memory(self):
        self.refuse({"name": "web", "memoryMB": 32}, "validation error")
        self.create("web", memoryMB=128)

    def test_051_odd_memory(self):
        self.assertEqual(self.refuse({"name": "web", "memoryMB": 1001}).message, "Memory must be divisible by 2")

    def test_052_memory_of_the_team(self):
        self.refuse({"name": "web", "memoryMB": 1048576}, "Memory can't be higher than 8192 MiB")
        self.create("web", memoryMB=8192)

    def test_053_default_sizes(self):
        b = self.create("web")
        build = self.expect(200, "GET", f"/templates/{b['templateID']}").json["builds"][0]
        self.assertEqual((build["buildID"], build["cpuCount"], build["memoryMB"]), (b["buildID"], 2, 1024))

    def test_054_wrong_types(self):
        for key, value in [("cpuCount", "2"), ("cpuCount", 2.5), ("cpuCount", True), ("memoryMB", "1024"), ("memoryMB", [1]), ("cpuCount", 2 ** 40),
                           ("name", 7), ("alias", {}), ("minFreeDiskMb", "x")]:
            self.refuse({"name": "web", key: value}, "validation error")

    def test_055_free_disk_is_ignored(self):
        for n in [0, 5000, 2 ** 31 - 1]:
            self.create("web", minFreeDiskMb=n)
        self.refuse({"name": "web", "minFreeDiskMb": -1}, "validation error")

    def test_056_team_in_the_body_is_ignored(self):
        self.assertEqual(self.create("web", teamID=UNKNOWN)["names"], ["acme/web"])

    def test_057_name_is_a_template_id(self):
        own, foreign = self.create("own57"), self.create("foreign57", self.G)
        self.assertEqual(self.refuse({"name": foreign["templateID"]}, status=409).message, f"Alias '{foreign['templateID']}' is already used")
        again = self.create(own["templateID"])
        self.assertEqual((again["templateID"], again["names"]), (own["templateID"], ["acme/own57"]))
        self.expect(204, "DELETE", "/templates/own57")
        self.refuse({"name": own["templateID"]}, status=409)  # never used again

    def test_058_two_teams(self):
        a, g = self.create("web"), self.create("web", self.G)
        self.assertNotEqual(a["templateID"], g["templateID"])
        self.assertEqual(g["names"], ["globex/web"])

    def test_059_bare_alias_of_the_system_team(self):
        system = self.ready("base", self.S)
        self.publish("base", key=self.S)
        own = self.create("base")
        self.assertEqual(own["names"], ["acme/base"])
        self.assertNotEqual(own["templateID"], system["templateID"])
        self.assertEqual(self.alias(200, "base").json["templateID"], own["templateID"])  # shadows the system's

    def test_060_after_deletion(self):
        old = self.create("again60")["templateID"]
        self.expect(204, "DELETE", "/templates/again60")
        self.assertNotEqual(self.create("again60")["templateID"], old)


class CreateV2(TemplateCase):
    def test_061_legacy_object(self):
        r = self.expect(202, "POST", "/v2/templates", {"alias": "web", "cpuCount": 2, "memoryMB": 1024}).json
        self.assertEqual(set(r), {"templateID", "buildID", "public", "aliases", "cpuCount", "memoryMB", "diskSizeMB", "createdAt", "updatedAt",
                                  "createdBy", "lastSpawnedAt", "spawnCount", "buildCount", "envdVersion"})
        self.assertEqual((r["aliases"], r["public"], r["createdBy"], r["envdVersion"]), (["web"], False, None, ""))

    def test_062_without_alias(self):
        for body in [{"cpuCount": 2}, {"name": "web"}]:
            self.expect(400, "POST", "/v2/templates", body)

    def test_063_tag_in_the_alias(self):
        b = self.expect(202, "POST", "/v2/templates", {"alias": "old:v1", "tags": ["ignored"]}).json
        self.server.make_ready(b["buildID"])
        self.assertEqual([t["tag"] for t in self.expect(200, "GET", "/templates/old/tags").json], ["v1"])


class Limits(TemplateCase):
    SUPERSEDED = "The build was canceled because it was superseded by a newer one."

    def test_182_superseded_while_waiting(self):
        first, second = self.create("web"), self.create("web")
        r = self.status(first)
        self.assertEqual((r["status"], r["reason"]["message"], "step" in r["reason"]), ("error", self.SUPERSEDED, False))
        self.assertEqual(self.status(second)["status"], "waiting")

    def test_182_disjoint_tags_wait_side_by_side(self):
        one, two = self.create("side:v1"), self.create("side", tags=["v2", "v3"])
        self.create("side", tags=["v3"])
        self.assertEqual((self.status(one)["status"], self.status(two)["status"]), ("waiting", "error"))

    def test_182_running_builds_are_not_superseded_by_a_registration(self):
        one = self.started("runs")
        self.create("runs")
        self.assertEqual(self.status(one)["status"], "building")

    def test_183_limit_of_the_team(self):
        key = self.server.team("small", "--max-concurrent-builds", "1")
        b = self.create("web", key)
        r = self.expect(429, "POST", "/v3/templates", {"name": "other"}, key=key)
        self.assertIsNone(r.headers["Retry-After"])
        self.assertIn("(1)", r.message)
        self.expect(404, "GET", "/templates/aliases/other", key=key)  # nothing was written
        self.expect(429, "POST", "/v3/templates", {"name": "web:v2"}, key=key)
        self.assertEqual(self.status(b, key=key)["status"], "waiting")
        self.create("web")  # another team's limit

    def test_184_rebuild_at_the_limit(self):
        key = self.server.team("small2", "--max-concurrent-builds", "1")
        self.started("web", key)
        self.create("web", key)

    def test_185_limit_frees(self):
        key = self.server.team("small3", "--max-concurrent-builds", "1")
        b = self.started("web", key)
        self.expect(429, "POST", "/v3/templates", {"name": "other"}, key=key)
        self.server.records("fail", b["buildID"], reason="x")
        b = self.started("other", key)
        self.expect(429, "POST", "/v3/templates", {"name": "third"}, key=key)
        self.server.records("ready", b["buildID"])
        self.create("third", key)
        self.expect(204, "DELETE", "/templates/third", key=key)
        self.create("fourth", key)

    def test_waiting_too_long(self):
        """template-api 14.1: 40 minutes without a trigger. The record is made older while the server is down."""
        old, young = self.create("patient"), self.create("patient2")
        self.server.kill()
        db = sqlite3.connect(os.path.join(self.server.data, "vmon.db"), timeout=30)
        for b, minutes in [(old, 41), (young, 39)]:
            key = f"build/{b['buildID']}"
            record = json.loads(db.execute("SELECT value FROM kv WHERE key = ?", (key,)).fetchone()[0])
            record["created"] = time.time_ns() - minutes * 60 * 10 ** 9
            db.execute("UPDATE kv SET value = ? WHERE key = ?", (json.dumps(record).encode(), key))
        db.commit()
        db.close()
        self.server.start()
        deadline = time.monotonic() + 60  # a hang guard: the first sweep is at the start
        while self.status(old)["status"] == "waiting":
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        r = self.status(old)
        self.assertEqual((r["status"], r["reason"]["message"]), ("error", "build is in waiting state for too long"))
        self.assertEqual(self.status(young)["status"], "waiting")
        self.expect(400, "POST", f"/v2/templates/{old['templateID']}/builds/{old['buildID']}", {"fromImage": "x"}, message="build is not in waiting state")

    def test_interrupted_by_a_crash(self):
        """Design 8.3: what was building when the server died is an error with a reason."""
        b, waiting = self.started("cut"), self.create("cut:v2")
        self.server.kill()
        self.server.start()
        r = self.status(b)
        self.assertEqual(r["status"], "error")
        self.assertTrue(r["reason"]["message"])
        self.assertEqual(self.status(waiting)["status"], "waiting")

    def test_unknown_template_id_is_an_alias(self):
        self.assertEqual(self.create(UNKNOWN_TEMPLATE)["aliases"], [UNKNOWN_TEMPLATE])


if __name__ == "__main__":
    unittest.main()
