"""A mixture of experts on the CPU: how it is read, run and refused; its logits are compared in test_decoder."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwise.core import InvalidSetup
from draftwise.engine.kernels import make_kernels
from draftwise.engine.models import load_model
from draftwise.engine.models.mixture import CpuExperts, run_all

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 35]
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}


def logits_of(path, run_paged, **options) -> torch.Tensor:
    model = load_model(path, **{"dtype": "float32", "device": "cpu"} | options)
    [(hidden,)] = run_paged(model, [TOKENS], [[len(TOKENS)]])
    return model.logits(hidden)


def stack_experts(path, count: int = 8) -> None:
    """Write the first experts of each layer as one tensor, as newer checkpoints may."""
    file = path / "model.safetensors"
    tensors = load_file(file)
    for i in range(3):
        prefix = f"model.layers.{i}.mlp.experts."
        halves = {
            half: torch.stack([tensors.pop(f"{prefix}{e}.{half}_proj.weight") for e in range(8)][:count])
            for half in ("gate", "up", "down")
        }
        tensors[f"{prefix}gate_up_proj"] = torch.cat((halves["gate"], halves["up"]), dim=1)
        tensors[f"{prefix}down_proj"] = halves["down"].contiguous()
    save_file(tensors, file)


def test_experts_in_one_tensor_are_the_same_model(save_tiny, run_paged):
    path, _ = save_tiny("qwen3_moe", **EXPERTS)
    apart = logits_of(path, run_paged)
    stack_experts(path)
    assert torch.equal(logits_of(path, run_paged), apart)


def test_a_stack_of_too_few_experts_is_refused(save_tiny, run_paged):
    path, _ = save_tiny("qwen3_moe", **EXPERTS)
    stack_experts(path, count=7)
    with pytest.raises(InvalidSetup, match=r"lacks tensors \(9\): .*mlp\.experts\.7\.gate_proj\.weight"):
        logits_of(path, run_paged)


def test_fp8_rounds_every_expert(save_tiny, run_paged):
    path, _ = save_tiny("qwen3_moe", **EXPERTS)
    exact, rounded = (logits_of(path, run_paged, quantization=how) for how in (None, "fp8"))
    assert 0 < (rounded - exact).norm() / exact.norm() < 0.2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_token_has_the_same_bits_in_any_batch(dtype, save_tiny):
    """So speculation changes no word: verified tokens are computed together, plain ones one by one."""
    path, _ = save_tiny("qwen3_moe", **EXPERTS)
    model = load_model(path, dtype=dtype, device="cpu")
    kernels = make_kernels(model.shape, None, eps=1e-6, dtype=dtype, device="cpu")
    x = torch.randn(24, 32, generator=torch.Generator().manual_seed(0)).to(dtype)
    mlp = model.weights.layers[0].mlp
    assert isinstance(mlp.experts, CpuExperts)
    with torch.inference_mode():
        together = mlp(kernels, x)
        for size in (1, 3):
            assert torch.equal(torch.cat([mlp(kernels, part) for part in x.split(size)]), together)


def test_all_experts_with_weight_0_for_most_are_the_same(save_tiny):
    """What GPUs fall back to, and what their kernels are checked against."""
    path, _ = save_tiny("qwen3_moe", **EXPERTS)
    model = load_model(path, dtype="float64", device="cpu")
    kernels = make_kernels(model.shape, None, eps=1e-6, dtype=torch.float64, device="cpu")
    tensors = {name: tensor.double() for name, tensor in load_file(path / "model.safetensors").items()}

    def stack(half: str) -> torch.Tensor:
        return torch.stack([tensors[f"model.layers.2.mlp.experts.{e}.{half}_proj.weight"] for e in range(8)])

    x = torch.randn(5, 32, dtype=torch.float64)
    mlp = model.weights.layers[2].mlp
    weights, chosen = kernels.route(mlp.router(x), 2, normalize=True)
    gate_up = torch.cat((stack("gate"), stack("up")), dim=1)
    torch.testing.assert_close(mlp(kernels, x), run_all(kernels, x, weights, chosen, gate_up, stack("down")))


@pytest.mark.parametrize("changes", [{"num_experts_per_tok": 9}, {"moe_intermediate_size": None}])
def test_impossible_mixtures_are_explained(changes, save_tiny, run_paged, edit_config):
    path, _ = save_tiny("qwen3_moe", **EXPERTS)
    edit_config(path, **changes)
    with pytest.raises(InvalidSetup, match=r"more experts than there are|lacks moe_intermediate_size"):
        logits_of(path, run_paged)


def test_other_mixtures_are_refused_by_name(save_tiny, run_paged):
    path, _ = save_tiny("mixtral", num_local_experts=4)
    with pytest.raises(InvalidSetup, match="'MixtralForCausalLM' is not supported"):
        logits_of(path, run_paged)
