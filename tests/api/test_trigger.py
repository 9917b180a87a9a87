"""template-api 18.6 as far as nothing is built: without a kit a trigger that is right in everything answers 503, and what is
wrong with it is told before."""
import os
import unittest

from template_case import HASH, UNKNOWN, UNKNOWN_TEMPLATE, TemplateCase

GOOD = {"fromImage": "alpine", "steps": []}


class Trigger(TemplateCase):
    def trigger(self, status, body, b=None, message=None, **more):
        b = b or self.create("trig")
        return self.expect(status, "POST", f"/v2/templates/{b['templateID']}/builds/{b['buildID']}", body, message=message, **more)

    def step(self, status, message=None, **step):
        return self.trigger(status, {**GOOD, "steps": [step]}, message=message)

    def test_no_builder_leaves_it_waiting(self):
        b = self.create("later")
        for _ in range(2):
            self.trigger(503, GOOD, b, "no builder is available")
        self.assertEqual(self.status(b)["status"], "waiting")

    def test_083_build_id(self):
        b = self.create("trig")
        for bad in ["x", UNKNOWN[:-1], UNKNOWN.replace("-", ""), "..%2Fx"]:
            self.trigger(400, GOOD, {**b, "buildID": bad}, "Invalid build ID: ")

    def test_084_unknown_build(self):
        b = self.create("trig")
        self.trigger(404, GOOD, {**b, "buildID": UNKNOWN})
        self.trigger(404, GOOD, {**b, "templateID": self.create("trig2")["templateID"]})
        self.trigger(404, GOOD, {**b, "templateID": UNKNOWN_TEMPLATE})
        self.trigger(404, GOOD, {**b, "templateID": "trig"})

    def test_085_another_team(self):
        self.trigger(403, GOOD, self.create("trig"), "User does not have access to the template", key=self.G)

    def test_086_not_waiting(self):
        b = self.create("twice")
        for op in ["start", "ready"]:
            self.server.records(op, b["buildID"])
            self.assertEqual(self.trigger(400, GOOD, b).message, "build is not in waiting state")
        b = self.started("twice")
        self.server.records("fail", b["buildID"], reason="x")
        self.trigger(400, GOOD, b, "build is not in waiting state")

    def test_087_two_sources(self):
        self.trigger(400, {**GOOD, "fromTemplate": "x"}, message="only one of fromImage and fromTemplate can be given")

    def test_088_no_source(self):
        for none in [{}, {"fromImage": ""}, {"fromImage": None, "fromTemplate": ""}]:
            self.trigger(400, {"steps": [], **none}, message="one of fromImage and fromTemplate is required")

    def test_089_unknown_type(self):
        for name in ["VOLUME", "volume", "Volume"]:
            r = self.step(400, type=name, args=[])
            self.assertEqual(r.message, "command type VOLUME is not implemented")

    def test_090_types_in_any_case(self):
        for name in ["run", "Run", "RUN"]:
            self.step(503, type=name, args=["true"])

    def test_091_no_type(self):
        for step in [{"args": ["x"]}, {"type": "", "args": []}, {"type": None}, {"type": 7}]:
            self.step(400, "validation error", **step)

    def test_092_missing_arguments(self):
        for name, message in [("RUN", "RUN requires command argument"), ("WORKDIR", "WORKDIR requires a path argument"),
                              ("USER", "USER requires a username argument"), ("ENV", "ENV does not support passing no arguments"),
                              ("ARG", "ARG does not support passing no arguments"),
                              ("COPY", "COPY requires a local path and a container path argument")]:
            self.step(400, message, type=name, args=[], filesHash=HASH)
            self.step(400, message, type=name, filesHash=HASH)

    def test_093_odd_environment(self):
        self.step(400, "ENV requires both a key and value arguments", type="ENV", args=["a", "b", "c"])
        self.step(400, "ENV key '=b' must be a name", type="ENV", args=["=b", "c"])
        self.step(503, type="ENV", args=["a", "b", "c", ""])

    def test_094_copy_without_hash(self):
        args = ["a", "/b", "", ""]
        self.step(400, "COPY requires files hash to be set", type="COPY", args=args)
        self.step(400, "ADD requires files hash to be set", type="ADD", args=args, filesHash="")
        for bad in ["../../../etc/passwd", HASH[:-1], "AB" * 32]:
            self.step(400, "Invalid files hash", type="COPY", args=args, filesHash=bad)
        self.step(400, "COPY source '../a' leaves the build context", type="COPY", args=["../a", "/b"], filesHash=HASH)
        self.step(400, "COPY mode 'rwx' is not an octal number", type="COPY", args=["a", "/b", "", "rwx"], filesHash=HASH)
        # A hash is COPY's alone: elsewhere it is no path on the host, but ignored like any unknown member.
        self.step(503, type="RUN", args=["x"], filesHash="../../../etc/passwd")

    def test_095_missing_upload(self):
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
        self.assertEqual(self.status(foreign, key=self.G)["reason"]["step"], "1")
        # With all of them there, it is for the builder to answer.
        b = self.create("copies")
        self.assertEqual(self.put(self.link(b["templateID"], missing)["url"]).status, 200)
        self.trigger(503, body, b)
        self.assertEqual(self.status(b)["status"], "waiting")

    def test_096_registry_type(self):
        for registry in [{"type": "foo"}, {"type": ""}, {}, {"username": "u", "password": "p"}, "x", {"type": 1}]:
            self.trigger(400, {**GOOD, "fromImageRegistry": registry})

    def test_097_registry_members(self):
        for registry in [{"type": "registry", "username": "u"}, {"type": "registry", "password": "p"}, {"type": "gcp"},
                         {"type": "aws", "awsAccessKeyId": "a", "awsRegion": "r"}, {"type": "registry", "username": 1, "password": "p"}]:
            self.trigger(400, {**GOOD, "fromImageRegistry": registry})
        self.trigger(503, {**GOOD, "fromImageRegistry": {"type": "registry", "username": "u", "password": "p"}})

    def test_097_credentials_are_nowhere(self):
        """Refused triggers with credentials, also malformed ones: neither answers, records nor log repeat them."""
        secret = "s3cr3t-" + os.urandom(8).hex()
        for status, registry in [(503, {"type": "registry", "username": secret, "password": secret}),
                                 (503, {"type": "gcp", "serviceAccountJson": '{"private_key":"%s"}' % secret}),
                                 (503, {"type": "aws", "awsAccessKeyId": secret, "awsSecretAccessKey": secret, "awsRegion": "r"}),
                                 (400, {"type": "foo", "password": secret}), (400, {"type": "registry", "username": secret})]:
            r = self.trigger(status, {**GOOD, "fromImageRegistry": registry})
            self.assertNotIn(secret, r.message)
        self.assertEqual(self.files_with(secret), [])

    def files_with(self, text):
        found = []
        for where, _, names in os.walk(self.server.directory):
            for name in names:
                with open(os.path.join(where, name), "rb") as f:
                    if text.encode() in f.read():
                        found.append(name)
        return found

    def test_098_malformed_user_agent(self):
        for agent in ["e2b-js-sdk/xyz", "e2b-python-sdk/", "e2b-js-sdk/1.x"]:
            self.trigger(400, GOOD, message="Error when parsing user agent: ", headers={"User-Agent": agent})

    def test_099_other_user_agents(self):
        for agent in ["custom/1.0", "", "e2b-js-sdk/2.2.0 e2b-cli/2.13.0", "e2b-python-sdk/2.31.0 custom/1.0", "e2b-js-sdk/2.3.0-beta.1"]:
            self.trigger(503, GOOD, headers={"User-Agent": agent})

    def test_103_empty_commands(self):
        self.trigger(503, {**GOOD, "startCmd": "", "readyCmd": ""})
        self.trigger(503, {**GOOD, "startCmd": None, "readyCmd": None})

    def test_schema(self):
        for body, message in [
                ({**GOOD, "steps": {}}, "steps must be an array"), ({**GOOD, "steps": [7]}, "steps[0] must be an object"),
                ({**GOOD, "steps": [{"type": "RUN", "args": "x"}]}, "steps[0].args must be an array of strings"),
                ({**GOOD, "steps": [{"type": "RUN", "args": [None]}]}, "steps[0].args[0] must be a string"),
                ({**GOOD, "steps": [{"type": "RUN", "args": ["x" * 130000]}]}, "steps[0].args[0] is longer than"),
                ({**GOOD, "steps": [{"type": "RUN", "args": ["a\0b"]}]}, "steps[0].args[0] holds a NUL character"),
                ({**GOOD, "steps": [{"type": "RUN", "args": ["x"], "force": "yes"}]}, "force must be a boolean"),
                ({**GOOD, "steps": [{"type": "RUN", "args": ["x"]}] * 1001}, "more than 1000 steps"),
                ({**GOOD, "startCmd": "a\0b"}, "startCmd holds a NUL character"), ({**GOOD, "fromImage": 7}, ""), ({**GOOD, "force": 1}, "")]:
            self.trigger(400, body, message="validation error: " + message)
        self.step(400, "WORKDIR path must be one line", type="WORKDIR", args=["/a\n/b"])


if __name__ == "__main__":
    unittest.main()
