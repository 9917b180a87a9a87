"""The template API's conformance checklist (template-api 18) as far as it needs no VM; test names carry the item numbers."""
import concurrent.futures
import http.client
import json
import re
import socket
import unittest
import urllib.parse

from server import NIL_UUID, UUID, Server

HASH = "2b" * 32
UNKNOWN = "6f2f3a0e-6f0d-4a6e-9c1a-0c1f6f6f8a11"


class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server().start()
        cls.A, cls.G = cls.server.team("acme"), cls.server.team("globex")
        cls.S = cls.server.team("sys", "--system")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def call(self, method, path, body=None, key=None, **more):
        return self.server.request(method, path, body, key=key or self.A, **more)

    def expect(self, status, method, path, body=None, message=None, **more):
        r = self.call(method, path, body, **more)
        self.assertEqual(r.status, status, r.body)
        if status >= 400:
            self.assertTrue(r.headers["Content-Type"].startswith("application/json"))
            self.assertEqual(r.json["code"], status)
            self.assertIsInstance(r.message, str)
            if message:
                self.assertTrue(r.message.startswith(message), r.message)
        return r

    def create(self, name="web", key=None, **body):
        return self.expect(202, "POST", "/v3/templates", {"name": name, **body}, key=key).json

    def ready(self, name="web", key=None, **body):
        b = self.create(name, key, **body)
        self.server.make_ready(b["buildID"])
        return b

    def link(self, template, hash_=HASH, key=None):
        return self.expect(201, "GET", f"/templates/{template}/files/{hash_}", key=key).json

    def put(self, url, body=b"x" * 1000, method="PUT", **more):
        u = urllib.parse.urlsplit(url)
        return self.server.request(method, f"{u.path}?{u.query}", body, **{"key": None, **more})

    def status(self, b, key=None):
        return self.expect(200, "GET", f"/templates/{b['templateID']}/builds/{b['buildID']}/status", key=key).json

    def refuse(self, body, message=None):
        return self.expect(400, "POST", "/v3/templates", body, message=message)


class Transport(Base):
    def test_2_3_12_13_bodies(self):
        self.expect(202, "POST", "/v3/templates", {"name": "web", "foo": 1, "gzip": True}, chunked=True)
        self.expect(202, "POST", "/v3/templates", {"name": "web"})
        self.expect(400, "POST", "/v3/templates", "not json")
        self.expect(400, "POST", "/v3/templates", "[]")
        self.expect(400, "POST", "/v3/templates", "")

    def test_4_to_7_routing(self):
        self.ready("web:v2")
        self.expect(204, "DELETE", "/templates/tags", {"name": "web", "tags": ["x"]}, chunked=True)
        self.expect(200, "GET", "/templates/aliases/acme%2Fweb%3Av2")
        self.expect(200, "GET", "/templates/acme%2Fweb/tags")
        self.expect(200, "PATCH", "/v2/templates/acme%2Fweb", {})

    def test_8_9_unknown_routes(self):
        self.expect(404, "GET", "/templates/tags/x")
        self.expect(404, "GET", "/nothing")

    def test_10_keep_alive(self):
        c = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        for _ in range(3):
            self.assertEqual(self.call("GET", "/templates", connection=c).status, 200)
        c.close()

    def test_11_parallel(self):
        t = self.create("parallel")["templateID"]
        with concurrent.futures.ThreadPoolExecutor(50) as pool:
            done = list(pool.map(lambda i: self.call("GET", f"/templates/{t}/files/{i:064x}").status, range(50)))
        self.assertEqual(set(done), {201})


class Authentication(Base):
    def test_14_to_17(self):
        for method, path in [("POST", "/v3/templates"), ("POST", "/v2/templates"), ("GET", "/templates"), ("GET", "/v2/templates"),
                             ("GET", f"/templates/x/files/{HASH}"), ("PATCH", "/v2/templates/x"), ("DELETE", "/templates/x"),
                             ("POST", "/templates/tags"), ("GET", "/templates/aliases/x")]:
            for headers in [{}, {"X-API-KEY": "invalid-api-key"}, {"X-API-KEY": "e2b_" + "0" * 40}]:
                r = self.server.request(method, path, "not json" if method != "GET" else None, headers, key=None)
                self.assertEqual(r.status, 401, (method, path, headers, r.body))
                self.assertEqual(r.json["code"], 401)

    def test_18_21_keys(self):
        self.assertRegex(self.A, r"^e2b_[0-9a-f]{40}$")
        self.assertEqual(self.server.request("GET", "/templates", headers={"x-api-key": self.A}, key=None).status, 200)

    def test_blocked_team(self):
        key = self.server.team("blocked")
        self.create("web", key)
        self.server.admin("block-team", "blocked", "--reason", "unpaid")
        r = self.expect(403, "POST", "/v3/templates", {"name": "web"}, key=key)
        self.assertTrue(r.message.startswith("team is blocked"), r.message)
        self.expect(200, "GET", "/templates", key=key)
        self.expect(204, "DELETE", "/templates/web", key=key)


class Create(Base):
    def test_22_to_29(self):
        a = self.create("web")
        self.assertEqual((a["names"], a["aliases"], a["tags"], a["public"]), (["acme/web"], ["web"], ["default"], False))
        self.assertRegex(a["templateID"], r"^[a-z0-9]{20}$")
        self.assertRegex(a["buildID"], UUID)
        b = self.create("web")
        self.assertEqual(a["templateID"], b["templateID"])
        self.assertNotEqual(a["buildID"], b["buildID"])
        self.assertEqual(self.create("Web")["templateID"], a["templateID"])
        self.assertEqual(self.create("  web  :  v1  ")["tags"], ["v1"])
        self.assertEqual(set(self.create("web:v1", tags=["stable", "V1", "stable"])["tags"]), {"v1", "stable"})
        self.assertEqual(self.create("web:default")["tags"], ["default"])
        self.assertEqual(self.create("web", tags=["v9"])["tags"], ["v9"])
        self.assertEqual(self.create("acme/web")["templateID"], a["templateID"])

    def test_30_to_45_names(self):
        r = self.refuse({"name": "globex/web"})
        self.assertIn("globex", r.message)
        self.assertIn("acme", r.message)
        self.expect(202, "POST", "/v3/templates", {"alias": "web"})
        self.assertEqual(self.create("a1", alias="b1")["aliases"], ["a1"])
        self.refuse({}, "Name is required")
        for name in ["", "web:", "/web", "a/b/c", "web!", "my web", "w\u00e9b", "web.v1", f"web:{UNKNOWN}", "x" * 300, "a:b:c", "x/"]:
            self.refuse({"name": name})
        self.create("web:v1.0_x-y")
        for tag in [UNKNOWN, "", "a b", "v1!"]:
            self.refuse({"name": "web", "tags": [tag]})
        self.refuse({"name": "a" * 129}, "validation error")

    def test_45_to_56_resources(self):
        self.refuse({"name": "web", "cpuCount": 0}, "validation error")
        self.refuse({"name": "web", "cpuCount": 3}, "CPU count must be 1 or an even number")
        self.create("web", cpuCount=1)
        self.refuse({"name": "web", "cpuCount": 1024}, "CPU count must be at most 32")
        self.refuse({"name": "web", "cpuCount": 16}, "CPU count can't be higher than 8")
        self.refuse({"name": "web", "memoryMB": 32}, "validation error")
        self.refuse({"name": "web", "memoryMB": 1001}, "Memory must be divisible by 2")
        self.refuse({"name": "web", "memoryMB": 1048576}, "Memory can't be higher than")
        b = self.create("web")
        build = self.expect(200, "GET", f"/templates/{b['templateID']}").json["builds"][0]
        self.assertEqual((build["buildID"], build["cpuCount"], build["memoryMB"]), (b["buildID"], 2, 1024))
        self.refuse({"name": "web", "cpuCount": "2"})
        self.create("web", minFreeDiskMb=0)
        self.create("web", minFreeDiskMb=5000, teamID="other")

    def test_57_to_60(self):
        own, foreign = self.create("own"), self.create("foreign", self.G)
        self.expect(409, "POST", "/v3/templates", {"name": foreign["templateID"]})
        self.assertEqual(self.create(own["templateID"])["templateID"], own["templateID"])
        a, g = self.create("web"), self.create("web", self.G)
        self.assertNotEqual(a["templateID"], g["templateID"])
        self.assertEqual(g["names"], ["globex/web"])
        self.expect(204, "DELETE", "/templates/own")
        self.assertNotEqual(self.create("own")["templateID"], own["templateID"])

    def test_61_to_63_old(self):
        r = self.expect(202, "POST", "/v2/templates", {"alias": "old:v1", "cpuCount": 2, "memoryMB": 1024}).json
        keys = {"templateID", "buildID", "public", "aliases", "cpuCount", "memoryMB", "diskSizeMB", "createdAt", "updatedAt", "createdBy",
                "lastSpawnedAt", "spawnCount", "buildCount", "envdVersion"}
        self.assertLessEqual(keys, set(r))
        self.expect(400, "POST", "/v2/templates", {"cpuCount": 2})
        self.server.make_ready(r["buildID"])
        self.assertEqual([t["tag"] for t in self.expect(200, "GET", "/templates/old/tags").json], ["v1"])

    def test_182_to_185_limits(self):
        key = self.server.team("small", "--max-concurrent-builds", "1")
        first, second = self.create("web", key), self.create("web", key)
        self.assertEqual(self.status(first, key)["reason"]["message"], "The build was canceled because it was superseded by a newer one.")
        r = self.expect(429, "POST", "/v3/templates", {"name": "other"}, key=key)
        self.assertIsNone(r.headers["Retry-After"])
        self.create("web", key)
        self.server.make_ready(self.create("web", key)["buildID"])
        self.create("other", key)
        del second


class Upload(Base):
    def test_65_to_68_73_74_79_80(self):
        t, other, foreign = (self.create("up")["templateID"], self.create("up2")["templateID"], self.create("up", self.G)["templateID"])
        link = self.link(t)
        self.assertFalse(link["present"])
        self.assertEqual(urllib.parse.urlsplit(link["url"]).netloc, f"localhost:{self.server.port}")
        r = self.put(link["url"])
        self.assertEqual((r.status, r.headers["Content-Length"]), (200, "0"), r.body)
        self.assertTrue(self.link(t)["present"])
        self.assertIn("http", self.link(t)["url"])
        self.assertTrue(self.link(other)["present"])
        self.assertFalse(self.link(foreign, key=self.G)["present"])
        self.assertEqual(self.put(link["url"], b"y" * 100000, chunked=True).status, 200)

    def test_19_20_75_77_links(self):
        t = self.create("up")["templateID"]
        url = self.link(t, "3c" * 32)["url"]
        self.assertEqual(self.put(url, method="POST").status, 405)
        self.assertEqual(self.put(url, None, method="GET").status, 405)
        self.assertEqual(self.put(url[:-1] + ("0" if url[-1] != "0" else "1"), key=self.A).status, 403)
        self.assertEqual(self.put(url.replace("acme", "globex")).status, 403)
        self.assertEqual(self.put(url.replace("acme%2F", "acme%2F..%2F")).status, 400)
        self.assertEqual(self.put(re.sub("expires=[0-9]+", "expires=1", url)).status, 403)
        self.assertEqual(self.put(url.split("&token")[0]).status, 400)
        self.assertEqual(self.put(url, b"").status, 400)
        self.assertFalse(self.link(t, "3c" * 32)["present"])
        self.assertEqual(self.put(url).status, 200)

    def test_69_to_72_errors(self):
        t, foreign = self.create("up")["templateID"], self.create("up", self.G)["templateID"]
        for bad in ["a" * 63, "A" * 64, "..%2Fx"]:
            self.expect(400, "GET", f"/templates/{t}/files/{bad}", message="Invalid files hash")
        for unknown in ["a" * 20, foreign, "up"]:
            self.expect(404, "GET", f"/templates/{unknown}/files/{HASH}")

    def test_78_cut(self):
        t = self.create("up")["templateID"]
        url = self.link(t, "4d" * 32)["url"]
        u = urllib.parse.urlsplit(url)
        s = socket.create_connection(("127.0.0.1", self.server.port))
        s.sendall(f"PUT {u.path}?{u.query} HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n".encode() + b"z" * 1000)
        s.close()
        self.assertFalse(self.link(t, "4d" * 32)["present"])
        self.assertEqual(self.put(url).status, 200)
        self.assertTrue(self.link(t, "4d" * 32)["present"])


class Trigger(Base):
    """Without a kit a trigger that is right in everything answers 503; what is wrong is told before."""

    def trigger(self, status, body, b=None, message=None, **more):
        b = b or self.create("trig")
        return self.expect(status, "POST", f"/v2/templates/{b['templateID']}/builds/{b['buildID']}", body, message=message, **more)

    def test_82_13_no_builder(self):
        self.trigger(503, {"fromImage": "alpine", "steps": [{"type": "run", "args": ["true"], "foo": 1}], "startCmd": "", "readyCmd": ""})

    def test_83_to_88(self):
        body, b = {"fromImage": "alpine", "steps": []}, self.create("trig")
        self.trigger(400, body, {**b, "buildID": "x"})
        self.trigger(404, body, {**b, "buildID": UNKNOWN})
        self.trigger(404, body, {**b, "templateID": self.create("trig2")["templateID"]})
        self.trigger(403, body, b, key=self.G)
        self.trigger(400, {**body, "fromTemplate": "x"}, message="only one of fromImage and fromTemplate can be given")
        for none in [{}, {"fromImage": ""}, {"fromImage": None, "fromTemplate": ""}]:
            self.trigger(400, {"steps": [], **none}, message="one of fromImage and fromTemplate is required")
        self.server.make_ready(b["buildID"])

    def test_86_not_waiting(self):
        b = self.ready("trig3")
        self.trigger(400, {"fromImage": "alpine"}, b, "build is not in waiting state")

    def test_89_to_98(self):
        def step(**s):
            return {"fromImage": "alpine", "steps": [s]}

        copy = dict(type="COPY", args=["a", "/b", "", ""], filesHash=HASH)
        for bad, message in [
                (dict(type="VOLUME", args=[]), "command type VOLUME is not implemented"),
                (dict(type="volume", args=[]), "command type VOLUME is not implemented"),
                (dict(type=""), "validation error: steps[0].type is required"),
                (dict(args=["x"]), "validation error: steps[0].type is required"),
                (dict(type=7), "validation error: type must be a string"),
                (dict(type="RUN", args="x"), "validation error: steps[0].args must be an array of strings"),
                (dict(type="RUN", args=[None]), "validation error: steps[0].args[0] must be a string"),
                (dict(type="RUN", args=["x" * 130000]), "validation error: steps[0].args[0] is longer than"),
                (dict(type="RUN", args=["x"], force="yes"), "validation error: force must be a boolean"),
                (dict(type="RUN", args=[]), "RUN requires command argument"),
                (dict(type="RUN"), "RUN requires command argument"),
                (dict(type="WORKDIR"), "WORKDIR requires a path argument"),
                (dict(type="WORKDIR", args=["/a\n/b"]), "WORKDIR path must be one line"),
                (dict(type="USER", args=[]), "USER requires a username argument"),
                (dict(type="ENV", args=[]), "ENV does not support passing no arguments"),
                (dict(type="arg"), "ARG does not support passing no arguments"),
                (dict(type="ENV", args=["a", "b", "c"]), "ENV requires both a key and value arguments"),
                (dict(type="ENV", args=["=b", "c"]), "ENV key '=b' must be a name"),
                ({**copy, "args": ["a"]}, "COPY requires a local path and a container path argument"),
                ({**copy, "filesHash": None}, "COPY requires files hash to be set"),
                ({**copy, "type": "ADD", "filesHash": ""}, "ADD requires files hash to be set"),
                ({**copy, "filesHash": "../../../etc/passwd"}, "Invalid files hash"),
                ({**copy, "filesHash": HASH.upper()}, "Invalid files hash"),
                ({**copy, "filesHash": HASH[:-1]}, "Invalid files hash"),
                ({**copy, "args": ["../a", "/b"]}, "COPY source '../a' leaves the build context"),
                ({**copy, "args": ["a", "/b", "", "rwx"]}, "COPY mode 'rwx' is not an octal number"),
        ]:
            with self.subTest(bad=str(bad)[:80]):
                self.trigger(400, step(**bad), message=message)
        self.trigger(400, step(type="RUN", args=["a\0b"]), message="validation error: steps[0].args[0] holds a NUL character")
        self.trigger(400, {"fromImage": "alpine", "startCmd": "a\0b"}, message="validation error: startCmd holds a NUL character")
        self.trigger(400, {"fromImage": "alpine", "steps": {}}, message="validation error: steps must be an array")
        self.trigger(400, {"fromImage": "alpine", "steps": [7]}, message="validation error: steps[0] must be an object")
        self.trigger(400, {"fromImage": "alpine", "steps": [dict(type="RUN", args=["x"])] * 1001}, message="validation error: more than 1000 steps")
        # A hash is COPY's alone: elsewhere it is no path on the host, but ignored like any unknown member.
        self.trigger(503, step(type="RUN", args=["x"], filesHash="../../../etc/passwd"))
        for registry in [{"type": "foo"}, {"type": "registry", "username": "u"}]:
            self.trigger(400, {"fromImage": "alpine", "fromImageRegistry": registry})
        r = self.trigger(400, {"fromImage": "alpine"}, headers={"User-Agent": "e2b-js-sdk/xyz"})
        self.assertIn("user agent", r.message)


    def test_95_missing_upload(self):
        """The trigger looks: the build is an error at once with the step's number, whatever a builder would say."""
        missing = "5e" * 32
        b = self.create("copies")
        body = {"fromImage": "alpine", "steps": [{"type": "COPY", "args": ["a", "/b", "", ""], "filesHash": HASH}, {"type": "RUN", "args": ["true"]},
                                                 {"type": "add", "args": ["c", "/d", "", ""], "filesHash": missing}]}
        self.assertEqual(self.put(self.link(b["templateID"])["url"]).status, 200)
        r = self.trigger(202, body, b)
        self.assertEqual((r.headers["Content-Length"], r.body), ("0", b""))
        r = self.status(b)
        self.assertEqual((r["status"], r["reason"]["step"]), ("error", "3"))
        reason = f"COPY c: the files (hash {missing}) were not uploaded; run the build again with its context, which uploads them"
        self.assertEqual(r["reason"]["message"], reason)
        self.assertEqual([(e["level"], e["message"]) for e in r["logEntries"]], [("error", f"Build failed: {reason}")])
        self.trigger(400, body, b, "build is not in waiting state")
        # Another team's upload is none of ours.
        foreign = self.create("copies", self.G)
        self.trigger(202, {**body, "steps": body["steps"][:1]}, foreign, key=self.G)
        self.assertEqual(self.status(foreign, self.G)["reason"]["step"], "1")
        # With all of them there, it is for the builder to answer.
        b = self.create("copies")
        self.assertEqual(self.put(self.link(b["templateID"], missing)["url"]).status, 200)
        self.trigger(503, body, b)
        self.assertEqual(self.status(b)["status"], "waiting")


class Status(Base):
    def path(self, b, rest="status"):
        return f"/templates/{b['templateID']}/builds/{b['buildID']}/{rest}"

    def test_104_to_115(self):
        b = self.create("st")
        r = self.expect(200, "GET", self.path(b)).json
        self.assertEqual(r, {"templateID": b["templateID"], "buildID": b["buildID"], "status": "waiting", "logs": [], "logEntries": []})
        self.assertEqual(self.expect(200, "GET", self.path(b) + "?logsOffset=1000&limit=100&level=warn").json["logEntries"], [])
        for query in ["limit=101", "limit=-1", "level=trace", "logsOffset=-1", "logsOffset=x"]:
            self.expect(400, "GET", self.path(b) + "?" + query, message="validation error")
        self.expect(400, "GET", self.path({**b, "buildID": "x"}), message="Invalid build id")
        self.expect(400, "GET", self.path({**b, "buildID": UNKNOWN}), message=f"Build '{UNKNOWN}' not found")
        self.expect(403, "GET", self.path(b), key=self.G)
        self.assertEqual(self.expect(200, "GET", self.path(b, "logs") + "?direction=backward&limit=5").json, {"logs": []})
        self.expect(400, "GET", self.path(b, "logs") + "?direction=up")

    def test_16_3_deleted(self):
        b = self.create("gone")
        self.expect(204, "DELETE", "/templates/gone")
        self.expect(400, "GET", self.path(b), message="Build '")
        self.expect(404, "GET", f"/templates/{b['templateID']}")
        self.expect(404, "GET", f"/templates/{b['templateID']}/tags")


class Lists(Base):
    def test_127_to_135(self):
        key = self.server.team("lister")
        names = ["one", "two", "three"]
        builds = [self.create(n, key) for n in names]
        rows = self.expect(200, "GET", "/templates", key=key).json
        self.assertEqual([r["aliases"] for r in rows], [[n] for n in names])
        self.assertLessEqual({"templateID", "buildID", "cpuCount", "memoryMB", "diskSizeMB", "public", "aliases", "names", "createdAt",
                              "updatedAt", "createdBy", "lastSpawnedAt", "spawnCount", "buildCount", "envdVersion", "buildStatus"}, set(rows[0]))
        self.assertEqual((rows[0]["buildID"], rows[0]["cpuCount"], rows[0]["buildStatus"], rows[0]["envdVersion"]), (NIL_UUID, 0, "waiting", ""))
        self.server.make_ready(builds[0]["buildID"])
        row = self.expect(200, "GET", "/templates", key=key).json[0]
        self.assertEqual((row["buildID"], row["cpuCount"], row["buildStatus"]), (builds[0]["buildID"], 2, "ready"))
        team = [t for t in json.loads(self.server.admin("list-teams", "--json").stdout) if t["slug"] == "lister"][0]
        self.expect(200, "GET", f"/templates?teamID={team['id']}", key=key)
        self.expect(400, "GET", f"/templates?teamID={UNKNOWN}", key=key, message="Team ID param mismatch with the API key")
        seen, token = [], None
        for page in range(3):
            r = self.expect(200, "GET", "/v2/templates?limit=1" + (f"&nextToken={token}" if token else ""), key=key)
            seen += [t["aliases"][0] for t in r.json]
            token = r.headers["X-Next-Token"]
            self.assertEqual(token is None, page == 2)
        self.assertEqual(seen, names[::-1])
        for query in ["limit=0", "limit=101"]:
            self.expect(400, "GET", "/v2/templates?" + query, key=key)
        self.expect(400, "GET", "/v2/templates?nextToken=zzz", key=key, message="Invalid next token")
        t = builds[0]["templateID"]
        self.create("one", key)
        r = self.expect(200, "GET", f"/templates/{t}?limit=1", key=key)
        self.assertEqual(len(r.json["builds"]), 1)
        r = self.expect(200, "GET", f"/templates/{t}?limit=1&nextToken={r.headers['X-Next-Token']}", key=key)
        self.assertEqual(r.json["builds"][0]["buildID"], builds[0]["buildID"])
        self.assertIsNone(r.headers["X-Next-Token"])
        self.expect(404, "GET", "/templates/one", key=key)
        self.expect(403, "GET", f"/templates/{t}", key=self.G)

    def test_136_to_146(self):
        b = self.ready("pub")
        r = self.expect(200, "PATCH", "/v2/templates/pub", {"public": True})
        self.assertEqual(r.json, {"names": ["acme/pub"]})
        self.assertTrue([t for t in self.expect(200, "GET", "/templates").json if t["aliases"] == ["pub"]][0]["public"])
        self.expect(200, "PATCH", "/v2/templates/pub", {})
        self.expect(400, "PATCH", "/v2/templates/pub", {"public": "yes"})
        self.expect(403, "PATCH", f"/v2/templates/{b['templateID']}", {"public": True}, key=self.G)
        self.expect(403, "GET", "/templates/aliases/acme%2Fpub", key=self.G)
        self.expect(404, "GET", "/templates/aliases/pub", key=self.G)
        self.assertEqual(self.expect(200, "PATCH", "/templates/pub", {"public": False}).json, None)
        self.expect(404, "PATCH", "/v2/templates/nope", {"public": True})
        self.expect(404, "DELETE", "/templates/pub", key=self.G)
        self.expect(403, "DELETE", f"/templates/{b['templateID']}", key=self.G)
        r = self.expect(204, "DELETE", "/templates/pub")
        self.assertEqual(r.body, b"")
        self.expect(404, "DELETE", "/templates/pub")
        self.assertNotEqual(self.create("pub")["templateID"], b["templateID"])

    def test_141_142_153_bare(self):
        self.ready("base", self.S)
        self.expect(404, "GET", "/templates/aliases/base")
        self.assertEqual(set(self.expect(200, "PATCH", "/v2/templates/base", {"public": True}, key=self.S).json["names"]), {"sys/base", "base"})
        self.expect(403, "GET", "/templates/aliases/base")
        self.expect(200, "PATCH", "/v2/templates/base", {"public": False}, key=self.S)
        self.expect(404, "GET", "/templates/aliases/base")
        self.expect(403, "GET", "/templates/aliases/sys%2Fbase")

    def test_151_v1(self):
        for path in ["/templates", "/templates/x", f"/templates/x/builds/{UNKNOWN}"]:
            self.expect(404, "POST", path, {})


class Tags(Base):
    def test_152_to_158_aliases(self):
        b = self.ready("al:v2")
        t = b["templateID"]
        self.assertEqual(self.expect(200, "GET", "/templates/aliases/al").json, {"templateID": t, "public": False})
        self.expect(404, "GET", "/templates/aliases/unknown")
        self.expect(200, "GET", "/templates/aliases/al%3Av2")
        self.expect(404, "GET", "/templates/aliases/al%3Anope", message="tag 'nope' does not exist for template 'al'")
        self.expect(200, "GET", "/templates/aliases/al%3Adefault")
        self.create("empty")
        self.expect(200, "GET", "/templates/aliases/empty")
        self.expect(404, "GET", "/templates/aliases/empty%3Adefault")
        self.expect(200, "GET", f"/templates/aliases/al%3A{b['buildID']}")
        self.expect(400, "GET", "/templates/aliases/al!", message="Invalid alias format: ")
        self.expect(403, "GET", f"/templates/aliases/{t}", key=self.G)

    def assign(self, status, target, tags, **more):
        return self.expect(status, "POST", "/templates/tags", {"target": target, "tags": tags}, **more)

    def test_159_to_173_tags(self):
        one, two = self.ready("tg:v1"), self.ready("tg")
        t = one["templateID"]
        self.assertEqual(self.assign(201, "tg:v1", ["prod"]).json, {"tags": ["prod"], "buildID": one["buildID"]})
        self.assertEqual(self.assign(201, "tg", ["latest"]).json["buildID"], two["buildID"])
        self.assertEqual(self.assign(201, f"{t}:default", ["x"]).json["buildID"], two["buildID"])
        self.assertEqual(self.assign(201, f"tg:{one['buildID']}", ["y"]).json["buildID"], one["buildID"])
        self.assign(400, "tg", [], message="At least one tag is required")
        for bad in ["", ":x", "web:", UNKNOWN]:
            self.assign(400, "tg", [bad])
        self.assign(404, "tg:nope", ["z"])
        self.assign(404, f"tg:{self.create('tg:pending')['buildID']}", ["z"])
        self.assign(400, "globex/tg", ["z"])
        self.assign(403, t, ["z"], key=self.G)
        self.assertEqual(self.assign(201, "tg:v1", ["default"]).json["buildID"], one["buildID"])
        rows = self.expect(200, "GET", "/templates/tg/tags").json
        self.assertEqual([r["tag"] for r in rows], ["default", "latest", "prod", "v1", "x", "y"])
        self.assertEqual(set(rows[0]), {"tag", "buildID", "createdAt"})
        self.expect(403, "GET", f"/templates/{t}/tags", key=self.G)
        self.expect(404, "GET", "/templates/nope/tags")

        def delete(status, name, tags, message=None):
            self.expect(status, "DELETE", "/templates/tags", {"name": name, "tags": tags}, message=message)

        delete(204, "tg", ["prod"])
        self.expect(404, "GET", "/templates/aliases/tg%3Aprod")
        delete(204, "tg", ["never"])
        delete(400, "tg", ["default"], "Cannot delete the 'default' tag")
        delete(400, "tg", [], "At least one tag is required")
        delete(400, "tg:v1", ["x"])
        delete(404, "nope", ["x"])

    def test_survives_kill(self):
        b = self.ready("kept:v1")
        self.server.kill()
        self.server.start()
        self.assertEqual(self.expect(200, "GET", "/templates/aliases/kept%3Av1").json["templateID"], b["templateID"])


class Admin(Base):
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
