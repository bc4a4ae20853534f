"""Rejects features that need Linux or macOS. On Windows, they run in WSL."""

from __future__ import annotations

import os

from draftwise.core import InvalidSetup


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
