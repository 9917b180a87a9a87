"""A Debian mirror on port 80 of loopback, as the hosts of an end-of-life release behave: deb.debian.org and
security.debian.org still serve the indexes but no packages; archive.debian.org has both, under a Release file that expired.
usage: debian-mirror.py DIRECTORY LOG"""
import http.server
import os
import sys

root, log = sys.argv[1], open(sys.argv[2], 'a', buffering=1)


class Mirror(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def answer(self, status, body):
        self.send_response(status)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        host, path = self.headers.get('Host', ''), self.path.split('/', 2)[-1]
        file = os.path.join(root, 'archive' if host == 'archive.debian.org' else 'live', path)
        found = os.path.isfile(file) and '..' not in path
        print(host, self.path, 200 if found else 404, file=log)
        if found:
            with open(file, 'rb') as f:
                self.answer(200, f.read())
        else:
            self.answer(404, b'gone')

    def log_message(self, *args):
        pass


http.server.ThreadingHTTPServer(('127.0.0.1', 80), Mirror).serve_forever()
