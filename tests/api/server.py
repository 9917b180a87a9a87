"""A real `vmon serve` for tests of the API, without a kit: nothing here starts a virtual machine.

The server runs in a data directory of its own on free loopback ports; requests go over plain sockets with http.client, so
that a test sends exactly the bytes that it means to send.
"""
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time

from tool import Tool

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
VMON = os.environ.get("VMON", os.path.join(ROOT, "build", "vmon"))
RECORDS_TOOL = os.path.join(os.path.dirname(VMON), "tests", "api", "records-tool")
UUID = re.compile(r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
NIL_UUID = "00000000-0000-0000-0000-000000000000"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Answer:
    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def message(self):
        return self.json["message"]


class Server:
    """Starts in start(), ends in stop(); `key` is the default team's API key."""

    def __init__(self, *options):
        self.directory = tempfile.mkdtemp(prefix="vmon-api-")
        self.data = os.path.join(self.directory, "data")
        self.log_path = os.path.join(self.directory, "log")
        self.options = options
        self.port, self.cluster_port = free_port(), free_port()
        self.process = None
        self.tool, self.tool_lock = None, threading.Lock()

    def command(self):
        return [VMON, "serve", "--data-dir", self.data, "--listen", f"127.0.0.1:{self.port}",
                "--cluster-listen", f"127.0.0.1:{self.cluster_port}", "--network", "user", "--hypervisor", "tcg",
                "--public-url", f"http://localhost:{self.port}", *self.options]

    def start(self, scheme="http"):
        with open(self.log_path, "ab") as log:
            before = log.tell()
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._wait_ready(before, scheme)
        self.key = self.read("default-key").strip()
        return self

    def _wait_ready(self, offset, scheme):
        deadline = time.monotonic() + 60  # a hang guard
        while f"vmon: listening on {scheme}://" not in self.log()[offset:]:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError("vmon serve did not start:\n" + self.log()[offset:])
            time.sleep(0.02)

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def read(self, name):
        with open(os.path.join(self.data, name), encoding="utf-8") as f:
            return f.read()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def terminate(self):
        self.process.terminate()
        return self.process.wait(timeout=60)

    def stop(self):
        if self.tool:
            self.tool.close()
        if self.process and self.process.poll() is None:
            self.terminate()
        shutil.rmtree(self.directory)

    def connection(self, port=None):
        return http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=60)

    def request(self, method, path, body=None, headers=None, key="", chunked=False, connection=None):
        """`body`: an object (sent as JSON), text or bytes; `key`: "" = the default team's, None = no credentials;
        `connection`: one to go on using, which stays open."""
        headers = dict(headers or {})
        if key is not None:
            headers["X-API-Key"] = key or self.key
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        if isinstance(body, str):
            body = body.encode()
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        if chunked:
            third = max(1, len(body) // 3)
            body = iter([piece for piece in (body[:third], body[third:2 * third], body[2 * third:]) if piece])
        used = connection or self.connection()
        try:
            used.request(method, path, body=body, headers=headers, encode_chunked=chunked)
            return Answer(used.getresponse())
        finally:
            if not connection:
                used.close()

    def admin(self, *words, ok=True):
        r = subprocess.run([VMON, "admin", "--cluster-url", f"http://127.0.0.1:{self.cluster_port}", "--data-dir", self.data,
                            *words], capture_output=True, text=True, timeout=60)
        if ok and r.returncode != 0:
            raise AssertionError(f"vmon admin {words}: {r.stderr}")
        return r

    def team(self, slug, *options):
        """Creates a team; its API key."""
        self.admin("create-team", slug, *options)
        return self.admin("create-key", slug).stdout.strip()

    def records(self, op, build_id, **more):
        """Reports what a builder would, through the store (records-tool.c)."""
        with self.tool_lock:
            self.tool = self.tool or Tool(RECORDS_TOOL, self.data)
            self.tool.run(op, build_id, **more)

    def make_ready(self, build_id):
        self.records("start", build_id)
        self.records("ready", build_id)
