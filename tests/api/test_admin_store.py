#!/usr/bin/env python3
"""vmon admin: audit log, cordon and drain, backup and restore."""
import json
import os
import shutil
import sqlite3
import subprocess
import unittest

from server import VMON, Server


class AdminTest(unittest.TestCase):
    def setUp(self):
        self.server = Server().start()
        self.addCleanup(lambda: self.server.stop())

    def audit(self, *options):
        return json.loads(self.server.admin("audit", "--json", *options).stdout)

    def restore(self, file, data, *options):
        return subprocess.run([VMON, "admin", "restore", file, "--data-dir", data, *options], capture_output=True, text=True, timeout=60)

    def template(self, key, name):
        answer = self.server.request("POST", "/v3/templates", {"name": name, "cpuCount": 1, "memoryMB": 512}, key=key)
        self.assertEqual(answer.status, 202, answer.body)
        return answer.json

    def test_audit_says_who_did_what(self):
        s = self.server
        key = s.team("crew", "--max-vcpus", "4")
        s.admin("set-limits", "crew", "--max-sandboxes", "7")
        self.assertNotEqual(s.admin("create-team", "crew", ok=False).returncode, 0)
        key_id = json.loads(s.admin("list-keys", "crew", "--json").stdout)[0]["id"]
        s.admin("revoke-key", key_id)
        s.admin("delete-team", "crew")
        entries = self.audit()
        self.assertEqual([(e["action"], e.get("target"), e["status"]) for e in entries],
                         [("create-team", "crew", 201), ("create-key", "crew", 201), ("change-team", "crew", 200), ("create-team", "crew", 409),
                          ("revoke-key", key_id, 204), ("delete-team", "crew", 204)])
        self.assertEqual(json.loads(entries[2]["detail"]), {"max_sandboxes": 7})
        self.assertIn("exists already", entries[3]["error"])
        for e in entries:
            self.assertRegex(e["actor"], r"^\w+@127\.0\.0\.1")
            self.assertRegex(e["time"], r"^2\d{3}-.*Z$")
        self.assertNotIn(key, json.dumps(entries))
        self.assertEqual([e["action"] for e in self.audit("--limit", "2")], ["revoke-key", "delete-team"])
        self.assertEqual(len(s.admin("audit").stdout.splitlines()), 7)
        s.kill()  # what was answered is durable
        s.start()
        self.assertEqual(self.audit(), entries)

    def test_cordon_and_drain(self):
        s = self.server
        node = json.loads(s.admin("list-nodes", "--json").stdout)[0]["name"]
        registered = self.template(s.key, "web")
        self.assertNotEqual(s.admin("cordon", "elsewhere", ok=False).returncode, 0)
        s.admin("cordon", node)
        s.terminate()
        s.start()  # the mark outlives a restart
        trigger = s.request("POST", f"/v2/templates/{registered['templateID']}/builds/{registered['buildID']}", {"fromImage": "busybox"})
        self.assertEqual(trigger.status, 503)
        self.assertIn("cordoned", trigger.message)
        s.make_ready(registered["buildID"])
        create = s.request("POST", "/sandboxes", {"templateID": "web"})
        self.assertEqual(create.status, 503)
        self.assertIn("cordoned", create.message)
        self.assertIn("is drained", s.admin("drain", node, "--timeout", "5").stdout)
        s.admin("uncordon", node)
        create = s.request("POST", "/sandboxes", {"templateID": "web"})
        self.assertNotIn("cordoned", create.message)  # there is no kit, which is another matter

    def test_drain_waits_for_builds(self):
        s = self.server
        node = json.loads(s.admin("list-nodes", "--json").stdout)[0]["name"]
        build = self.template(s.key, "web")["buildID"]
        db = sqlite3.connect(os.path.join(s.data, "vmon.db"), timeout=30)
        with db:
            db.execute("UPDATE kv SET value = CAST(json_set(CAST(value AS TEXT), '$.state', 'building') AS BLOB) WHERE key = ?", (f"build/{build}",))
        result = s.admin("drain", node, "--timeout", "1", ok=False)
        self.assertEqual(result.returncode, 1)
        self.assertIn("0 sandboxes and 1 builds still run", result.stderr)
        db.close()

    def test_backup_and_restore_drill(self):
        s = self.server
        key = s.team("crew")
        ready = self.template(key, "web:v1")
        s.make_ready(ready["buildID"])
        backup = os.path.join(s.directory, "backup.db")
        s.admin("backup", backup)
        self.assertEqual(os.stat(backup).st_mode & 0o777, 0o600)
        later = s.team("later")
        again = s.admin("backup", backup, ok=False)
        self.assertEqual(again.returncode, 1)
        self.assertIn("exists already", again.stderr)
        self.assertEqual([n for n in os.listdir(s.directory) if n.endswith(".tmp")], [])
        # Into a fresh data directory: only with the old one's root secret.
        fresh = os.path.join(s.directory, "fresh")
        os.mkdir(fresh)
        result = self.restore(backup, fresh)
        self.assertEqual(result.returncode, 1)
        self.assertIn("root-secret", result.stderr)
        with open(os.path.join(fresh, "root-secret"), "wb") as f:
            f.write(bytes(32))
        self.assertIn("root secret is not the one", self.restore(backup, fresh).stderr)
        shutil.copy(os.path.join(s.data, "root-secret"), fresh)
        drill = self.restore(backup, fresh, "--dry-run")
        self.assertEqual(drill.stdout, f"could restore 2 teams and 1 templates into {fresh}\n", drill.stderr)
        self.assertFalse(os.path.exists(os.path.join(fresh, "vmon.db")))
        self.assertEqual(self.restore(backup, fresh).stdout, f"restored 2 teams and 1 templates in {fresh}\n")
        self.assertIn("exists: move it away", self.restore(backup, fresh).stderr)
        self.assertEqual([n for n in os.listdir(fresh) if n.startswith("restore-") or n.endswith(".tmp")], [])
        # What was there at the time of the backup works, with its keys; what came later is not there.
        key_of_default = s.key
        s.terminate()
        shutil.copy(os.path.join(s.data, "default-key"), fresh)
        s.data = fresh
        s.start()
        self.assertEqual(s.request("GET", "/templates/aliases/web", key=key).json["templateID"], ready["templateID"])
        self.assertEqual(s.request("GET", "/templates", key=key_of_default).status, 200)
        self.assertEqual(s.request("GET", "/templates", key=later).status, 401)

    def test_backup_is_consistent_while_the_server_writes(self):
        s = self.server
        for n in range(5):
            backup = os.path.join(s.directory, f"backup{n}.db")
            writer = subprocess.Popen([VMON, "admin", "--cluster-url", f"http://127.0.0.1:{s.cluster_port}", "--data-dir", s.data, "backup", backup],
                                      stdout=subprocess.DEVNULL)
            count = 0
            while writer.poll() is None or count == 0:
                self.template(s.key, f"web{n}-{count % 15}")
                count += 1
            self.assertEqual(writer.returncode, 0)
            db = sqlite3.connect(backup)
            self.assertEqual(db.execute("PRAGMA integrity_check").fetchone()[0], "ok")
            keys = {k for k, in db.execute("SELECT key FROM kv")}
            db.close()
            # A registration writes the template, its alias and the build in one transaction.
            for k in keys:
                if k.startswith("alias/"):
                    self.assertEqual(len([t for t in keys if t.startswith("template/")]), len([a for a in keys if a.startswith("alias/")]))
                if k.startswith("template-build/"):
                    self.assertIn("build/" + k.rsplit("/", 1)[1], keys)
            for build in json.loads(s.admin("list-builds", "--json").stdout):
                s.make_ready(build["buildID"])

    def test_restore_refuses_what_is_no_backup(self):
        s = self.server
        fresh = os.path.join(s.directory, "fresh")
        os.mkdir(fresh)
        shutil.copy(os.path.join(s.data, "root-secret"), fresh)
        backup = os.path.join(s.directory, "backup.db")
        s.admin("backup", backup)
        with open(backup, "rb") as f:
            whole = f.read()
        empty, damaged, text = (os.path.join(s.directory, n) for n in ("empty", "damaged", "text"))
        for path, content in ((empty, b""), (damaged, whole[:8192] + os.urandom(4096) + whole[12288:]), (text, b"not a database" * 100)):
            with open(path, "wb") as f:
                f.write(content)
            result = self.restore(path, fresh)
            self.assertEqual(result.returncode, 1, path)
            self.assertEqual(len(result.stderr.splitlines()), 1)
            self.assertFalse(os.path.exists(os.path.join(fresh, "vmon.db")), path)
        self.assertEqual(self.restore(os.path.join(s.directory, "missing"), fresh).returncode, 1)
        in_use = self.restore(backup, s.data)
        self.assertIn("another vmon serve", in_use.stderr)


if __name__ == "__main__":
    unittest.main()
