"""Draft tokens made in one call are those of one call for each, for any rows, depths and threads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.proposers import test_medusa as medusa
from tests.engine.proposers import test_mlp_speculator as mlp
from tests.support.confirming import confirm
from tests.support.hidden_state_cases import random_news, save_drafter
from tests.support.made_drafters import write_eagle, write_eagle3, write_mtp

from draftwise.engine.attention.pass_rows import Spans, plan_attention
from draftwise.engine.kernels import cpu_vectors
from draftwise.engine.kernels.cpu_layouts import LAYOUTS, PackedMatrix, QuantizedTable
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.models import CausalLM, load_model
from draftwise.engine.models.causal_lm import AttentionKind
from draftwise.engine.models.quantized import Blocks, pack_blocks
from draftwise.engine.proposers.draft_model import DraftModel
from draftwise.engine.proposers.eagle import load_eagle
from draftwise.engine.proposers.eagle3 import load_eagle3
from draftwise.engine.proposers.mtp import load_mtp
from draftwise.engine.proposers.paged import ChainProposer

pytestmark = pytest.mark.skipif(cpu_vectors.find_mode() is None, reason="this processor multiplies no int8")
SIZES = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
REACH, PAGE = 24, 4
HEADS = {
    "eagle": (write_eagle, load_eagle, {}),
    "eagle, two layers and an embedding": (write_eagle, load_eagle, {"num_layers": 2, "own_embedding": True}),
    "eagle3": (write_eagle3, load_eagle3, {}),
    "eagle3 that names a part": (write_eagle3, load_eagle3, {"draft_vocab_size": 40, "num_layers": 2}),
    "eagle3 with norms elsewhere": (write_eagle3, load_eagle3, {"norm_before_residual": True, "norm_output": True}),
    "mtp": (write_mtp, load_mtp, {}),
}


def drafts(drafter, chain, *, k: int) -> list[torch.Tensor]:
    """Confirm rows of three sequences, one of them up to the end of the context, and return all drafts."""
    drafter.chain = chain
    proposer = ChainProposer(drafter, max_model_len=REACH)
    proposer.allocate(num_pages=32, block_size=PAGE)
    pages = [range(first, first + 6) for first in (0, 7, 14)]
    # Networks that read states get no token before the second.
    starts, result, rng = [int(bool(drafter.aux_layers))] * 3, list[torch.Tensor](), torch.Generator().manual_seed(3)
    for lengths in ([5, 1, 15], [1, 3, 4], [2, 1, 2], [1, 1, 1]):
        rows = [torch.randint(90, (n,), generator=rng).tolist() for n in lengths]
        width = 64 * len(drafter.aux_layers)
        features = torch.randn(sum(lengths), width, generator=rng) if width else None
        given = {"starts": starts, "limits": [k, k, k], "pages": pages, "scratch": 31, "features_NF": features}
        draft = proposer.propose(confirm(rows, **given), k)
        starts = [start + n for start, n in zip(starts, lengths, strict=True)]
        behind = torch.arange(k) >= draft.lengths_B.unsqueeze(1)
        result.append(draft.tokens_BK.masked_fill(behind, -1))
    return result


def check(drafter, k: int) -> None:
    chain, before = drafter.chain, torch.get_num_threads()
    assert chain is not None
    expected = drafts(drafter, None, k=k)
    assert len(torch.cat(expected).unique()) > 4, "they would be equal whatever is computed"
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert all(map(torch.equal, drafts(drafter, chain, k=k), expected))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", HEADS)
def test_heads_draft_the_same_in_one_call(name: str, save_tiny, tmp_path: Path):
    write, load, options = HEADS[name]
    path, _ = save_tiny("llama", intermediate_size=288, **SIZES)
    target = load_model(path, device="cpu", quantization="int8")
    config = json.loads((path / "config.json").read_text())
    with torch.inference_mode():
        drafter = load(write(tmp_path / "head", config, intermediate_size=96, **options), target)
        for k in (1, 4):
            check(drafter, k)


@pytest.mark.parametrize("family", ["llama", "granite"])
def test_a_draft_model_drafts_the_same_in_one_call(family: str, save_tiny):
    scales = {"embedding_multiplier": 6.0, "residual_multiplier": 0.5, "logits_scaling": 4.0}
    path, _ = save_tiny(family, intermediate_size=288, **SIZES, **(scales if family == "granite" else {}))
    with torch.inference_mode():
        check(DraftModel(load_model(path, device="cpu", quantization="int8")), 4)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_chain_reads_every_kind_of_table(kind: str, save_tiny):
    """A table of another kind than the rounded one, with random bits of all its weights."""
    path, _ = save_tiny("llama", intermediate_size=288, **SIZES)
    layout, rng = LAYOUTS[kind], torch.Generator().manual_seed(1)
    stored = torch.randint(layout.largest + 1, (96, 64), generator=rng, dtype=torch.uint8)
    scale = torch.rand(96, 2, layout.halves, generator=rng).half() / layout.largest
    minimum = torch.randn(96, 2, generator=rng).half() if layout.minimum_at >= 0 else None
    table = QuantizedTable(PackedMatrix(kind, pack_blocks(kind, Blocks(stored, scale, minimum)), 96, 2))
    with torch.inference_mode():
        model = load_model(path, device="cpu", quantization="int8")
        kinds, weights = [AttentionKind(rope=model._kernels.rope)], replace(model.weights, embedding_VH=table)
        model = CausalLM(model.config, model.shape, kinds, weights, is_quantized=True)
        tokens, spans = torch.arange(96), Spans.of([0], [96], "cpu")
        kv = PagedKV(model.shape, num_pages=7, block_size=16, dtype=torch.float32, device="cpu")
        plan = plan_attention(spans, torch.arange(8, dtype=torch.int32).view(1, 8), block_size=16)
        _, (embedded,) = model(tokens, plan.positions_N, kv, plan, (0,))
        torch.testing.assert_close(embedded, table(tokens))
        check(DraftModel(model), 4)


def random_medusa(target, folder: Path, *, num_layers: int = 1, bias: bool = False, named: int = 0, **config: Any):
    """Return heads that name `named` tokens, or all; of whole heads if one serves all draft tokens."""
    tensors = medusa.make_tensors(target, num_layers=num_layers, bias=bias)
    if named:
        if not config.get("original_lm_head"):
            tensors = {name: each[:named] if "lm_heads" in name else each for name, each in tensors.items()}
        tensors["token_map"] = torch.arange(5, 5 + named)
        config |= {"truncated_vocab_size": named}
    config |= {"num_hidden_layers": num_layers, "medusa_fc_bias": bias}
    return medusa.load(save_drafter(folder, medusa.make_config(target, **config), tensors), target)


def random_mlp(target, folder: Path, *, inner: int, tied: bool = False, **config: Any):
    tensors = mlp.make_tensors(target, inner=inner, tied=tied)
    config |= {"inner_dim": inner, "tie_weights": tied}
    return mlp.load(mlp.save(folder, mlp.make_config(target, **config), tensors), target)


STATELESS = {
    "medusa": (random_medusa, {}),
    "medusa, one head for all": (random_medusa, {"original_lm_head": True}),
    "medusa, layers with biases": (random_medusa, {"num_layers": 3, "bias": True}),
    "medusa, layers and one head for all": (random_medusa, {"num_layers": 2, "original_lm_head": True}),
    "medusa that names a part": (random_medusa, {"named": 40, "logit_scale": 0.3}),
    "medusa that names a part of a whole head": (random_medusa, {"named": 40, "original_lm_head": True}),
    "mlp": (random_mlp, {"inner": 96}),
    "mlp, tied, as wide as one block": (random_mlp, {"inner": 32, "tied": True}),
    "mlp that scales, wider than the target": (random_mlp, {"inner": 160, "scale_input": True}),
}


@pytest.mark.parametrize("name", STATELESS)
def test_networks_without_layers_draft_the_same_in_one_call(name: str, save_tiny, tmp_path: Path):
    make, options = STATELESS[name]
    path, _ = save_tiny("llama", intermediate_size=288, **SIZES)
    target, before = load_model(path, device="cpu", quantization="int8"), torch.get_num_threads()
    with torch.inference_mode():
        proposer = make(target, tmp_path / "head", **options)
    at_once = proposer.at_once
    assert at_once is not None
    news = [random_news(64, target.shape.vocab_size, limits, seed=len(limits)) for limits in ([4], [3, 0, 4], [2, 1])]
    proposer.at_once = None
    expected = [proposer.propose(new, k).tokens_BK for new in news for k in (1, 2, 3)]
    assert len(torch.cat([each.flatten() for each in expected]).unique()) > 4, "equal whatever is computed"
    proposer.at_once = at_once
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found = [proposer.propose(new, k).tokens_BK for new in news for k in (1, 2, 3)]
            assert all(map(torch.equal, found, expected))
    finally:
        torch.set_num_threads(before)


def test_networks_of_other_widths_draft_product_by_product(save_tiny, tmp_path: Path):
    path, _ = save_tiny("llama", intermediate_size=288, **SIZES)
    target = load_model(path, device="cpu", quantization="int8")
    with torch.inference_mode():
        proposer = random_mlp(target, tmp_path / "head", inner=40)
    assert proposer.at_once is None
    assert proposer.propose(random_news(64, target.shape.vocab_size, [3]), 3).lengths_B.tolist() == [3]
