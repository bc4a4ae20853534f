"""Models and drafting heads that run on the Triton kernels against the same ones in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from tests.support.confirming import page_table
from tests.support.dflash_checkpoint import write_dflash
from tests.support.made_drafters import write_eagle, write_eagle3, write_mtp

from draftwise.core import ModelShape
from draftwise.engine.attention.pass_rows import AttentionPlan, Spans, plan_attention
from draftwise.engine.kernels import Kernels
from draftwise.engine.kernels.cuda import CudaKernels
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.models import CausalLM, causal_lm, draft_head, load_model
from draftwise.engine.proposers.dflash import load_dflash
from draftwise.engine.proposers.eagle import load_eagle
from draftwise.engine.proposers.eagle3 import load_eagle3
from draftwise.engine.proposers.mtp import load_mtp

TOKENS, BLOCK, PAGES = [5, 7, 250, 0, 9, 31], 4, [[2, 0]]
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture
def both(monkeypatch, device) -> Callable[[Callable[[], Any]], tuple[Any, Any]]:
    """Call a function with the kernels in Triton and with those in torch."""

    def call(function):
        results = []
        for kind in (CudaKernels, Kernels):
            for module in (causal_lm, draft_head):
                monkeypatch.setattr(
                    module,
                    "make_kernels",
                    lambda shape, rope, *, eps, dtype, device, kind=kind: kind(shape, rope, eps, dtype),
                )
            with torch.inference_mode():
                results.append(function())
        return tuple(results)

    return call


def load(path, device) -> CausalLM:
    return load_model(path, dtype="float32", device=device)


def make_plan(device: torch.device, *, causal: bool = True) -> AttentionPlan:
    spans, table = Spans.of([0], [len(TOKENS)], device), page_table(PAGES, scratch=3).to(device)
    return plan_attention(spans, table, block_size=BLOCK, causal=causal)


def make_pages(shape: ModelShape, device: torch.device) -> PagedKV:
    return PagedKV(shape, num_pages=3, block_size=BLOCK, dtype=torch.float32, device=device)


def test_a_model_and_its_aux_layers(both, tiny_target, device):
    aux_layers = (1, 0, 3, 2)

    def run():
        model, plan = load(tiny_target, device), make_plan(device)
        kv = make_pages(model.shape, device)
        features = torch.full((len(TOKENS), 4 * model.shape.hidden_size), torch.nan, device=device)
        tokens = torch.tensor(TOKENS, device=device)
        hidden, aux = model(tokens, plan.positions_N, kv, plan, aux_layers, features)
        assert torch.equal(features, torch.cat(aux, dim=-1))
        without, none = model(tokens, plan.positions_N, make_pages(model.shape, device), plan)
        assert torch.equal(without, hidden)
        assert none == []
        return hidden, features, kv.layers[1]

    for ours, expected in zip(*both(run), strict=True):
        torch.testing.assert_close(ours, expected, **CLOSE)


HEADS = {
    "eagle": (write_eagle, load_eagle, {"num_layers": 2}),
    "eagle3": (write_eagle3, load_eagle3, {"num_layers": 2}),
    "eagle3, normed residual": (write_eagle3, load_eagle3, {"norm_before_residual": True, "norm_output": True}),
    "mtp": (write_mtp, load_mtp, {}),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_head(name, both, tiny_target, tmp_path, device):
    write, load_head, settings = HEADS[name]

    def run():
        target = load(tiny_target, device)
        folder = write(tmp_path / "head", target.config, **settings)
        head, plan = load_head(folder, target), make_plan(device)
        torch.manual_seed(0)
        features = torch.randn(len(TOKENS), len(head.aux_layers) * target.shape.hidden_size, device=device)
        kv, tokens = make_pages(head.kv_shape, device), torch.tensor(TOKENS, device=device)
        hidden, carry = head.forward(tokens, head.enter(features), plan.positions_N, kv, plan)
        return head.logits(hidden), carry

    for ours, expected in zip(*both(run), strict=True):
        torch.testing.assert_close(ours, expected, **CLOSE)


def test_dflash(both, tiny_target, tmp_path, device):
    def run():
        target = load(tiny_target, device)
        folder = write_dflash(tmp_path / "drafter", target.config)
        drafter = load_dflash(folder, target, max_model_len=64)
        plans = {causal: make_plan(device, causal=causal) for causal in (False, True)}
        context, kv = plans[True], make_pages(drafter.kv_shape, device)
        torch.manual_seed(0)
        features = torch.randn(len(TOKENS), len(drafter.aux_layers) * target.shape.hidden_size, device=device)
        drafter.store_context(features, context.positions_N, kv, context.slots_N)
        stored = [pages.clone() for pages in kv.layers]
        hidden = drafter.forward(torch.tensor(TOKENS, device=device), context.positions_N, kv, plans)
        return drafter.logits(hidden), *stored

    for ours, expected in zip(*both(run), strict=True):
        torch.testing.assert_close(ours, expected, **CLOSE)
