"""The folder for what a user adds to draftwise and wants kept."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["data_folder"]


def data_folder() -> Path:
    """Return the user's data folder for draftwise, which need not exist.

    `$DRAFTWISE_DATA_DIR`, else `draftwise` in `$XDG_DATA_HOME` or `~/.local/share`.
    """
    if given := os.environ.get("DRAFTWISE_DATA_DIR"):
        return Path(given)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "draftwise"
