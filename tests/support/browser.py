"""Chromium, pyodide and axe-core for the tests of pages, which are skipped by name where one is absent."""

import functools
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

MODULES = Path(os.environ.get("DRAFTWISE_TOOLS") or Path.home() / ".cache/draftwise/tools") / "browser" / "node_modules"
WIDTHS = (1280, 400)
_HANGS_MS = 600_000
"""Milliseconds after which a wait hangs; Playwright's 30 s pass on a busy machine."""


def npm_folder(name: str) -> Path:
    """Return the folder of an npm package, or skip."""
    if not (MODULES / name).is_dir():
        pytest.skip(f"{MODULES} has no {name}: `make browser` installs it")
    return MODULES / name


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """Yield Chromium, driven by Playwright."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-quic"], timeout=_HANGS_MS
        )
        yield started
        started.close()


class _Handler(SimpleHTTPRequestHandler):
    extensions_map = SimpleHTTPRequestHandler.extensions_map | {  # as its base has it
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def log_message(self, *_):
        pass


@contextmanager
def serving_folder(folder: Path) -> Iterator[str]:
    """Yield the address of a server of a folder's files."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class Visit:
    """A page that is looked at: what it asked for, and what it complained about."""

    def __init__(self, browser, url: str, *, width: int = 1280, dark: bool = False) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        self.context.set_default_timeout(_HANGS_MS)
        self.page = self.context.new_page()
        self.troubles: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda each: self.troubles.append(str(each)))
        self.page.on("request", lambda each: self.requests.append(each.url))
        self.page.goto(url)

    def _hear(self, said) -> None:
        if said.type in ("error", "warning"):
            self.troubles.append(said.text)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()

    @property
    def overflow(self) -> int:
        """Pixels by which the page is wider than the window."""
        return self.page.evaluate("document.documentElement.scrollWidth - innerWidth")

    def find_barriers(self) -> list[str]:
        """Return what axe-core calls serious or critical."""
        self.page.evaluate((npm_folder("axe-core") / "axe.min.js").read_text("utf-8"))
        found = self.page.evaluate("axe.run()")["violations"]
        return [
            f"{each['id']}: {each['nodes'][0]['html'][:120]}"
            for each in found
            if each["impact"] in ("serious", "critical")
        ]
