"""Memory of a profiled step: activations, and the buffers that runner and drafter keep.

The profile is one step of `max_num_batched_tokens` tokens, the sampler for `max_num_seqs` of them, and the drafter. Its
peak is the largest set of tensors alive at once, read from vLLM 0.26.0's allocations on an H200 (the script is in
benchmarks/ARCHIVE.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from draftwise.core import ModelShape
from draftwise.knowledge.gpus import Gpu
from draftwise.knowledge.memory_overheads import Overheads, Runner
from draftwise.knowledge.rules import Rulebook
from draftwise.plan.size.decoder_parts import num_experts
from draftwise.plan.size.drafter_parts import Drafter

_BF16 = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledStep:
    """Inputs for the sizes of the profiled step."""

    rules: Rulebook
    """The release's rules."""
    runner: Runner
    gpu: Gpu
    max_num_batched_tokens: int
    max_num_seqs: int
    num_speculative_tokens: int
    tensor_parallel_size: int
    enforce_eager: bool
    cold_start: bool
    """Whether torch.compile's cache is empty, as in a fresh container."""
    probabilistic: bool = False
    """Whether the drafter keeps its probabilities (`draft_sample_method`)."""


def activations(
    step: ProfiledStep, config: Mapping[str, Any], shape: ModelShape, drafter: Drafter, overheads: Overheads
) -> int:
    """Return the peak of the profiled step on top of the weights."""
    forward, hidden = _forward(step, config, shape), _hidden(step, shape)
    passes = [forward + drafter.num_aux_layers * hidden, _sampler(step, shape) + (1 + drafter.num_aux_layers) * hidden]
    if drafter.shape is not None:
        passes.append(2 * hidden + _forward(_draft_step(step, drafter), drafter.config, drafter.shape))
        if drafter.facts.network == "one_pass":
            passes.append((drafter.num_aux_layers + 3) * hidden + _block_head(step, drafter.config, drafter.shape))
    if step.enforce_eager or not step.cold_start or not step.rules.holds("size-cold-compile"):
        return max(passes) + overheads.workspace
    if not num_experts(config):  # while the first layer's kernels are timed, with a buffer that flushes the L2 cache
        passes.append(forward + step.gpu.l2_bytes)
    return max(max(passes) + overheads.workspace, _tuning(step, shape, drafter, overheads))


def _draft_step(step: ProfiledStep, drafter: Drafter) -> ProfiledStep:
    """Return the step of the drafter: all tokens, or for a block drafter the rows that it fills in."""
    if drafter.facts.network != "one_pass":
        return step
    rows = step.max_num_seqs * (1 + step.num_speculative_tokens)
    return replace(step, max_num_batched_tokens=min(rows, step.max_num_batched_tokens))


def _block_head(step: ProfiledStep, config: Mapping[str, Any], shape: ModelShape) -> int:
    """Return what a block drafter takes to draft all tokens at once.

    A hidden state and a row of logits for each draft token, next to the fused projection of the context's keys and
    values (models/qwen3_dflash.py, _build_fused_kv_buffers).
    """
    vocab = config.get("draft_vocab_size") or shape.vocab_size
    projection = shape.num_layers * 2 * shape.num_kv_heads * shape.head_dim * shape.hidden_size
    return (step.max_num_seqs * step.num_speculative_tokens * (vocab + shape.hidden_size) + projection) * _BF16


def _hidden(step: ProfiledStep, shape: ModelShape) -> int:
    return step.max_num_batched_tokens * shape.hidden_size * _BF16


def _forward(step: ProfiledStep, config: Mapping[str, Any], shape: ModelShape) -> int:
    """Return the largest set of tensors of one layer.

    Of feed-forward: gate and up, their product, three hidden states. Of attention: the fused projection, queries, keys
    and output, two hidden states. Experts have workspaces besides.
    """
    tokens, size, hidden = step.max_num_batched_tokens, step.tensor_parallel_size, shape.hidden_size
    values = max(_attention_values(config, shape, size), 0 if num_experts(config) else _dense_values(shape, size))
    if experts := num_experts(config):
        inner = (config.get("moe_intermediate_size") or shape.intermediate_size) // size
        chosen = config.get("num_experts_per_tok") or 1
        # Two workspaces, for each token and chosen expert (fused_moe, workspace_shapes).
        values += chosen * (max(inner, hidden) + max(2 * inner, hidden)) + min(experts, 1024)
    return tokens * values * _BF16


def _dense_values(shape: ModelShape, size: int) -> int:
    return 3 * shape.intermediate_size // size + 3 * shape.hidden_size


def _attention_values(config: Mapping[str, Any], shape: ModelShape, size: int) -> int:
    heads = -(-shape.num_heads // size)
    if shape.latent_dim:
        inner = int(config["qk_nope_head_dim"] + config["qk_rope_head_dim"])
        return heads * (3 * inner + 2 * int(config["v_head_dim"])) + 2 * shape.hidden_size
    queries, keys = heads * shape.head_dim, max(1, shape.num_kv_heads // size) * shape.head_dim
    return 4 * queries + 2 * keys + 2 * shape.hidden_size


def _sampler(step: ProfiledStep, shape: ModelShape) -> int:
    """Return what the dummy sampler takes.

    V1 makes 32-bit logits, probabilities and noise, and under speculation a row of each for a drafted token and its
    bonus (v1/sample/sampler.py, rejection_sampler.py); V2 works in place on 16-bit logits (v1/worker/gpu/sample).
    """
    row = step.max_num_seqs * shape.vocab_size
    if step.runner == "V2":
        return row * _BF16
    per_logit = 30 if step.num_speculative_tokens else 14
    return row * per_logit + step.gpu.multiprocessors * shape.vocab_size * 4


def _tuning(step: ProfiledStep, shape: ModelShape, drafter: Drafter, overheads: Overheads) -> int:
    """Return what the tuning of the embedding's fused kernel takes: a copy of its table, and hidden states."""
    table = -(-shape.vocab_size // step.tensor_parallel_size) * shape.hidden_size * _BF16
    if drafter.shape is None or drafter.facts.drafts_from != "target_states" or drafter.facts.network != "chain":
        return table + 2 * _hidden(step, shape)
    states = drafter.num_aux_layers + (7 if step.runner == "V2" else 6)
    return table + states * _hidden(step, shape) + step.gpu.l2_bytes + overheads.workspace


def buffers(step: ProfiledStep, shape: ModelShape, drafter: Drafter, overheads: Overheads) -> int:
    """Return the bytes of tensors that runner, sampler and drafter keep, apart from model loading."""
    seqs, k = step.max_num_seqs, step.num_speculative_tokens
    drafts = drafter.shape is not None
    if step.runner == "V1":
        copies = 1 if not drafts else 2 if drafter.facts.drafts_from == "own_model" else 3
        return copies * _hidden(step, shape)
    # Penalty counts in 32 bit; prompt mask and grammar bitmask at one bit a token, the latter for every drafted row.
    table = seqs * shape.vocab_size * 4
    total = table + table // 32 + (1 + k) * table // 32 + seqs * overheads.request_state
    total += drafts * _hidden(step, drafter.shape or shape)
    return total + (table * k if step.probabilistic else 0)
