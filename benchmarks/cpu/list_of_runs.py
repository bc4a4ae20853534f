"""Times the list of 1,000 runs in `draftwise ui`: the first time, when all are read, and later, when none has changed.

    python -m benchmarks.cpu.list_of_runs benchmarks/cpu/results/list_of_runs.json

Runs are copies of the small run in tests/core/documents. CPU seconds hardly depend on what else the machine does; a
wall time is evidence on a quiet machine only. The process is warm: one page was shown before.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.cpu.provenance import provenance, write

_TIMES = 5


def measure(count: int) -> dict[str, Any]:
    """Return the seconds of wall clock and CPU that a list of this many runs takes."""
    with TemporaryDirectory() as name:
        os.environ["XDG_CACHE_HOME"] = f"{name}/cache"
        from starlette.testclient import TestClient
        from tests.ui.test_pages_server import make_runs

        from draftwise.verbs.pages.pages_app import make_app

        folder, few = make_runs(Path(name, "runs"), count), make_runs(Path(name, "few"), 1)
        with TestClient(make_app([few], "t")[0], base_url="http://127.0.0.1") as client:
            client.get("/").raise_for_status()
        with TestClient(make_app([folder], "t")[0], base_url="http://127.0.0.1") as client:
            first = _time(lambda: client.get("/"))
            page = client.get("/")
            assert f"{count} of {count} runs" in page.text
            later = [_time(lambda: client.get("/")) for _ in range(_TIMES)]
        return {
            "runs": count,
            "page_bytes": len(page.content),
            "first": first,
            "later_median": {key: round(median(each[key] for each in later), 3) for key in first},
        }


def _time(run: Callable[[], object]) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return {"wall_s": round(time.perf_counter() - wall, 3), "cpu_s": round(time.process_time() - cpu, 3)}


if __name__ == "__main__":
    rows = [measure(count) for count in (100, 1000)]
    about = provenance("starlette", "jinja2") | {"load_average": round(os.getloadavg()[0], 1)}
    write(about | {"measured": rows}, Path(sys.argv[1]))
