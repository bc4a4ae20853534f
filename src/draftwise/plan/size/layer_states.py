"""The state that a layer keeps for each sequence instead of keys and values: Mamba, linear attention, convolutions.

The numbers are those of vLLM's MambaStateShapeCalculator; which keys of config.json hold them is data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from draftwise.knowledge.messages import refusal
from draftwise.knowledge.model_types import read_state_layers

Row = Mapping[str, Any]

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float": 4, "half": 2}
EXPORTS_CHECKPOINTS: Mapping[str, str] = {"mamba2": "size-state-checkpoints", "gdn": "size-gdn-checkpoints"}
"""Kinds of state with one more block during prefill -> rule of the releases that keep it."""
_GDN = {
    "heads": "linear_num_value_heads", "head_dim": "linear_value_head_dim", "key_heads": "linear_num_key_heads",
    "key_dim": "linear_key_head_dim", "kernel": "linear_conv_kernel_dim",
}  # fmt: skip


def state_kind(config: Row) -> str:
    """Return the kind of state that a text config's layers keep.

    Raises:
        InvalidSetup: the state of this model type's layers is unknown.
    """
    return str(_row(config)["kind"])


def _row(config: Row) -> Row:
    model_type = config.get("model_type")
    found: Row | None = read_state_layers().get(str(model_type))
    if found is None:
        raise refusal("memory-unknown", model_type=model_type or "this model")
    return found


def state_bytes(
    config: Row, *, tensor_parallel_size: int, num_speculative_tokens: int, conv_bytes: int, dtype: str | None
) -> int:
    """Return the bytes of one layer's state on one GPU.

    Args:
        config: config of the language model.
        tensor_parallel_size: GPUs that share heads and channels.
        num_speculative_tokens: tokens by which vLLM extends the window of a convolution.
        conv_bytes: bytes per value of the convolution's window, in the model's dtype.
        dtype: type of the recurrent state (`--mamba-ssm-cache-dtype`); None without the flag.

    Raises:
        InvalidSetup: the model type's state is unknown, or config.json lacks a number for it.
    """
    row, tp = _row(config), tensor_parallel_size
    inside = config.get(row["inside"]) or {} if "inside" in row else config
    keys = {**_GDN, **row} if row["kind"] == "gdn" else row
    named = dtype or config.get(row.get("dtype", "")) or row.get("otherwise")
    temporal = _BYTES.get(str(named), conv_bytes)

    def number(name: str) -> int:
        wanted = keys[name] if isinstance(keys[name], tuple | list) else (keys[name],)
        values = [value for key in wanted if isinstance(value := inside.get(key), int | float) and value > 0]
        if len(values) < len(wanted):
            raise refusal("config-incomplete", names=", ".join(wanted))
        return int(math.prod(map(float, values)))

    taps = number("kernel") - 1
    match row["kind"]:
        case "conv":
            return number("width") // tp * taps * conv_bytes
        case "mamba1":
            return number("width") // tp * (taps * conv_bytes + number("state") * temporal)
        case "mamba2":
            groups = number("groups")
            groups += 0 if groups % tp == 0 else tp - groups
            channels = number("width") + 2 * groups * number("state")
            heads = number("heads") // tp * number("head_dim") * number("state")
            return channels // tp * (taps + num_speculative_tokens) * conv_bytes + heads * temporal
        case "gdn":
            keys_wide, values_wide = number("key_dim") * number("key_heads"), number("head_dim") * number("heads")
            heads = number("heads") // tp * number("head_dim") * number("key_dim")
            window = (2 * keys_wide + values_wide) // tp * (taps + num_speculative_tokens)
            return window * conv_bytes + heads * temporal
        case "kda":
            heads, dim = number("heads"), number("head_dim")
            window = 3 * heads * dim // tp * (taps + num_speculative_tokens)
            return window * conv_bytes + heads // tp * dim * dim * _BYTES.get(str(dtype), 4)
        case kind:
            raise ValueError(f"no formula for states of kind {kind}")
