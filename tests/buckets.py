"""Object stores on loopback: an S3 server, and a proxy before it that misbehaves on purpose."""

from __future__ import annotations

import contextlib
import http.client
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest

# In a process of its own: it brings libraries whose warnings are not ours.
_SERVER = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def s3_server() -> Iterator[str]:
    """Serve S3 and yield its URL."""
    command = [sys.executable, "-W", "ignore", "-c", _SERVER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        port = process.stdout.readline().strip()
        assert port, "the S3 server did not start"
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.stdin.close()  # it ends by itself
            process.wait(20)


def ask(method: str, url: str, data: bytes | None = None, **headers: str) -> bytes:
    """Send a request to a server on loopback."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, data=data, method=method, headers=named)
    with urllib.request.urlopen(request, timeout=20) as answer:
        found: bytes = answer.read()
    return found


@contextmanager
def plain_server() -> Iterator[tuple[str, dict[str, bytes]]]:
    """Serve and store files by their paths, as Google's XML interface and web servers do."""
    files: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            files[quote(unquote(self.path))] = self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(200, b"")

        def do_GET(self) -> None:
            found = files.get(quote(unquote(self.path)))
            self.answer(404, b"") if found is None else self.answer(200, found)

        def answer(self, status: int, data: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Sun, 01 Nov 2026 10:00:00 GMT")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with serving(Handler) as url:
        yield url, files


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Run a server on loopback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class Wrong:
    """What a proxy does instead of asking the server."""

    status: int = 503
    """The answer; 0 closes the connection without one."""

    after: int = 0
    """Bytes of the server's answer that are sent before the connection is closed, if any."""

    hang: threading.Event | None = None
    """Waited for before the server is asked."""

    headers: dict[str, str] = field(default_factory=dict)
    """Of the answer."""

    body: bytes = b""
    """Of the answer."""


@dataclass
class Proxy:
    """A proxy before a server; ``rule`` says which requests go wrong, and may be exchanged."""

    target: str
    rule: Callable[[str, str, int], Wrong | None] = lambda *_: None
    """Of method, path and how many requests came before."""

    url: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Method and path of every request."""

    headers: list[dict[str, str]] = field(default_factory=list)
    most: int = 0
    """Requests that were under way at once, at most."""

    def counts(self) -> Counter[str]:
        """Return how many requests there were, by method."""
        return Counter(method for method, _ in self.asked)


@contextmanager
def proxy_to(target: str) -> Iterator[Proxy]:
    """Run a proxy before a server."""
    proxy = Proxy(target)
    lock = threading.Lock()
    under_way = 0

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def __getattr__(self, name: str) -> Any:
            if name.startswith("do_"):
                return self.any_method
            raise AttributeError(name)

        def any_method(self) -> None:
            nonlocal under_way
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            with lock:
                number = len(proxy.asked)
                proxy.asked.append((self.command, self.path))
                proxy.headers.append({k.title(): v for k, v in self.headers.items()})
                under_way += 1
                proxy.most = max(proxy.most, under_way)
            try:
                self.answer(body, proxy.rule(self.command, self.path, number))
            finally:
                with lock:
                    under_way -= 1

        def answer(self, body: bytes, wrong: Wrong | None) -> None:
            if wrong is not None and wrong.hang is not None:
                wrong.hang.wait(30)
            elif wrong is not None and not wrong.after:
                self.close_connection = True
                if wrong.status:
                    self.send_response(wrong.status)
                    for name, value in wrong.headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(wrong.body)))
                    self.end_headers()
                    if self.command != "HEAD":
                        self.wfile.write(wrong.body)
                return
            host = proxy.target.partition("://")[2]
            connection = http.client.HTTPConnection(host, timeout=30)
            connection.request(self.command, self.path, body or None, dict(self.headers.items()))
            found = connection.getresponse()
            data = found.read()
            connection.close()
            self.send_response(found.status)
            for name, value in found.getheaders():
                if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                    self.send_header(name, value)
            length = found.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            if wrong is not None and wrong.after:
                data = data[: wrong.after]
                self.close_connection = True
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError, TimeoutError):  # the client gave up
                super().handle()

    with serving(Handler) as proxy.url:
        yield proxy


CREDENTIALS = {"AWS_ACCESS_KEY_ID": "AKIAHIDDEN", "AWS_SECRET_ACCESS_KEY": "hidden-key"}


def use_server(monkeypatch: pytest.MonkeyPatch, endpoint: str, **more: str) -> None:
    """Let S3 be at ``endpoint``, as a user's environment would say it."""
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    for name, value in {"AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1", **more}.items():
        monkeypatch.setenv(name, value)
