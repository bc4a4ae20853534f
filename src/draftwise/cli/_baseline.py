"""The option --baseline: what a service was measured to do."""

from __future__ import annotations

from pathlib import Path

from draftwise.core import Baseline, UnreadableSource

__all__ = ["read_baseline"]


def read_baseline(path: Path) -> Baseline:
    """Return the baseline of a file.

    Raises:
        UnreadableSource: it cannot be read, or is none.
    """
    try:
        return Baseline.from_json(path.read_text(encoding="utf-8"), where=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableSource.because(
            "unreadable-file", f"{path} cannot be read ({error}).", where=str(path)
        ) from None
