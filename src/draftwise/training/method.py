"""Defines the interface of every trainable drafter: options, the loss of a batch, a checkpoint.

Shape letters: B sequences, T tokens of a sequence (padded on the right), H hidden size of the target, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from draftwise.core import InvalidSetup
from draftwise.training.frozen_target import FrozenTarget, States, TokenBatch

_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLoss:
    """Loss and correct predictions of one batch."""

    loss: Tensor
    """Scalar with gradient, a mean over the learned tokens (accumulated batches are weighted by their number)."""
    hits: tuple[Tensor, ...]
    """For each draft position j: bool [B, T], whether the drafter, given the tokens up to t, predicts token t + 1 + j
    correctly, whether or not the earlier draft positions are correct. Teacher forcing along the batch's own text, which
    is the target's own answer when the data is on-policy; so the share of t whose hits 0..j are all true is the
    acceptance rate of draft position j at temperature 0.

    Only read without gradient: a method may leave hits and counted empty while `torch.is_grad_enabled()`."""
    counted: tuple[Tensor, ...]
    """For each draft position j: bool [B, T], whether token t + 1 + j exists and is learned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One setting; its type is that of its default."""

    name: str
    default: bool | int | float | str | tuple[int, ...]
    """A tuple is given as text with commas."""
    help: str
    """What it does, and the source of its default."""
    least: float | None = None
    choices: tuple[str, ...] = ()

    def read(self, value: Any) -> Any:
        """Return a value, or the text of one, in the option's type.

        Raises:
            ValueError: its type or value is not allowed; the message says what is.
        """
        parsed = self._parse(value)
        if self.choices and parsed not in self.choices:
            raise ValueError(f"must be one of {', '.join(self.choices)}")
        numbers = parsed if isinstance(parsed, tuple) else (parsed,)
        if self.least is not None and min(numbers, default=self.least) < self.least:
            raise ValueError(f"must be at least {self.least:g}")
        return parsed

    def _parse(self, value: Any) -> Any:
        if isinstance(self.default, bool):
            if str(value).lower() not in _WORDS:
                raise ValueError("must be true or false")
            return _WORDS[str(value).lower()]
        if isinstance(self.default, tuple):
            parts = value.replace(",", " ").split() if isinstance(value, str) else value
            return tuple(int(part) for part in parts)
        try:
            return type(self.default)(value)
        except (TypeError, ValueError):
            raise ValueError(f"must be of type {type(self.default).__name__}") from None


def learn_from(text: str) -> Option:
    """Return the option on what heads learn that the papers taught with the text alone; `text` says how theirs do."""
    return Option(
        name="learn_from",
        default="distribution",
        choices=("distribution", "tokens"),
        help=f"What is learned: the target's distribution, or {text}.",
    )


def resolve_options(declared: Iterable[Option], given: Mapping[str, Any], *, method: str) -> dict[str, Any]:
    """Return a value for every declared option.

    Args:
        given: values by name, as text or in their own type.

    Raises:
        InvalidSetup: a name is not declared, or a value is not allowed.
    """
    options = {option.name: option for option in declared}
    values = {name: option.default for name, option in options.items()}
    for name, value in given.items():
        if name not in options:
            near = get_close_matches(name, options, 1)
            fix = f"Did you mean {near[0]}?" if near else f"It has {', '.join(options) or 'none'}."
            raise InvalidSetup.because("unknown-option", f"{method} has no option {name!r}.", where=name, fix=fix)
        try:
            values[name] = options[name].read(value)
        except ValueError as error:
            raise InvalidSetup.because(
                "bad-option", f"{name} {error}, got {value!r}.", where=name, fix=options[name].help
            ) from None
    return values


class DrafterTraining(ABC):
    """A drafter in training: its network, its loss and its checkpoint.

    A run calls `build`, then `compute_loss` for each batch, then `export` once. Random numbers come from torch's global
    generators, which a checkpoint of the run saves.
    """

    name: ClassVar[str]
    """vLLM's name of the method."""
    OPTIONS: ClassVar[tuple[Option, ...]] = ()
    """Its settings; each becomes a flag of `draftwise train METHOD`, in addition to those of the run (`TrainSettings`:
    steps, lr, seed ...), whose names are taken. `num_speculative_tokens` is how many draft tokens are learned."""
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
    def build(cls, target: FrozenTarget, options: Mapping[str, Any]) -> Self:
        """Return an untrained drafter.

        Args:
            options: a value for each of OPTIONS.

        Raises:
            InvalidSetup: the options do not fit each other or the target.
        """
        return cls(target, options)  # type: ignore[call-arg]

    def prepare(self, counts_V: Tensor) -> None:  # noqa: B027 - most methods need no statistics
        """Use the number of times that each token occurs in the answers to learn; called once, after `build`."""

    @abstractmethod
    def compute_loss(self, batch: TokenBatch, states: States) -> DraftLoss:
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
