"""Clients that misbehave: slow heads and bodies, heads and bodies beyond their limits, a thousand idle connections. The API stays
answerable meanwhile and its memory bounded."""
import contextlib
import os
import resource
import socket
import time
import unittest

from template_case import TemplateCase

HEAD_MAX = 64 * 1024          # src/http/server.h
BODY_MAX = 16 * 1024 * 1024   # src/api/dispatch.c
CONNECTIONS = 1000
MIB = 1024 * 1024


class Hostile(TemplateCase):
    def connect(self):
        return self.stack.enter_context(socket.create_connection(("127.0.0.1", self.server.port), timeout=60))

    def setUp(self):
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        self.server.request("GET", "/templates")  # everything that is set up once is

    def resident(self):
        """Of the server, in bytes."""
        with open(f"/proc/{self.server.process.pid}/statm", encoding="ascii") as f:
            return int(f.read().split()[1]) * resource.getpagesize()

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.server.process.pid}/fd"))

    def answers(self):
        """The API does, within a second (a hang guard for what takes a millisecond)."""
        began = time.monotonic()
        self.expect(200, "GET", "/templates")
        self.expect(202, "POST", "/v3/templates", {"name": "alive"})
        self.assertLess(time.monotonic() - began, 5)

    def read_answer(self, s):
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := s.recv(65536):
                got += chunk
                if b"\r\n\r\n" in got:
                    break
        return got

    def send_until_cut(self, s, chunk):
        """The server answers and drops what comes for some seconds (a client that is reset would lose the answer), then it closes."""
        deadline = time.monotonic() + 30
        try:
            while time.monotonic() < deadline:
                s.sendall(chunk)
        except (ConnectionResetError, BrokenPipeError):
            return
        self.fail("still read after 30 s")

    def test_slow_heads(self):
        """Slow-loris: heads that come byte by byte hold a connection each, and nothing else."""
        before = self.resident()
        slow = [self.connect() for _ in range(300)]
        for s in slow:
            s.sendall(b"GET /templates HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        for _ in range(5):
            for s in slow:
                s.sendall(b"x")
            self.answers()
        self.assertLess(self.resident() - before, 30 * MIB)
        slow[0].sendall(f"\r\nX-API-Key: {self.A}\r\n\r\n".encode())  # slow, and right: answered
        self.assertTrue(self.read_answer(slow[0]).startswith(b"HTTP/1.1 200 "))

    def test_slow_head_is_cut_off(self):
        """From its first byte a head has 30 s, however often another byte of it comes."""
        s = self.connect()
        s.sendall(b"GET / HTTP/1.1\r\nX-Slow: ")
        began, got = time.monotonic(), b""
        s.settimeout(2)
        while time.monotonic() - began < 90:  # a hang guard
            try:
                s.sendall(b"x")
                got += (chunk := s.recv(4096))
                if not chunk:
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        self.assertLess(time.monotonic() - began, 60)
        self.assertGreater(time.monotonic() - began, 20)
        self.assertTrue(not got or got.startswith(b"HTTP/1.1 408 "), got)

    def test_slow_bodies(self):
        before = self.resident()
        slow = [self.connect() for _ in range(100)]
        for s in slow:
            s.sendall(f"POST /v3/templates HTTP/1.1\r\nHost: x\r\nX-API-Key: {self.A}\r\nContent-Length: 1000000\r\n\r\n".encode() + b'{"name":"')
        for _ in range(3):
            for s in slow:
                s.sendall(b"a" * 100)
            self.answers()
        self.assertLess(self.resident() - before, 30 * MIB)

    def test_answers_that_nobody_reads(self):
        """Pipelined requests of a client that does not read: the server stops reading from it."""
        before = self.resident()
        s = self.connect()
        s.settimeout(2)
        request = f"GET /templates HTTP/1.1\r\nHost: x\r\nX-API-Key: {self.A}\r\n\r\n".encode() * 1000
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 200 * MIB:
                sent += s.send(request)
        self.assertLess(sent, 200 * MIB)
        self.assertLess(self.resident() - before, 30 * MIB)
        self.answers()

    def test_large_heads(self):
        for head in [b"GET /" + b"a" * (2 * HEAD_MAX) + b" HTTP/1.1\r\nHost: x\r\n\r\n",
                     b"GET / HTTP/1.1\r\nHost: x\r\nX-Large: " + b"a" * (2 * HEAD_MAX) + b"\r\n\r\n",
                     b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-Many: a\r\n" * 20000 + b"\r\n",
                     b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: a\r\n" % i for i in range(1000)) + b"\r\n"]:
            s = self.connect()
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                s.sendall(head)
            got = self.read_answer(s)
            self.assertRegex(got[:13], rb"HTTP/1\.1 (414|431|400) ")
        self.answers()

    def test_endless_head(self):
        before = self.resident()
        s = self.connect()
        s.sendall(b"GET / HTTP/1.1\r\nX-Endless: ")
        self.send_until_cut(s, b"a" * 65536)
        self.assertLess(self.resident() - before, 20 * MIB)

    def test_large_bodies(self):
        r = self.expect(413, "POST", "/v3/templates", b'{"name":"' + b"a" * BODY_MAX + b'"}')
        self.assertIn("limit", r.message)
        self.expect(413, "POST", "/v3/templates", b'{"name":"' + b"a" * BODY_MAX + b'"}', chunked=True)
        self.expect(400, "POST", "/v3/templates", b'{"name":"' + b"a" * (BODY_MAX - 100) + b'"}', message="validation error")
        self.expect(400, "POST", "/v3/templates", '{"x":' + "[" * 5_000_000, message="Error when parsing request")
        self.answers()

    def test_endless_chunks(self):
        """A chunked body that does not end, with a key and without: cut off, and never in memory."""
        for key in [f"X-API-Key: {self.A}\r\n", ""]:
            before = self.resident()
            s = self.connect()
            s.sendall(f"POST /v3/templates HTTP/1.1\r\nHost: x\r\n{key}Transfer-Encoding: chunked\r\n\r\n".encode())
            chunk = b"10000\r\n" + b"a" * 65536 + b"\r\n"
            self.send_until_cut(s, chunk)
            self.assertLess(self.resident() - before, 60 * MIB)
        self.answers()

    def test_idle_connections(self):
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        before, open_before = self.resident(), self.descriptors()
        idle = [self.connect() for _ in range(CONNECTIONS)]
        request = f"GET /templates/aliases/nobody HTTP/1.1\r\nHost: x\r\nX-API-Key: {self.A}\r\n\r\n".encode()
        for s in idle[::2]:  # half of them have asked something
            s.sendall(request)
        for s in idle[::2]:
            self.assertTrue(self.read_answer(s).startswith(b"HTTP/1.1 404 "))
        for _ in range(20):
            self.answers()
        grown = self.resident() - before
        self.assertLess(grown / CONNECTIONS, 40 * 1024, f"{grown} bytes for {CONNECTIONS} connections")
        idle[1].sendall(request)  # and they still work
        self.assertTrue(self.read_answer(idle[1]).startswith(b"HTTP/1.1 404 "))
        self.stack.close()
        deadline = time.monotonic() + 30  # a hang guard
        while self.descriptors() > open_before + 10:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def test_garbage(self):
        for text in [b"\x00" * 100, b"\r\n" * 10 + b"x", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                     b"POST /v3/templates HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                     b"POST /v3/templates HTTP/1.1\r\nContent-Length: -5\r\n\r\n", b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                     b"GET / HTTP/1.1\r\nHost: x\r\nBad Header: y\r\n\r\n"]:
            with self.subTest(text=text):
                s = self.connect()
                s.sendall(text)
                s.shutdown(socket.SHUT_WR)
                got = self.read_answer(s)
                self.assertTrue(not got or got.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 401 ", b"HTTP/1.1 505 ")), got)
        self.answers()


if __name__ == "__main__":
    unittest.main()
