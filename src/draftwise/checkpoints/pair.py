"""Compares a drafter with its target before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from draftwise.checkpoints.config_json import read_config
from draftwise.checkpoints.head_fit import Head, find_head_findings, judge_fault
from draftwise.checkpoints.headers import read_index
from draftwise.checkpoints.identity import find_tokenizer_fault, is_same_model, means_nothing, names_of
from draftwise.checkpoints.inspect import Inspection, describe_lost, find_mtp_modules, inspect_checkpoint
from draftwise.checkpoints.text_files import quote
from draftwise.checkpoints.tokenizer_fit import TokenComparison, compare_vocabularies, find_tokenizer_findings
from draftwise.core import Finding, InvalidSetup, Ruling, Severity
from draftwise.knowledge.advice import get_advice
from draftwise.knowledge.messages import fault
from draftwise.knowledge.rules import Rulebook, get_rule

_UNREAD = "weights-not-inspected"


def find_base_findings(rules: Rulebook, drafter: Inspection, target: Inspection) -> Iterator[Ruling]:
    """Yield findings if a drafter records another target."""
    recorded = drafter.recorded_base
    if recorded is None or not drafter.drafter.is_head:
        return
    where = f"{drafter.directory}: {recorded.source}"
    tokenizer = "" if target.vocabulary is None else target.vocabulary.identity
    fault = find_tokenizer_fault(recorded.name, recorded.tokenizer, tokenizer, target.directory, where=where)
    if fault is not None:
        yield from judge_fault(rules, fault)
        return
    names = names_of(target.directory, target.config)
    if means_nothing(recorded.name) or any(is_same_model(recorded.name, name) for name in names):
        return
    certain = any(name != target.directory.resolve().name for name in names)
    other = f"the target is {quote(names[0])}" if names else f"nothing in {target.directory} says what the target is"
    yield from rules.ruling(
        "base-model-differs" if certain else "base-model-unconfirmed",
        base=quote(recorded.name),
        other=other,
        directory=drafter.directory,
        source=recorded.source,
    )


_SIZES = "vocabulary-sizes-differ"
"""A rule of `draftwise.plan.check`, which judges it by the two config.json alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The comparison of a drafter and a target."""

    drafter: Inspection
    target: Inspection
    tokenizers: TokenComparison | None
    """None if either has no readable tokenizer."""
    findings: tuple[Finding, ...]
    """Findings about each checkpoint and about the pair."""

    @property
    def size_ratio(self) -> float | None:
        """Parameters of the target over those of the drafter."""
        mine = self.drafter.num_parameters
        return self.target.num_parameters / mine if mine else None

    @property
    def has_recorded_tokenizer(self) -> bool:
        """Whether the drafter records that it was trained with the target's vocabulary."""
        base, vocabulary = self.drafter.recorded_base, self.target.vocabulary
        return base is not None and vocabulary is not None and base.tokenizer == vocabulary.identity

    @property
    def fits(self) -> bool:
        """Whether no finding is an error."""
        return not any(finding.severity is Severity.ERROR for finding in self.findings)


def inspect_pair(drafter: str | Path, target: str | Path, *, version: Version | None = None) -> Pair:
    """Return how a drafter and a target fit, without loading either.

    Args:
        drafter: directory of a draft model or of a head.
        target: directory of the model to draft for.
        version: release of vLLM whose rules apply; None for the newest.

    Raises:
        InvalidSetup: config.json or weights of either are missing or damaged; the error lists all faults.
    """
    faults: list[Finding] = []
    looked_at: list[Inspection] = []
    for directory in (target, drafter):
        sizes = looked_at[0].sizes if looked_at else None
        try:
            looked_at.append(inspect_checkpoint(directory, target=sizes, version=version))
        except InvalidSetup as error:
            faults += error.findings
    if faults:
        raise InvalidSetup(faults)
    of_target, of_drafter = looked_at
    both = None
    if of_drafter.vocabulary is not None and of_target.vocabulary is not None:
        both = compare_vocabularies(of_drafter.vocabulary, of_target.vocabulary)
    pair = Pair(drafter=of_drafter, target=of_target, tokenizers=both, findings=())
    together = _find_together(Rulebook(version), pair)
    return replace(pair, findings=(*of_target.findings, *of_drafter.findings, *together))


def find_pair_findings(
    drafter_dir: str | Path, target_dir: str | Path, *, version: Version | None = None
) -> tuple[Finding, ...]:
    """Return findings about a pair beyond its configs, damaged files included.

    Differences that `draftwise.plan.check` judges from config.json alone, such as vocabulary sizes, are left to it.
    """
    try:
        found = inspect_pair(drafter_dir, target_dir, version=version).findings
    except InvalidSetup as error:
        return _about_unread(error.findings)
    return tuple(finding for finding in found if finding.code != _SIZES)


def find_mtp_findings(
    target_dir: str | Path, *, places: Sequence[str] = (), version: Version | None = None
) -> tuple[Finding, ...]:
    """Return why a target cannot draft with its own modules, for `"method": "mtp"` without `model`.

    A checkpoint without its shards is judged by the tensor names in its index.

    Args:
        places: where the release's class finds the modules; empty if unknown, so that none can be missed.
    """
    try:
        mtp = inspect_checkpoint(target_dir).mtp
    except InvalidSetup as error:
        unread = _about_unread(error.findings)
        if not all(each.code == _UNREAD for each in unread) or (indexed := read_index(target_dir)) is None:
            return unread
        mtp = find_mtp_modules(read_config(Path(target_dir)), indexed)
    if mtp is not None and not (mtp.lost or mtp.incomplete):
        return ()
    if not places and (mtp is None or not mtp.present):
        return Rulebook(version).ruling("mtp-modules-unseen", where=Path(target_dir))
    message = "Neither config.json nor the weight files hold MTP modules." if mtp is None else describe_lost(mtp)
    return Rulebook(version).ruling("mtp-tensors-missing", message=message, where=Path(target_dir))


def _about_unread(faults: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return what to say of checkpoints that could not be read: a directory without weights is no fault of a setup."""
    absent = [finding for finding in faults if finding.code in ("no-weights", "not-safetensors")]
    if len(absent) < len(faults):
        return faults
    rule = get_rule(_UNREAD)
    return tuple(rule.ruling(message=each.message, where=each.where, fix=each.fix) for each in absent)


def _find_together(rules: Rulebook, pair: Pair) -> Iterator[Finding]:
    drafter, target = pair.drafter, pair.target
    if target.drafter.is_head:
        yield fault("target-is-head", target=target.directory, method=target.drafter.method)
    yield from find_tokenizer_findings(rules, drafter, target, pair.tokenizers)
    yield from find_base_findings(rules, drafter, target)
    if not drafter.drafter.is_head:
        yield from _find_model_findings(rules, pair)
    elif target.sizes is not None:
        yield from find_head_findings(rules, _head_of(drafter), target.sizes)
    if drafter.drafter.traits.weights == "target":
        yield from rules.ruling("mtp-modules-alone", where=drafter.directory)
    yield from _find_precision(rules, pair)


def _head_of(drafter: Inspection) -> Head:
    where = str(drafter.directory / "config.json")
    return Head(drafter=drafter.drafter, dimensions=drafter.dimensions, where=where, tensors=drafter.headers.tensors)


def _find_model_findings(rules: Rulebook, pair: Pair) -> Iterator[Finding]:
    """Yield findings on a draft model that runs with the target."""
    drafter, target = pair.drafter, pair.target
    where = str(drafter.directory / "config.json")
    mine, theirs = drafter.dimensions.vocab_size, target.dimensions.vocab_size
    if mine and theirs and mine != theirs:
        yield from rules.ruling(_SIZES, mine=mine, theirs=theirs, where=where)
        if pair.tokenizers is not None and pair.tokenizers.verdict != "different":
            most = max(mine, theirs)
            yield from rules.ruling("padded-vocabulary", mine=mine, theirs=theirs, most=most, where=where)
    reach, needed = drafter.dimensions.max_position_embeddings, target.dimensions.max_position_embeddings
    if reach and needed and reach < needed:
        yield from rules.ruling("draft-context-shorter", reach=reach, needed=needed, where=where)
    if drafter.drafter.parallel:
        yield from rules.ruling("parallel-drafting-trained", mask_token_id=drafter.drafter.mask_token_id, where=where)
    yield from _find_ratio(rules, pair, where)


def _find_ratio(rules: Rulebook, pair: Pair, where: str) -> Iterator[Finding]:
    ratio, advice = pair.size_ratio, get_advice("size-ratio")
    if ratio is None or advice.numbers["least"] <= ratio <= advice.numbers["most"]:
        return
    if ratio <= 1:
        yield from rules.ruling("drafter-not-smaller", ratio=ratio, where=where)
    else:
        told = f"The target has {ratio:.1f} times the parameters of the draft model."
        yield replace(advice.finding(message=told), where=where)


def _find_precision(rules: Rulebook, pair: Pair) -> Iterator[Ruling]:
    mine, theirs = pair.drafter.quantization, pair.target.quantization
    if theirs is not None and theirs.bits is not None and theirs.bits <= 4:
        yield from rules.ruling("target-four-bits", theirs=theirs, where=pair.target.directory)
    if mine is not None and theirs is not None and (mine.bits or 8) <= 4 < (theirs.bits or 0):
        yield from rules.ruling("drafter-coarser-than-target", mine=mine, theirs=theirs, where=pair.drafter.directory)
    if theirs is not None and mine is None and not pair.drafter.drafter.is_head:
        yield from rules.ruling("drafter-unquantized", theirs=theirs, where=pair.drafter.directory)
