"""Distills the target into a small language model of the same vocabulary; drafts token by token or in parallel (PARD).

Distillation towards the target's distribution: DistillSpec (Zhou et al. 2023, arXiv 2310.08461), forward divergence.
Parallel draft tokens and conditional dropping of masks: PARD (An et al. 2025, arXiv 2504.18583).

Shape letters: B sequences, T tokens, M rows of all sequences, R rows of a sequence, K draft tokens, H hidden size.
Row (a, d) knows the tokens 0..a, has position a + d and predicts token a + d + 1; rows with d > 0 are masks.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwise.knowledge.messages import refusal
from draftwise.training.draft_losses import Answers, compute_vocabulary_loss
from draftwise.training.frozen_target import FrozenTarget, States, TokenBatch
from draftwise.training.method import DrafterTraining, DraftLoss, Option, read_options

_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
_CARRIED = ("bos_token_id", "eos_token_id", "pad_token_id", "max_position_embeddings", "rms_norm_eps")
_LEAST_KEPT = 0.2
"""Share of rows that keep their masks at any depth (PARD's r_min)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """The rows of one pass, the same for all sequences of a batch."""

    anchors_R: Tensor
    depths_R: Tensor
    mask_RR: Tensor | None
    """bool: whether a row attends to another; None: causal."""

    @property
    def positions(self) -> Tensor:
        return self.anchors_R + self.depths_R


class DraftModelTraining(DrafterTraining):
    """Trains a Llama from scratch, or any causal model with the same vocabulary from a checkpoint."""

    name: ClassVar[str] = "draft_model"
    learning_rate: ClassVar[float] = 4e-3
    OPTIONS: ClassVar[tuple[Option, ...]] = read_options("draft_model")

    def __init__(self, target: FrozenTarget, options: Mapping[str, Any], model: nn.Module) -> None:
        self._target, self._options, self.parallel = target, options, options["parallel"]
        self.network: Any = model
        self._mask_id = _mask_id(target, options) if self.parallel else 0

    @classmethod
    def build(cls, target: FrozenTarget, options: Mapping[str, Any]) -> DraftModelTraining:
        """Return a new model, or one from a checkpoint."""
        model = _load(options["init"], target) if options["init"] else _make(target, options)
        return cls(target, options, model.float().to(target.device))

    def compile(self) -> None:
        """Compile the decoder layers, which share one graph per shape, and parts of the loss."""
        super().compile()
        for layer in self.network.model.layers:
            layer.forward = torch.compile(layer.forward, dynamic=False)

    def compute_loss(self, batch: TokenBatch, states: States) -> DraftLoss:
        """Return the divergence from the target's distribution, averaged over the rows of each depth."""
        rows = self._choose_rows(batch.tokens_BT.shape[1], batch.tokens_BT.device)
        hidden_BRH = self._run(batch, rows)
        labels_BR, weights_BR = self._label(batch, rows)
        aims_BRH = states.final_BTH if rows.mask_RR is None else states.final_BTH[:, _clamp(rows, states)]
        answers = Answers(states_MH=aims_BRH.flatten(0, 1), head_UH=self._target.head_VH)
        head_VH, flat_MH = self.network.lm_head.weight, hidden_BRH.flatten(0, 1)
        weights_1M = weights_BR.flatten()[None]
        loss, picks_1M = compute_vocabulary_loss([flat_MH], head_VH, weights_1M, answers, fuse=self._compiled)
        if self._options["token_weight"]:
            tokens = Answers(tokens_M=labels_BR.flatten())
            own, _ = compute_vocabulary_loss([flat_MH], head_VH, weights_1M, tokens, fuse=self._compiled)
            loss = loss + self._options["token_weight"] * own
        if torch.is_grad_enabled():
            return DraftLoss(loss=loss, hits=(), counted=())
        return self._score(loss, batch, rows, picks_1M.view(labels_BR.shape) == labels_BR)

    def export(self, folder: Path) -> None:
        """Write the model in the layout of transformers, with the target's tokenizer."""
        before = self.network.dtype
        self.network.to(self._target.dtype).save_pretrained(folder)
        self.network.to(before)
        for name in _FILES:
            if (self._target.path / name).exists():
                shutil.copyfile(self._target.path / name, folder / name)
        if self.parallel:
            file = folder / "config.json"
            config = json.loads(file.read_text(encoding="utf-8")) | {"pard_token": self._mask_id}
            file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    def _choose_rows(self, num_tokens: int, device: torch.device) -> _Rows:
        """Return the tokens' rows, and masks after them: fewer with depth, or few anchors with all depths."""
        tokens_T = torch.arange(num_tokens, device=device)
        num_draft_tokens = self._options["num_speculative_tokens"] if self.parallel else 1
        if num_draft_tokens == 1:
            return _Rows(anchors_R=tokens_T, depths_R=torch.zeros_like(tokens_T), mask_RR=None)
        if torch.is_grad_enabled():
            order_T = torch.randperm(num_tokens, device=device)
            shares = [max(self._options["keep"] ** d, _LEAST_KEPT) for d in range(1, num_draft_tokens)]
            kept = [order_T[: max(int(num_tokens * share), 1)] for share in shares]
        else:
            kept = [tokens_T[::num_draft_tokens]] * (num_draft_tokens - 1)
        anchors_R = torch.cat([tokens_T, *kept])
        depths_R = torch.cat([torch.full_like(part, d) for d, part in enumerate([tokens_T, *kept])])
        is_token_R = depths_R == 0
        sees_tokens_RR = is_token_R & (anchors_R <= anchors_R[:, None])
        sees_own_RR = ~is_token_R & (anchors_R == anchors_R[:, None]) & (depths_R <= depths_R[:, None])
        return _Rows(anchors_R=anchors_R, depths_R=depths_R, mask_RR=sees_tokens_RR | sees_own_RR)

    def _run(self, batch: TokenBatch, rows: _Rows) -> Tensor:
        """Return hidden_BRH after the final norm."""
        body, tokens_BT = self.network.model, batch.tokens_BT
        if rows.mask_RR is None:
            return body(input_ids=tokens_BT, use_cache=False).last_hidden_state
        num_masks = len(rows.anchors_R) - tokens_BT.shape[1]
        tokens_BR = F.pad(tokens_BT, (0, num_masks), value=self._mask_id)
        device = tokens_BT.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32
        bias_RR = torch.zeros(rows.mask_RR.shape, dtype=dtype, device=tokens_BT.device)
        bias_RR = bias_RR.masked_fill(~rows.mask_RR, torch.finfo(dtype).min)
        positions_1R = rows.positions[None]
        output = body(
            input_ids=tokens_BR, attention_mask=bias_RR[None, None], position_ids=positions_1R, use_cache=False
        )
        return output.last_hidden_state

    def _label(self, batch: TokenBatch, rows: _Rows) -> tuple[Tensor, Tensor]:
        """Return the token that each row should predict, and the weight of its loss; the weights sum to 1."""
        num_tokens = batch.tokens_BT.shape[1]
        places_R = (rows.positions + 1).clamp(max=num_tokens - 1)
        inside_R = rows.positions + 1 < num_tokens
        counts_BR = (batch.learned_BT[:, places_R] & inside_R).float()
        weights_BR = torch.zeros_like(counts_BR)
        num_depths = self._options["num_speculative_tokens"] if rows.mask_RR is not None else 1
        for depth in range(num_depths):
            mine_BR = counts_BR * (rows.depths_R == depth)
            weights_BR += mine_BR * (self._options["discount"] ** depth / mine_BR.sum().clamp(min=1))
        total = sum(self._options["discount"] ** depth for depth in range(num_depths))
        return batch.tokens_BT[:, places_R], weights_BR / total

    def _score(self, loss: Tensor, batch: TokenBatch, rows: _Rows, right_BR: Tensor) -> DraftLoss:
        """Return hits and counts: of all positions, or of the anchors that have masks."""
        num_tokens, steps = batch.tokens_BT.shape[1], self._options["num_speculative_tokens"]
        learned_BT = F.pad(batch.learned_BT, (0, steps))
        counted = tuple(learned_BT[:, 1 + j : 1 + j + num_tokens] for j in range(steps))
        right_BT = right_BR[:, :num_tokens]
        if rows.mask_RR is None:
            right_BT = F.pad(right_BT, (0, steps))
            return DraftLoss(
                loss=loss, hits=tuple(right_BT[:, j : j + num_tokens] for j in range(steps)), counted=counted
            )
        anchors = slice(None, None, steps)
        is_anchor_T = torch.zeros(num_tokens, dtype=torch.bool, device=right_BR.device)
        is_anchor_T[anchors] = True
        hits = [right_BT]
        for part_BA in right_BR[:, num_tokens:].chunk(steps - 1, dim=1):
            hits_BT = torch.zeros_like(right_BT)
            hits_BT[:, anchors] = part_BA
            hits.append(hits_BT)
        return DraftLoss(loss=loss, hits=tuple(hits), counted=tuple(each & is_anchor_T for each in counted))


def _clamp(rows: _Rows, states: States) -> Tensor:
    """Return the position of the target's state that predicts the same token as each row."""
    return rows.positions.clamp(max=states.final_BTH.shape[1] - 1)


def _mask_id(target: FrozenTarget, options: Mapping[str, Any]) -> int:
    """Return the mask token."""
    chosen = options["mask_token_id"]
    if chosen < 0:
        chosen = target.config.get("pad_token_id")
    if chosen is None or not 0 <= chosen < target.vocab_size:
        raise refusal("no-mask-token", chosen=chosen, vocab_size=target.vocab_size)
    return int(chosen)


def _make(target: FrozenTarget, options: Mapping[str, Any]) -> Any:
    """Return a new Llama."""
    from transformers import LlamaConfig, LlamaForCausalLM

    hidden = options["hidden_size"] or target.hidden_size // 2
    heads = options["num_attention_heads"] or max(hidden // 64, 1)
    kv_heads = options["num_key_value_heads"] or max(heads // 4, 1)
    if hidden % heads or heads % kv_heads or (hidden // heads) % 2:
        raise refusal("bad-sizes", hidden=hidden, heads=heads, kv_heads=kv_heads)
    carried = {key: target.config[key] for key in _CARRIED if key in target.config}
    config = LlamaConfig(
        **carried,
        vocab_size=target.vocab_size,
        hidden_size=hidden,
        num_hidden_layers=options["num_layers"] or max(target.num_layers // 4, 1),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        intermediate_size=options["intermediate_size"] or hidden * 5 // 2,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def _load(path: str, target: FrozenTarget) -> Any:
    """Return the model of a checkpoint."""
    loaded = FrozenTarget.load(path, target.device, torch.float32)
    if loaded.vocab_size != target.vocab_size:
        raise refusal("other-vocabulary", path=path, vocab_size=loaded.vocab_size, wanted=target.vocab_size)
    return loaded.model.requires_grad_(True)
