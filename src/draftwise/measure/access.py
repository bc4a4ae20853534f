"""Defines access to running servers: headers, API keys and metrics pages, for all servers or one of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from draftwise.backends.address import check_url
from draftwise.core import InvalidSetup
from draftwise.knowledge.messages import refusal

if TYPE_CHECKING:
    from draftwise.core import Arm

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""Name of a header (RFC 9110, section 5.1)."""
_OURS = frozenset({"content-length", "content-type", "transfer-encoding", "connection", "accept-encoding"})
_NAMED_URL = re.compile(r"(.+?)=(https?://.*)")
_OF_METRICS = ".metrics"
"""Suffix of an arm's name that limits a header to its metrics page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """An HTTP header for requests to running servers. Its value stays in memory and is never stored."""

    name: str
    value: str = field(repr=False)
    arm: str | None = None
    """Arm whose server gets it (`ARM`), or whose metrics page does (`ARM.metrics`). None: all servers."""

    @classmethod
    def parse(cls, text: str) -> Header:
        """Parse `NAME: VALUE` or `ARM=NAME: VALUE`.

        Raises:
            InvalidSetup: the text is not a header, or names one that the client sets itself.
        """
        head, colon, value = text.partition(":")
        arm, _, name = head.rpartition("=")
        name, value = name.strip(), value.strip()
        if not (colon and _TOKEN.fullmatch(name) and value.isprintable() and value.isascii()):
            # What was given is not shown: it may be a secret.
            raise _bad_header("a header must be NAME: VALUE in ASCII.", "Example: --header 'X-Team: ${TEAM_KEY}'.")
        if name.lower() in _OURS:
            raise _bad_header(f"The load generator sets {name} itself.", "Leave it out.")
        return cls(name=name, value=value, arm=arm.strip() or None)

    @classmethod
    def of_key(cls, key: str, arm: str | None = None) -> Header:
        """Return the header that carries an API key."""
        return cls(name="Authorization", value=f"Bearer {key}", arm=arm)


def find_headers(headers: Iterable[Header], arm: str, *, of_metrics: bool = False) -> dict[str, str]:
    """Return the headers for an arm's server (its own replace general ones), or only those for its metrics page."""
    owner = f"{arm}{_OF_METRICS}" if of_metrics else arm
    mine = [each for each in headers if each.arm == owner or (each.arm is None and not of_metrics)]
    by_name = {each.name.lower(): each for each in sorted(mine, key=lambda each: each.arm is not None)}
    return {each.name: each.value for each in by_name.values()}


def check_headers(headers: Sequence[Header], arms: Sequence[Arm]) -> None:
    """Check that each header names an arm, that a resumed run has its headers, and that no two arms are one server.

    Raises:
        InvalidSetup: a check fails.
    """
    _check_names("--header", (each.arm.removesuffix(_OF_METRICS) for each in headers if each.arm), arms)
    for arm in arms:
        if lost := set(arm.header_names) - set(_list_names(headers, arm.name)):
            raise refusal("headers-missing", name=arm.name, names=", ".join(sorted(lost)))
    _check_distinct(headers, arms)


def with_access(arms: Sequence[Arm], headers: Sequence[Header], metrics_urls: Sequence[str]) -> tuple[Arm, ...]:
    """Return the arms with their metrics URLs and the names of their headers.

    Args:
        metrics_urls: values of `--metrics-url`: one per arm, in order, or `ARM=URL`.

    Raises:
        InvalidSetup: an arm is unknown, a URL is invalid, there are fewer URLs than arms, or two arms are one server.
    """
    pages = _read_pages(metrics_urls, arms)
    reached = tuple(
        replace(arm, metrics_url=pages.get(arm.name), header_names=tuple(_list_names(headers, arm.name)))
        for arm in arms
    )
    check_headers(headers, reached)
    return reached


def _list_names(headers: Sequence[Header], arm: str) -> list[str]:
    return sorted({*find_headers(headers, arm), *find_headers(headers, arm, of_metrics=True)})


def _read_pages(texts: Sequence[str], arms: Sequence[Arm]) -> dict[str, str]:
    found = [(text, _NAMED_URL.fullmatch(text)) for text in texts]
    named = {each[1].strip(): each[2] for _, each in found if each is not None}
    in_order = [text for text, each in found if each is None]
    _check_names("--metrics-url", named, arms)
    if in_order and (named or len(in_order) != len(arms)):
        raise refusal(
            "options-conflict",
            given=len(in_order),
            servers=len(arms),
            names=", ".join(arm.name for arm in arms),
            name=arms[-1].name,
        )
    pages = named or dict(zip((arm.name for arm in arms), in_order, strict=False))
    return {name: _complete(url) for name, url in pages.items()}


def _complete(url: str) -> str:
    """Return the URL of a page of counters; one without a path is that of the server."""
    check_url(url, where="--metrics-url")
    return url if urlsplit(url).path.strip("/") else f"{url.rstrip('/')}/metrics"


def _check_names(option: str, names: Iterable[str], arms: Sequence[Arm]) -> None:
    known = [arm.name for arm in arms]
    for name in names:
        if name not in known:
            raise refusal("unknown-arm", case="option", name=name, option=option, names=", ".join(known))


def _check_distinct(headers: Sequence[Header], arms: Sequence[Arm]) -> None:
    """Refuse arms at one address whose headers are the same: what else is at one address is seen without values."""
    seen: dict[object, str] = {}
    for arm in arms:
        sent = find_headers(headers, arm.name)
        place = (arm.address, tuple((name, sent.get(name)) for name in arm.routing_headers))
        if arm.routing_headers and (other := seen.setdefault(place, arm.name)) != arm.name:
            raise refusal("same-server", case="headers", other=other, name=arm.name, url=arm.url)


def _bad_header(text: str, fix: str) -> InvalidSetup:
    return InvalidSetup.because("not-a-header", text, where="--header", fix=fix)
