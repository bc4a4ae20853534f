"""Proves `draftwise facts add`: takes a release out of a copy of draftwise, adds it again, and counts what differs.

    python -m catalogue.readd [--out catalogue/readded.json] [VERSION [WHAT ...]]

VERSION is the newest release unless it is given; WHAT is passed to `facts add` in place of `vllm==VERSION`.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from catalogue.build import DATA, known_releases, write
from draftwise.knowledge.spans import SpanRow, decode, encode

_PACKAGE = DATA.parents[2]
_DUMP = """
import json
from draftwise.knowledge.vllm import _rows, releases, topics
rows = {topic: [row._asdict() for row in _rows(topic)] for topic in topics()}
print(json.dumps({"releases": [str(each) for each in releases()], "rows": rows}))
"""


def main(arguments: list[str]) -> int:
    """Print and write the result; 1 when a row differs."""
    out = Path(arguments.pop(arguments.index("--out") + 1)) if "--out" in arguments else None
    words = [word for word in arguments if word != "--out"]
    version = words[0] if words else known_releases(DATA)[-1]["version"]
    result = readd(version, words[1:] or [f"vllm=={version}"])
    text = json.dumps(result, indent=1) + "\n"
    print(text, end="")
    if out is not None:
        out.write_text(text, encoding="utf-8")
    return int(bool(result["rows_that_differ"]))


def readd(version: str, what: Sequence[str]) -> dict[str, Any]:
    """Take a release out of a copy, add it again there, and say which rows differ from the shipped ones."""
    with TemporaryDirectory(prefix="draftwise-") as folder:
        copy = Path(folder) / "draftwise"
        shutil.copytree(_PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        take_out(copy / DATA.relative_to(_PACKAGE), version)
        run = _Copy(Path(folder), data=Path(folder) / "data")
        without = run("-c", _DUMP)
        start = time.monotonic()
        added = run("-m", "draftwise", "facts", "add", *what, "--json")
        seconds = time.monotonic() - start
        again, shipped = run("-c", _DUMP), _Copy(_PACKAGE.parent, data=Path(folder) / "none")("-c", _DUMP)
    return {
        "command": f"python -m catalogue.readd {version}",
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "release": version,
        "read_from": added["read_from"],
        "seconds": round(seconds, 1),
        "topics_missing": added["missing"],
        "releases_without_it": len(without["releases"]),
        "rows": sum(map(len, shipped["rows"].values())),
        "rows_that_the_release_changes": count_differing(without["rows"], shipped["rows"]),
        "rows_that_differ": count_differing(again["rows"], shipped["rows"]),
    }


def take_out(folder: Path, version: str) -> None:
    """Write a data folder again as it would be if a release had never been read."""
    known = known_releases(folder)
    every = [about["version"] for about in known]
    rest = [name for name in every if name != version]
    rows: dict[str, list[SpanRow]] = {}
    for file in folder.glob("*.json"):
        if file.name != "releases.json":
            stored = [SpanRow(**row) for row in json.loads(file.read_text(encoding="utf-8"))]
            tables = [decode(every, stored, name) for name in rest]
            rows[file.stem] = encode(rest, [{k: (row.value, row.source) for k, row in each.items()} for each in tables])
    write(folder, rows, [about for about in known if about["version"] != version])


def count_differing(rows: Mapping[str, Sequence[Any]], others: Mapping[str, Sequence[Any]]) -> int:
    """Return how many rows of either are not in the other."""
    one, other = ({(topic, json.dumps(row)) for topic in each for row in each[topic]} for each in (rows, others))
    return len(one ^ other)


class _Copy:
    """Runs Python with the draftwise of a folder, and a user's folder of its own; returns the JSON that it prints."""

    def __init__(self, folder: Path, *, data: Path) -> None:
        self._variables = {**os.environ, "PYTHONPATH": str(folder), "DRAFTWISE_DATA_DIR": str(data)}

    def __call__(self, *arguments: str) -> Any:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, env=self._variables, check=True, stdout=subprocess.PIPE, text=True)
        return json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
