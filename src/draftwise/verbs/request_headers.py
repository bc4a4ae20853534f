"""Reads the headers and keys with which verbs reach running servers; secrets come from environment variables."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from draftwise.core import InvalidSetup
from draftwise.measure.access import Header

__all__ = ["Header", "read_headers"]

_VARIABLE = re.compile(r"\$\{(\w+)\}")


def read_headers(headers: Iterable[Header | str], key_variables: Iterable[str] = ()) -> tuple[Header, ...]:
    """Return the headers of a request.

    Args:
        headers: values, or `[ARM=]NAME: VALUE` with `${VARIABLE}` for environment variables.
        key_variables: `[ARM=]NAME` of variables that hold API keys.

    Raises:
        InvalidSetup: a variable is not set, or a text is not a header.
    """
    parsed = (each if isinstance(each, Header) else Header.parse(_expand(each)) for each in headers)
    return (*_read_keys(key_variables), *parsed)


def _read_keys(texts: Iterable[str]) -> Iterator[Header]:
    for text in texts:
        arm, _, name = text.rpartition("=")
        key = os.environ.get(name)
        if not key:
            raise InvalidSetup.because("no-api-key", f"{name} is not set.", where="--api-key-env")
        yield Header.of_key(key, arm or None)


def _expand(text: str) -> str:
    def read(found: re.Match[str]) -> str:
        if (value := os.environ.get(found[1])) is None:
            raise InvalidSetup.because("no-such-variable", f"{found[1]} is not set.", where="--header")
        return value

    return _VARIABLE.sub(read, text)
