"""Compares the tokens of two checkpoints id by id, and rates the effect on a drafter.

vLLM compares only `vocab_size`, and only for method draft_model: it accepts two tokenizers of one size, and rejects one
tokenizer padded to two sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from draftwise.checkpoints.inspect import Inspection
from draftwise.checkpoints.text_files import quote
from draftwise.checkpoints.vocabulary import Vocabulary, read_vocabulary
from draftwise.core import Finding, InvalidSetup, Ruling
from draftwise.knowledge.messages import fault, refusal, text_of
from draftwise.knowledge.rules import Rulebook

_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDifference:
    """One id with two tokens; None if a vocabulary lacks the id."""

    id: int
    drafter: str | None
    target: str | None

    def __str__(self) -> str:
        return f"id {self.id} is {_shown(self.drafter)} in the drafter and {_shown(self.target)} in the target"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenComparison:
    """Two vocabularies compared id by id."""

    JSON_DERIVED = ("verdict",)
    num_equal: int
    num_differing: int
    """Number of shared ids with different tokens."""
    num_differing_text: int
    """Number of these that are ordinary text in either vocabulary, not control tokens."""
    num_only_drafter: int
    num_only_target: int
    first: tuple[TokenDifference, ...]
    """The first few differing ids, ordinary text first."""
    splitting: tuple[str, ...]
    """Parts that split text differently: merges, normalizer, pre_tokenizer."""

    @property
    def verdict(self) -> Literal["same", "prefix", "control tokens differ", "different"]:
        """`prefix` means that all shared ids agree, and one vocabulary has more."""
        if self.num_differing_text or (self.num_differing and not self.num_equal):
            return "different"
        if self.num_differing:
            return "control tokens differ"
        return "prefix" if self.num_only_drafter or self.num_only_target else "same"


def compare_vocabularies(drafter: Vocabulary, target: Vocabulary) -> TokenComparison:
    """Compare the token of every id."""
    mine, theirs = drafter.tokens, target.tokens
    both = mine.keys() & theirs.keys()
    differing = [i for i in both if mine[i] != theirs[i]]
    control = drafter.added & target.added
    text = [i for i in differing if i not in control]
    only_mine, only_theirs = mine.keys() - theirs.keys(), theirs.keys() - mine.keys()
    order = (sorted(text), sorted(i for i in differing if i in control), sorted(only_mine | only_theirs))
    shown = islice((i for ids in order for i in ids), _SHOWN)
    parts = drafter.splitting.keys() & target.splitting.keys()
    return TokenComparison(
        num_equal=len(both) - len(differing),
        num_differing=len(differing),
        num_differing_text=len(text),
        num_only_drafter=len(only_mine),
        num_only_target=len(only_theirs),
        first=tuple(TokenDifference(id=i, drafter=mine.get(i), target=theirs.get(i)) for i in shown),
        splitting=tuple(sorted(part for part in parts if drafter.splitting[part] != target.splitting[part])),
    )


def find_tokens_fault(comparison: TokenComparison, *, where: str) -> Finding | None:
    """Return a finding if two vocabularies differ; None if all shared ids agree.

    Args:
        comparison: comparison of the drafter's and the target's vocabulary.
    """
    shown, differing = "; ".join(map(str, comparison.first)), comparison.num_differing
    if comparison.verdict == "different":
        shared = comparison.num_equal + differing
        return fault("tokenizers-differ", case="ids", differing=differing, shared=shared, shown=shown, where=where)
    if comparison.verdict == "control tokens differ":
        return fault("control-tokens-differ", differing=differing, shown=shown, where=where)
    return None


def check_same_tokens(drafter: Path, target: Path) -> None:
    """Verify that two checkpoints have exactly the same tokens under the same ids.

    Raises:
        InvalidSetup: their tokens differ, or either has no readable tokenizer.
    """
    mine, theirs = read_vocabulary(drafter), read_vocabulary(target)
    if mine is None or theirs is None:
        lacking = [str(directory) for directory, found in ((drafter, mine), (target, theirs)) if found is None]
        raise refusal("tokenizers-not-compared", lacking=" and ".join(lacking), where=drafter)
    comparison = compare_vocabularies(mine, theirs)
    if fault := find_tokens_fault(comparison, where=str(drafter)):
        raise InvalidSetup(fault)
    if comparison.verdict != "same":
        raise refusal(
            "tokenizers-differ",
            num_only_drafter=comparison.num_only_drafter,
            num_only_target=comparison.num_only_target,
            names="; ".join(map(str, comparison.first)),
            drafter=drafter,
        )


def find_tokenizer_findings(
    rules: Rulebook, drafter: Inspection, target: Inspection, comparison: TokenComparison | None
) -> Iterator[Ruling]:
    """Yield findings about two vocabularies; `comparison` is None if either is missing."""
    where = str(drafter.directory)
    if comparison is None:
        if not drafter.drafter.is_head:
            lacking = [str(each.directory) for each in (drafter, target) if each.vocabulary is None]
            text = text_of("tokenizers-not-compared", lacking=" and ".join(lacking), where=where)
            yield from rules.ruling("tokenizers-not-compared", message=text, where=where)
        return
    if fault := find_tokens_fault(comparison, where=where):
        yield from rules.ruling(fault.code, message=fault.message, where=where, fix=fault.fix)
    if comparison.verdict == "different":
        return
    yield from _find_named(rules, drafter, target, where)
    if comparison.splitting:
        yield from rules.ruling("text-split-differs", splitting=comparison.splitting, where=where)


def _find_named(rules: Rulebook, drafter: Inspection, target: Inspection, where: str) -> Iterator[Ruling]:
    assert drafter.vocabulary is not None
    assert target.vocabulary is not None
    mine, theirs = drafter.vocabulary.named, target.vocabulary.named
    differing = sorted(name for name in mine.keys() & theirs.keys() if not set(mine[name]) & set(theirs[name]))
    if differing and not drafter.drafter.is_head:
        said = "; ".join(
            f"{name} {_ids(mine, name)} in the drafter, {_ids(theirs, name)} in the target" for name in differing
        )
        yield from rules.ruling("named-tokens-differ", said=said, where=where)


def _ids(named: Mapping[str, tuple[int, ...]], name: str) -> str:
    return ", ".join(map(str, named[name]))


def _shown(token: str | None) -> str:
    return "no token" if token is None else f"'{quote(token)}'"
