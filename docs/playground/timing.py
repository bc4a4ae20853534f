"""Times the playground in an installed Chromium: `python -m docs.playground.timing FOLDER`; takes a minute.

Each round starts another browser, so nothing is cached: the first verdict, the first one after a reload, and the
median of twenty edits. Run it on a quiet machine. It needs playwright, and a folder that `docs.playground` built.
"""

from __future__ import annotations

import argparse
import functools
import shutil
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

EDITS = 20
FIRST = "() => performance.getEntriesByName('verdict')[0]?.startTime"
LAST = (
    "(seen) => { const all = performance.getEntriesByName('verdict'); return all.length > seen && all.at(-1).detail }"
)


def main() -> None:
    """Print the times of each round, in seconds and milliseconds."""
    options = argparse.ArgumentParser(description="Time the playground.")
    options.add_argument("folder", type=Path)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--mbit", type=float, default=0, help="speed of the line; 0: as fast as the loopback")
    asked = options.parse_args()
    print(f"{sum(file.stat().st_size for file in asked.folder.iterdir()):,} bytes on disk")
    handler = functools.partial(_Quiet, directory=asked.folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for at in range(asked.rounds):
            cold, again, later = _time(f"http://127.0.0.1:{server.server_port}/index.html", asked.mbit)
            print(
                f"round {at + 1}: first verdict {cold:.1f} s, reloaded {again:.1f} s, an edit {later:.0f} ms",
                flush=True,
            )
        server.shutdown()


def _time(url: str, mbit: float) -> tuple[float, float, float]:
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-quic"])
        page = browser.new_context().new_page()
        if mbit:
            line = {"offline": False, "latency": 20, "downloadThroughput": mbit * 125_000, "uploadThroughput": -1}
            page.context.new_cdp_session(page).send("Network.emulateNetworkConditions", line)
        times = []
        for _ in range(2):
            page.goto(url)
            times.append(_wait(page, FIRST) / 1000)
        edits = []
        page.wait_for_selector("[data-complete]", timeout=120_000)
        for at in range(EDITS):
            seen = page.evaluate("performance.getEntriesByName('verdict').length")
            page.fill("[name=sources]", f"vllm serve Qwen/Qwen3-{at}B --max-num-seqs {at + 1}")
            edits.append(_wait(page, LAST, seen))
        browser.close()
    return times[0], times[1], median(edits)


def _wait(page: Any, script: str, given: object = None) -> float:
    return float(page.wait_for_function(script, arg=given, timeout=120_000).json_value())


class _Quiet(SimpleHTTPRequestHandler):
    extensions_map = SimpleHTTPRequestHandler.extensions_map | {".mjs": "text/javascript", ".wasm": "application/wasm"}

    def log_message(self, *_: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    main()
