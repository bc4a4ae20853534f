"""A mixture of experts in place of an MLP: each token goes to a few chosen experts (Qwen3-MoE's layout).

Shape letters: N tokens, H hidden size, E experts, K experts a token, I inner size of an expert, P = N * K pairs of a
token and an expert chosen for it, token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from draftwise.core import InvalidSetup
from draftwise.engine.kernels import Kernels
from draftwise.engine.models.linear import Linear, quantized

Mlp = Callable[[Kernels, Tensor], Tensor]
"""(kernels, normed rows) -> MLP output, [N, H]."""

Experts = Callable[[Kernels, Tensor, Tensor, Tensor], Tensor]
"""(kernels, x_NH, weights_NK, chosen_NK) -> weighted sum of each token's expert outputs, [N, H]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureShape:
    """Shape of a model's experts, from config.json."""

    num_experts: int
    num_chosen: int
    """K."""
    inner_size: int
    normalize: bool
    """Whether the chosen experts' weights are normalized to sum to 1."""
    layers: frozenset[int]
    """Indexes of layers with experts. Others have an MLP."""

    @classmethod
    def from_hf_config(cls, config: Mapping[str, Any], *, where: str) -> MixtureShape:
        """Return the shape that a config.json of Qwen3-MoE describes.

        Raises:
            InvalidSetup: a number is missing or invalid.
        """
        count = config.get("num_experts") or config.get("num_local_experts")  # transformers 5 writes the latter
        sizes: dict[str, Any] = {"num_experts": count}
        sizes |= {key: config.get(key) for key in ("num_experts_per_tok", "moe_intermediate_size")}
        wrong = [key for key, value in sizes.items() if type(value) is not int or value < 1]
        if wrong or sizes["num_experts_per_tok"] > sizes["num_experts"]:
            raise InvalidSetup.because(
                "config-incomplete",
                f"{where} lacks {', '.join(wrong)}." if wrong else f"{where} asks for more experts than there are.",
                where=where,
                fix="Give the directory of a Hugging Face checkpoint of the Qwen3-MoE family.",
            )
        step, dense = config.get("decoder_sparse_step") or 1, frozenset(config.get("mlp_only_layers") or ())
        layers = range(config["num_hidden_layers"])
        return cls(
            num_experts=sizes["num_experts"],
            num_chosen=sizes["num_experts_per_tok"],
            inner_size=sizes["moe_intermediate_size"],
            normalize=bool(config.get("norm_topk_prob", False)),
            layers=frozenset(i for i in layers if i not in dense and (i + 1) % step == 0),
        )

    def row_values(self, hidden_size: int) -> int:
        """Return the values that one token's experts hold at a time: inputs, both halves, products and results."""
        return self.num_chosen * (2 * hidden_size + 3 * self.inner_size) + self.num_experts


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsMlp:
    """A router and its experts."""

    router: Linear
    experts: Experts
    num_chosen: int
    normalize: bool

    def __call__(self, kernels: Kernels, x_NH: Tensor) -> Tensor:
        """Return what the layer adds for the normed rows x."""
        weights_NK, chosen_NK = kernels.route(self.router(x_NH), self.num_chosen, normalize=self.normalize)
        return self.experts(kernels, x_NH, weights_NK, chosen_NK)


class CpuExperts:
    """Runs one expert after another over its tokens.

    Args:
        experts: MLP of each expert.
    """

    def __init__(self, experts: Sequence[Mlp]) -> None:
        self._experts = experts

    def __call__(self, kernels: Kernels, x_NH: Tensor, weights_NK: Tensor, chosen_NK: Tensor) -> Tensor:
        """See `Experts`."""
        num_rows, num_chosen = chosen_NK.shape
        experts_P, order_P = chosen_NK.flatten().sort(stable=True)
        counts = experts_P.bincount(minlength=len(self._experts)).tolist()
        parts = zip(self._experts, x_NH[order_P // num_chosen].split(counts), strict=True)
        results_PH = torch.cat([expert(kernels, part) for expert, part in parts if len(part)])
        y_NKH = torch.empty_like(results_PH).index_copy_(0, order_P, results_PH).view(num_rows, num_chosen, -1)
        return (y_NKH * weights_NK.unsqueeze(2)).sum(dim=1).to(x_NH.dtype)


class CudaExperts:
    """Runs all chosen experts together without reading the choice on the host, so steps can be captured.

    Args:
        gate_up_OH: gate above up of each expert, stacked over experts.
        down_OI: down matrices, stacked over experts.
        num_experts: E.
        quantization: as in `make_linear`.

    Attributes:
        gate_up: [E, 2I, H].
        down: [E, H, I].
        scales: float32 [E * 2I] and [E * H] of float8_e4m3fn weights, or None.
    """

    def __init__(self, gate_up_OH: Tensor, down_OI: Tensor, num_experts: int, quantization: str | None = None) -> None:
        from draftwise.engine.kernels.cuda import experts  # Triton is there only where a GPU is

        self._code = experts
        (gate_up_OH, first_O), (down_OI, second_O) = (quantized(each, quantization) for each in (gate_up_OH, down_OI))
        self.gate_up, self.down = (each.view(num_experts, -1, each.shape[1]) for each in (gate_up_OH, down_OI))
        self.scales = None if first_O is None or second_O is None else (first_O, second_O)

    def __call__(self, kernels: Kernels, x_NH: Tensor, weights_NK: Tensor, chosen_NK: Tensor) -> Tensor:
        """See `Experts`."""
        if self._code.can_run(self.down):
            return self._code.run_experts(x_NH, weights_NK, chosen_NK, self.gate_up, self.down, self.scales)
        return run_all(kernels, x_NH, weights_NK, chosen_NK, self.gate_up, self.down)


def run_all(
    kernels: Kernels, x_NH: Tensor, weights_NK: Tensor, chosen_NK: Tensor, gate_up_E2IH: Tensor, down_EHI: Tensor
) -> Tensor:
    """Return the same by running all experts, most with weight 0: for types and sizes without kernels."""
    shares_NE = weights_NK.new_zeros(len(x_NH), len(down_EHI)).scatter_(1, chosen_NK.long(), weights_NK)
    both_EN = torch.matmul(x_NH, gate_up_E2IH.transpose(1, 2))
    y_ENH = torch.bmm(kernels.silu_mul(both_EN.flatten(0, 1)).view(*both_EN.shape[:2], -1), down_EHI.transpose(1, 2))
    return (y_ENH * shares_NE.t().unsqueeze(2)).sum(dim=0).to(x_NH.dtype)
