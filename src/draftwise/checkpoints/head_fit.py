"""Whether a head that reads the target's hidden states was made for this target: widths, layers, vocabulary, mask."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.checkpoints.base_model import is_same_model, means_nothing, names_of
from draftwise.checkpoints.dimensions import get_int, get_ints, get_mapping
from draftwise.checkpoints.expected import TargetSizes
from draftwise.checkpoints.inspect import Inspection
from draftwise.checkpoints.quoting import quote
from draftwise.checkpoints.recognize import Drafter
from draftwise.checkpoints.ruling import rule_on
from draftwise.core import Finding

__all__ = ["find_base_findings", "find_head_findings"]

_OTHER_TARGET = "Use a head that was trained for this target."
_EXACT = frozenset({"I64", "I32", "U64", "U32", "F32", "F64"})
"""Types that hold any token id."""


def find_head_findings(head: Inspection, target: TargetSizes) -> Iterator[Finding]:
    """Yield where a head and its target do not fit."""
    where = str(head.directory / "config.json")
    yield from _find_width(head, target, where)
    yield from _find_layers(head.drafter, target, where)
    yield from _find_vocabulary(head, target, where)
    yield from _find_mask(head, where)


def _find_width(head: Inspection, target: TargetSizes, where: str) -> Iterator[Finding]:
    config, method = head.drafter.config, head.drafter.method
    stated = get_int(config, "target_hidden_size") if method in ("eagle3", "dflash", "dspark") else None
    key, width = ("target_hidden_size", stated) if stated else ("hidden_size", head.dimensions.hidden_size)
    if method == "mlp_speculator":
        key, width = "emb_dim", get_int(config, "emb_dim")
    if width is not None and width != target.hidden_size:
        yield rule_on(
            "hidden-size-differs", f"{key} is {width}, and the target's hidden states are {target.hidden_size} wide.",
            where=where, fix=_OTHER_TARGET,
        )  # fmt: skip


def _find_layers(drafter: Drafter, target: TargetSizes, where: str) -> Iterator[Finding]:
    if drafter.method not in ("eagle3", "dflash", "dspark"):
        return
    if not get_mapping(drafter.config, "eagle_config").get("use_aux_hidden_state", True):
        return
    if drafter.taps is None:
        yield from _find_default_layers(drafter, target, where)
        return
    if drafter.taps[0] < 0 or drafter.taps[-1] > target.num_layers:
        yield rule_on(
            "layer-ids-out-of-range", _describe_range(drafter, target.num_layers), where=where, fix=_OTHER_TARGET,
        )  # fmt: skip
    yield from _find_count(drafter, len(drafter.taps), where)
    default = _default_layers(target)
    if drafter.method == "eagle3" and list(drafter.taps) != default:
        yield rule_on(
            "layer-ids-ignored", f"it reads layers {quote(list(drafter.taps))}, and this release hands it others.",
            where=where, fix="Use vLLM 0.11.1 or later.", becomes=f"layers {default}",
        )  # fmt: skip


def _describe_range(drafter: Drafter, num_layers: int) -> str:
    assert drafter.taps is not None
    plain = drafter.layout == "plain" and drafter.method != "eagle3"
    said = [tap - 1 for tap in drafter.taps] if plain else list(drafter.taps)
    valid = f"0 to {num_layers - 1}" if plain else f"0 to {num_layers}"
    message = f"it reads layers {quote(said)} of a target that has {valid}."
    if plain and said[-1] == num_layers:
        message += (
            " Plain target_layer_ids name a layer by its output, one less than EAGLE-3 does: these look one too high."
        )
    return message


def _find_default_layers(drafter: Drafter, target: TargetSizes, where: str) -> Iterator[Finding]:
    """Yield what vLLM takes where the config names no layers."""
    last, chosen = target.num_layers, _default_layers(target)
    key = "eagle_aux_hidden_state_layer_ids" if drafter.method == "eagle3" else "dflash_config.target_layer_ids"
    if len(chosen) < 3 or chosen[0] < 0:
        yield rule_on(
            "layer-ids-collapse",
            f"it names no {key}, and vLLM's own choice, 2, L/2 and L - 3, is not three layers in a target of {last}.",
            where=where, fix=f"Add {key}: the layers that the head was trained on.",
        )  # fmt: skip
    else:
        yield rule_on(
            "layer-ids-unstated", f"it names no {key}; vLLM takes {chosen}.", where=where,
            fix="If it was trained on other layers, add them: a wrong choice costs acceptance in silence.",
        )  # fmt: skip


def _default_layers(target: TargetSizes) -> list[int]:
    return sorted({2, target.num_layers // 2, target.num_layers - 3})


def _find_count(drafter: Drafter, num_taps: int, where: str) -> Iterator[Finding]:
    """Yield where an EAGLE-3 head's `fc` is made for another number of layers than it names."""
    if drafter.method != "eagle3":
        return
    key = "eagle_aux_hidden_state_layer_ids"
    stated = get_int(drafter.config, "num_aux_hidden_states")
    nested = get_ints(get_mapping(drafter.config, "eagle_config"), key)
    made_for = stated if stated is not None else len(nested or (0, 0, 0))
    if made_for != num_taps:
        yield rule_on(
            "layer-ids-count", f"vLLM makes its fc for {made_for} layers, and {key} names {num_taps}.", where=where,
            fix=f"Add num_aux_hidden_states: {num_taps} to config.json.",
        )  # fmt: skip
    if num_taps != 3:
        yield rule_on(
            "layer-ids-three", f"{key} names {num_taps} layers, and this release makes fc for three.", where=where,
            fix="Use vLLM 0.22 or later.",
        )  # fmt: skip


def _find_vocabulary(head: Inspection, target: TargetSizes, where: str) -> Iterator[Finding]:
    own = head.dimensions.vocab_size
    if own is not None and own != target.vocab_size:
        yield rule_on(
            "head-vocabulary-differs", f"its vocab_size is {own:,}, the target's {target.vocab_size:,}.", where=where,
            fix="If one is the other padded, nothing is wrong; else use a head that was trained for this target.",
        )  # fmt: skip
    tensors = head.headers.tensors
    if (d2t := tensors.get("d2t")) is not None and d2t.dtype not in _EXACT:
        yield rule_on(
            "vocabulary-map-type", f"d2t, which leads from draft ids to the target's, is {d2t.dtype}.",
            where=str(head.directory), fix="Save it as int64: the target's id minus the draft's.",
        )  # fmt: skip
    if (t2d := tensors.get("t2d")) is not None and t2d.num_elements not in (own, target.vocab_size):
        yield rule_on(
            "vocabulary-map-size",
            f"t2d marks {t2d.num_elements:,} tokens, and the target has {target.vocab_size:,}: the draft vocabulary "
            "was chosen for another target.",
            where=str(head.directory), fix=_OTHER_TARGET,
        )  # fmt: skip


def _find_mask(head: Inspection, where: str) -> Iterator[Finding]:
    drafter, mask = head.drafter, head.drafter.mask_token_id
    vocab = head.dimensions.vocab_size
    needs = drafter.method in ("dflash", "dspark") or (
        drafter.method == "eagle3" and "mask_hidden" in head.headers.tensors
    )
    if mask is None and needs:
        key = "ptd_token_id" if drafter.method == "eagle3" else "dflash_config.mask_token_id"
        yield rule_on(
            "mask-token-missing", "it guesses in parallel and names no token that stands for what is not known yet.",
            where=where, fix=f"Add {key}: the token that it was trained with.",
        )  # fmt: skip
    elif mask is not None and vocab is not None and mask >= vocab and drafter.is_head:
        yield rule_on(
            "mask-token-out-of-range", f"its mask token is {mask:,}, and its vocabulary ends at {vocab - 1:,}.",
            where=where, fix="Correct the id in config.json.",
        )  # fmt: skip
    if drafter.method == "eagle3" and drafter.layout == "plain" and "norm_before_residual" not in drafter.config:
        yield rule_on(
            "norm-before-residual-unstated",
            "it does not say norm_before_residual; in this format that means false, in the speculators format true.",
            where=where, fix="If the head was trained with it, add norm_before_residual: true.",
        )  # fmt: skip


def find_base_findings(drafter: Inspection, target: Inspection) -> Iterator[Finding]:
    """Yield where a drafter says that it was trained for another target."""
    recorded = drafter.recorded_base
    if recorded is None or not drafter.drafter.is_head:
        return
    where = f"{drafter.directory}: {recorded.source}"
    if recorded.tokenizer and target.vocabulary is not None and recorded.tokenizer != target.vocabulary.identity:
        yield rule_on(
            "recorded-tokenizer-differs",
            f"it was trained for {quote(recorded.name)}, whose tokenizer is not that of {target.directory}.",
            where=where, fix=_OTHER_TARGET,
        )  # fmt: skip
        return
    names = names_of(target.directory, target.config)
    if means_nothing(recorded.name) or any(is_same_model(recorded.name, name) for name in names):
        return
    certain = any(name != target.directory.resolve().name for name in names)
    yield rule_on(
        "base-model-differs" if certain else "base-model-unconfirmed",
        f"it was trained for {quote(recorded.name)}; "
        + (f"the target is {quote(names[0])}." if names else f"nothing in {target.directory} says what the target is."),
        where=where,
        fix="Make sure that this is the target: a head for another fine-tune loads, runs and guesses badly.",
    )
