"""A web server on this machine whose answers a test decides."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType

__all__ = ["Answer", "serving_answers"]

Answer = tuple[int, str | bytes] | tuple[int, str | bytes, Mapping[str, str]]
"""Status and body, and further headers."""


@contextmanager
def serving_answers(
    answer: Callable[[str, dict[str, str]], Answer], post: Callable[[str, bytes], Answer] | None = None
) -> Iterator[str]:
    """Yield the URL of a server that answers each GET by its path and its headers (lower case).

    Args:
        answer: to a GET.
        post: answers a POST, by its path and its body.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        """An answer goes out in two pieces, and the second one must not wait for the first to be acknowledged."""

        def do_GET(self) -> None:
            self._send(*answer(self.path, {name.lower(): value for name, value in self.headers.items()}))

        def do_POST(self) -> None:
            assert post is not None, "nothing is posted here"
            self._send(*post(self.path, self.rfile.read(int(self.headers["Content-Length"]))))

        def _send(self, status: int, body: str | bytes, headers: Mapping[str, str] = MappingProxyType({})) -> None:
            data = body.encode() if isinstance(body, str) else body
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
