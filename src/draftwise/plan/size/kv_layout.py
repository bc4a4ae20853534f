"""vLLM's layout of the cache: pages of layers, groups that share block tables, and the states of layers.

Layers of one kind share a group, and all groups share one pool of blocks of equal size
(v1/core/kv_cache_planning.py, get_kv_cache_groups). So several kinds of layers cost padding, and a drafter its layers.

The numbers are those of vLLM's MambaStateShapeCalculator; which keys of config.json hold them is data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from draftwise.core import InvalidSetup
from draftwise.core.budget import KVCache, KVGroup
from draftwise.knowledge.messages import fault, refusal
from draftwise.knowledge.model_types import read_state_layers
from draftwise.knowledge.rules import Rulebook

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


_PADDING_LIMIT = 1.5
"""Groups are padded to the larger kind while it has less than this multiple of the smaller one's layers."""
_KERNEL_BLOCK = 16
"""Tokens of the smallest block that attention kernels take."""


@dataclass(frozen=True, slots=True)
class CachedLayer:
    """One layer's share of the cache on one GPU."""

    bytes_per_token: int
    window: int | None = None
    is_draft: bool = False
    chunked: bool = False
    """Whether `window` is a chunk of the sequence."""
    latent: bool = False
    """Whether it keeps a latent, whose page cannot be padded because kernels index its rows."""
    state_bytes: int = 0
    """Bytes per sequence, for a layer with a state instead of tokens."""
    heads: int = 1
    """Key-value heads; layers with other numbers form separate groups, even if their pages are equally large."""
    index: int = 0
    """Position in the target; a drafter's layers follow the last one."""

    @property
    def kind(self) -> tuple[str, int | None]:
        """Label that layers share if they need the same blocks of a sequence."""
        return ("state" if self.state_bytes else "chunk" if self.chunked else "token"), self.window


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRules:
    """Layout rules of one release."""

    pads_to_larger: bool = True
    """Whether the smaller kind of layers is padded to the larger one."""
    pads_tokens: bool = False
    """Whether a page of keys and values that does not divide the largest one is padded to it."""
    pads_states: bool = False
    """Whether a page of a state is padded to a larger one of other layers."""
    null_blocks: int = 0

    @classmethod
    def of(cls, rules: Rulebook) -> LayoutRules:
        """Return the layout rules of a rulebook's release."""
        return cls(
            pads_to_larger=rules.holds("size-padded-groups"),
            pads_tokens=rules.holds("size-padded-pages"),
            pads_states=rules.holds("size-padded-states"),
            null_blocks=int(rules.holds("size-null-block")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBlocks:
    """Number and size of the blocks for a sequence's states."""

    blocks: int = 1
    """Blocks per sequence in each group of states."""
    alignment: int = 1
    """Attention blocks next to states must be multiples of this many tokens."""
    every_block: bool = False
    """Whether a state is also kept for each block of tokens."""


@dataclass(frozen=True, slots=True)
class _Page:
    layer: CachedLayer
    block_size: int
    num_bytes: int


def align_block_size(
    layers: Iterable[CachedLayer], block_size: int, states: StateBlocks, *, latent_alignment: int
) -> int:
    """Return the tokens of a block that is at least as large as a state's page (platforms/interface.py).

    Args:
        layers: layers of the target.
        block_size: requested size, or the attention backend's default.
        states: the release's requirements for blocks next to states.
        latent_alignment: latent blocks must be multiples of this many tokens.
    """
    kept = list(layers)
    state = max((layer.state_bytes for layer in kept), default=0)
    tokens = [layer for layer in kept if not layer.state_bytes]
    if not state or not tokens:
        return block_size
    unit = max(_KERNEL_BLOCK, block_size)
    if tokens[0].latent:
        unit = max(unit, latent_alignment)
    unit = math.lcm(unit, states.alignment)
    least = unit * -(-state // (unit * tokens[0].bytes_per_token))
    return max(block_size, -(-least // _KERNEL_BLOCK) * _KERNEL_BLOCK)


def lay_out(
    layers: Sequence[CachedLayer],
    *,
    block_size: int = 16,
    rules: LayoutRules = LayoutRules(),
    states: StateBlocks = StateBlocks(),
    stage: range | None = None,
) -> KVCache:
    """Return the blocks of a model and its drafter on one GPU.

    Args:
        layers: layers of both, as one GPU of each pipeline stage keeps them.
        block_size: tokens per block in the layers with the most memory.
        rules: layout rules of the release.
        states: blocks of a sequence's states.
        stage: indexes of the layers on this GPU; None for all. Groups are those of the whole model.

    Raises:
        InvalidSetup: no layer has a cache, or the layers' page sizes do not divide one another.
    """
    if not layers:
        raise InvalidSetup.because("no-kv-cache", "No layer keeps keys and values.")
    groups = _group(_pages(layers, block_size), rules)
    here = [[page for page in group if stage is None or page.layer.index in stage] for group in groups]
    kept = [page.layer for group in here for page in group if not page.layer.state_bytes]
    return KVCache(
        groups=tuple(_describe(whole, part, states) for whole, part in zip(groups, here, strict=True)),
        bytes_per_block=max(sum(page.num_bytes for page in group) for group in here),
        bytes_per_token=sum(layer.bytes_per_token for layer in kept),
        drafter_bytes_per_token=sum(layer.bytes_per_token for layer in kept if layer.is_draft),
        null_blocks=rules.null_blocks,
    )


def _pages(layers: Sequence[CachedLayer], block_size: int) -> list[_Page]:
    """Return each layer's page. A state's is padded to that of the target's attention next to it."""
    tokens = [layer for layer in layers if not layer.state_bytes and not layer.is_draft]
    padded = tokens[0].bytes_per_token * block_size if tokens else 0
    return [
        _Page(
            layer,
            block_size,
            max(padded, layer.state_bytes) if layer.state_bytes else layer.bytes_per_token * block_size,
        )
        for layer in layers
    ]


def _describe(whole: Sequence[_Page], part: Sequence[_Page], states: StateBlocks) -> KVGroup:
    first = whole[0]
    return KVGroup(
        num_layers=len(part), block_size=first.block_size, window=first.layer.window, chunked=first.layer.chunked,
        state_blocks=states.blocks if first.layer.state_bytes else 0,
        every_block=states.every_block and bool(first.layer.state_bytes),
    )  # fmt: skip


def _group(pages: list[_Page], rules: LayoutRules) -> list[list[_Page]]:
    if len({page.layer.kind for page in pages}) == 1:
        return [pages]
    kinds: dict[tuple[object, ...], list[_Page]] = {}
    for page in _unify(pages, rules):
        layer = page.layer
        kinds.setdefault((layer.kind, page.block_size, layer.latent, layer.bytes_per_token, layer.heads), []).append(
            page
        )
    counts = sorted(len(kind) for kind in kinds.values())
    size = counts[-1] if rules.pads_to_larger and counts[-1] < counts[0] * _PADDING_LIMIT else counts[0]
    split = [(kind, -(-len(kind) // size)) for kind in kinds.values()]
    return [kind[first::number] for kind, number in split for first in range(number)]


def _unify(pages: Sequence[_Page], rules: LayoutRules) -> list[_Page]:
    """Return pages of one size: smaller ones hold more tokens, or are padded."""
    largest = max(page.num_bytes for page in pages)
    unified = []
    for page in pages:
        if page.layer.state_bytes and (rules.pads_states or page.num_bytes == largest):
            unified.append(replace(page, num_bytes=largest))
        elif not page.layer.state_bytes and largest % page.num_bytes == 0:
            unified.append(_Page(page.layer, page.block_size * (largest // page.num_bytes), largest))
        elif not page.layer.state_bytes and rules.pads_tokens and not page.layer.latent:
            unified.append(replace(page, num_bytes=largest))
        else:
            raise InvalidSetup(fault("kv-pages-do-not-divide", largest=largest, num_bytes=page.num_bytes))
    return unified
