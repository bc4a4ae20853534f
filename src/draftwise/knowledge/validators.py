"""The rejections of vLLM's own validators: judged by conditions read from its sources, by rules, or not at all."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache

from packaging.utils import canonicalize_name

from draftwise.knowledge.rules import all_rules, is_within
from draftwise.knowledge.stored import read_rows
from draftwise.knowledge.vllm import Release, releases


class Coverage(Enum):
    """What judges a validator's rejection."""

    READ = "read"
    BY_RULE = "by_rule"
    WAITS = "waits"
    """A condition that needs what no setup shows: `check` accepts no setup that may meet it."""
    UNREACHED = "unreached"
    NOT = "not"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRefusal:
    """What a reader found out about a rejection. One of `when`, `told` and `never` is not empty."""

    refusal: str
    """Part of its key in the topic `validators`."""
    when: str = ""
    """Condition over flags, target and environment; an unknown name makes it undecided."""
    told: str = ""
    """What else in draftwise judges it."""
    needs: str = ""
    """What the condition asks for that no setup shows."""
    never: str = ""
    """Why no command line, environment or target meets it."""
    says: str = ""
    """Its text, where vLLM composes it and the key has only the name of a variable."""
    at: str = "config"
    """When the server meets it: while it makes its `config`, or at its `start`."""
    spans: tuple[tuple[str, str | None], ...] = (("0", None),)
    """Releases that it is about."""

    @property
    def coverage(self) -> Coverage:
        """What becomes of it."""
        return Coverage.UNREACHED if self.never else Coverage.WAITS if self.needs else Coverage.BY_RULE


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededPackage:
    """A package that vLLM needs for a setting and does not install."""

    package: str
    """Its name on the index; a variant for one CUDA, or for none, has a suffix."""
    when: str
    """Condition like that of `ReadRefusal`."""
    spans: tuple[tuple[str, str | None], ...]
    source: str
    install: str = ""
    """How to install it, if not from the index."""
    at: str = "start"
    """As in `ReadRefusal`."""
    needs: str = ""
    """What else the setting needs that no setup shows."""
    says: str = ""
    """What vLLM says without that."""
    extra: str = ""
    """Extra of vLLM that installs it."""

    def is_in(self, installed: Collection[str]) -> bool:
        """Return whether it is among installed packages."""
        return any(name_package(each) == self.package for each in installed)


RAY_RUNS = "ray start"
"""Stands among packages for a command that starts Ray."""
_VARIANT = re.compile(r"-(?:cu(?:da)?\d*|non-cuda)$")


def name_package(text: str) -> str:
    """Return the name of a package as the index writes it, without its variant for one CUDA."""
    return _VARIANT.sub("", canonicalize_name(text))


@cache
def list_packages() -> Sequence[NeededPackage]:
    """Return the packages that settings need and vLLM does not install."""
    return [NeededPackage(**row) for row in read_rows("packages")]


@cache
def list_asked_packages() -> frozenset[str]:
    """Return the optional packages of a server that conditions, rules or known defects ask for."""
    read = re.findall(r"packages\.(\w+)", " ".join(row.when for row in list_conditions()))
    named = (row.package for row in list_packages())
    return frozenset({"arctic-inference", "vllm-ascend", *named, *(name.replace("_", "-") for name in read)})


def list_refusals(release: Release) -> tuple[int, dict[str, Coverage]]:
    """Return the number of validators of a release, and each of their rejections with what judges it.

    A rejection is `Class.function: text`. It counts as read if a condition of the topics `config_checks` and
    `engine_checks` has the same text and can be decided, and as covered by a rule if the rule's `answers`, its probe's
    place or a row of `refusals.json` names it.
    """
    known = release.table("validators")
    read = _list_read(release)
    seen = {text for text, row in release.table("messages").items() if "rules" in row}
    rules = [each for each in all_rules().values() if each.holds(release.version)]
    answers = [pattern for each in rules for pattern in each.answers]
    found: dict[str, Coverage] = {}
    about = {key: row for row in _read_refusals() for key in find_refusal(release, row)}
    for key in known:
        _, is_refusal, text = key.partition(": ")
        if not is_refusal:
            continue
        bare = _bare(text)
        is_ruled = bare in seen or any(pattern in key for pattern in answers)
        if bare in read:
            found[key] = Coverage.READ
        elif is_ruled:
            found[key] = Coverage.BY_RULE
        else:
            found[key] = about[key].coverage if key in about else Coverage.NOT
    return len(known) - len(found), found


@cache
def list_conditions() -> Sequence[ReadRefusal]:
    """Return the rejections that are judged by a condition which a reader wrote."""
    return [row for row in _read_refusals() if row.when]


def find_refusal(release: Release, row: ReadRefusal) -> Sequence[str]:
    """Return the keys of a rejection in a release; none where it does not have it."""
    if not is_within(row.spans, release.version):
        return ()
    return [key for key in release.table("validators") if ": " in key and row.refusal in key]


@cache
def _read_refusals() -> Sequence[ReadRefusal]:
    return [ReadRefusal(**row) for row in read_rows("refusals")]


def is_read(text: str) -> bool:
    """Return whether the condition of a rejection was read from any release's sources."""
    return any(_bare(text) in _list_read(release) for release in releases())


@cache
def _list_read(release: Release) -> frozenset[str]:
    topics = (release.table(topic) for topic in ("config_checks", "engine_checks"))
    return frozenset(_bare(row["says"]) for table in topics for key, row in table.items() if _can_hold(key))


def _can_hold(key: str) -> bool:
    """Say whether anybody can see that a condition holds: what stands for `_` and private fields is unknown."""
    condition = ast.parse(re.sub(r"^\w+: ", "", key), mode="eval").body
    names = {node.id for node in ast.walk(condition) if isinstance(node, ast.Name)}
    return bool(names - {"envs", "current_platform"}) and _is_decidable(condition)


def _is_decidable(node: ast.AST) -> bool:
    match node:
        case ast.Name(id=name):
            return not name.startswith("_")
        case ast.BoolOp(op=ast.Or(), values=parts):
            return any(_is_decidable(part) for part in parts)
        case ast.IfExp(test=test, body=body, orelse=other):
            return _is_decidable(test) and (_is_decidable(body) or _is_decidable(other))
    return all(_is_decidable(part) for part in ast.iter_child_nodes(node))


def _bare(text: str) -> str:
    """Return a message with `{}` in the place of each run of values."""
    spaced = re.sub(r"(\{\}\s*)+\{\}", "{}", re.sub(r"\{(?:[^{}]|\{[^{}]*\})*\}", "{}", text))
    return re.sub(r"\s+", " ", spaced).strip()
