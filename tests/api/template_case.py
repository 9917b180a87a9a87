"""What the tests of the template API share: a server with the teams of template-api 18, and calls that check their answers."""
import unittest
import urllib.parse

from server import Server

HASH = "2b" * 32
UNKNOWN = "6f2f3a0e-6f0d-4a6e-9c1a-0c1f6f6f8a11"  # a UUID that no build has
UNKNOWN_TEMPLATE = "a" * 20


class TemplateCase(unittest.TestCase):
    """Teams acme (key A), globex (key G) and the system team sys (key S); a call is acme's unless told otherwise."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server().start()
        cls.addClassCleanup(cls.server.stop)
        cls.A, cls.G = cls.server.team("acme"), cls.server.team("globex")
        cls.S = cls.server.team("sys", "--system")

    def call(self, method, path, body=None, key=None, **more):
        return self.server.request(method, path, body, key=key or self.A, **more)

    def expect(self, status, method, path, body=None, message=None, **more):
        r = self.call(method, path, body, **more)
        self.assertEqual(r.status, status, r.body)
        if status >= 400:
            self.check_error(r, status, message)
        return r

    def check_error(self, r, status, message=None):
        self.assertEqual(r.status, status, r.body)
        self.assertTrue(r.headers["Content-Type"].startswith("application/json"))
        self.assertEqual(r.json["code"], status)
        self.assertIsInstance(r.message, str)
        if message:
            self.assertTrue(r.message.startswith(message), r.message)

    def create(self, name="web", key=None, **body):
        return self.expect(202, "POST", "/v3/templates", {"name": name, **body}, key=key).json

    def ready(self, name="web", key=None, **body):
        b = self.create(name, key, **body)
        self.server.make_ready(b["buildID"])
        return b

    def started(self, name="web", key=None, **body):
        b = self.create(name, key, **body)
        self.server.records("start", b["buildID"])
        return b

    def publish(self, reference, public=True, key=None):
        return self.expect(200, "PATCH", f"/v2/templates/{reference}", {"public": public}, key=key).json["names"]

    def alias(self, status, reference, key=None, message=None):
        return self.expect(status, "GET", f"/templates/aliases/{reference}", key=key, message=message)

    def link(self, template, hash_=HASH, key=None):
        return self.expect(201, "GET", f"/templates/{template}/files/{hash_}", key=key).json

    def put(self, url, body=b"x" * 1000, method="PUT", **more):
        """Sends an archive to the URL of a link, without a key unless told otherwise."""
        u = urllib.parse.urlsplit(url)
        return self.server.request(method, f"{u.path}?{u.query}", body, **{"key": None, **more})

    def build_path(self, b, rest="status"):
        return f"/templates/{b['templateID']}/builds/{b['buildID']}/{rest}"

    def status(self, b, query="", key=None):
        return self.expect(200, "GET", self.build_path(b) + query, key=key).json

    def build_of(self, reference):
        """The build that a reference names, by assigning a tag that nobody uses."""
        return self.expect(201, "POST", "/templates/tags", {"target": reference, "tags": ["probe"]}).json["buildID"]
