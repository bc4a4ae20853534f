"""A package index on this machine, and pip without this machine's configuration."""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest


def serve_index(file: Path, *, ranges: bool) -> Iterator[tuple[str, list[str]]]:
    """Serve a folder as an index; yield its address and, as they come, the methods of the requests for the wheel."""
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.extend([f"GET {self.headers['Range']}"] if self.path.endswith(".whl") else [])
            if not ranges or "Range" not in self.headers:
                return super().do_GET()
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            part = file.read_bytes()[int(first) : int(last) + 1 if last else None]
            self.send_response(206 if part else 416)
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            self.wfile.write(part)
            return None

        def log_message(self, *_arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(file.parents[1])))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", asked
    server.shutdown()
    server.server_close()


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Pip without this machine's configuration."""
    for name, value in {"CONFIG_FILE": "/dev/null", "RETRIES": "0", "TRUSTED_HOST": "127.0.0.1"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    for name in ("FIND_LINKS", "EXTRA_INDEX_URL", "NO_INDEX"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch
