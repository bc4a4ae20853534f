"""Reads the text of files that operators name, within bounds on their size."""

from __future__ import annotations

from pathlib import Path

from draftwise.core import InvalidSetup

__all__ = ["read_text"]

_MAX_BYTES = 1_000_000


def read_text(path: Path) -> str:
    """Return a file's text.

    Raises:
        InvalidSetup: it cannot be read, is not UTF-8, or is larger than a megabyte.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InvalidSetup.because(
                "too-long",
                f"{path} is larger than {_MAX_BYTES:,} bytes, and is not read.",
                where=str(path),
                fix="Give the part of it that starts the server.",
            )
        with path.open(encoding="utf-8", newline="") as file:  # line ends as they are: a shell minds
            return file.read()
    except InvalidSetup:
        raise
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is not UTF-8 text"
        raise InvalidSetup.because("unreadable-file", f"{path} cannot be read ({reason}).", where=str(path)) from None
    except ValueError as error:
        raise InvalidSetup.because(
            "unreadable-file", f"{str(path)!r} cannot be read ({error}).", where=repr(str(path))
        ) from None
