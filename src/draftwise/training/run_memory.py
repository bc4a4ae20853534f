"""Estimates the GPU memory of a training run before its first step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from draftwise.checkpoints.headers import read_headers
from draftwise.core import InvalidSetup
from draftwise.training.frozen_target import FrozenTarget
from draftwise.training.method import DrafterTraining
from draftwise.training.ranks import Ranks
from draftwise.training.run_settings import TrainSettings

_FLOAT = 4
"""Bytes of a drafter's parameter, of its gradient, and of each of its optimizer's averages."""


def find_target_bytes(settings: TrainSettings) -> int:
    """Return what the target's weights take whole, from its headers."""
    itemsize = 4 if settings.precision == "float32" or settings.find_device() == "cpu" else 2
    return sum(each.num_elements for each in read_headers(Path(settings.target)).tensors.values()) * itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMemory:
    """Bytes on each GPU; what the passes keep besides grows with the batch, and is not known before one was run."""

    target: int
    drafter: int
    """Weights, gradients, and the optimizer's averages; sharded: also the weights as gathered in a step."""
    states: int
    """Hidden states that one batch hands from the target to the drafter."""
    there: int | None
    """Memory of the device; None on the CPU."""

    @classmethod
    def of(cls, method: DrafterTraining, target: FrozenTarget, settings: TrainSettings, ranks: Ranks) -> Self:
        """Return the memory of a run whose models are built, but not yet sharded by the loop."""
        trained = [each for each in method.network.parameters() if each.requires_grad]
        averages = sum(each.numel() * (1 if settings.optimizer == "muon" and each.ndim == 2 else 2) for each in trained)
        weights = sum(each.numel() for each in trained)
        kept = 2 * weights + averages  # weights, gradients, averages
        drafter = math.ceil(kept / ranks.size) + 2 * weights if settings.shard else kept
        assert settings.batch_tokens is not None
        width = (len(method.aux_layers) + 1) * target.hidden_size * target.embedding_VH.element_size()
        there = torch.cuda.get_device_properties().total_memory if settings.device == "cuda" else None
        return cls(
            target=target.count_bytes(), drafter=_FLOAT * drafter, states=settings.batch_tokens * width, there=there
        )

    @property
    def known(self) -> int:
        """What is certain to be needed."""
        return self.target + self.drafter + self.states

    def __str__(self) -> str:
        """Return one line for the operator."""
        parts = {"target": self.target, "drafter and optimizer": self.drafter, "hidden states": self.states}
        shown = " + ".join(f"{name} {size / 1e9:.2f}" for name, size in parts.items())
        there = f" of {self.there / 1e9:.1f} GB" if self.there else ""
        return f"memory of each process: {shown} = {self.known / 1e9:.2f} GB{there}, plus the activations of a batch"

    def check(self) -> None:
        """Make sure that what is certain to be needed is there.

        Raises:
            InvalidSetup: the device has less.
        """
        if self.there is not None and self.known > self.there:
            raise InvalidSetup.because(
                "run-too-large",
                f"The run needs more than the {self.there / 1e9:.1f} GB of a GPU: {self}.",
                where="--batch-tokens",
                fix="Halve --batch-tokens and double --accumulate, or use --shard on several GPUs.",
            )
