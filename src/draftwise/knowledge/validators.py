"""The rejections of vLLM's own validators: judged by conditions read from its sources, by rules, or not at all."""

from __future__ import annotations

import re
from enum import Enum
from functools import cache

from draftwise.knowledge.rules import all_rules
from draftwise.knowledge.vllm import Release, releases


class Coverage(Enum):
    """What judges a validator's rejection."""

    READ = "read"
    BY_RULE = "by_rule"
    NOT = "not"


def list_refusals(release: Release) -> tuple[int, dict[str, Coverage]]:
    """Return the number of validators of a release, and each of their rejections with what judges it.

    A rejection is `Class.function: text`. It counts as read if a condition of the topics `config_checks` and
    `engine_checks` has the same text, and as covered by a rule if the rule's `answers` or its probe's place name it.
    """
    known = release.table("validators")
    read = _list_read(release)
    seen = {text for text, row in release.table("messages").items() if "rules" in row}
    rules = [each for each in all_rules().values() if each.holds(release.version)]
    answers = [pattern for each in rules for pattern in each.answers]
    found: dict[str, Coverage] = {}
    for key in known:
        _, is_refusal, text = key.partition(": ")
        if not is_refusal:
            continue
        bare = _bare(text)
        is_ruled = bare in seen or any(pattern in key for pattern in answers)
        found[key] = Coverage.READ if bare in read else Coverage.BY_RULE if is_ruled else Coverage.NOT
    return len(known) - len(found), found


def is_read(text: str) -> bool:
    """Return whether the condition of a rejection was read from any release's sources."""
    return any(_bare(text) in _list_read(release) for release in releases())


@cache
def _list_read(release: Release) -> frozenset[str]:
    topics = (release.table(topic) for topic in ("config_checks", "engine_checks"))
    return frozenset(_bare(row["says"]) for table in topics for row in table.values())


def _bare(text: str) -> str:
    """Return a message with `{}` in the place of each run of values."""
    spaced = re.sub(r"(\{\}\s*)+\{\}", "{}", re.sub(r"\{[^{}]*\}", "{}", text))
    return re.sub(r"\s+", " ", spaced).strip()
