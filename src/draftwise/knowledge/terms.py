"""Names of the field that are no key, method or flag: variants, modes, other names, variables, ideas, tasks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from draftwise.knowledge.stored import read_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One name with its other spellings."""

    names: tuple[str, ...]
    """Spellings, the usual one first."""
    kind: str
    """`variant`, `mode`, `idea`, `variable`, `other name` and so on; `task`: what people ask or complain of."""
    text: str
    """What it is, and what to write for it, in whole sentences."""
    see: tuple[str, ...]
    """Methods, keys, rules and other names that `explain` knows."""
    source: str
    says: tuple[str, ...] = ()
    """Parts of lines and errors, of vLLM's or of what it stands on, that lead to the term."""


@cache
def read_terms() -> tuple[Term, ...]:
    """Return the table."""
    return tuple(Term(**row) for row in read_rows("terms"))


def find_term(name: str) -> Term | None:
    """Return the term of a name, however it is capitalized, hyphenated or spaced."""
    return _by_spelling().get(_normalize(name))


def find_said_terms(text: str) -> tuple[Term, ...]:
    """Return the terms that a pasted error or log line leads to."""
    squeezed = " ".join(text.split()).lower()
    return tuple(term for term in read_terms() if any(each.lower() in squeezed for each in term.says))


@cache
def _by_spelling() -> Mapping[str, Term]:
    return {_normalize(name): term for term in read_terms() for name in term.names}


def _normalize(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
