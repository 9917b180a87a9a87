"""The unmodified `e2b` Python package in debug mode, which talks to localhost:49983: once synchronous, once asynchronous."""
import asyncio
import logging
import os
import shutil
import tempfile
import time
import unittest
import urllib.request

from e2b import AsyncSandbox, CommandExitException, FileType, PtySize, Sandbox, TimeoutException

HOME = "/home/user"
logging.getLogger("asyncio").setLevel(logging.ERROR)  # its remarks on slow callbacks would stand amid the results


def directory():
    path = tempfile.mkdtemp(prefix="python-", dir=HOME)
    os.chmod(path, 0o777)
    return path


def until(what, seconds=20):
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise AssertionError("nothing happened")
        time.sleep(0.02)


class Sync(unittest.TestCase):
    def setUp(self):
        self.sandbox = Sandbox.create()
        self.dir = directory()
        self.addCleanup(shutil.rmtree, self.dir, True)

    def test_e265_commands(self):
        run = self.sandbox.commands.run
        out = run("echo hi; echo err >&2; pwd; echo $A", envs={"A": "1"}, cwd=self.dir)
        self.assertEqual((out.exit_code, out.stdout, out.stderr), (0, f"hi\n{self.dir}\n1\n", "err\n"))
        with self.assertRaises(CommandExitException) as caught:
            run("exit 2")
        self.assertEqual(caught.exception.exit_code, 2)
        with self.assertRaises(TimeoutException):
            run("sleep 10", timeout=1)
        handle = run("cat", background=True, stdin=True, timeout=0)
        self.sandbox.commands.send_stdin(handle.pid, "abc\n")
        self.assertIn(handle.pid, [p.pid for p in self.sandbox.commands.list()])
        self.assertTrue(self.sandbox.commands.kill(handle.pid))
        self.assertFalse(self.sandbox.commands.kill(999999))
        with self.assertRaises(CommandExitException):
            run(f"kill -0 {handle.pid}")

    def test_e265_files(self):
        files, path = self.sandbox.files, self.dir + "/d/f.txt"
        self.assertEqual(files.write(path, "héllo").path, path)
        self.assertEqual(files.read(path), "héllo")
        self.assertEqual(bytes(files.read(path, format="bytes")), "héllo".encode())
        self.assertEqual(b"".join(files.read(path, format="stream")), "héllo".encode())
        with tempfile.TemporaryFile() as large:
            large.write(b"0123456789" * 300000)
            large.seek(0)
            files.write(self.dir + "/large", large)
        self.assertEqual(os.stat(self.dir + "/large").st_size, 3000000)
        info = files.get_info(path)
        self.assertEqual((info.name, info.type, info.size, info.owner), ("f.txt", FileType.FILE, 6, "user"))
        self.assertTrue(files.make_dir(self.dir + "/e"))
        self.assertFalse(files.make_dir(self.dir + "/e"))
        self.assertEqual([e.path for e in files.list(self.dir, depth=2)], [self.dir + p for p in ("/d", "/d/f.txt", "/e", "/large")])
        files.rename(path, self.dir + "/g")
        self.assertFalse(files.exists(path))
        files.remove(self.dir + "/g")
        self.assertFalse(files.exists(self.dir + "/g"))
        both = files.write_files([{"path": self.dir + "/1", "data": "one"}, {"path": self.dir + "/2", "data": b"two"}])
        self.assertEqual([f.path for f in both], [self.dir + "/1", self.dir + "/2"])

    def test_e265_watch_by_polling(self):
        handle = self.sandbox.files.watch_dir(self.dir, recursive=True)
        self.sandbox.files.write(self.dir + "/sub/a.txt", "x")
        seen = []
        until(lambda: seen.extend(handle.get_new_events()) or any(e.name == "sub/a.txt" for e in seen))
        handle.stop()
        with self.assertRaises(Exception):
            handle.get_new_events()

    def test_e265_terminal(self):
        out = bytearray()
        handle = self.sandbox.pty.create(PtySize(rows=24, cols=80), timeout=0)
        self.sandbox.pty.send_stdin(handle.pid, b"stty size; exit 5\n")
        with self.assertRaises(CommandExitException) as caught:
            handle.wait(on_pty=out.extend)
        self.assertEqual(caught.exception.exit_code, 5)
        self.assertIn(b"24 80", out)

    def test_e264_addresses(self):
        self.sandbox.files.write(self.dir + "/down", "content")
        with urllib.request.urlopen(self.sandbox.download_url(self.dir + "/down")) as answer:
            self.assertEqual(answer.read(), b"content")


class Async(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.sandbox = await AsyncSandbox.create()
        self.dir = directory()
        self.addCleanup(shutil.rmtree, self.dir, True)

    async def test_e265_commands(self):
        run = self.sandbox.commands.run
        outs = await asyncio.gather(*(run(f"echo {i}; sleep 0.1", cwd=self.dir) for i in range(20)))
        self.assertEqual([o.stdout for o in outs], [f"{i}\n" for i in range(20)])
        with self.assertRaises(CommandExitException):
            await run("exit 2")
        with self.assertRaises(TimeoutException):
            await run("sleep 10", timeout=1)
        handle = await run("cat", background=True, stdin=True, timeout=0)
        await self.sandbox.commands.send_stdin(handle.pid, "abc\n")
        self.assertTrue(await self.sandbox.commands.kill(handle.pid))

    async def test_e265_files(self):
        files, path = self.sandbox.files, self.dir + "/d/f.txt"
        await files.write(path, "x" * 1000000)
        self.assertEqual(await files.read(path), "x" * 1000000)
        got = b""
        async for piece in await files.read(path, format="stream"):
            got += piece
        self.assertEqual(len(got), 1000000)
        self.assertEqual([e.name for e in await files.list(self.dir)], ["d"])
        self.assertFalse(await files.exists(self.dir + "/none"))
        await files.remove(self.dir + "/d")

    async def test_e265_watch_by_stream(self):
        seen = asyncio.Queue()
        handle = await self.sandbox.files.watch_dir(self.dir, on_event=seen.put_nowait, recursive=True, include_entry=True)
        await self.sandbox.files.write(self.dir + "/sub/a.txt", "x")
        while (event := await asyncio.wait_for(seen.get(), 20)).name != "sub/a.txt":
            pass
        self.assertEqual(event.entry.path, self.dir + "/sub/a.txt")
        await handle.stop()

    async def test_e265_terminal(self):
        out = bytearray()
        handle = await self.sandbox.pty.create(PtySize(rows=24, cols=80), on_data=out.extend, timeout=0)
        await self.sandbox.pty.resize(handle.pid, PtySize(rows=40, cols=120))
        await self.sandbox.pty.send_stdin(handle.pid, b"stty size; exit\n")
        await handle.wait()
        self.assertIn(b"40 120", out)


if __name__ == "__main__":
    unittest.main(verbosity=2)
