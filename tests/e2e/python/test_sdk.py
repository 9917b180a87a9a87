"""The unmodified `e2b` Python package, as users write it: once synchronous, once asynchronous (template-api 18: 81, 239)."""
import asyncio
import os
import pathlib
import tempfile
import unittest

import e2b
from e2b import AsyncSandbox, AsyncTemplate, Sandbox, Template

IMAGE = os.environ["VMON_E2E_REGISTRY"] + "/vmon/busybox:1"
SIZE = {"cpu_count": 1, "memory_mb": 512}


def context():
    """A build context; the SDK takes it from where the caller says."""
    directory = tempfile.TemporaryDirectory(prefix="vmon-python-sdk-")
    root = pathlib.Path(directory.name)
    (root / "app" / "deep").mkdir(parents=True)
    (root / "app" / "main.txt").write_text("copied\n")
    (root / "app" / "deep" / ".hidden").write_text("too\n")
    return directory


def steps(cls, root):
    return (cls(file_context_path=root).from_image(IMAGE).copy("app", "/srv/app", mode=0o755).set_envs({"GREETING": "hello"})
            .run_cmd("echo $GREETING > /tmp/said").set_workdir("/srv").set_start_cmd("touch /tmp/started; sleep 100000", "[ -e /tmp/started ]"))


class Sync(unittest.TestCase):
    def test_81_239_build_with_copy_and_use(self):
        lines = []
        with context() as root:
            info = Template.build(steps(Template, root), "py-sync:v1", tags=["extra"], on_build_logs=lambda e: lines.append(e.message), **SIZE)
        self.assertTrue(info.template_id and info.build_id)
        self.assertTrue(any("COPY" in line for line in lines), lines)
        self.assertTrue(Template.exists("py-sync"))
        self.assertFalse(Template.exists("py-nobody"))
        with Sandbox.create("py-sync:extra", envs={"MINE": "1"}, metadata={"of": "python"}, timeout=300) as sandbox:
            out = sandbox.commands.run("cat app/main.txt app/deep/.hidden /tmp/said; pwd; echo $MINE; ls /tmp/started")
            self.assertEqual(out.stdout.split(), ["copied", "too", "hello", "/srv", "1", "/tmp/started"])
            self.assertEqual(sandbox.get_info().metadata, {"of": "python"})
            sandbox.files.write("/tmp/file", "written")
            self.assertEqual(sandbox.files.read("/tmp/file"), "written")
            self.assertIn("file", [entry.name for entry in sandbox.files.list("/tmp")])
            with self.assertRaises(e2b.CommandExitException) as failed:
                sandbox.commands.run("echo why >&2; exit 3")
            self.assertEqual((failed.exception.exit_code, failed.exception.stderr), (3, "why\n"))
            self.assertTrue(sandbox.is_running())
        with self.assertRaises(e2b.NotFoundException):
            Sandbox.connect(sandbox.sandbox_id)

    def test_239_tags(self):
        info = Template.build(Template().from_image(IMAGE).run_cmd("echo one"), "py-tags:v1", **SIZE)
        assigned = Template.assign_tags("py-tags:v1", ["prod", "stable"])
        self.assertEqual((assigned.build_id, sorted(assigned.tags)), (info.build_id, ["prod", "stable"]))
        self.assertEqual(sorted(t.tag for t in Template.get_tags(info.template_id)), ["prod", "stable", "v1"])
        Template.remove_tags("py-tags", ["prod"])
        self.assertEqual(sorted(t.tag for t in Template.get_tags(info.template_id)), ["stable", "v1"])
        with self.assertRaises(e2b.TemplateException) as missing:
            Template.assign_tags("py-tags:nope", ["x"])
        self.assertIn("404", str(missing.exception))

    def test_239_background_build(self):
        info = Template.build_in_background(Template().from_image(IMAGE).run_cmd("echo background"), "py-background", **SIZE)
        seen, offset, status = [], 0, None
        while status not in ("ready", "error"):
            answer = Template.get_build_status(info, logs_offset=offset)
            seen += [entry.message for entry in answer.log_entries]
            offset += len(answer.log_entries)
            status = getattr(answer.status, "value", answer.status)
        self.assertEqual(status, "ready")
        self.assertTrue(any("background" in line for line in seen))

    def test_239_failing_step(self):
        with self.assertRaises(e2b.BuildException) as failed:
            Template.build(Template().from_image(IMAGE).run_cmd("echo first").run_cmd("exit 7"), "py-fails", **SIZE)
        self.assertIn("exit 7", str(failed.exception))

    def test_239_not_a_template(self):
        with self.assertRaises(e2b.SandboxException) as missing:
            Sandbox.create("py-nobody")
        self.assertIn("404: template 'py-nobody' not found", str(missing.exception))

    def test_pause_and_connect(self):
        with Sandbox.create("py-sync:v1", timeout=300) as sandbox:
            sandbox.files.write("/dev/shm/kept" if sandbox.files.exists("/dev/shm") else "/tmp/kept", "in memory")
            sandbox.pause()
            again = Sandbox.connect(sandbox.sandbox_id, timeout=300)
            self.assertEqual(again.commands.run("cat /dev/shm/kept /tmp/kept 2>/dev/null; true").stdout, "in memory")


class Async(unittest.IsolatedAsyncioTestCase):
    async def test_81_239_build_with_copy_and_use(self):
        with context() as root:
            await AsyncTemplate.build(steps(AsyncTemplate, root), "py-async", **SIZE)
        self.assertTrue(await AsyncTemplate.exists("py-async"))
        sandboxes = await asyncio.gather(*(AsyncSandbox.create("py-async", timeout=300) for _ in range(2)))
        try:
            outs = await asyncio.gather(*(s.commands.run("cat app/main.txt; echo $E2B_SANDBOX_ID") for s in sandboxes))
            self.assertEqual([o.stdout.split() for o in outs], [["copied", s.sandbox_id] for s in sandboxes])
            lines = []
            process = await sandboxes[0].commands.run("for i in 1 2 3; do echo $i; done; sleep 1000", background=True, on_stdout=lines.append)
            while "".join(lines) != "1\n2\n3\n":
                await asyncio.sleep(0.05)
            self.assertTrue(await process.kill())
            await sandboxes[0].files.write("/tmp/async", b"bytes")
            self.assertEqual(bytes(await sandboxes[0].files.read("/tmp/async", format="bytes")), b"bytes")
        finally:
            self.assertEqual(await asyncio.gather(*(s.kill() for s in sandboxes)), [True, True])

    async def test_239_background_build_and_failing_step(self):
        info = await AsyncTemplate.build_in_background(AsyncTemplate().from_image(IMAGE).run_cmd("exit 9"), "py-async-fails", **SIZE)
        status = None
        while status not in ("ready", "error"):
            answer = await AsyncTemplate.get_build_status(info)
            status = getattr(answer.status, "value", answer.status)
        self.assertEqual(status, "error")
        self.assertIn("exit 9", answer.reason.message)


if __name__ == "__main__":
    unittest.main(verbosity=2)
