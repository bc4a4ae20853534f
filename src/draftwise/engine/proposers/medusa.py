"""Medusa-1 heads: head i drafts the token i + 1 places after the last one (Cai et al. 2024, arXiv 2401.10774).

Checkpoints are vLLM's (`blocks.0.layers.0.weight`, `lm_heads.0.weight`) or those of FasterDecoding
(`0.0.linear.weight`, `0.1.weight`), as vLLM 0.32's `model_executor/models/medusa.py` reads them. vLLM describes
`truncated_vocab_size` checkpoints but fails to load them ("not initialized: token_map").

Shape letters: B sequences, H hidden size, U tokens that the heads can name, V the target's vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.models import CausalLM
from draftwise.engine.models.checkpoint import CheckpointReader
from draftwise.engine.models.draft_head import HeadCheckpoint
from draftwise.engine.models.linear import Linear
from draftwise.engine.proposers.proposer import Proposer, find_weights
from draftwise.engine.proposers.stateless import StatelessProposer, join_stages, pick_count
from draftwise.engine.resolved_spec import ResolvedSpec
from draftwise.knowledge.messages import refusal


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MedusaHeads:
    """Weights: per draft token, residual layers x + SiLU(W x), then its own head or a shared one."""

    blocks: tuple[tuple[Linear, ...], ...]
    """Residual layers of each draft token."""
    heads: tuple[Linear, ...]
    """Output heads: one per block, or one for all."""
    logit_scale: float = 1.0
    target_ids_U: Tensor | None = None
    """int64 target id of each token in the heads' vocabulary (`token_map`); None: the full vocabulary."""


class MedusaProposer(StatelessProposer[list[Tensor]]):
    """Makes all draft tokens from one hidden state, independently of each other.

    Args:
        heads: weights; one block per draft token.
        probabilistic: see `StatelessProposer`.
    """

    def __init__(self, heads: MedusaHeads, target: CausalLM, *, probabilistic: bool = False) -> None:
        super().__init__(target, probabilistic=probabilistic, target_ids_U=heads.target_ids_U)
        self._heads = heads
        if heads.logit_scale > 0 and target.is_quantized:
            own = heads.heads if len(heads.heads) > 1 else heads.heads * len(heads.blocks)
            stages = [(block, head, None, None) for block, head in zip(heads.blocks, own, strict=False)]
            self.at_once = join_stages(stages, target_ids_U=heads.target_ids_U)

    def begin(self, state_BH: Tensor, num_drafted: int) -> list[Tensor]:
        """Return the logits of all draft tokens, which do not depend on chosen tokens."""
        blocks, heads = self._heads.blocks[:num_drafted], self._heads.heads
        assert len(blocks) == num_drafted
        states = [_through(block, state_BH) for block in blocks]
        if len(heads) == 1:  # one pass over the head's weights serves all draft tokens
            return list(self._scaled(heads[0](torch.cat(states))).chunk(num_drafted))
        return [self._scaled(head(state_BH)) for head, state_BH in zip(heads, states, strict=False)]

    def step(self, index: int, carry: list[Tensor], tokens_B: Tensor) -> tuple[Tensor, list[Tensor]]:  # noqa: ARG002
        """Return the logits of draft token number `index`."""
        return carry[index], carry

    def _scaled(self, logits: Tensor) -> Tensor:
        return logits if self._heads.logit_scale == 1 else logits * self._heads.logit_scale


def _through(block: tuple[Linear, ...], x_BH: Tensor) -> Tensor:
    for layer in block:
        x_BH = x_BH + F.silu(layer(x_BH))
    return x_BH


@dataclass(frozen=True, slots=True)
class _Names:
    """How a checkpoint calls its tensors."""

    prefix: str
    is_old: bool
    num_layers: int

    @classmethod
    def of(cls, files: Iterable[str], num_layers: int) -> _Names:
        prefix = "medusa_heads." if any(name.startswith("medusa_heads.") for name in files) else ""
        return cls(prefix, any(re.match(r"\d+\.\d+\.", name.removeprefix(prefix)) for name in files), num_layers)

    def block(self, i: int) -> str:
        """Return the name prefix of head i's layers."""
        return f"{self.prefix}{i}." if self.is_old else f"{self.prefix}blocks.{i}.layers."

    def layer(self, i: int, j: int) -> str:
        return f"{self.block(i)}{j}" + (".linear" if self.is_old else "")

    def head(self, i: int) -> str:
        return f"{self.prefix}{i}.{self.num_layers}" if self.is_old else f"{self.prefix}lm_heads.{i}"


def build(spec: ResolvedSpec, config: EngineConfig, target: CausalLM) -> Proposer:
    """Return the proposer of Medusa heads."""
    heads = load_medusa(find_weights(spec, config), target, k=spec.k)
    return MedusaProposer(heads, target, probabilistic=spec.probabilistic)


def load_medusa(path: str | Path, target: CausalLM, *, k: int | None = None) -> MedusaHeads:
    """Return the heads of a checkpoint directory.

    Args:
        path: directory with config.json and safetensors, in either layout.
        k: maximum draft tokens per step: loads the first k heads. None: all.

    Raises:
        InvalidSetup: the checkpoint is incomplete, has fewer than k heads or does not match the target.
    """
    checkpoint = HeadCheckpoint(path, target)
    config, reader, hidden = checkpoint.config, checkpoint.reader, target.shape.hidden_size
    num_heads = pick_count(_number(config, ("num_heads", "medusa_num_heads"), 5), k, where=checkpoint.where)
    names = _Names.of(checkpoint, _number(config, ("num_hidden_layers", "medusa_num_layers", "num_layers"), 1))
    # FasterDecoding's layers have a bias that its config.json does not mention; vLLM then leaves it out.
    bias = bool(config.get("medusa_fc_bias")) or (names.is_old and f"{names.layer(0, 0)}.bias" in checkpoint)
    blocks = tuple(
        tuple(reader.linear("", [names.layer(i, j)], [hidden], hidden, bias=bias) for j in range(names.num_layers))
        for i in range(num_heads)
    )
    target_ids_U = _read_token_map(checkpoint, target, names.prefix)
    own = [names.head(i) for i in range(num_heads)]
    shared = f"{names.prefix}lm_head"
    if config.get("original_lm_head"):
        own = [shared] if f"{shared}.weight" in checkpoint else own[:1]
    heads = tuple(_read_head(checkpoint, f"{name}.weight", target, target_ids_U) for name in own)
    checkpoint.files.check_complete()
    _check_nothing_lost(checkpoint.files, names, num_heads)
    scale = float(config.get("logit_scale") or 1.0)
    return MedusaHeads(blocks=blocks, heads=heads, logit_scale=scale, target_ids_U=target_ids_U)


def _number(config: Mapping[str, Any], keys: tuple[str, ...], default: int) -> int:
    """Return the first of `keys` that the config has; defaults are those of vLLM's MedusaConfig."""
    return next((int(config[key]) for key in keys if config.get(key) is not None), default)


def _read_token_map(checkpoint: HeadCheckpoint, target: CausalLM, prefix: str) -> Tensor | None:
    """Return the target ids of a truncated draft vocabulary; vLLM ignores `token_map` where none is truncated."""
    vocab_size, size = target.shape.vocab_size, checkpoint.config.get("truncated_vocab_size")
    if size is None or size == vocab_size:
        return None
    name = f"{prefix}token_map" if f"{prefix}token_map" in checkpoint else "token_map"
    token_map_U = checkpoint.files.read(name, (size,)).to(device=target.device, dtype=torch.long)
    if token_map_U.min() < 0 or token_map_U.max() >= vocab_size:
        raise refusal(
            "unknown-token",
            case="token-map",
            token=int(token_map_U.max()),
            largest=vocab_size - 1,
            path=checkpoint.files.path,
        )
    return token_map_U


def _read_head(checkpoint: HeadCheckpoint, name: str, target: CausalLM, target_ids_U: Tensor | None) -> Linear:
    """Return a head; of one for the whole vocabulary the rows of a truncated one are taken."""
    reader, hidden, vocab_size = checkpoint.reader, target.shape.hidden_size, target.shape.vocab_size
    if target_ids_U is not None and checkpoint.files.shape_of(name) == (vocab_size, hidden):
        return reader.some_rows(name, vocab_size, hidden, target_ids_U)
    num_named = vocab_size if target_ids_U is None else len(target_ids_U)
    return reader.linear("", [name.removesuffix(".weight")], [num_named], hidden)


def _check_nothing_lost(checkpoint: CheckpointReader, names: _Names, num_heads: int) -> None:
    """Refuse layers that config.json does not mention: vLLM drops them silently and then drafts badly."""
    prefixes = tuple(names.block(i) for i in range(num_heads))
    heads = {f"{names.head(i)}.weight" for i in range(num_heads)}
    lost = [name for name in checkpoint.unread() if name.startswith(prefixes) and name not in heads]
    if lost:
        raise refusal("tensors-unread", path=checkpoint.path, num_lost=len(lost), lost=", ".join(lost[:4]))
