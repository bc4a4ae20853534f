"""Settings of a training run: resolved once, then frozen."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from draftwise.core import Finding, InvalidSetup
from draftwise.training.ranks import is_launched

_BATCH_TOKENS = {"cuda": 65536, "cpu": 4096}
_PRECISION = {"cuda": "bfloat16", "cpu": "float32"}
_CHOICES = {
    "answers": ("target", "given"),
    "schedule": ("cosine", "linear", "late"),
    "optimizer": ("muon", "adamw"),
    "precision": ("auto", "bfloat16", "float32"),
    "device": ("auto", "cpu", "cuda"),
}
_STATES = ("online", "disk")
_AT_LEAST = {
    "temperature": 0,
    "answer_tokens": 1,
    "prompt_tokens": 2,
    "max_length": 16,
    "steps": 1,
    "batch_tokens": 32,
    "accumulate": 1,
    "lr": 0,
    "warmup": 0,
    "weight_decay": 0,
    "clip": 0,
    "seed": 0,
    "eval_every": 1,
    "save_minutes": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """Settings of a run. `resolve` fills in None values.

    Raises:
        InvalidSetup: a value is out of its range.
    """

    target: str
    data: tuple[str, ...]
    out: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """The method's options."""
    answers: str = "target"
    """`target`: learn the target's answers to the data's prompts; `given`: learn the data's texts."""
    temperature: float = 0.0
    """Sampling temperature of those answers."""
    answer_tokens: int = 256
    prompt_tokens: int = 64
    """Number of tokens taken as prompt from texts without one."""
    max_length: int = 2048
    """Maximum sample length in tokens, limited by the target's own."""
    heldout: float = 0.02
    """Share of samples held out for evaluation."""
    heldout_tokens: int = 262144
    """Maximum number of held-out tokens per evaluation."""
    hidden_states: str = "online"
    """`online` (computed in each step), `disk` (computed once and stored), or the URL of a vLLM server."""
    cache: str | None = None
    """Folder for answers and hidden states, which several runs may share. None: inside `out`."""
    steps: int = 1500
    batch_tokens: int | None = None
    accumulate: int | None = None
    """Batches per step, divided among the ranks. None: one per rank."""
    optimizer: str | None = None
    lr: float | None = None
    warmup: int | None = None
    schedule: str = "late"
    weight_decay: float = 0.05
    clip: float = 1.0
    seed: int = 0
    precision: str = "auto"
    device: str = "auto"
    compile: bool | None = None
    shard: bool | None = None
    """Whether ranks divide target, drafter and optimizer among them. None: if the target takes more than half of a
    GPU's memory. A single rank shards only if started by torchrun."""
    eval_every: int = 250
    save_every: int | None = None
    """Steps between checkpoints, in addition to those by time."""
    save_minutes: float = 5.0

    def __post_init__(self) -> None:
        findings = [
            _error(name, f"must be one of {', '.join(choices)}, got {value!r}.")
            for name, choices in _CHOICES.items()
            if (value := getattr(self, name)) is not None and value not in choices
        ]
        findings += [
            _error(name, f"must be at least {least}, got {value}.")
            for name, least in _AT_LEAST.items()
            if (value := getattr(self, name)) is not None and value < least
        ]
        if not 0 < self.heldout < 1:
            findings.append(_error("heldout", f"must lie between 0 and 1, got {self.heldout}."))
        if self.hidden_states not in _STATES and not self.states_url:
            names = ", ".join(_STATES)
            findings.append(_error("hidden_states", f"must be {names} or a URL, got {self.hidden_states!r}."))
        if findings:
            raise InvalidSetup(findings)

    @property
    def states_url(self) -> str | None:
        """URL of the server that computes hidden states; None without one."""
        return self.hidden_states if "://" in self.hidden_states else None

    def find_device(self) -> str:
        """Return `cpu` or `cuda`.

        Raises:
            InvalidSetup: the device is not available.
        """
        there = torch.cuda.is_available()
        if self.device == "cuda" and not there:
            raise InvalidSetup(
                _error("device", "is cuda, but this machine or its torch does not support it.", "Use cpu.")
            )
        return ("cuda" if there else "cpu") if self.device == "auto" else self.device

    def check_gpus(self, asked: int) -> None:
        """Check that the requested number of GPUs exists. On the CPU, any number of processes may run.

        Raises:
            InvalidSetup: there are fewer GPUs.
        """
        there = torch.cuda.device_count()
        if asked < 1:
            raise InvalidSetup(_error("gpus", f"must be at least 1, got {asked}."))
        if asked > there and self.device != "cpu":
            fix = f"Use --gpus {there}." if there else "Leave it out, or use --device cpu for processes without a GPU."
            raise InvalidSetup(_error("gpus", f"asks for {asked} GPUs, but this machine has {there}.", fix))

    def resolve(self, *, learning_rate: float, num_ranks: int = 1, target_bytes: int = 0) -> TrainSettings:
        """Return the settings with every None resolved.

        Args:
            learning_rate: the method's default.
            num_ranks: number of processes that train together.
            target_bytes: bytes of the target's weights.

        Raises:
            InvalidSetup: the device or optimizer is not available, or ranks cannot share a step evenly.
        """
        device = self.find_device()
        accumulate = num_ranks if self.accumulate is None else self.accumulate
        if accumulate % num_ranks:
            fix = f"Use a multiple of {num_ranks}."
            message = f"is {accumulate}: {num_ranks} processes cannot split that many batches evenly."
            raise InvalidSetup(_error("accumulate", message, fix))
        may_shard = num_ranks > 1 and device == "cuda" and not self.states_url
        is_large = may_shard and 2 * target_bytes > torch.cuda.get_device_properties().total_memory
        shard = is_large if self.shard is None else self.shard and (num_ranks > 1 or is_launched())
        if shard and self.hidden_states != "online":
            fix = "Use --hidden-states online, or --no-shard."
            whole = "is disk, but then each GPU needs the whole target."
            served = "is a server, so there is no target here to split."
            raise InvalidSetup(_error("hidden_states", served if self.states_url else whole, fix))
        has_muon = hasattr(torch.optim, "Muon") and not shard
        if self.optimizer == "muon" and shard:
            raise InvalidSetup(_error("optimizer", "is muon, but it needs whole matrices.", "Use adamw with --shard."))
        if self.optimizer == "muon" and not has_muon:
            fix = "Use adamw, or torch 2.9 or newer."
            raise InvalidSetup(_error("optimizer", "is muon, but this torch does not have it.", fix))
        return dataclasses.replace(
            self,
            device=device,
            accumulate=accumulate,
            shard=shard,
            precision=_PRECISION[device] if self.precision == "auto" else self.precision,
            batch_tokens=self.batch_tokens or _BATCH_TOKENS[device],
            optimizer=self.optimizer or ("muon" if has_muon else "adamw"),
            lr=learning_rate if self.lr is None else self.lr,
            warmup=min(100, self.steps // 10) if self.warmup is None else self.warmup,
            compile=device == "cuda" if self.compile is None else self.compile,
        )

    def fixed(self) -> dict[str, Any]:
        """Return the settings that must not change on resumption, as JSON values."""
        free = {"data", "out", "cache", "device", "compile", "eval_every", "save_every", "save_minutes"}
        free |= {"hidden_states", "target", "options", "shard"}
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.name not in free}
        return values | {name: _plain(value) for name, value in self.options.items()}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _error(name: str, predicate: str, fix: str = "") -> Finding:
    """Return the finding that a setting's flag, the sentence's subject, has a fault."""
    flag = "--" + name.replace("_", "-")
    return Finding.error("bad-setting", f"{flag} {predicate}", where=flag, fix=fix)
