"""Processes: the command of a new interpreter, the limit of open files, and parts for Linux and macOS only."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress

from draftwise.core import InvalidSetup


def make_command(module: str, number: int) -> list[str]:
    """Return the command that calls a module's `main` with a number, under this process's module search path."""
    code = f"import json, sys; sys.path[:] = json.loads(sys.argv[2]); from {module} import main; main(int(sys.argv[1]))"
    return [sys.executable, "-P", "-c", code, str(number), json.dumps(sys.path)]


def raise_file_limit() -> int | None:
    """Raise the limit on open files (streams count) to the system's maximum, and return it; None: no limit."""
    try:
        import resource
    except ImportError:  # Windows
        return None

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # (macOS has a lower limit of its own than the one it calls hard.)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return None if hard == resource.RLIM_INFINITY else hard


def require_posix(what: str) -> None:
    """Do nothing on POSIX systems.

    Raises:
        InvalidSetup: the system is not POSIX.
    """
    if not hasattr(os, "fork"):
        raise InvalidSetup.because(
            "needs-posix",
            f"{what} on Linux and macOS only.",
            fix="On Windows, use WSL (`wsl --install`), or name a server that runs already by its URL.",
        )
