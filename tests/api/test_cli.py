"""template-api 18.8, item 150, and 2.1: the unmodified `e2b` command line against vmon, as far as nothing is built: exit status, output.
It comes with the e2e tests' npm packages (scripts/lib.sh use_node); without them the tests are skipped."""
import os
import re
import subprocess
import unittest

from server import ROOT
from template_case import TemplateCase

CLI = os.path.join(ROOT, "tests", "e2e", "node_modules", "@e2b", "cli", "dist", "index.js")
NODE = os.environ.get("NODE", "node")
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@unittest.skipUnless(os.path.isfile(CLI), "the npm packages of tests/e2e are not installed")
class CommandLine(TemplateCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.home = os.path.join(cls.server.directory, "home")
        os.mkdir(cls.home)

    def e2b(self, *words, status=0, key=None, cwd=None):
        """Output of both streams without colours."""
        env = {"PATH": os.environ["PATH"], "HOME": self.home, "E2B_API_KEY": key or self.A,
               "E2B_API_URL": f"http://127.0.0.1:{self.server.port}", "E2B_DOMAIN": "localhost", "NO_UPDATE_NOTIFIER": "1"}
        r = subprocess.run([NODE, CLI, *words], env=env, cwd=cwd or self.home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, timeout=120)
        self.assertEqual(r.returncode, status, r.stdout)
        return ANSI.sub("", r.stdout)

    def row(self, text, template_id):
        return [line for line in text.splitlines() if template_id in line][0]

    def test_s125_150_list(self):
        key = self.server.team("cli-list")
        self.assertIn("No templates found", self.e2b("template", "list", key=key))
        b = self.ready("listed", key)
        row = self.row(self.e2b("template", "list", key=key), b["templateID"])
        for text in ["listed", "Private", "1024", "0.5.20"]:
            self.assertIn(text, row)
        self.assertIn(b["templateID"], self.e2b("template", "list", "--format", "json", key=key))

    def test_150_publish_and_unpublish(self):
        b = self.ready("cli-pub")
        for words, public in [("publish", True), ("unpublish", False)]:
            out = self.e2b("template", words, "cli-pub", "-y")
            self.assertIn("cli-pub", out)
            self.assertEqual(self.alias(200, "cli-pub").json, {"templateID": b["templateID"], "public": public})
            self.assertIn("Public" if public else "Private", self.row(self.e2b("template", "list"), b["templateID"]))

    def test_s125_150_delete(self):
        b = self.ready("cli-del")
        self.e2b("template", "delete", "cli-del", "-y")
        self.expect(404, "GET", f"/templates/{b['templateID']}")
        self.e2b("template", "delete", "cli-del", "-y", status=1)

    def test_150_unknown_templates(self):
        for word in ["publish", "unpublish", "delete"]:
            self.assertIn("not found", self.e2b("template", word, "cli-nope", "-y", status=1))

    def test_150_wrong_key(self):
        self.assertRegex(self.e2b("template", "list", key="e2b_" + "0" * 40, status=1), r"(?i)unauthori[sz]ed|invalid api key")

    def test_151_legacy_build(self):
        self.assertIn("deprecated", self.e2b("template", "build", status=1).lower())

    def test_create_without_a_builder(self):
        """A trigger that is refused: the CLI tells the server's reason."""
        with open(os.path.join(self.home, "Dockerfile"), "w", encoding="utf-8") as f:
            f.write("FROM busybox:1\nRUN echo hi\n")
        out = self.e2b("template", "create", "cli-create", "-d", "Dockerfile", status=1)
        self.assertIn("no builder is available", out)
        self.alias(200, "cli-create")

    def test_s125_235_stages(self):
        """A Dockerfile of three stages: the client refuses it, and vmon is asked for nothing."""
        cwd = os.path.join(self.home, "stages")
        os.mkdir(cwd)
        with open(os.path.join(cwd, "Dockerfile"), "w", encoding="utf-8") as f:
            f.write("FROM busybox:1 AS one\nRUN echo 1 >/1\nFROM one AS two\nRUN echo 2 >/2\nFROM busybox:1\nCOPY --from=two /2 /2\nCMD [\"true\"]\n")
        self.assertIn("Multi-stage", self.e2b("template", "create", "cli-stages", "-d", "Dockerfile", cwd=cwd, status=1))
        self.alias(404, "cli-stages")

    def test_init(self):
        for language, files in [("typescript", {"template.ts", "build.dev.ts", "build.prod.ts"}), ("python-sync", {"template.py", "build_dev.py", "build_prod.py"}),
                                ("python-async", {"template.py", "build_dev.py", "build_prod.py"})]:
            name = f"init-{language}"
            self.e2b("template", "init", "--name", name, "--language", language, "--path", self.home)
            self.assertLessEqual(files, set(os.listdir(os.path.join(self.home, name))), language)

    def test_migrate(self):
        cwd = os.path.join(self.home, "old")
        os.mkdir(cwd)
        with open(os.path.join(cwd, "e2b.Dockerfile"), "w", encoding="utf-8") as f:
            f.write("FROM busybox:1\nENV A=1\nRUN echo $A > /a\n")
        with open(os.path.join(cwd, "e2b.toml"), "w", encoding="utf-8") as f:
            f.write('template_id = "aaaaaaaaaaaaaaaaaaaa"\ndockerfile = "e2b.Dockerfile"\ntemplate_name = "old-one"\nstart_cmd = "sleep 1000"\nready_cmd = "true"\n')
        self.e2b("template", "migrate", "--language", "typescript", cwd=cwd)
        with open(os.path.join(cwd, "template.ts"), encoding="utf-8") as f:
            template = f.read()
        self.assertIn("busybox:1", template)
        self.assertIn("sleep 1000", template)
        self.assertIn("e2b.Dockerfile.old", os.listdir(cwd))


if __name__ == "__main__":
    unittest.main()
