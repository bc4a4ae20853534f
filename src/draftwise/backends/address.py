"""What can be the address of a server."""

from __future__ import annotations

from urllib.parse import urlsplit

from draftwise.core import InvalidSetup

__all__ = ["check_url"]


def check_url(url: str, *, where: str = "--url") -> None:
    """Refuse what cannot be the address of a server.

    Raises:
        InvalidSetup: it is not an http(s) URL.
    """
    if not _is_server(url):
        raise InvalidSetup.because(
            "not-a-url", f"{where} {url!r} is not an http(s) URL.", where=where, fix="Example: http://127.0.0.1:8000."
        )


def _is_server(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 0) >= 0
    except ValueError:  # a port that is no number, a bracket that is not closed
        return False
