"""Defines the interface of every trainable drafter: its target, its options, the loss of a batch, its checkpoint.

Shape letters: B sequences, T tokens of a sequence (padded on the right), H hidden size of the target, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from draftwise.checkpoints.config_values import AuxLayers, usual_layers
from draftwise.checkpoints.head_fit import find_layers_fault, find_mask_fault
from draftwise.core import InvalidSetup, ModelShape
from draftwise.engine.models.rope import Rope
from draftwise.knowledge.messages import refusal
from draftwise.training.frozen_target import FrozenTarget, States, TokenBatch

if TYPE_CHECKING:
    from draftwise.training.frozen_target import FrozenTarget


_CARRIED = ("bos_token_id", "eos_token_id", "pad_token_id", "rope_parameters", "rope_scaling", "rope_theta")
"""Keys of the target's config.json that its drafters share."""
_MASK_OPTION = "mask_token_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """Dimensions, rotations and epsilon of a drafter's layers: the target's, but for depth, MLP and key-value heads."""

    shape: ModelShape
    eps: float
    rope: Rope
    dtype: torch.dtype
    """The target's, in which the drafter is stored."""
    carried: dict[str, Any]
    """Entries of the target's config.json that its drafters repeat."""

    @classmethod
    def for_target(
        cls, target: FrozenTarget, *, num_layers: int, intermediate_size: int = 0, num_key_value_heads: int = 0
    ) -> Blueprint:
        """Return the blueprint of a drafter.

        Args:
            intermediate_size: width of their MLP; 0: the target's.
            num_key_value_heads: of their attention; 0: the target's.

        Raises:
            InvalidSetup: the target's config.json lacks a dimension, or has rotations of an unknown kind; or its
                attention heads cannot share that many key-value heads.
        """
        config, where = target.config, str(target.path / "config.json")
        shape = ModelShape.from_hf_config(config, where=where)
        rope = Rope.from_hf_config(config, shape, where=where)
        kv_heads = num_key_value_heads or shape.num_kv_heads
        if shape.num_heads % kv_heads:
            raise refusal("bad-option", case="heads", kv_heads=kv_heads, num_heads=shape.num_heads)
        carried = {key: config[key] for key in _CARRIED if config.get(key) is not None}
        if "rope_parameters" not in carried:
            carried.setdefault("rope_theta", 10000.0)
        return cls(
            shape=dataclasses.replace(
                shape,
                num_layers=num_layers,
                num_kv_heads=kv_heads,
                intermediate_size=intermediate_size or shape.intermediate_size,
            ),
            eps=float(config.get("rms_norm_eps") or 1e-6),
            rope=dataclasses.replace(rope, frequencies_D=rope.frequencies_D.to(target.device)),
            dtype=target.dtype,
            carried=carried,
        )

    def config(self, *, architecture: str, model_type: str) -> dict[str, Any]:
        """Return the layers' part of config.json, without relying on defaults, which differ between libraries."""
        shape = self.shape
        return {
            "architectures": [architecture],
            "model_type": model_type,
            "dtype": str(self.dtype).removeprefix("torch."),
            "hidden_size": shape.hidden_size,
            "intermediate_size": shape.intermediate_size,
            "num_hidden_layers": shape.num_layers,
            "num_attention_heads": shape.num_heads,
            "num_key_value_heads": shape.num_kv_heads,
            "head_dim": shape.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": self.eps,
            "attention_bias": False,
            "mlp_bias": False,
            "vocab_size": shape.vocab_size,
            "max_position_embeddings": shape.max_position_embeddings,
            "tie_word_embeddings": False,
            **self.carried,
        }


def usual_aux_layers(num_layers: int) -> tuple[int, ...]:
    """Return EAGLE-3's 2, L / 2 and L - 3, or what takes their place in a target that is too shallow for these."""
    usual = usual_layers(num_layers)
    return usual if 2 < usual[1] < usual[2] else (1, max(num_layers // 2, 1), num_layers)


def even_aux_layers(num_layers: int) -> tuple[int, ...]:
    """Return DFlash's five layers, evenly from the second to the third from the end."""
    first = min(2, num_layers)
    last = max(num_layers - 2, first)
    return tuple(first + math.floor(i * (last - first) / 4 + 0.5) for i in range(5))


def check_aux_layers(wanted: tuple[int, ...], target: FrozenTarget) -> tuple[int, ...]:
    """Return the layers in ascending order without doubles, as vLLM hands their states over.

    Args:
        wanted: numbered as `Proposer.aux_layers`, up to the target's L layers.

    Raises:
        InvalidSetup: the target has no such state.
    """
    layers = AuxLayers.named(wanted, key="target_layers")
    if fault := find_layers_fault(layers, target.num_layers, where="target_layers"):
        raise InvalidSetup(replace(fault, fix=f"Name layers up to {target.num_layers}."))
    return layers.ids


def choose_mask_token(wanted: int, target: FrozenTarget) -> int:
    """Return the mask token, which marks positions to draft.

    Args:
        wanted: -1: the target's padding token, or its last token if it has none.

    Raises:
        InvalidSetup: there is no such token.
    """
    if wanted >= 0 and (fault := find_mask_fault(wanted, target.vocab_size, key=_MASK_OPTION, where=_MASK_OPTION)):
        raise InvalidSetup(replace(fault, fix="Name a token that texts do not contain."))
    padding = target.config.get("pad_token_id")
    return wanted if wanted >= 0 else int(padding) if padding is not None else target.vocab_size - 1


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


@dataclass(frozen=True, slots=True)
class Option:
    """One setting; its type is that of its default."""

    name: str
    default: bool | int | float | str | tuple[int, ...]
    """A tuple is given as text with commas."""
    help: str
    """What it does, and the source of its default."""
    _: KW_ONLY
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
        "learn_from",
        "distribution",
        f"What is learned: the target's distribution, or {text}.",
        choices=("distribution", "tokens"),
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
            raise refusal(
                "bad-option", case="value", name=name, error=error, value=value, help=options[name].help
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
