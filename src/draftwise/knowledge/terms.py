"""Terms that are not a key, method or flag: variants, modes, other names, variables, ideas, tasks."""

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
    """`variant`, `mode`, `idea`, `variable`, `other name` and so on; `task`: a question or complaint of users."""
    text: str
    """What it is, and what to write for it, in full sentences."""
    see: tuple[str, ...]
    """Methods, keys, rules and other names that `explain` knows."""
    source: str
    says: tuple[str, ...] = ()
    """Parts of log lines and errors, from vLLM or its libraries, that lead to the term."""


@cache
def read_terms() -> tuple[Term, ...]:
    """Return the table."""
    return tuple(Term(**row) for row in read_rows("terms"))


def find_term(name: str) -> Term | None:
    """Return the term of a name; capitals, hyphens and spaces do not matter."""
    return _by_spelling().get(squeeze(name))


def find_said_terms(text: str) -> tuple[Term, ...]:
    """Return the terms that a pasted error or log line leads to."""
    squeezed = " ".join(text.split()).lower()
    return tuple(term for term in read_terms() if any(each.lower() in squeezed for each in term.says))


@cache
def _by_spelling() -> Mapping[str, Term]:
    return {squeeze(name): term for term in read_terms() for name in term.names}


def squeeze(name: str) -> str:
    """Return a name without case and separators."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
