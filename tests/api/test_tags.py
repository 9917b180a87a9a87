"""template-api 18.9: aliases, references, tags."""
import re
import unittest

from template_case import UNKNOWN, TemplateCase


class Aliases(TemplateCase):
    def test_152_own(self):
        b = self.ready("al152")
        for reference in ["al152", "acme%2Fal152", "AL152", b["templateID"]]:
            self.assertEqual(self.alias(200, reference).json, {"templateID": b["templateID"], "public": False})
        self.publish("al152")
        self.assertTrue(self.alias(200, "al152").json["public"])

    def test_152_without_any_build(self):
        self.create("al152b")
        self.alias(200, "al152b")  # the name exists

    def test_153_public_system_template(self):
        self.ready("base153", self.S)
        self.publish("base153", key=self.S)
        for key in [self.A, self.G]:
            self.alias(403, "base153", key)
        self.alias(200, "base153", self.S)

    def test_153_foreign_namespace(self):
        """D7: 403 for a template of another team, public or not, else 404."""
        self.ready("al153")
        self.alias(403, "acme%2Fal153", self.G)
        self.alias(403, "acme%2Fal153%3Anope", self.G)  # whose it is comes before the tag
        self.alias(404, "acme%2Fnope", self.G)
        self.alias(404, "nobody%2Fal153", self.G)

    def test_154_unknown(self):
        self.assertEqual(self.alias(404, "nope").message, "template 'nope' not found")
        self.assertEqual(self.alias(404, "acme%2Fnope").message, "template 'acme/nope' not found")

    def test_155_tags(self):
        b = self.ready("al155:v2")
        self.assertEqual(self.alias(200, "al155%3Av2").json["templateID"], b["templateID"])
        self.alias(404, "al155%3Anope", message="tag 'nope' does not exist for template 'al155'")
        self.alias(404, "acme%2Fal155%3Anope", message="tag 'nope' does not exist for template 'acme/al155'")
        self.started("al155:v3")
        self.alias(404, "al155%3Av3")

    def test_156_default_means_no_tag(self):
        self.create("al156")
        self.alias(404, "al156%3Adefault", message="tag 'default' does not exist for template 'al156'")
        self.ready("al156:v1")
        self.alias(200, "al156%3Adefault")
        self.alias(200, "al156")

    def test_157_build_id_as_tag(self):
        b, other = self.ready("al157"), self.ready("al157b")
        self.alias(200, f"al157%3A{b['buildID']}")
        self.alias(200, f"al157%3A{b['buildID'].upper()}")
        for wrong in [other["buildID"], UNKNOWN, self.started("al157")["buildID"]]:
            self.alias(404, f"al157%3A{wrong}")

    def test_158_malformed(self):
        for bad, part in [("web!", "invalid template ID: web!"), ("web%3A", "invalid tag: "), ("%2Fweb", "invalid namespace: "), ("a%2Fb%2Fc", "invalid template ID: b/c"),
                          ("web%3Av%201", "invalid tag: v 1"), ("%20", "invalid template ID: ")]:
            self.assertEqual(self.alias(400, bad).message, "Invalid alias format: " + part)


class Tags(TemplateCase):
    def assign(self, status, target, tags, message=None, **more):
        return self.expect(status, "POST", "/templates/tags", {"target": target, "tags": tags}, message=message, **more)

    def untag(self, status, name, tags, message=None, **more):
        return self.expect(status, "DELETE", "/templates/tags", {"name": name, "tags": tags}, message=message, **more)

    def tags(self, reference):
        return {t["tag"]: t["buildID"] for t in self.expect(200, "GET", f"/templates/{reference}/tags").json}

    def test_159_assign(self):
        b = self.ready("t159:v1")
        self.assertEqual(self.assign(201, "t159:v1", ["prod"]).json, {"tags": ["prod"], "buildID": b["buildID"]})
        self.assertEqual(self.assign(201, "acme/t159:v1", [" Prod ", "x", "prod"]).json["tags"], ["prod", "x"])
        self.assertEqual(self.tags("t159"), dict.fromkeys(["v1", "prod", "x"], b["buildID"]))

    def test_160_target_without_tag(self):
        self.ready("t160:v1")
        self.assign(404, "t160", ["x"], "Template 't160' with tag 'default' not found")  # an assignment does not guess
        b = self.ready("t160")
        self.assertEqual(self.assign(201, "t160", ["x"]).json["buildID"], b["buildID"])

    def test_161_target_by_id(self):
        b = self.ready("t161")
        self.assertEqual(self.assign(201, f"{b['templateID']}:default", ["x"]).json["buildID"], b["buildID"])

    def test_162_target_by_build_id(self):
        b, _ = self.ready("t162"), self.ready("t162")
        self.assertEqual(self.assign(201, f"t162:{b['buildID']}", ["old"]).json["buildID"], b["buildID"])
        self.assertEqual(self.tags("t162")["old"], b["buildID"])

    def test_163_no_tags(self):
        self.ready("t163")
        self.assertEqual(self.assign(400, "t163", []).message, "At least one tag is required")
        self.assertEqual(self.untag(400, "t163", []).message, "At least one tag is required")
        for body in [{"target": "t163"}, {"tags": ["x"]}, {"target": 7, "tags": ["x"]}, {"target": "t163", "tags": "x"}]:
            self.expect(400, "POST", "/templates/tags", body, message="validation error")

    def test_164_bad_tags(self):
        self.ready("t164")
        for bad in ["", ":x", "web:", "a b", "a/b", UNKNOWN]:
            self.assign(400, "t164", [bad], "Invalid tag: ")
            self.untag(400, "t164", [bad], "Invalid tag: ")
        for bad in ["t164!", "t164:", "/t164", ""]:
            self.assign(400, bad, ["x"], "Invalid target template format: ")
            self.untag(400, bad, ["x"], "Invalid template name format: ")
        self.assign(400, "globex/t164", ["x"], "namespace 'globex' must match your team 'acme'")
        self.untag(400, "globex/t164", ["x"], "namespace 'globex' must match your team 'acme'")

    def test_165_target_that_is_not_ready(self):
        self.assign(404, "t165", ["x"], "template 't165' not found")
        waiting = self.create("t165:pending")
        self.assign(404, "t165:nope", ["x"], "Template 't165:nope' with tag 'nope' not found")
        self.assign(404, "t165:pending", ["x"])
        self.assign(404, f"t165:{waiting['buildID']}", ["x"])
        self.server.records("start", waiting["buildID"])
        self.server.records("fail", waiting["buildID"], reason="x")
        self.assign(404, f"t165:{waiting['buildID']}", ["x"])
        self.assertEqual(self.tags("t165"), {})

    def test_166_assign_default(self):
        one, two = self.ready("t166:v1"), self.ready("t166")
        self.assertEqual(self.build_of("t166"), two["buildID"])
        self.assign(201, "t166:v1", ["default"])
        self.assertEqual(self.build_of("t166"), one["buildID"])

    def test_167_reassign(self):
        """D3.37 as well: a moved tag resolves anew at once."""
        one, two = self.ready("t167:v1"), self.ready("t167:v2")
        for target, want in [("t167:v1", one), ("t167:v2", two)]:
            self.assign(201, target, ["prod"])
            self.assertEqual(self.build_of("t167:prod"), want["buildID"])
        self.alias(200, f"t167%3A{one['buildID']}")  # the old build stays

    def test_168_list(self):
        b = self.ready("t168:b")
        self.assign(201, "t168:b", ["c", "a", "default"])
        rows = self.expect(200, "GET", "/templates/t168/tags").json
        self.assertEqual([(r["tag"], r["buildID"]) for r in rows], [(t, b["buildID"]) for t in ["a", "b", "c", "default"]])
        for r in rows:
            self.assertEqual(set(r), {"tag", "buildID", "createdAt"})
            self.assertRegex(r["createdAt"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z$")
        for reference in ["acme%2Ft168", "t168%3Av9", "T168", b["templateID"]]:  # a tag suffix is ignored
            self.assertEqual(self.expect(200, "GET", f"/templates/{reference}/tags").json, rows)
        self.expect(400, "GET", "/templates/t168!/tags", message="Invalid template ID: ")

    def test_169_foreign_and_unknown(self):
        t = self.ready("t169")["templateID"]
        for public in [False, True]:
            self.publish("t169", public)
            self.expect(403, "GET", f"/templates/{t}/tags", key=self.G)
            self.assign(403, t, ["x"], key=self.G)
            self.untag(403, t, ["x"], key=self.G)
        self.expect(404, "GET", "/templates/t169/tags", key=self.G)
        self.expect(404, "GET", "/templates/nope/tags")

    def test_170_delete(self):
        self.ready("t170:v1")
        self.assign(201, "t170:v1", ["prod"])
        r = self.untag(204, "t170", ["prod"])
        self.assertEqual(r.body, b"")
        self.alias(404, "t170%3Aprod")
        self.assertEqual(list(self.tags("t170")), ["v1"])
        self.untag(204, "acme/t170:default", ["V1"])  # "default" is no tag
        self.assertEqual(self.tags("t170"), {})

    def test_171_delete_what_is_not_there(self):
        self.ready("t171:v1")
        self.untag(204, "t171", ["never", "v1"])
        self.untag(204, "t171", ["v1"])
        self.untag(404, "nope", ["x"])

    def test_172_delete_default(self):
        b = self.ready("t172")
        for tags in [["default"], ["x", "Default"]]:
            self.assertEqual(self.untag(400, "t172", tags).message, "Cannot delete the 'default' tag")
        self.assertEqual(self.tags("t172"), {"default": b["buildID"]})

    def test_173_name_with_a_tag(self):
        self.ready("t173:v1")
        self.untag(400, "t173:v1", ["x"])
        self.untag(400, "nope:v1", ["x"])

    def test_174_tag_stays_while_the_next_build_runs(self):
        one = self.ready("t174:v1")
        two = self.create("t174:v1")
        self.assertEqual(self.build_of("t174:v1"), one["buildID"])
        self.server.records("start", two["buildID"])
        self.assertEqual(self.build_of("t174:v1"), one["buildID"])
        self.server.records("ready", two["buildID"])
        self.assertEqual(self.build_of("t174:v1"), two["buildID"])

    def test_175_tag_stays_when_it_fails(self):
        one, two = self.ready("t175:v1"), self.started("t175:v1")
        self.server.records("fail", two["buildID"], reason="x")
        self.assertEqual(self.build_of("t175:v1"), one["buildID"])
        self.assertEqual(list(self.tags("t175")), ["probe", "v1"])

    def test_176_last_to_finish_wins(self):
        one = self.started("t176:v1")
        two = self.started("t176:v1")  # records-tool triggers without cancelling the first (179 is about that)
        self.server.records("ready", two["buildID"])
        self.server.records("ready", one["buildID"])
        self.assertEqual(self.build_of("t176:v1"), one["buildID"])

    def test_177_latest_ready(self):
        self.ready("t177:v1")
        self.alias(200, "t177%3Adefault")
        self.alias(200, "t177")
        self.untag(204, "t177", ["v1"])
        self.alias(200, "t177%3Adefault")  # a build is there, whatever its tags

    def test_default_is_not_added(self):
        self.ready("tdef:v1", tags=["v2"])
        self.assertEqual(list(self.tags("tdef")), ["v1", "v2"])

    def test_survives_kill(self):
        b = self.ready("kept:v1")
        self.server.kill()
        self.server.start()
        self.assertEqual(self.alias(200, "kept%3Av1").json["templateID"], b["templateID"])

    def test_timestamps_move(self):
        self.ready("tmove:v1")

        def times():
            return {r["tag"]: r["createdAt"] for r in self.expect(200, "GET", "/templates/tmove/tags").json}

        self.assign(201, "tmove:v1", ["a"])
        before = times()
        self.assign(201, "tmove:v1", ["a"])
        after = times()
        self.assertEqual(before["v1"], after["v1"])
        self.assertLess(self.fraction(before["a"]), self.fraction(after["a"]))

    def fraction(self, text):
        """Sortable, whatever the number of digits."""
        seconds, digits = re.fullmatch(r"(.*?)(?:\.(\d+))?Z", text).groups()
        return seconds, (digits or "").ljust(9, "0")


if __name__ == "__main__":
    unittest.main()
