"""Drafting heads in plain torch over whole sequences: no pages, no fused weights, straight from a checkpoint's tensors.

Shape letters: T rows of a sequence, H hidden size, A heads, D head dimension.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.models import CausalLM
from draftwise.engine.models.draft_head import ChainDrafter
from draftwise.engine.proposers.paged import ChainProposer
from tests.support.confirming import confirm, plan

Dense = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(tokens_T, carry_TH) of rows at positions 0 and on -> (logits_TU, carry_TH)."""


class DenseHead:
    """Tensors and config of a head, and what its network is made of."""

    def __init__(self, folder: Path) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        tensors = load_file(folder / "model.safetensors")
        self.tensors = {name: t.double() if t.is_floating_point() else t for name, t in tensors.items()}

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    def norm(self, name: str, x: Tensor) -> Tensor:
        scale = x.pow(2).mean(-1, keepdim=True).add(self.config["rms_norm_eps"]).rsqrt()
        return x * scale * self.tensors[f"{name}.weight"]

    def layer(self, prefix: str, x_TH: Tensor, attention_in: Tensor) -> Tensor:
        x_TH = x_TH + self.attention(f"{prefix}self_attn.", attention_in)
        normed = self.norm(f"{prefix}post_attention_layernorm", x_TH)
        gate = F.silu(self.linear(f"{prefix}mlp.gate_proj", normed))
        return x_TH + self.linear(f"{prefix}mlp.down_proj", gate * self.linear(f"{prefix}mlp.up_proj", normed))

    def attention(self, prefix: str, x: Tensor) -> Tensor:
        size, share = self.config["head_dim"], self.config["num_attention_heads"] // self.config["num_key_value_heads"]
        q, k, v = (self.linear(f"{prefix}{name}_proj", x).unflatten(1, (-1, size)) for name in "qkv")
        if f"{prefix}q_norm.weight" in self.tensors:
            q, k = self.norm(f"{prefix}q_norm", q), self.norm(f"{prefix}k_norm", k)
        q, k = self.rotate(q), self.rotate(k)
        k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
        scores = torch.einsum("tad,sad->ats", q, k) / size**0.5
        future = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        return self.linear(f"{prefix}o_proj", torch.einsum("ats,sad->tad", weights, v).flatten(1))

    def rotate(self, x_TAD: Tensor) -> Tensor:
        size = x_TAD.shape[-1]
        # Frequencies in float32, as every implementation has them.
        powers = 1.0 / (self.config["rope_theta"] ** (torch.arange(0, size, 2, dtype=torch.float32) / size))
        angles = torch.arange(len(x_TAD), dtype=torch.float32)[:, None] * powers
        turns = torch.polar(torch.ones_like(angles), angles).to(torch.complex128)[:, None]
        turned = torch.complex(x_TAD[..., : size // 2], x_TAD[..., size // 2 :]) * turns
        return torch.cat((turned.real, turned.imag), -1)


def target_states(target: CausalLM, tokens: list[int], aux_layers: tuple[int, ...]) -> Tensor:
    """Return the auxiliary hidden states of all tokens beside each other."""
    pages = list(range(-(-len(tokens) // 16)))
    kv = PagedKV(target.shape, num_pages=len(pages), block_size=16, dtype=target.dtype, device=target.device)
    rows = plan([0], [len(tokens)], [pages], block_size=16, scratch=len(pages))
    with torch.inference_mode():
        _, aux = target(torch.tensor(tokens), rows.positions_N, kv, rows, aux_layers)
    return torch.cat(aux, dim=-1).clone()


def chain(dense: Dense, entered_TH: Tensor, tokens: list[int], k: int, ids: Tensor | None = None) -> list[int]:
    """Return k greedy draft tokens after `tokens`, recomputing everything for each.

    `entered_TH` holds what the head makes of the target's states of all tokens but the last.
    """
    carry_TH, row_tokens, drafted = entered_TH, list(tokens[1:]), []
    for _ in range(k):
        logits_TU, left_TH = dense(torch.tensor(row_tokens), carry_TH)
        choice = int(logits_TU[-1].argmax())
        drafted.append(choice if ids is None else int(ids[choice]))
        row_tokens.append(drafted[-1])
        carry_TH = torch.cat((carry_TH, left_TH[-1:]))
    return drafted


def drafts(
    drafter: ChainDrafter, states: list[Tensor], sequences: list[list[int]], cuts: list[int], k: int, **settings: bool
) -> list[list[list[int]]]:
    """Confirm all sequences up to each of `cuts` in turn, through pages of 4 tokens; return the drafts at each cut."""
    proposer = ChainProposer(drafter, max_model_len=256, **settings)
    proposer.allocate(num_pages=64 * len(sequences), block_size=4)
    known, found = [1] * len(sequences), []
    for cut in cuts:
        rows = [tokens[start : min(cut, len(tokens))] for start, tokens in zip(known, sequences, strict=True)]
        active = [b for b, row in enumerate(rows) if row]
        new = confirm(
            [rows[b] for b in active],
            starts=[known[b] for b in active],
            limits=[k] * len(active),
            slots=active,
            pages=[range(b, 64 * len(sequences), len(sequences)) for b in active],
            scratch=64 * len(sequences),
            features_NF=torch.cat([states[b][known[b] - 1 : known[b] - 1 + len(rows[b])] for b in active]),
        )
        draft = proposer.propose(new, k)
        assert draft.lengths_B.tolist() == [k] * len(active)
        for b in active:
            known[b] += len(rows[b])
        found.append(draft.tokens_BK.tolist())
    return found


def first_pass(drafter: ChainDrafter, states_TF: Tensor, tokens: list[int]) -> tuple[Tensor, Tensor | None]:
    """Return logits and carried states of all confirmed rows, computed over pages in one pass."""
    num_rows = len(tokens) - 1
    pages = list(range(-(-num_rows // 4)))
    kv = PagedKV(drafter.kv_shape, num_pages=len(pages), block_size=4, dtype=drafter.dtype, device="cpu")
    rows = plan([0], [num_rows], [pages], block_size=4, scratch=len(pages))
    with torch.inference_mode():
        entered = drafter.enter(states_TF[:num_rows])
        hidden, carry = drafter.forward(torch.tensor(tokens[1:]), entered, rows.positions_N, kv, rows)
        return drafter.logits(hidden), carry
