"""Builds the command of a new interpreter that runs a module of this package."""

from __future__ import annotations

import json
import sys


def make_command(module: str, number: int) -> list[str]:
    """Return the command that calls a module's `main` with a number, under this process's module search path."""
    code = f"import json, sys; sys.path[:] = json.loads(sys.argv[2]); from {module} import main; main(int(sys.argv[1]))"
    return [sys.executable, "-P", "-c", code, str(number), json.dumps(sys.path)]
