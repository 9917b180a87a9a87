"""A real `vmon serve` for tests of the API, without a kit: nothing here starts a virtual machine.

The server runs in a data directory of its own on free ports; requests go over plain sockets with http.client, so that a
test sends exactly the bytes that it means to send.
"""
import http.client
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
VMON = os.environ.get('VMON', os.path.join(ROOT, 'build', 'vmon'))


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


class Answer:
    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def json(self):
        return json.loads(self.body)


class Server:
    """Starts in start(), ends in stop(); `key` is the default team's API key."""

    def __init__(self, *options):
        self.directory = tempfile.mkdtemp(prefix='vmon-api-')
        self.data = os.path.join(self.directory, 'data')
        self.options = options
        self.port, self.cluster_port = free_port(), free_port()
        self.process = None

    def command(self):
        return [VMON, 'serve', '--data-dir', self.data, '--listen', f'127.0.0.1:{self.port}',
                '--cluster-listen', f'127.0.0.1:{self.cluster_port}', '--network', 'user', *self.options]

    def start(self):
        self.log_path = os.path.join(self.directory, 'log')
        with open(self.log_path, 'ab') as log:
            before = log.tell()
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._wait_ready(before)
        self.key = self.read('default-key').strip()
        return self

    def _wait_ready(self, offset):
        deadline = time.monotonic() + 60
        while b'vmon: listening on http://' not in self.log()[offset:].encode():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError('vmon serve did not start:\n' + self.log()[offset:])
            time.sleep(0.02)

    def log(self):
        with open(self.log_path, encoding='utf-8', errors='replace') as f:
            return f.read()

    def read(self, name):
        with open(os.path.join(self.data, name), encoding='utf-8') as f:
            return f.read()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def terminate(self):
        self.process.terminate()
        return self.process.wait(timeout=60)

    def stop(self):
        if self.process and self.process.poll() is None:
            self.terminate()
        shutil.rmtree(self.directory)

    def connection(self, port=None):
        return http.client.HTTPConnection('127.0.0.1', port or self.port, timeout=30)

    def request(self, method, path, body=None, headers=None, key='', chunked=False):
        """`body`: an object (sent as JSON), or bytes; `key`: '' = the default team's, None = no credentials."""
        headers = dict(headers or {})
        if key is not None:
            headers['X-API-Key'] = key or self.key
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            headers.setdefault('Content-Type', 'application/json')
        connection = self.connection()
        try:
            connection.request(method, path, body=iter([body]) if chunked else body, headers=headers, encode_chunked=chunked)
            return Answer(connection.getresponse())
        finally:
            connection.close()
