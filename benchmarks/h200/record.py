"""The file that a run of versus_vllm.py fills row by row."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from cases import PER_TOKEN_ACCEPTANCE

__all__ = ["Record", "about", "command_line", "existing_path", "machine", "result_file"]

_SHOWN = (
    "engine",
    "case",
    "batch",
    "concurrency",
    "turn",
    "ttft_ms",
    "itl_ms",
    "ms_step",
    "acceptance_length",
    "tokens_per_s",
    "first_ms",
    "kv_tokens",
    "text",
)


def command_line(text: str) -> str:
    """Return an argument that is a command line whose program is there."""
    words = shlex.split(text)
    if not words or shutil.which(words[0]) is None:
        raise argparse.ArgumentTypeError(f"there is no program {text!r}")
    return text


def existing_path(text: str) -> Path:
    """Return an argument that is a file or a folder which is there."""
    if not Path(text).exists():
        raise argparse.ArgumentTypeError(f"there is no {text}")
    return Path(text)


def result_file(text: str) -> Path:
    """Return an argument that is a file which `Record` wrote."""
    try:
        json.loads(Path(text).read_text())["about"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise argparse.ArgumentTypeError(f"{text} is no result of this script ({type(error).__name__})") from None
    return Path(text)


class Record:
    """What is known so far, always on disk as well.

    Args:
        path: of the file.
        about: the run.
        resumed: an earlier run's content, which this one adds to; {} if there is none.
        values: names of what is known once.
        lists: names of what rows are added to, beside `rows` and `notes`.
    """

    def __init__(
        self,
        path: Path,
        about: dict[str, Any],
        resumed: dict[str, Any],
        *,
        values: Sequence[str] = ("engines", "floor", "transformers"),
        lists: Sequence[str] = ("first", "capacity"),
    ) -> None:
        self._path = path
        self.content: dict[str, Any] = {"about": about}
        self.content |= {key: resumed.get(key, {}) for key in values}
        self.content |= {key: resumed.get(key, []) for key in ("rows", *lists, "notes")}
        if resumed:
            self.content["resumed"] = [*resumed.get("resumed", []), resumed["about"]]
        self.save()

    def save(self) -> None:
        """Write the file anew, whole or not at all."""
        text = json.dumps(self.content, indent=1) + "\n"
        scratch = self._path.with_suffix(".tmp")
        scratch.write_text(text)
        scratch.replace(self._path)

    def has(self, kind: str, **key: Any) -> bool:
        """Whether a row with these values is there."""
        return any(all(row.get(name) == value for name, value in key.items()) for row in self.content[kind])

    def add(self, kind: str, row: dict[str, Any]) -> None:
        """Keep a row, and say so."""
        self.content[kind].append(row)
        self.save()
        print(" ".join(f"{name}={row[name]}" for name in _SHOWN if name in row), flush=True)

    def note(self, text: str) -> None:
        """Keep something that a reader of the numbers should know."""
        self.add("notes", {"text": text})


def machine() -> dict[str, Any]:
    """Return when, on what and by which command this process runs."""
    fields = "name,driver_version,clocks.sm,clocks.max.sm,power.limit"
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        gpu = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        gpu = "none"
    return {
        "date": date.today().isoformat(),
        "command": " ".join(["python", *sys.argv]),
        "gpu": gpu,
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def about(args: argparse.Namespace) -> dict[str, Any]:
    """Return where and how the run of a comparison takes place."""
    found = machine()
    for kind in ("vllm", "sglang"):
        if python := getattr(args, f"{kind}_python", None):
            found["command"] = found["command"].replace(python, f"{kind.upper()}_PYTHON")
    synthetic = getattr(args, "token_acceptance", PER_TOKEN_ACCEPTANCE)
    found |= {"commit": args.commit, "scale": args.scale, "repeats": args.repeats}
    return found | {"acceptance": synthetic if args.acceptance == "synthetic" else "real"}
