"""Who may do what: each endpoint with a key of the own team, of another team (on a private and on a public template), with a revoked key and
without one. Another team's key never sees or touches what is not its own."""
import json
import os
import time
import unittest

from template_case import HASH, TemplateCase

CREATE = {"cpuCount": 1, "memoryMB": 512}

# method, path, body, then the statuses for: own key, other team's key on a private template, and on a public one.
MATRIX = [
    ("GET", "/templates/{id}", None, 200, 403, 403),
    ("GET", "/templates/aliases/{slug}%2F{name}", None, 200, 403, 403),
    ("GET", "/templates/{id}/files/" + HASH, None, 201, 404, 404),
    ("GET", "/templates/{id}/tags", None, 200, 403, 403),
    ("GET", "/templates/{id}/builds/{build}/status", None, 200, 403, 403),
    ("GET", "/templates/{id}/builds/{build}/logs", None, 200, 403, 403),
    ("PATCH", "/templates/{id}", {"public": None}, 200, 403, 403),
    ("PATCH", "/v2/templates/{id}", {"public": None}, 200, 403, 403),
    ("POST", "/v2/templates/{id}/builds/{build}", {"fromImage": "busybox"}, 400, 403, 403),
    ("POST", "/templates/tags", {"target": "{slug}/{name}", "tags": ["stolen"]}, 201, 400, 400),
    ("POST", "/templates/tags", {"target": "{id}", "tags": ["stolen"]}, 201, 403, 403),
    ("DELETE", "/templates/tags", {"name": "{slug}/{name}", "tags": ["extra"]}, 204, 400, 400),
    ("DELETE", "/templates/tags", {"name": "{id}", "tags": ["extra"]}, 204, 403, 403),
    ("DELETE", "/templates/{id}", None, 204, 403, 403),
]
NO_TEMPLATE = [("GET", "/templates", None), ("GET", "/v2/templates", None), ("POST", "/v3/templates", {"name": "x", **CREATE}),
               ("POST", "/v2/templates", {"alias": "x", **CREATE}), ("GET", "/v2/sandboxes", None), ("GET", "/sandboxes", None),
               ("POST", "/sandboxes", {"templateID": "x"})]


class Access(TemplateCase):
    def fill(self, value, t, public):
        if isinstance(value, str):
            return value.format(**t)
        if isinstance(value, dict):
            return {k: public if v is None else self.fill(v, t, public) for k, v in value.items()}
        if isinstance(value, list):
            return [self.fill(v, t, public) for v in value]
        return value

    def template(self, name, public):
        b = self.ready(name)
        if public:
            self.publish(b["templateID"])
        self.expect(201, "POST", "/templates/tags", {"target": name, "tags": ["extra"]})
        return {"id": b["templateID"], "build": b["buildID"], "slug": "acme", "name": name}

    def snapshot(self, t):
        """Everything that the owner sees of a template."""
        return [self.expect(200, "GET", f"/templates/{t['id']}{rest}").json for rest in ("", "/tags")]

    def test_s22_the_matrix(self):
        wrong = []
        for public in (False, True):
            t = self.template("pub" if public else "priv", public)
            before, other_before = self.snapshot(t), self.expect(200, "GET", "/templates", key=self.G).json
            for method, path, body, own, private, public_status in MATRIX:
                expected = public_status if public else private
                for key, who, status in ((self.G, "other", expected), (None, "none", 401), ("e2b_" + "0" * 40, "unknown", 401)):
                    r = self.server.request(method, self.fill(path, t, False), self.fill(body, t, False), key=key)
                    if r.status != status:
                        wrong.append((public, who, method, path, r.status, status, r.body[:100]))
                    if r.status >= 400:
                        self.assertNotIn(t["build"].encode(), r.body if "{build}" not in path else b"")
            self.assertEqual(self.snapshot(t), before)
            self.assertEqual(self.expect(200, "GET", "/templates", key=self.G).json, other_before)
            for method, path, body, own, *_ in MATRIX:
                r = self.server.request(method, self.fill(path, t, public), self.fill(body, t, public), key=self.A)
                if r.status != own:
                    wrong.append((public, "own", method, path, r.status, own, r.body[:100]))
        self.assertEqual(wrong, [], "\n" + "\n".join(map(str, wrong)))

    def test_without_a_key_nothing_answers(self):
        for method, path, body in NO_TEMPLATE:
            self.assertEqual(self.server.request(method, path, body, key=None).status, 401, path)

    def test_lists_hold_the_own_only(self):
        self.ready("mine")
        t = self.ready("theirs", self.G)["templateID"]
        self.publish(t, key=self.G)
        self.assertNotIn(t, [x["templateID"] for x in self.expect(200, "GET", "/templates").json])

    def test_revocation_is_effective_at_once(self):
        connection = self.server.connection()
        key = self.server.admin("create-key", "acme").stdout.strip()
        for _ in range(20):  # whatever might be remembered of it
            self.assertEqual(self.server.request("GET", "/templates", key=key, connection=connection).status, 200)
        rows = json.loads(self.server.admin("list-keys", "acme", "--json").stdout)
        key_id = next(r["id"] for r in rows if r["hint"].endswith(key[-4:]))
        self.server.admin("revoke-key", key_id)
        self.assertEqual(self.server.request("GET", "/templates", key=key, connection=connection).status, 401)
        self.assertEqual(self.server.request("GET", "/templates", key=key).status, 401)
        connection.close()

    def test_keys_are_hashed_at_rest(self):
        for key in (self.A, self.G, self.S):
            for name in os.listdir(self.server.data):
                path = os.path.join(self.server.data, name)
                if os.path.isfile(path) and name != "default-key":
                    with open(path, "rb") as f:
                        content = f.read()
                    self.assertNotIn(key[4:].encode(), content, name)
                    self.assertNotIn(bytes.fromhex(key[4:]), content, name)

    def test_limit_request_rate(self):
        key = self.server.team("slow", "--max-requests-per-second", "5")
        statuses = [self.server.request("GET", "/templates", key=key).status for _ in range(60)]
        self.assertEqual(statuses[:5], [200] * 5)
        self.assertIn(429, statuses)
        self.expect(200, "GET", "/templates")  # another team's
        self.server.admin("set-limits", "slow", "--max-requests-per-second", "0")
        self.assertEqual([self.server.request("GET", "/templates", key=key).status for _ in range(20)], [200] * 20)

    def test_limit_log(self):
        key = self.server.team("quiet", "--max-log-mb", "1")
        b = self.create("talks", key)
        self.server.records("start", b["buildID"])
        for i in range(3):
            self.server.records("log", b["buildID"], entries=[{"level": 1, "step": "1", "message": f"{i}" + "x" * 400_000}])
        self.server.records("log", b["buildID"], entries=[{"level": 3, "message": "Build failed: of itself"}])
        path = f"/templates/{b['templateID']}/builds/{b['buildID']}/status"
        entries = self.expect(200, "GET", path, key=key).json["logEntries"]
        self.assertEqual(sum("x" * 100 in e["message"] for e in entries), 2 * 13)  # pieces of at most 32 KiB
        self.assertEqual([e["message"] for e in entries[-2:]], ["[log limit reached: later output of this build is not kept]", "Build failed: of itself"])

    def test_limit_context_size_and_quota(self):
        key = self.server.team("small", "--max-context-mb", "1", "--max-contexts-mb", "2")
        t = self.create("up", key)["templateID"]
        put = lambda digit, size, **more: self.put(self.link(t, digit * 64, key)["url"], os.urandom(size), **more)
        self.check_error(put("a", (1 << 20) + 1), 413, "the request body is too large (limit: 1048576 bytes)")
        self.assertEqual(put("a", 1 << 20).status, 200)
        self.assertEqual(put("b", 900_000).status, 200)
        r = put("c", 900_000)
        self.check_error(r, 429, "upload: the team's build contexts take")
        self.assertIn("max_contexts_mb", r.message)
        self.assertEqual(put("c", 900_000, chunked=True).status, 413)  # of no length: cut where the room ends
        path = os.path.join(self.server.data, "files/small")
        deadline = time.monotonic() + 10  # what was begun is removed after the answer
        while (names := sorted(os.listdir(path))) != ["a" * 64, "b" * 64] and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual(names, ["a" * 64, "b" * 64])
        old = os.stat(path).st_mtime - 2 * 86400
        os.utime(os.path.join(path, "a" * 64), (old, old))
        self.assertEqual(put("c", 900_000).status, 200)  # what nobody used for a day has made room
        self.assertEqual(sorted(os.listdir(path)), ["b" * 64, "c" * 64])


if __name__ == "__main__":
    unittest.main()
