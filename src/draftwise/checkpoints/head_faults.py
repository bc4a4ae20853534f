"""Names the faults that make a head unfit for a target: each has one code and one sentence for all callers.

`inspect` and `check` look up under the code what a release of vLLM makes of it; `serve` and `train` refuse the head.
"""

from __future__ import annotations

from draftwise.checkpoints.config_values import TARGET_KEY, AuxLayers
from draftwise.checkpoints.text_files import quote
from draftwise.core import Finding

_OTHER_TARGET = "Use a head that was trained for this target."


def find_width_fault(key: str, width: int | None, wanted: int, *, where: str) -> Finding | None:
    """Return what is wrong with the width of the states that a head reads.

    Args:
        key: field that states it.
        width: as stated; None: it is not.
        wanted: the target's hidden size.
    """
    if width is None or width == wanted:
        return None
    message = f"The head's {key} is {width}, and the target's hidden states are {wanted} wide."
    return Finding.error("hidden-size-differs", message, where=where, fix=_OTHER_TARGET)


def find_depth_fault(layers: object, *, where: str) -> Finding | None:
    """Return what is wrong with the number of layers that a head's config.json states."""
    if type(layers) is not int or layers > 0:
        return None
    message = f"The head's num_hidden_layers is {layers}, so its weights have no layer to go to."
    return Finding.error("head-without-layers", message, where=where, fix="Write how many layers it has, usually 1.")


def find_vocabulary_fault(size: int | None, wanted: int, *, where: str) -> Finding | None:
    """Return the fault of a head's `vocab_size` (None: not stated) given the target's."""
    if size is None or size == wanted:
        return None
    message = f"The head's vocab_size is {size:,}, the target's {wanted:,}."
    fix = "If one vocabulary only pads the other, ignore this. Otherwise use a head that was trained for this target."
    return Finding.error("head-vocabulary-differs", message, where=where, fix=fix)


def find_layers_fault(layers: AuxLayers, num_layers: int, *, where: str) -> Finding | None:
    """Return what is wrong with the states that a head reads of a target of `num_layers` layers."""
    if not layers.is_stated and (len(layers.ids) < 3 or layers.ids[0] < 0):
        message = (
            f"The head does not set {layers.key}. vLLM then reads layers 2, L/2 and L - 3, which are not three layers "
            f"in a target of {num_layers}."
        )
        return Finding.error(
            "layer-ids-collapse",
            message,
            where=where,
            fix=f"Add {layers.key}: the layers that the head was trained on.",
        )
    if layers.ids[0] < 0 or layers.ids[-1] > num_layers:
        return Finding.error(
            "layer-ids-out-of-range", _describe_range(layers, num_layers), where=where, fix=_OTHER_TARGET
        )
    return None


def _describe_range(layers: AuxLayers, num_layers: int) -> str:
    below = 1 if layers.key == TARGET_KEY else 0
    said, last = [layer - below for layer in layers.ids], num_layers - below
    message = f"The head reads layers {quote(said)} of a target that has 0 to {last} ({layers.key})."
    if below and said[-1] == num_layers:
        message += " This field names a layer by its output, one less than EAGLE-3 does: these ids look one too high."
    return message


def find_mask_fault(token_id: int | None, vocab_size: int | None, *, key: str, where: str) -> Finding | None:
    """Return what is wrong with the mask token of a head that drafts in parallel.

    Args:
        token_id: None: it names none.
        vocab_size: tokens that it reads; None: not known.
        key: field in which such a head names its mask token.
    """
    if token_id is None:
        return mask_missing(key, where=where)
    if vocab_size is not None and token_id >= vocab_size:
        message = f"The head's mask token {token_id:,} is outside the vocabulary, which ends at {vocab_size - 1:,}."
        return Finding.error("mask-token-out-of-range", message, where=where, fix="Correct the id in config.json.")
    return None


def mask_missing(key: str, *, where: str) -> Finding:
    """Return what to say of a head that drafts in parallel and names no mask token."""
    message = f"The head drafts in parallel, but its config.json has no {key} for the unknown tokens."
    return Finding.error(
        "mask-token-missing", message, where=where, fix=f"Add {key}: the token that it was trained with."
    )
