"""Defines the interface of every trainable drafter: target, options, loss of a batch, checkpoint.

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
from draftwise.knowledge.stored import read_rows
from draftwise.training.frozen_target import FrozenTarget, States, TokenBatch

if TYPE_CHECKING:
    from draftwise.training.frozen_target import FrozenTarget


_CARRIED = ("bos_token_id", "eos_token_id", "pad_token_id", "rope_parameters", "rope_scaling", "rope_theta")
"""Keys of the target's config.json that drafters copy."""
_MASK_OPTION = "mask_token_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """Dimensions, rotary settings and epsilon of a drafter: the target's, except depth, MLP and key-value heads."""

    shape: ModelShape
    eps: float
    rope: Rope
    dtype: torch.dtype
    """The target's type, in which the drafter is stored."""
    carried: dict[str, Any]
    """Entries copied from the target's config.json."""

    @classmethod
    def for_target(
        cls, target: FrozenTarget, *, num_layers: int, intermediate_size: int = 0, num_key_value_heads: int = 0
    ) -> Blueprint:
        """Return the blueprint of a drafter.

        Args:
            intermediate_size: width of the MLP; 0: the target's.
            num_key_value_heads: key-value heads; 0: the target's.

        Raises:
            InvalidSetup: the target's config.json lacks a dimension or has unknown rotary settings, or the number of
                key-value heads does not divide its attention heads.
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
        """Return the layers' part of config.json, with no reliance on defaults, which differ between libraries."""
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
    """Return EAGLE-3's layers 2, L / 2 and L - 3, or their substitutes in a shallow target."""
    usual = usual_layers(num_layers)
    return usual if 2 < usual[1] < usual[2] else (1, max(num_layers // 2, 1), num_layers)


def even_aux_layers(num_layers: int) -> tuple[int, ...]:
    """Return DFlash's five layers, spaced evenly from the second to the third-last."""
    first = min(2, num_layers)
    last = max(num_layers - 2, first)
    return tuple(first + math.floor(i * (last - first) / 4 + 0.5) for i in range(5))


def check_aux_layers(wanted: tuple[int, ...], target: FrozenTarget) -> tuple[int, ...]:
    """Return the layers in ascending order without duplicates, as vLLM passes their states.

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
    """Loss and hits of one batch."""

    loss: Tensor
    """Scalar with gradient: mean over learned tokens (accumulated batches are weighted by their number)."""
    hits: tuple[Tensor, ...]
    """For each draft position j: bool [B, T], whether the drafter, given the tokens up to t, predicts token t + 1 + j
    correctly, regardless of earlier draft positions. Uses teacher forcing along the batch's text. With on-policy data,
    that is the target's answer, so the share of t whose hits 0..j are all true is the acceptance rate of position j at
    temperature 0.

    Read only without gradients: a method may leave hits and counted empty while `torch.is_grad_enabled()`."""
    counted: tuple[Tensor, ...]
    """For each draft position j: bool [B, T], whether token t + 1 + j exists and is learned."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option. Its type is that of its default."""

    name: str
    default: bool | int | float | str | tuple[int, ...]
    """Default value. Tuples are written as comma-separated text."""
    help: str
    """Effect of the option, and the source of its default."""
    _: KW_ONLY
    least: float | None = None
    choices: tuple[str, ...] = ()

    def read(self, value: Any) -> Any:
        """Convert a value, or its text, to the option's type.

        Raises:
            ValueError: the type or value is not allowed. The message gives the allowed ones.
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


def read_options(method: str) -> tuple[Option, ...]:
    """Return the options of a method of this package, from rows of `knowledge/data/trainer_options.json`."""
    return tuple(Option(**row) for row in read_rows("trainer_options")[method])


def resolve_options(declared: Iterable[Option], given: Mapping[str, Any], *, method: str) -> dict[str, Any]:
    """Return a value for every declared option.

    Args:
        given: values by name, as text or in their type.

    Raises:
        InvalidSetup: a name is unknown, or a value is not allowed.
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
    """Its options. Each becomes a flag of `draftwise train METHOD`, in addition to the run's (`TrainSettings`: steps,
    lr, seed ...), whose names are reserved. `num_speculative_tokens` is the number of learned draft tokens."""
    learning_rate: ClassVar[float] = 1e-3
    """Default peak learning rate."""
    aux_layers: tuple[int, ...] = ()
    """Hidden states of the target that the loss reads, in addition to the final ones."""
    network: nn.Module
    """The trained network: its parameters that require a gradient, in float32 on the target's device. Muon trains
    matrices, except those whose name contains `emb` or `head`."""
    parallel: bool = False
    """Whether a server needs `parallel_drafting`, which drafts all tokens in one pass."""
    _compiled: bool = False

    @classmethod
    def build(cls, target: FrozenTarget, options: Mapping[str, Any]) -> Self:
        """Return an untrained drafter.

        Args:
            options: a value for each of OPTIONS.

        Raises:
            InvalidSetup: the options contradict each other or the target.
        """
        return cls(target, options)  # type: ignore[call-arg]

    def prepare(self, counts_V: Tensor) -> None:  # noqa: B027 - most methods need no statistics
        """Use the counts of tokens in the answers to learn. Called once, after `build`."""

    @abstractmethod
    def compute_loss(self, batch: TokenBatch, states: States) -> DraftLoss:
        """Return loss and hits. Called under autocast, with gradients while training and without while evaluating.

        It never waits for the device.
        """

    def compile(self) -> None:
        """Compile parts that benefit, for fixed shapes. Called at most once, before the first batch.

        Never compile all of `compute_loss`: torch 2.11 compiles `compute_vocabulary_loss` to a graph whose gradients
        are all zero.
        """
        self._compiled = True

    @abstractmethod
    def export(self, folder: Path) -> None:
        """Write config.json and model.safetensors to the existing `folder`, in vLLM's layout.

        Uses `target.dtype`. The run adds draftwise.json and loads the folder with the engine's own loader.
        """

    def describe_serving(self, folder: Path, target: Path, k: int) -> tuple[Path, dict[str, Any]]:
        """Return the model to serve, and the speculative config for k draft tokens with the exported drafter."""
        config = {"method": self.name, "model": str(folder), "num_speculative_tokens": k}
        return target, config | ({"parallel_drafting": True} if self.parallel else {})
