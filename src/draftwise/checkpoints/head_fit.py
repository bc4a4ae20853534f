"""Whether a head that reads the target's hidden states was made for this target: widths, layers, vocabulary, mask."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.checkpoints.aux_layers import AUX_KEY, TARGET_KEY, AuxLayers, default_layers
from draftwise.checkpoints.base_model import is_same_model, means_nothing, names_of
from draftwise.checkpoints.dimensions import get_int, get_ints, get_mapping
from draftwise.checkpoints.expected import TargetSizes
from draftwise.checkpoints.head_faults import (
    find_layers_fault,
    find_mask_fault,
    find_vocabulary_fault,
    find_width_fault,
)
from draftwise.checkpoints.identity import find_tokenizer_fault
from draftwise.checkpoints.inspect import Inspection
from draftwise.checkpoints.quoting import quote
from draftwise.checkpoints.recognize import RecognizedDrafter
from draftwise.core import Finding, Ruling
from draftwise.knowledge.rules import Rulebook

__all__ = ["find_base_findings", "find_head_findings"]

_EXACT = frozenset({"I64", "I32", "U64", "U32", "F32", "F64"})
"""Types that hold any token id."""


def find_head_findings(rules: Rulebook, head: Inspection, target: TargetSizes) -> Iterator[Ruling]:
    """Yield where a head and its target do not fit in a release of vLLM."""
    where = str(head.directory / "config.json")
    yield from _find_width(rules, head, target, where)
    yield from _find_layers(rules, head.drafter, target, where)
    yield from _find_vocabulary(rules, head, target, where)
    yield from _find_mask(rules, head, where)


def _judge(rules: Rulebook, fault: Finding | None) -> Iterator[Ruling]:
    """Yield what a release makes of a fault."""
    if fault is not None:
        yield from rules.ruling(fault.code, message=fault.message, where=fault.where, fix=fault.fix)


def _find_width(rules: Rulebook, head: Inspection, target: TargetSizes, where: str) -> Iterator[Ruling]:
    traits, key = head.drafter.traits, "hidden_size"
    if traits.aux_states == "several":
        key = "target_hidden_size"
    elif traits.network == "heads":
        key = "emb_dim"
    if not (width := get_int(head.drafter.config, key)):
        key, width = "hidden_size", head.dimensions.hidden_size
    yield from _judge(rules, find_width_fault(key, width, target.hidden_size, where=where))


def _find_layers(rules: Rulebook, drafter: RecognizedDrafter, target: TargetSizes, where: str) -> Iterator[Ruling]:
    if drafter.traits.aux_states != "several":
        return
    if not get_mapping(drafter.config, "eagle_config").get("use_aux_hidden_state", True):
        return
    is_chain = drafter.traits.network == "chain"
    default = default_layers(target.num_layers, AUX_KEY if is_chain else TARGET_KEY)
    layers = drafter.aux_layers or default
    fault = find_layers_fault(layers, target.num_layers, where=where)
    yield from _judge(rules, fault)
    if not layers.is_stated:
        if fault is None:
            yield from rules.ruling("layer-ids-unstated", key=layers.key, layers=str(list(layers.ids)), where=where)
        return
    if is_chain:
        yield from _find_count(rules, drafter, layers, where)
    if is_chain and layers.ids != default.ids:
        yield from rules.ruling(
            "layer-ids-ignored", given=quote(list(layers.ids)), default=str(list(default.ids)), where=where
        )


def _find_count(rules: Rulebook, drafter: RecognizedDrafter, layers: AuxLayers, where: str) -> Iterator[Ruling]:
    """Yield where an EAGLE-3 head's `fc` is made for another number of layers than it names."""
    count = len(layers.ids)
    stated = get_int(drafter.config, "num_aux_hidden_states")
    nested = get_ints(get_mapping(drafter.config, "eagle_config"), AUX_KEY)
    made_for = stated if stated is not None else len(nested or (0, 0, 0))
    if made_for != count:
        yield from rules.ruling("layer-ids-count", made_for=made_for, key=layers.key, count=count, where=where)
    if count != 3:
        yield from rules.ruling("layer-ids-three", key=layers.key, count=count, where=where)


def _find_vocabulary(rules: Rulebook, head: Inspection, target: TargetSizes, where: str) -> Iterator[Ruling]:
    own, tensors = head.dimensions.vocab_size, head.headers.tensors
    yield from _judge(rules, find_vocabulary_fault(own, target.vocab_size, where=where))
    if (d2t := tensors.get("d2t")) is not None and d2t.dtype not in _EXACT:
        yield from rules.ruling("vocabulary-map-type", dtype=d2t.dtype, where=head.directory)
    if (t2d := tensors.get("t2d")) is not None and t2d.num_elements not in (own, target.vocab_size):
        yield from rules.ruling(
            "vocabulary-map-size",
            num_elements=t2d.num_elements,
            vocab_size=target.vocab_size,
            where=head.directory,
        )


def _find_mask(rules: Rulebook, head: Inspection, where: str) -> Iterator[Ruling]:
    drafter, traits = head.drafter, head.drafter.traits
    is_optional = traits.parallel == "option" and traits.aux_states == "several"
    needs = traits.parallel == "always" or (is_optional and "mask_hidden" in head.headers.tensors)
    if needs or drafter.mask_token_id is not None:
        key = "ptd_token_id" if is_optional else "dflash_config.mask_token_id"
        fault = find_mask_fault(drafter.mask_token_id, head.dimensions.vocab_size, key=key, where=where)
        yield from _judge(rules, fault)
    if is_optional and drafter.layout == "plain" and "norm_before_residual" not in drafter.config:
        yield from rules.ruling("norm-before-residual-unstated", where=where)


def find_base_findings(rules: Rulebook, drafter: Inspection, target: Inspection) -> Iterator[Ruling]:
    """Yield where a drafter says that it was trained for another target."""
    recorded = drafter.recorded_base
    if recorded is None or not drafter.drafter.is_head:
        return
    where = f"{drafter.directory}: {recorded.source}"
    tokenizer = "" if target.vocabulary is None else target.vocabulary.identity
    fault = find_tokenizer_fault(recorded.name, recorded.tokenizer, tokenizer, target.directory, where=where)
    if fault is not None:
        yield from _judge(rules, fault)
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
