"""Compares a head with its target, by config.json and, if available, by the head's tensors.

Each fault has one code and one sentence for all callers. `inspect` and `check` look up how a vLLM release treats the
code; `serve` and `train` refuse the head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from draftwise.checkpoints.config_json import get_text_config
from draftwise.checkpoints.config_values import (
    AUX_KEY,
    TARGET_KEY,
    AuxLayers,
    Dimensions,
    TargetSizes,
    default_layers,
    find_aux_layers,
    get_int,
    get_ints,
    get_mapping,
)
from draftwise.checkpoints.recognize import RecognizedDrafter, recognize
from draftwise.checkpoints.text_files import quote
from draftwise.core import Finding, Ruling
from draftwise.knowledge.messages import fault
from draftwise.knowledge.methods import Method
from draftwise.knowledge.rules import Rulebook

if TYPE_CHECKING:
    from draftwise.checkpoints.headers import Tensor


def find_width_fault(key: str, width: int | None, wanted: int, *, where: str) -> Finding | None:
    """Return what is wrong with the width of the states that a head reads.

    Args:
        key: field of the width.
        width: stated width; None if not stated.
        wanted: the target's hidden size.
    """
    if width is None or width == wanted:
        return None
    return fault("hidden-size-differs", key=key, width=width, wanted=wanted, where=where)


def find_depth_fault(layers: object, *, where: str) -> Finding | None:
    """Return what is wrong with the number of layers that a head's config.json states."""
    if type(layers) is not int or layers > 0:
        return None
    return fault("head-without-layers", layers=layers, where=where)


def find_vocabulary_fault(size: int | None, wanted: int, *, where: str) -> Finding | None:
    """Return what is wrong with a head's `vocab_size` (None if not stated), given the target's."""
    if size is None or size == wanted:
        return None
    return fault("head-vocabulary-differs", size=size, wanted=wanted, where=where)


def find_layers_fault(layers: AuxLayers, num_layers: int, *, where: str) -> Finding | None:
    """Return what is wrong with the states that a head reads from a target with `num_layers` layers."""
    if not layers.is_stated and (len(layers.ids) < 3 or layers.ids[0] < 0):
        return fault("layer-ids-collapse", key=layers.key, num_layers=num_layers, where=where)
    if layers.ids[0] >= 0 and layers.ids[-1] <= num_layers:
        return None
    below = 1 if layers.key == TARGET_KEY else 0
    said, last, note = quote([layer - below for layer in layers.ids]), num_layers - below, ""
    if below and layers.ids[-1] == num_layers + 1:
        note = " This field names a layer by its output, one less than EAGLE-3 does: these ids look one too high."
    return fault("layer-ids-out-of-range", said=said, last=last, key=layers.key, note=note, where=where)


def find_mask_fault(token_id: int | None, vocab_size: int | None, *, key: str, where: str) -> Finding | None:
    """Return what is wrong with the mask token of a head that drafts in parallel.

    Args:
        token_id: id of the mask token; None if the head names none.
        vocab_size: size of its input vocabulary; None if unknown.
        key: field of the mask token.
    """
    if token_id is None:
        return mask_missing(key, where=where)
    if vocab_size is not None and token_id >= vocab_size:
        return fault("mask-token-out-of-range", token_id=token_id, last=vocab_size - 1, where=where)
    return None


def mask_missing(key: str, *, where: str) -> Finding:
    """Return the finding for a head that drafts in parallel and names no mask token."""
    return fault("mask-token-missing", key=key, where=where)


_EXACT = frozenset({"I64", "I32", "U64", "U32", "F32", "F64"})
"""Types that hold any token id."""
_MOST_LAYERS = 11
"""Layers up to which a model may be a head: published heads have eight or fewer, language models twelve or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A drafter that reads the target's states."""

    drafter: RecognizedDrafter
    dimensions: Dimensions
    where: str
    """Its config.json, for messages."""
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    """Empty if only the config is known."""


def judge_configs(
    rules: Rulebook, head: Mapping[str, Any], target: Mapping[str, Any], *, method: Method, where: str
) -> Iterator[Ruling]:
    """Yield mismatches of a head and its target, from their two config.json files alone.

    Args:
        head: config.json of the head, in any format.
        method: method that the head runs as.
    """
    sizes = TargetSizes.from_dimensions(Dimensions.from_config(get_text_config(target)))
    if sizes is None or method.drafts_from != "target_states" or method.weights == "target":
        return
    drafter = recognize(head, ())
    layers = get_int(drafter.config, "num_hidden_layers") or 0
    most = 0 if method.network == "heads" else _MOST_LAYERS
    if drafter.traits.drafts_from == "own_model" and layers > most:
        yield from rules.ruling("head-is-whole-model", method=method.name, layers=layers, where=where)
    aux = find_aux_layers(drafter.config) if method.aux_states == "several" else None
    drafter = replace(drafter, method=method.name, traits=method, aux_layers=aux)
    config = get_text_config(head) if drafter.layout == "plain" else drafter.config
    yield from find_head_findings(
        rules, Head(drafter=drafter, dimensions=Dimensions.from_config(config), where=where), sizes
    )


def find_head_findings(rules: Rulebook, head: Head, target: TargetSizes) -> Iterator[Ruling]:
    """Yield mismatches of a head and its target in a release of vLLM."""
    where = head.where
    yield from _find_width(rules, head, target, where)
    if head.drafter.traits.network == "chain":
        yield from judge_fault(rules, find_depth_fault(head.drafter.config.get("num_hidden_layers"), where=where))
    yield from _find_layers(rules, head.drafter, target, where)
    yield from _find_vocabulary(rules, head, target, where)
    yield from _find_mask(rules, head, where)


def judge_fault(rules: Rulebook, fault: Finding | None) -> Iterator[Ruling]:
    """Yield how a release treats a fault."""
    if fault is not None:
        yield from rules.ruling(fault.code, message=fault.message, where=fault.where, fix=fault.fix)


def _find_width(rules: Rulebook, head: Head, target: TargetSizes, where: str) -> Iterator[Ruling]:
    traits, key = head.drafter.traits, "hidden_size"
    if traits.aux_states == "several":
        key = "target_hidden_size"
    elif traits.network == "heads":
        key = "emb_dim"
    if not (width := head.drafter.config.get(key)):
        key, width = "hidden_size", head.drafter.config.get("hidden_size", head.dimensions.hidden_size)
    if type(width) is not int:
        width = None
    yield from judge_fault(rules, find_width_fault(key, width, target.hidden_size, where=where))


def _find_layers(rules: Rulebook, drafter: RecognizedDrafter, target: TargetSizes, where: str) -> Iterator[Ruling]:
    if drafter.traits.aux_states != "several":
        return
    if not get_mapping(drafter.config, "eagle_config").get("use_aux_hidden_state", True):
        return
    is_chain = drafter.traits.network == "chain"
    default = default_layers(target.num_layers, AUX_KEY if is_chain else TARGET_KEY)
    layers = drafter.aux_layers or default
    fault = find_layers_fault(layers, target.num_layers, where=where)
    yield from judge_fault(rules, fault)
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


def _find_vocabulary(rules: Rulebook, head: Head, target: TargetSizes, where: str) -> Iterator[Ruling]:
    own, tensors = head.dimensions.vocab_size, head.tensors
    yield from judge_fault(rules, find_vocabulary_fault(own, target.vocab_size, where=where))
    if (d2t := tensors.get("d2t")) is not None and d2t.dtype not in _EXACT:
        yield from rules.ruling("vocabulary-map-type", dtype=d2t.dtype, where=where)
    if (t2d := tensors.get("t2d")) is not None and t2d.num_elements not in (own, target.vocab_size):
        yield from rules.ruling(
            "vocabulary-map-size",
            num_elements=t2d.num_elements,
            vocab_size=target.vocab_size,
            where=where,
        )


def _find_mask(rules: Rulebook, head: Head, where: str) -> Iterator[Ruling]:
    drafter, traits = head.drafter, head.drafter.traits
    is_optional = traits.parallel == "option" and traits.aux_states == "several"
    needs = traits.parallel == "always" or (is_optional and "mask_hidden" in head.tensors)
    if needs or drafter.mask_token_id is not None:
        key = "ptd_token_id" if is_optional else "dflash_config.mask_token_id"
        fault = find_mask_fault(drafter.mask_token_id, head.dimensions.vocab_size, key=key, where=where)
        yield from judge_fault(rules, fault)
    if is_optional and drafter.layout == "plain" and "norm_before_residual" not in drafter.config:
        yield from rules.ruling("norm-before-residual-unstated", where=where)
