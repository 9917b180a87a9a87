"""template-api 18.5: links for build contexts and the uploads that they allow. What is stored stays byte for byte."""
import hmac
import os
import re
import socket
import time
import unittest
import urllib.parse

from template_case import HASH, UNKNOWN_TEMPLATE, TemplateCase


class Upload(TemplateCase):
    def fresh(self, digit):
        """A link for a hash that no other test uses."""
        t = self.create("up")["templateID"]
        return t, digit * 32, self.link(t, digit * 32)["url"]

    def stored(self, hash_, slug="acme"):
        with open(os.path.join(self.server.data, "files", slug, hash_), "rb") as f:
            return f.read()

    def test_019_no_key_needed(self):
        _, hash_, url = self.fresh("19")
        r = self.put(url)
        self.assertEqual((r.status, r.headers["Content-Length"], r.body), (200, "0", b""))
        self.assertEqual(self.stored(hash_), b"x" * 1000)

    def test_020_altered_token(self):
        t, hash_, url = self.fresh("20")
        self.assertEqual(self.put(url[:-1] + ("0" if url[-1] != "0" else "1"), key=self.A).status, 403)
        self.assertFalse(self.link(t, hash_)["present"])

    def test_065_first_time(self):
        t = self.create("up")["templateID"]
        link = self.link(t, "65" * 32)
        self.assertEqual(link["present"], False)
        self.assertTrue(link["url"].startswith("http://"))

    def test_066_after_the_upload(self):
        t, hash_, url = self.fresh("66")
        self.assertEqual(self.put(url).status, 200)
        link = self.link(t, hash_)
        self.assertEqual(link["present"], True)
        self.assertTrue(link["url"].startswith("http://"))

    def test_067_068_scope_is_the_team(self):
        _, hash_, url = self.fresh("67")
        other, foreign = self.create("up2")["templateID"], self.create("up", self.G)["templateID"]
        self.assertEqual(self.put(url).status, 200)
        self.assertTrue(self.link(other, hash_)["present"])
        self.assertFalse(self.link(foreign, hash_, self.G)["present"])

    def test_069_hashes(self):
        t = self.create("up")["templateID"]
        for bad in ["a" * 63, "a" * 65, "A" * 64, "g" * 64, "..%2Fx", "x"]:
            self.expect(400, "GET", f"/templates/{t}/files/{bad}", message="Invalid files hash")

    def test_070_unknown_template(self):
        self.expect(404, "GET", f"/templates/{UNKNOWN_TEMPLATE}/files/{HASH}")

    def test_071_template_of_another_team(self):
        self.expect(404, "GET", f"/templates/{self.create('up', self.G)['templateID']}/files/{HASH}")

    def test_072_alias(self):
        self.create("up")
        self.expect(404, "GET", f"/templates/up/files/{HASH}")

    def test_073_with_length(self):
        _, hash_, url = self.fresh("73")
        body = os.urandom(3 * 1024 * 1024)
        self.assertEqual(self.put(url, body).status, 200)
        self.assertEqual(self.stored(hash_), body)

    def test_074_chunked(self):
        _, hash_, url = self.fresh("74")
        body = os.urandom(3 * 1024 * 1024)
        self.assertEqual(self.put(url, body, chunked=True).status, 200)
        self.assertEqual(self.stored(hash_), body)

    def test_075_other_methods(self):
        _, _, url = self.fresh("75")
        for method in ["GET", "POST", "DELETE", "PATCH"]:
            self.check_error(self.put(url, None if method == "GET" else b"x", method=method), 405)

    def test_076_expiry(self):
        _, _, url = self.fresh("76")
        expires = int(re.search("expires=([0-9]+)", url)[1])
        self.assertAlmostEqual(expires - time.time(), 1800, delta=30)
        self.check_error(self.put(url.replace(f"expires={expires}", f"expires={expires + 1}")), 403, "upload: the link's signature")
        past = int(time.time()) - 1
        token = self.sign(urllib.parse.parse_qs(urllib.parse.urlsplit(url).query)["path"][0], past)
        self.check_error(self.put(f"{url.split('&expires')[0]}&expires={past}&token={token}"), 403, "upload: the link has expired")
        later = past + 100
        token = self.sign("acme/" + "76" * 32, later)
        self.assertEqual(self.put(f"{url.split('&expires')[0]}&expires={later}&token={token}").status, 200)

    def sign(self, path, expires):
        """As src/api/template-files.c does: HKDF-SHA256 of the root secret without salt, then HMAC-SHA256."""
        with open(os.path.join(self.server.data, "root-secret"), "rb") as f:
            extracted = hmac.digest(bytes(32), f.read(), "sha256")
        key = hmac.digest(extracted, b"vmon upload v1\x01", "sha256")
        return hmac.new(key, f"PUT\n{path}\n{expires}".encode(), "sha256").hexdigest()

    def test_077_another_path(self):
        _, _, url = self.fresh("77")
        self.check_error(self.put(url.replace("acme", "globex")), 403)
        self.check_error(self.put(url.replace("77" * 32, "78" * 32)), 403)
        for path in ["acme%2F..%2F" + "77" * 32, "..%2F" + "77" * 32, "acme%2Fx", "%2Fetc%2Fpasswd", ""]:
            self.check_error(self.put(re.sub("path=[^&]+", "path=" + path, url)), 400)
        for part in ["&token", "&expires", "path"]:
            self.check_error(self.put(url.split(part)[0]), 400)

    def test_078_cut(self):
        t, hash_, url = self.fresh("7d")
        u = urllib.parse.urlsplit(url)
        for head in ["Content-Length: 100000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n3e8\r\n"]:
            s = socket.create_connection(("127.0.0.1", self.server.port))
            s.sendall(f"PUT {u.path}?{u.query} HTTP/1.1\r\nHost: x\r\n{head}".encode() + b"z" * 1000)
            s.close()
            self.assertFalse(self.link(t, hash_)["present"])
        self.assertEqual(self.put(url).status, 200)
        self.assertTrue(self.link(t, hash_)["present"])
        deadline = time.monotonic() + 60  # a hang guard: the cut ones are removed by their own connections
        while [n for n in os.listdir(os.path.join(self.server.data, "files", "acme")) if n.startswith(".")]:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def test_079_overwrite(self):
        _, hash_, url = self.fresh("79")
        for body in [b"one" * 1000, b"two" * 1000]:
            self.assertEqual(self.put(url, body).status, 200)
            self.assertEqual(self.stored(hash_), body)

    def test_080_host(self):
        _, _, url = self.fresh("80")
        self.assertEqual(urllib.parse.urlsplit(url).netloc, f"localhost:{self.server.port}")  # the public URL of server.py

    def test_d1_11_any_size(self):
        """Nothing is an upload too, with a length or chunked; that it is no archive is the step's to say."""
        for prefix, chunked in [("ee", False), ("ef", True)]:
            t, hash_, url = self.fresh(prefix)
            r = self.put(url, b"", chunked=chunked)
            self.assertEqual((r.status, r.body, r.headers["Content-Length"]), (200, b"", "0"))
            self.assertTrue(self.link(t, hash_)["present"])


if __name__ == "__main__":
    unittest.main()
