"""What every trainable drafter offers to the training loop.

Shape letters: B sequences, T tokens of a sequence (padded on the right), H hidden size of the target, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch import Tensor, nn

from draftwise.training.batch import Batch, DraftLoss, States
from draftwise.training.options import Option

if TYPE_CHECKING:
    from draftwise.training.target import Target

__all__ = ["DrafterTraining", "Option"]


class DrafterTraining(ABC):
    """A drafter in training: its network, its loss and its checkpoint.

    A run calls `build`, then `compute_loss` for each batch, then `export` once. Random numbers come from torch's global
    generators, which a checkpoint of the run saves.
    """

    name: ClassVar[str]
    """vLLM's name of the method."""
    OPTIONS: ClassVar[tuple[Option, ...]] = ()
    """Its settings; each becomes a flag of `draftwise train METHOD`, in addition to those of the run (`TrainSettings`:
    steps, lr, seed ...), whose names are taken. How many draft tokens are learnt is called `num_speculative_tokens`."""
    learning_rate: ClassVar[float] = 1e-3
    """Peak learning rate if the user gives none."""
    aux_layers: tuple[int, ...] = ()
    """Hidden states of the target that the loss reads, besides the final ones."""
    network: nn.Module
    """What is trained: its parameters that require a gradient; float32, on the target's device.

    Matrices are trained by Muon, except those with a part of their name that contains `emb` or `head`."""
    parallel: bool = False
    """Whether a server must be configured to draft all tokens in one pass (`parallel_drafting`)."""
    _compiled: bool = False

    @classmethod
    def build(cls, target: Target, options: Mapping[str, Any]) -> Self:
        """Return an untrained drafter.

        Args:
            target: the frozen target.
            options: a value for each of OPTIONS.

        Raises:
            InvalidSetup: the options do not fit each other or the target.
        """
        return cls(target, options)  # type: ignore[call-arg]

    def prepare(self, counts_V: Tensor) -> None:  # noqa: B027 - most methods need no statistics
        """Use the number of times that each token occurs in the answers to learn; called once, after `build`."""

    @abstractmethod
    def compute_loss(self, batch: Batch, states: States) -> DraftLoss:
        """Return loss and hits; called under autocast, with gradient while training and without while evaluating.

        It never waits for the device.
        """

    def compile(self) -> None:
        """Compile what is worth compiling, for fixed shapes; called at most once, before the first batch.

        Never the whole of `compute_loss`: torch 2.11 compiles `compute_vocabulary_loss` into a graph whose
        gradients are all zero.
        """
        self._compiled = True

    @abstractmethod
    def export(self, folder: Path) -> None:
        """Write config.json and model.safetensors to `folder`, which exists, in the layout that vLLM loads.

        In `target.dtype`. The run adds draftwise.json and loads the folder with the engine's own loader.
        """

    def describe_serving(self, folder: Path, target: Path, k: int) -> tuple[Path, dict[str, Any]]:
        """Return the model to serve, and the speculative config that drafts k tokens with the exported drafter."""
        config = {"method": self.name, "model": str(folder), "num_speculative_tokens": k}
        return target, config | ({"parallel_drafting": True} if self.parallel else {})
