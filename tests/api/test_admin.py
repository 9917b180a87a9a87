"""`vmon admin` against a running server: teams, keys, limits, builds."""
import json
import unittest

from template_case import TemplateCase


class Admin(TemplateCase):
    def test_keys_and_teams(self):
        self.server.admin("create-team", "Ad Min")
        key = self.server.admin("create-key", "ad-min").stdout.strip()
        self.expect(200, "GET", "/templates", key=key)
        rows = json.loads(self.server.admin("list-keys", "ad-min", "--json").stdout)
        self.assertEqual(len(rows), 1)
        self.assertNotIn(key[4:], str(rows))
        self.server.admin("revoke-key", rows[0]["id"])
        self.expect(401, "GET", "/templates", key=key)
        r = self.server.admin("create-team", "ad min", ok=False)
        self.assertEqual(r.returncode, 1)
        self.assertIn("--slug", r.stderr)
        self.server.admin("set-limits", "ad-min", "--max-vcpus", "4")
        self.assertEqual(self.server.admin("set-limits", "ad-min", "--max-vcpus", "99", ok=False).returncode, 1)
        self.assertEqual(self.server.admin("nonsense", ok=False).returncode, 2)
        self.server.admin("delete-team", "ad-min")
        self.assertIn("acme", self.server.admin("list-teams").stdout)
        self.assertEqual(self.server.request("GET", "/cluster/teams", key=self.A).status, 404)

    def test_list_builds(self):
        b = self.create("adm")
        self.assertIn(b["buildID"], self.server.admin("list-builds").stdout)


if __name__ == "__main__":
    unittest.main()
