"""A scripted registry: serves images from memory over real HTTP and misbehaves where a test tells it to."""
import gzip
import hashlib
import io
import json
import re
import socket
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

OCI = "application/vnd.oci.image."
INDEX, MANIFEST, CONFIG = OCI + "index.v1+json", OCI + "manifest.v1+json", OCI + "config.v1+json"


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def tar_of(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


class Registry:
    """`hook(request)` sees every request first; returning True means that it has answered."""

    def __init__(self):
        self.blobs, self.manifests, self.tags = {}, {}, {}
        self.log, self.hook = [], None
        self.lock = threading.Lock()
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 0

            def log_message(self, *args):
                pass

            def do(self):
                self.path = re.sub(r"^http://[^/]+", "", self.path)  # as a proxy it gets whole URLs
                with registry.lock:
                    registry.log.append((self.command, self.path, dict(self.headers)))
                try:
                    if not (registry.hook and registry.hook(self)):
                        registry.serve(self)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            do_GET = do_HEAD = do_POST = do

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, request, client_address):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.host = f"127.0.0.1:{self.port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    # What it holds

    def add_blob(self, data):
        self.blobs[digest(data)] = data
        return digest(data)

    def add_manifest(self, document, media_type, tag=None):
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.manifests[digest(body)] = (media_type, body)
        if tag:
            self.tags[tag] = digest(body)
        return {"mediaType": media_type, "digest": digest(body), "size": len(body)}

    def add_image(self, tag="latest", layers=None, arch="amd64", media_type=MANIFEST, config=None, **extra):
        """`layers`: tars; each is gzipped. Returns the descriptor of the manifest."""
        layers = [tar_of({"a": b"a" * 1000})] if layers is None else layers
        packed = [gzip.compress(t, 1, mtime=0) for t in layers]
        config = json.dumps({"os": "linux", "architecture": arch, "config": {"Env": ["A=1"]},
                             "rootfs": {"type": "layers", "diff_ids": [digest(t) for t in layers]}, **(config or {})}).encode()
        document = {
            "schemaVersion": 2, "mediaType": media_type,
            "config": {"mediaType": CONFIG, "digest": self.add_blob(config), "size": len(config)},
            "layers": [{"mediaType": OCI + "layer.v1.tar+gzip", "digest": self.add_blob(p), "size": len(p)} for p in packed],
            **extra}
        return self.add_manifest(document, media_type, tag)

    # How it answers

    def serve(self, request):
        m = re.match(r"^/v2/(.+)/(manifests|blobs)/([^/?]+)$", request.path)
        if not m:
            return error(request, 404, "NAME_UNKNOWN", "no such route")
        _, kind, name = m.groups()
        if kind == "blobs":
            return self.serve_blob(request, self.blobs.get(name))
        name = self.tags.get(name, name)
        if name not in self.manifests:
            return error(request, 404, "MANIFEST_UNKNOWN", "manifest unknown to the scripted registry")
        media_type, body = self.manifests[name]
        return answer(request, 200, body, {"Content-Type": media_type, "Docker-Content-Digest": name})

    def serve_blob(self, request, data):
        if data is None:
            return error(request, 404, "BLOB_UNKNOWN", "blob unknown to the scripted registry")
        asked = re.match(r"bytes=(\d+)-$", request.headers.get("Range", ""))
        if not asked:
            return answer(request, 200, data)
        at = int(asked.group(1))
        if at >= len(data):
            return answer(request, 416, b"", {"Content-Range": f"bytes */{len(data)}"})
        return answer(request, 206, data[at:], {"Content-Range": f"bytes {at}-{len(data) - 1}/{len(data)}"})

    # What it was asked

    def requests(self, method=None, part=""):
        with self.lock:
            return [r for r in self.log if (not method or r[0] == method) and part in r[1]]


def answer(request, status, body=b"", headers=None):
    request.send_response(status)
    for name, value in (headers or {}).items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)
    return True


def error(request, status, code, message, headers=None):
    body = json.dumps({"errors": [{"code": code, "message": message}]}).encode()
    return answer(request, status, body, {"Content-Type": "application/json", **(headers or {})})


def cut(request, data, count, status=200, headers=None):
    """Promises `data`, sends `count` bytes of it and drops the connection."""
    request.send_response(status)
    for name, value in (headers or {}).items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    request.wfile.write(data[:count])
    request.close_connection = True
    request.connection.shutdown(socket.SHUT_RDWR)
    return True
