"""Whether two checkpoints mean the same by every token id, and what that does to a drafter.

vLLM compares `vocab_size` only, and only for method draft_model: two tokenizers of one size pass, and of one tokenizer
padded to two sizes neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Literal

from draftwise.checkpoints.inspect import Inspection
from draftwise.checkpoints.quoting import quote
from draftwise.checkpoints.ruling import rule_on
from draftwise.checkpoints.vocabulary import Vocabulary
from draftwise.core import Finding

__all__ = ["Comparison", "Difference", "compare_vocabularies", "find_tokenizer_findings"]

_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One id that means two tokens; None where a vocabulary has no such id."""

    id: int
    drafter: str | None
    target: str | None

    def __str__(self) -> str:
        return f"id {self.id} is {_shown(self.drafter)} in the drafter and {_shown(self.target)} in the target"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two vocabularies side by side, id by id."""

    num_equal: int
    num_differing: int
    """Ids that both have, for different tokens."""
    num_differing_text: int
    """Those of them that are part of ordinary text in either: no control tokens."""
    num_only_drafter: int
    num_only_target: int
    first: tuple[Difference, ...]
    """The first few ids of the kinds above, those of ordinary text before others."""
    splitting: tuple[str, ...]
    """Parts that split text differently: merges, normalizer, pre_tokenizer."""

    @property
    def verdict(self) -> Literal["same", "prefix", "control tokens differ", "different"]:
        """`prefix`: the same as far as both go, and one goes further."""
        if self.num_differing_text or (self.num_differing and not self.num_equal):
            return "different"
        if self.num_differing:
            return "control tokens differ"
        return "prefix" if self.num_only_drafter or self.num_only_target else "same"

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"verdict": self.verdict} | asdict(self)


def compare_vocabularies(drafter: Vocabulary, target: Vocabulary) -> Comparison:
    """Compare what every id means."""
    mine, theirs = drafter.tokens, target.tokens
    both = mine.keys() & theirs.keys()
    differing = [i for i in both if mine[i] != theirs[i]]
    control = drafter.added & target.added
    text = [i for i in differing if i not in control]
    only_mine, only_theirs = mine.keys() - theirs.keys(), theirs.keys() - mine.keys()
    order = (sorted(text), sorted(i for i in differing if i in control), sorted(only_mine | only_theirs))
    shown = islice((i for ids in order for i in ids), _SHOWN)
    parts = drafter.splitting.keys() & target.splitting.keys()
    return Comparison(
        num_equal=len(both) - len(differing),
        num_differing=len(differing),
        num_differing_text=len(text),
        num_only_drafter=len(only_mine),
        num_only_target=len(only_theirs),
        first=tuple(Difference(id=i, drafter=mine.get(i), target=theirs.get(i)) for i in shown),
        splitting=tuple(sorted(part for part in parts if drafter.splitting[part] != target.splitting[part])),
    )


def find_tokenizer_findings(
    drafter: Inspection, target: Inspection, comparison: Comparison | None
) -> Iterator[Finding]:
    """Yield what follows from two vocabularies, None standing for a pair of which one has none."""
    where = str(drafter.directory)
    if comparison is None:
        if not drafter.drafter.is_head:
            yield _not_compared(drafter, target, where)
        return
    shown = "; ".join(str(difference) for difference in comparison.first)
    if comparison.verdict == "different":
        yield rule_on(
            "tokenizers-differ",
            f"{comparison.num_differing:,} of {comparison.num_equal + comparison.num_differing:,} token ids mean "
            f"another token: {shown}.",
            where=where,
            fix="Use a drafter of the target's family: every token id must mean the same token. For method "
            "draft_model `use_heterogeneous_vocab` (vLLM 0.25 and later) drafts with the tokens that both know.",
        )
        return
    if comparison.verdict == "control tokens differ":
        yield rule_on(
            "control-tokens-differ",
            f"control tokens differ ({comparison.num_differing}), and all other ids are the same: {shown}.",
            where=where, fix="Check that the target's chat template uses tokens that the drafter was trained with.",
        )  # fmt: skip
    yield from _find_named(drafter, target, where)
    if comparison.splitting:
        yield rule_on(
            "text-split-differs",
            f"the ids mean the same, and texts are split into them differently: {', '.join(comparison.splitting)}.",
            where=where,
        )


def _not_compared(drafter: Inspection, target: Inspection, where: str) -> Finding:
    lacking = [each for each in (drafter, target) if each.vocabulary is None]
    names = " and ".join(str(each.directory) for each in lacking)
    return rule_on(
        "tokenizers-not-compared",
        f"token ids were not compared: {names} has no tokenizer.json, vocab.json, sentencepiece model or vocab.txt.",
        where=where,
        fix="Put the tokenizer that each model was trained with beside its weights.",
    )


def _find_named(drafter: Inspection, target: Inspection, where: str) -> Iterator[Finding]:
    assert drafter.vocabulary is not None
    assert target.vocabulary is not None
    mine, theirs = drafter.vocabulary.named, target.vocabulary.named
    differing = sorted(name for name in mine.keys() & theirs.keys() if not set(mine[name]) & set(theirs[name]))
    if differing and not drafter.drafter.is_head:
        said = "; ".join(
            f"{name} {_ids(mine, name)} in the drafter, {_ids(theirs, name)} in the target" for name in differing
        )
        yield rule_on(
            "named-tokens-differ", f"the tokens that end or pad a text differ: {said}.", where=where,
            fix="Prefer a drafter that was tuned as the target was: it ends answers in the same way.",
        )  # fmt: skip


def _ids(named: Mapping[str, tuple[int, ...]], name: str) -> str:
    return ", ".join(map(str, named[name]))


def _shown(token: str | None) -> str:
    return "no token" if token is None else f"'{quote(token)}'"
