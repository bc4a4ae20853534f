"""A mixture of experts on the Triton kernels against all experts in plain torch."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from draftwise.engine.kernels import Kernels
from draftwise.engine.kernels.cuda import CudaKernels
from draftwise.engine.kernels.cuda import experts as code
from draftwise.engine.kernels.cuda.kernel_launch import interpreted
from draftwise.engine.models.causal_lm import GatedMlp
from draftwise.engine.models.linear import make_linear, quantize
from draftwise.engine.models.mixture import CpuExperts, CudaExperts, ExpertsMlp, run_all
from draftwise.engine.models.rope import Rope

EXACT = Kernels(None, None, 1e-5, torch.float64)
NUM_EXPERTS, HIDDEN, INNER = 6, 128, 48
ROPE = Rope(frequencies_D=torch.ones(8), attention_scale=1.0, context_limit=4)


@pytest.fixture(params=[torch.float16, torch.float32] if interpreted() else [torch.bfloat16, torch.float32], ids=str)
def dtype(request):
    """The interpreter multiplies no bfloat16."""
    torch.manual_seed(0)
    return request.param


def make_weights(dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    gate_up = torch.randn(NUM_EXPERTS, 2 * INNER, HIDDEN, device=device) * HIDDEN**-0.5
    return gate_up.to(dtype), (torch.randn(NUM_EXPERTS, HIDDEN, INNER, device=device) * INNER**-0.5).to(dtype)


def run_exactly(x, weights, chosen, gate_up, down):
    return run_all(EXACT, x.double(), weights.double(), chosen, gate_up.double(), down.double())


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("num_experts", [6, 128])
def test_route(num_experts, normalize, device):
    logits = torch.randn(5, num_experts, device=device)
    weights, chosen = code.route(logits, 3, normalize=normalize)
    expected, ids = EXACT.route(logits, 3, normalize=normalize)
    assert torch.equal(chosen.long(), ids)
    torch.testing.assert_close(weights, expected)


def test_equal_logits_choose_the_first_experts_and_broken_ones_choose_some(device):
    logits = torch.zeros(2, 6, device=device)
    logits[1] = torch.nan
    _, chosen = code.route(logits, 3, normalize=True)
    assert chosen[0].tolist() == [0, 1, 2]
    assert 0 <= chosen[1].min() <= chosen[1].max() < 6


@pytest.mark.parametrize("num_tokens", [1, 2, 5, 70])
@pytest.mark.parametrize("rows", [16, 32])
def test_every_pair_is_in_one_block_of_its_expert(num_tokens, rows, device):
    torch.manual_seed(num_tokens)
    chosen = torch.rand(num_tokens, NUM_EXPERTS, device=device).topk(2).indices.int()
    pairs, experts = code.group(chosen, NUM_EXPERTS, rows)
    real = experts >= 0
    assert not (real[1:] > real[:-1]).any(), "what is not used is at the end"
    found = [
        (pair, expert)
        for expert, block in zip(experts[real].tolist(), pairs[real].tolist(), strict=True)
        for pair in block
        if pair < chosen.numel()
    ]
    assert sorted(found) == list(enumerate(chosen.flatten().tolist()))
    assert (pairs[real].min(dim=1).values < chosen.numel()).all(), "no block is empty"


@pytest.mark.parametrize("num_tokens", [1, 3, 40])
def test_experts(num_tokens, dtype, device):
    gate_up, down = make_weights(dtype, device)
    x = torch.randn(num_tokens, HIDDEN, device=device).to(dtype)
    weights, chosen = code.route(torch.randn(num_tokens, NUM_EXPERTS, device=device), 2, normalize=True)
    ours = code.run_experts(x, weights, chosen, gate_up, down)
    exact = run_exactly(x, weights, chosen, gate_up, down)
    assert ours.dtype == dtype
    assert (ours.double() - exact).norm() / exact.norm() < (1e-2 if dtype.itemsize == 2 else 1e-5)


def test_more_tokens_than_are_grouped_at_once(device, monkeypatch):
    monkeypatch.setattr(code, "_MOST_PAIRS", 16)
    gate_up, down = make_weights(torch.float32, device)
    x = torch.randn(19, HIDDEN, device=device)
    weights, chosen = code.route(torch.randn(19, NUM_EXPERTS, device=device), 2, normalize=False)
    ours = code.run_experts(x, weights, chosen, gate_up, down)
    torch.testing.assert_close(ours.double(), run_exactly(x, weights, chosen, gate_up, down), rtol=1e-4, atol=1e-5)


def test_the_librarys_products(device, monkeypatch):
    """torch's grouped products are the same function everywhere; here only the way to them is looked at."""
    if interpreted():
        monkeypatch.setattr(code, "silu_mul", EXACT.silu_mul)
    dtype = torch.bfloat16
    gate_up, down = make_weights(dtype, device)
    x = torch.randn(40, HIDDEN, device=device).to(dtype)
    weights, chosen = code.route(torch.randn(40, NUM_EXPERTS, device=device), 2, normalize=True)
    ours = code._run_library(x, weights, chosen, gate_up, down)
    exact = run_exactly(x, weights, chosen, gate_up, down)
    assert (ours.double() - exact).norm() / exact.norm() < 2e-2


def test_one_byte_weights(device):
    dtype = torch.float16 if interpreted() else torch.bfloat16
    gate_up, down = make_weights(dtype, device)
    (narrow_up, up_scale), (narrow_down, down_scale) = (quantize(each.flatten(0, 1)) for each in (gate_up, down))
    x = torch.randn(3, HIDDEN, device=device).to(dtype)
    weights, chosen = code.route(torch.randn(3, NUM_EXPERTS, device=device), 2, normalize=True)
    ours = code.run_experts(
        x, weights, chosen, narrow_up.view_as(gate_up), narrow_down.view_as(down), (up_scale, down_scale)
    )
    rounded = [
        (narrow.double() * scale.double().unsqueeze(1)).view(like.shape)
        for narrow, scale, like in ((narrow_up, up_scale, gate_up), (narrow_down, down_scale, down))
    ]
    exact = run_exactly(x, weights, chosen, *rounded)
    assert (ours.double() - exact).norm() / exact.norm() < 1e-2


@pytest.mark.parametrize("quantization", [None, "fp8"])
def test_a_mixture_on_a_gpu_is_the_one_on_a_cpu(quantization, device):
    gate_up, down = make_weights(torch.float32, torch.device("cpu"))
    alone = [
        GatedMlp(
            gate_up=make_linear(gate_up[e], quantization=quantization),
            down=make_linear(down[e], quantization=quantization),
        )
        for e in range(NUM_EXPERTS)
    ]
    flat = (each.flatten(0, 1).to(device) for each in (gate_up, down))
    x, logits = torch.randn(3, HIDDEN), torch.randn(3, NUM_EXPERTS)
    results = [
        ExpertsMlp(router=lambda _, at=at: logits.to(at), experts=experts, num_chosen=2, normalize=True)(
            kernels, x.to(at)
        )
        for kernels, experts, at in (
            (CudaKernels(None, ROPE, 1e-5, torch.float32), CudaExperts(*flat, NUM_EXPERTS, quantization), device),
            (EXACT, CpuExperts(alone), torch.device("cpu")),
        )
    ]
    torch.testing.assert_close(results[0].cpu(), results[1], rtol=1e-4, atol=1e-5)
