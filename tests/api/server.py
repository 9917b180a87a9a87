"""A real `vmon serve` on free loopback ports with a temporary data directory, and a small client. No kit is needed."""
import http.client
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import tempfile
import time

VMON = os.environ.get("VMON", os.path.join(os.path.dirname(__file__), "../../build/vmon"))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def message(self):
        return self.json["message"]


class Server:
    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="vmon-api-")
        self.port, self.cluster_port = free_port(), free_port()
        self.log = open(os.path.join(self.dir, "log"), "w+")
        self.process = None
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [VMON, "serve", "--data-dir", os.path.join(self.dir, "data"), "--listen", f"127.0.0.1:{self.port}",
             "--cluster-listen", f"127.0.0.1:{self.cluster_port}", "--network", "user", "--hypervisor", "tcg",
             "--public-url", f"http://localhost:{self.port}"],
            stderr=self.log, stdin=subprocess.DEVNULL)
        for _ in range(600):  # a hang guard
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                if self.call("GET", "/health").status == 200:
                    return
            except OSError:
                pass
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        self.log.seek(0)
        raise RuntimeError("vmon serve does not answer:\n" + self.log.read())

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.terminate()
        self.process.wait(60)
        self.log.close()
        shutil.rmtree(self.dir)

    def call(self, method, path, body=None, key=None, headers=None, chunked=False, connection=None):
        c = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        h = dict(headers or {})
        if key:
            h["X-API-KEY"] = key
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
            h.setdefault("Content-Type", "application/json")
        if isinstance(body, str):
            body = body.encode()
        if chunked:
            third = max(1, len(body) // 3)
            pieces = [body[:third], body[third:2 * third], body[2 * third:]]
            c.request(method, path, body=iter([p for p in pieces if p]), headers={**h, "Transfer-Encoding": "chunked"}, encode_chunked=True)
        else:
            c.request(method, path, body=body, headers=h)
        r = c.getresponse()
        answer = Answer(r.status, r.headers, r.read())
        if not connection:
            c.close()
        return answer

    def admin(self, *words, ok=True):
        r = subprocess.run([VMON, "admin", "--cluster-url", f"http://127.0.0.1:{self.cluster_port}", "--data-dir",
                            os.path.join(self.dir, "data"), *words], capture_output=True, text=True, timeout=60)
        if ok and r.returncode != 0:
            raise AssertionError(f"vmon admin {words}: {r.stderr}")
        return r

    def team(self, slug, *options):
        self.admin("create-team", slug, *options)
        return self.admin("create-key", slug).stdout.strip()

    def make_ready(self, build_id):
        """Stands in for a build VM: marks a build ready, as records_build_ready() does (src/store/internal.h has the keys)."""
        db = sqlite3.connect(os.path.join(self.dir, "data", "vmon.db"), timeout=30)
        db.isolation_level = None
        db.execute("BEGIN IMMEDIATE")
        revision = db.execute("UPDATE counter SET n = n + 1 RETURNING n").fetchone()[0]

        def get(key):
            return json.loads(db.execute("SELECT value FROM kv WHERE key = ?", (key,)).fetchone()[0])

        def put(key, value):
            db.execute("INSERT INTO kv VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value, revision = excluded.revision",
                       (key, json.dumps(value).encode(), revision))

        build = get(f"build/{build_id}")
        now = time.time_ns() // 1000 * 1000
        build.update(state="ready", finished=now, envd="0.5.20", user="user")
        template = get(f"template/{build['template']}")
        template.update(latest_ready=build_id)
        put(f"build/{build_id}", build)
        put(f"template/{build['template']}", template)
        for tag in build["tags"]:
            put(f"tag/{build['template']}/{tag}", {"build": build_id, "created": now})
        db.execute("DELETE FROM kv WHERE key = ?", (f"active/{template['team']}/{build_id}",))
        db.execute("COMMIT")
        db.close()


UUID = re.compile(r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
NIL_UUID = "00000000-0000-0000-0000-000000000000"
