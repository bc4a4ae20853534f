"""Raises the number of files and connections that this process may have open."""

from __future__ import annotations

from contextlib import suppress


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
