"""Trains DFlash, which predicts a whole block of masked tokens at once (arXiv 2602.06036).

Shape letters: B sequences, T tokens, N anchors of a sequence, K masks of a block, Q = N * (K + 1) query rows of a
sequence, M = B * N * K masks, H hidden size, F width of the auxiliary states, V vocabulary, A attention heads, D half
of the head dimension.

A block is the draft made when the tokens 0..a are known; a is its anchor. As at inference, it attends to the target's
states at the positions before a, to the anchor's token at position a, and to masks at the positions after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftwise.training.draft_losses import Answers, compute_vocabulary_loss
from draftwise.training.drafter_export import save_drafter
from draftwise.training.frozen_target import FrozenTarget, States, TokenBatch
from draftwise.training.layers import DecoderLayer, Norm, Rotations, make_linear, to_compute_dtype
from draftwise.training.method import (
    Blueprint,
    DrafterTraining,
    DraftLoss,
    Option,
    check_aux_layers,
    choose_mask_token,
    even_aux_layers,
    read_options,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Blocks:
    """Where drafts begin, and which tokens they should predict."""

    anchors_BN: Tensor
    """int64 position of each block's known token."""
    places_BNK: Tensor
    """int64 position of each mask; may be beyond the end of the sequence."""
    sizes_BN: Tensor
    """int64 number of masks of each block. Later ones are neither visible nor learned."""
    learned_BNK: Tensor
    """bool: masks whose tokens exist and are learned, in blocks that count."""


class _Network(nn.Module):
    """Decoder layers over masks, which attend to each other and to keys and values of the target's states."""

    embedding_VH: Tensor

    def __init__(self, embedding_VH: Tensor, blueprint: Blueprint, num_aux_layers: int) -> None:
        super().__init__()
        shape, eps, hidden = blueprint.shape, blueprint.eps, blueprint.shape.hidden_size
        self.register_buffer("embedding_VH", embedding_VH, persistent=False)
        self.fc = make_linear(num_aux_layers * hidden, hidden)
        self.hidden_norm = Norm(hidden, eps)
        layers = [DecoderLayer(shape, eps, qk_norm=True) for _ in range(shape.num_layers)]
        self.layers: Sequence[DecoderLayer] = nn.ModuleList(layers)  # type: ignore[assignment]
        self.norm = Norm(hidden, eps)

    def forward(
        self,
        tokens_BQ: Tensor,
        features_BTF: Tensor,
        rotations: Rotations,
        context_rotations: Rotations,
        mask_BQS: Tensor,
    ) -> Tensor:
        """Return the head's input, [B, Q, H].

        Args:
            tokens_BQ: anchors and masks.
            features_BTF: the target's auxiliary hidden states.
            context_rotations: of the positions 0..T - 1.
            mask_BQS: bool, positions that each query row attends to: the T states, then the Q query rows.
        """
        context_BTH = self.hidden_norm(self.fc(to_compute_dtype(features_BTF, self)))
        x_BQH = to_compute_dtype(F.embedding(tokens_BQ, self.embedding_VH), self)
        mask_B1QS = mask_BQS.unsqueeze(1)
        for layer in self.layers:
            q, (k, v) = layer.self_attn.project(layer.input_layernorm(x_BQH), rotations)
            context_k, context_v = layer.self_attn.project_context(context_BTH, context_rotations)
            keys, values = torch.cat((context_k, k), dim=2), torch.cat((context_v, v), dim=2)
            x_BQH = layer.finish(x_BQH, F.scaled_dot_product_attention(q, keys, values, attn_mask=mask_B1QS))
        return self.norm(x_BQH)


class DFlashTraining(DrafterTraining):
    """Trains to predict all tokens after an anchor at once, from many anchors per sequence.

    The loss is the paper's cross entropy with weights that decay from mask to mask, because a draft token is accepted
    only if all earlier ones are.
    """

    name: ClassVar[str] = "dflash"
    OPTIONS: ClassVar[tuple[Option, ...]] = read_options("dflash")

    network: _Network

    def __init__(self, target: FrozenTarget, options: Mapping[str, Any]) -> None:
        self.aux_layers = check_aux_layers(options["target_layers"] or even_aux_layers(target.num_layers), target)
        self._blueprint = Blueprint.for_target(
            target, num_layers=options["num_layers"], intermediate_size=options["intermediate_size"]
        )
        self.network = _Network(target.embedding_VH, self._blueprint, len(self.aux_layers)).to(target.device)
        self._target, self._num_masks = target, options["num_speculative_tokens"]
        self._num_anchors, self._decay = options["anchors"], options["decay"]
        self._cuts = options["shorter_blocks"]
        self._mask_token_id = choose_mask_token(options["mask_token_id"], target)
        self._learns_tokens = options["learn_from"] == "tokens"

    def compile(self) -> None:
        """Compile the parts that all layers share."""
        super().compile()
        for layer in self.network.layers:
            layer.compile_parts()

    def compute_loss(self, batch: TokenBatch, states: States) -> DraftLoss:
        """Draft from some positions of each sequence. Only these count."""
        blocks = self.draw_blocks(batch)
        hidden_BNKH = self.fill_in(batch, states, blocks)
        places_BNK = blocks.places_BNK.clamp(max=batch.tokens_BT.shape[1] - 1)
        labels_BNK = _gather(batch.tokens_BT, places_BNK)
        weights_BNK = self._weights(blocks.learned_BNK)
        loss, picks_JM = compute_vocabulary_loss(
            [hidden_BNKH.flatten(0, 2)],
            self._target.head_VH,
            weights_BNK.view(1, -1),
            self._answers(states, places_BNK, labels_BNK),
            fuse=self._compiled,
        )
        hits_BNK = picks_JM.view(labels_BNK.shape) == labels_BNK
        return DraftLoss(
            loss=loss,
            hits=_spread(hits_BNK & blocks.learned_BNK, blocks.anchors_BN, batch.tokens_BT),
            counted=_spread(blocks.learned_BNK, blocks.anchors_BN, batch.tokens_BT),
        )

    def draw_blocks(self, batch: TokenBatch) -> _Blocks:
        """Choose anchors whose next token is learned: at random while training, evenly while evaluating."""
        num_tokens, device = batch.tokens_BT.shape[1], batch.tokens_BT.device
        fits_BT = F.pad(batch.learned_BT[:, 2:], (1, 1))
        if torch.is_grad_enabled():
            order_BT = torch.rand(fits_BT.shape, device=device)
        else:
            # Multiples of the golden ratio spread evenly over every range of positions.
            order_BT = torch.arange(num_tokens, device=device, dtype=torch.float64).mul(0.5 * (5**0.5 - 1)).frac()
        wanted = self._num_anchors or num_tokens // (self._num_masks + 1)
        anchors_BN = (fits_BT + order_BT * 0.5).topk(min(max(wanted, 1), num_tokens), dim=1).indices.sort(dim=1).values
        places_BNK = anchors_BN.unsqueeze(-1) + torch.arange(1, self._num_masks + 1, device=device)
        sizes_BN = torch.full_like(anchors_BN, self._num_masks)
        if self._cuts and torch.is_grad_enabled():
            drawn_BN = torch.randint_like(sizes_BN, 1, self._num_masks + 1)
            sizes_BN = torch.where(torch.rand(sizes_BN.shape, device=device) < 0.5, drawn_BN, sizes_BN)
        exists_BNK = (places_BNK < num_tokens) & (places_BNK - anchors_BN.unsqueeze(-1) <= sizes_BN.unsqueeze(-1))
        learned_BNK = _gather(batch.learned_BT, places_BNK.clamp(max=num_tokens - 1)) & exists_BNK
        return _Blocks(
            anchors_BN=anchors_BN,
            places_BNK=places_BNK,
            sizes_BN=sizes_BN,
            learned_BNK=learned_BNK & fits_BT.gather(1, anchors_BN).unsqueeze(-1),
        )

    def fill_in(self, batch: TokenBatch, states: States, blocks: _Blocks) -> Tensor:
        """Return the head's input for each mask, [B, N, K, H]."""
        anchors_BN, (num_tokens, device) = blocks.anchors_BN, (batch.tokens_BT.shape[1], batch.tokens_BT.device)
        known_BN1 = batch.tokens_BT.gather(1, anchors_BN).unsqueeze(-1)
        tokens_BQ = F.pad(known_BN1, (0, self._num_masks), value=self._mask_token_id).flatten(1)
        places_BQ = torch.cat((anchors_BN.unsqueeze(-1), blocks.places_BNK), dim=-1).flatten(1)
        rope = self._blueprint.rope
        cos, sin = rope.rotations(places_BQ.flatten(), torch.float32)
        hidden_BQH = self.network(
            tokens_BQ,
            torch.cat(states.aux_BTH, dim=-1),
            (cos.view(*places_BQ.shape, -1), sin.view(*places_BQ.shape, -1)),
            rope.rotations(torch.arange(num_tokens, device=device), torch.float32),
            self._visible(blocks, num_tokens),
        )
        return hidden_BQH.unflatten(1, (anchors_BN.shape[1], -1))[:, :, 1:]

    def _visible(self, blocks: _Blocks, num_tokens: int) -> Tensor:
        """Return what each query row attends to, bool [B, Q, T + Q]: states before its anchor, and its block."""
        anchors_BN, size, device = blocks.anchors_BN, self._num_masks + 1, blocks.anchors_BN.device
        context_BNT = torch.arange(num_tokens, device=device) < anchors_BN.unsqueeze(-1)
        block_Q = torch.arange(anchors_BN.shape[1] * size, device=device) // size
        inside_BQ = (torch.arange(size, device=device) <= blocks.sizes_BN.unsqueeze(-1)).flatten(1)
        own_BQQ = (block_Q.unsqueeze(1) == block_Q) & inside_BQ.unsqueeze(1)
        context_BQT = context_BNT.repeat_interleave(size, dim=1)
        return torch.cat((context_BQT, own_BQQ), dim=-1)

    def _weights(self, learned_BNK: Tensor) -> Tensor:
        """Return the weight of each mask; the weights sum to 1."""
        decay_K = torch.arange(self._num_masks, device=learned_BNK.device).div(-self._decay).exp()
        weights_BNK = learned_BNK * decay_K
        return weights_BNK / weights_BNK.sum().clamp(min=1e-6)

    def _answers(self, states: States, places_BNK: Tensor, labels_BNK: Tensor) -> Answers:
        if self._learns_tokens:
            return Answers(tokens_M=labels_BNK.flatten())
        rows_BM = (places_BNK - 1).flatten(1)
        states_BMH = states.final_BTH.gather(1, rows_BM.unsqueeze(-1).expand(-1, -1, states.final_BTH.shape[-1]))
        return Answers(states_MH=states_BMH.flatten(0, 1), head_UH=self._target.head_VH)

    def export(self, folder: Path) -> None:
        """Write the drafter as vLLM's `DFlashDraftModel`. Embedding and head are the target's."""
        config = self._blueprint.config(architecture="DFlashDraftModel", model_type="qwen3") | {
            "block_size": self._num_masks + 1,
            "dflash_config": {
                "mask_token_id": self._mask_token_id,
                "target_layer_ids": [layer - 1 for layer in self.aux_layers],
            },
        }
        save_drafter(folder, config, self.network.state_dict(), self._blueprint.dtype)


def _gather(x_BT: Tensor, places_BNK: Tensor) -> Tensor:
    return x_BT.gather(1, places_BNK.flatten(1)).view(places_BNK.shape)


def _spread(x_BNK: Tensor, anchors_BN: Tensor, like_BT: Tensor) -> tuple[Tensor, ...]:
    """Return values of anchors at their positions, bool [B, T] for each mask; False elsewhere."""
    nothing_BT = torch.zeros_like(like_BT, dtype=torch.bool)
    return tuple(nothing_BT.scatter(1, anchors_BN, values_BN) for values_BN in x_BNK.unbind(-1))
