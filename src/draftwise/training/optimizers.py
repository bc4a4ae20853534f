"""Muon for matrices, AdamW for everything else, under one schedule."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

__all__ = ["Optimizers", "compute_schedule_factor"]

_BETAS = (0.9, 0.95)
_NO_MUON = ("emb", "head")
"""Parts of names: embeddings and heads gain nothing from orthogonal steps (K. Jordan, Muon, 2024)."""

_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def compute_schedule_factor(step: int, *, steps: int, warmup: int, shape: str) -> float:
    """Return the share of the peak learning rate at a step: linear warm-up, then down to 0 at `steps`.

    Args:
        step: from 0.
        steps: of the whole run.
        warmup: steps until the peak.
        shape: `cosine`, `linear`, or `late`: constant, then linear over the last 60 %.
    """
    if step < warmup:
        return (step + 1) / warmup
    left = (steps - step) / max(steps - warmup, 1)
    return {"cosine": 0.5 - 0.5 * math.cos(math.pi * left), "linear": left, "late": min(1.0, left / 0.6)}[shape]


class Optimizers:
    """The optimizers of a network, which step together.

    Args:
        network: its parameters that require a gradient are trained.
        kind: `muon` or `adamw` (for all parameters).
        lr: peak learning rate.
        weight_decay: of matrices; embeddings, heads, norms and biases have none.
        clip: largest norm of the gradient.
    """

    def __init__(self, network: nn.Module, *, kind: str, lr: float, weight_decay: float, clip: float) -> None:
        named = [(name, each) for name, each in network.named_parameters() if each.requires_grad]
        self.parameters = [each for _, each in named]
        matrices = [each for name, each in named if _is_matrix(name, each)]
        others = [each for name, each in named if not _is_matrix(name, each)]
        self._network, self._lr, self._clip = network, lr, clip
        fused = self.parameters[0].is_cuda
        self._parts: list[torch.optim.Optimizer] = []
        if kind == "muon" and matrices:
            self._parts.append(
                torch.optim.Muon(matrices, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
            )
        elif matrices:
            self._parts.append(_adamw(matrices, lr, weight_decay, fused=fused))
        if others:
            self._parts.append(_adamw(others, lr, 0.0, fused=fused))

    def step(self, factor: float) -> None:
        """Clip, step at `factor` times the peak learning rate, and drop the gradients."""
        nn.utils.clip_grad_norm_(self.parameters, self._clip)
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = self._lr * factor
            part.step()
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the whole state of network and optimizers on the CPU, by parameter; sharded ones are gathered.

        All ranks must call it; on others than the first it may be empty.
        """
        network, optimizers = get_state_dict(self._network, self._parts, options=_WHOLE)
        return network, optimizers

    def load_state_dict(self, network: dict[str, Any], optimizers: dict[str, Any]) -> None:
        """Restore a state of any number of ranks."""
        whole = StateDictOptions(full_state_dict=True)
        set_state_dict(self._network, self._parts, model_state_dict=network, optim_state_dict=optimizers, options=whole)


def _is_matrix(name: str, parameter: nn.Parameter) -> bool:
    return parameter.ndim == 2 and not any(mark in part for part in name.split(".") for mark in _NO_MUON)


def _adamw(parameters: list[nn.Parameter], lr: float, weight_decay: float, *, fused: bool) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay, betas=_BETAS, fused=fused)
