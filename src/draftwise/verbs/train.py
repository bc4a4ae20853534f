"""`train`: a drafter for a target."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from importlib import import_module
from os import PathLike
from typing import Any, ClassVar, NoReturn

from draftwise.core import InvalidSetup
from draftwise.core.documents import HIDDEN
from draftwise.core.progress import Progress
from draftwise.knowledge.methods import all_methods
from draftwise.verbs.verb import Result, refuse, verb

__all__ = ["TrainRequest", "TrainResult", "find_options", "list_methods", "open_progress", "train"]


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """A method, a target, data, and the settings of the run; None leaves a setting to its default."""

    method: str
    """One of `list_methods()`."""
    _: KW_ONLY
    target: str | PathLike[str]
    """Checkpoint of the target."""
    data: str | PathLike[str] | Sequence[str | PathLike[str]]
    """Files of text or JSON lines: .txt or .jsonl, also .gz."""
    out: str | PathLike[str]
    """Directory of the drafter; a run that was stopped goes on there."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the method, see `find_options`."""
    answers: str | None = None
    """Answers to learn: the target's own (`target`), or those in the data (`given`)."""
    temperature: float | None = None
    """Temperature of the target's answers."""
    answer_tokens: int | None = None
    """Longest answer."""
    prompt_tokens: int | None = None
    """Length of prompts from plain text."""
    max_length: int | None = None
    """Longest sample, in tokens."""
    heldout: float | None = None
    """Share of the samples that is held out for evaluation."""
    heldout_tokens: int | None = None
    """Maximum of held-out tokens."""
    hidden_states: str | None = None
    """Computed in each step (`online`), once and stored (`disk`), or by a vLLM server (its URL)."""
    cache: str | PathLike[str] | None = None
    """Answers and states; runs may share it."""
    steps: int | None = None
    """Optimizer steps."""
    batch_tokens: int | None = None
    accumulate: int | None = None
    """Batches per step."""
    optimizer: str | None = None
    """`muon` or `adamw`."""
    lr: float | None = None
    """Peak learning rate."""
    warmup: int | None = None
    """Steps of warm-up."""
    schedule: str | None = None
    """Decay of the learning rate: `cosine`, `linear`, or `late`, linear in the last 60 %."""
    weight_decay: float | None = None
    """Weight decay of matrices."""
    clip: float | None = None
    """Largest norm of the gradient."""
    seed: int | None = None
    precision: str | None = None
    """`auto`, `bfloat16` or `float32`."""
    device: str | None = None
    """`auto`, `cpu` or `cuda`."""
    gpus: int | None = None
    """GPUs of this host, each with a process of its own; None for this process alone."""
    quiet: bool = True
    """Whether the processes of several GPUs write no progress to stderr."""
    shard: bool | None = None
    """Whether target and drafter are divided among the GPUs."""
    compile: bool | None = None
    """Whether torch.compile is used."""
    eval_every: int | None = None
    """Steps between evaluations."""
    save_every: int | None = None
    """Steps between further checkpoints."""
    save_minutes: float | None = None
    """Minutes between checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult(Result):
    """A trained drafter."""

    VERB: ClassVar[str] = "train"
    out: str
    """Folder of the run."""
    model: str
    """What to serve."""
    speculative_config: Mapping[str, Any]
    """How to serve it."""
    heldout_loss: float
    acceptance: tuple[float, ...]
    """By position, on held-out text."""
    acceptance_length: float
    num_parameters: int
    """Trained parameters."""
    is_first: bool = field(default=True, metadata=HIDDEN)
    """Whether this is the first of the processes that torchrun started: one of them speaks."""


def list_methods() -> tuple[str, ...]:
    """Return the methods whose drafters can be trained."""
    return tuple(all_methods(trainable=True))


def find_options(method: str) -> Sequence[Any]:
    """Return the options of a method: objects with `name`, `default`, `choices` and `help`.

    Raises:
        InvalidSetup: what training needs is not installed.
    """
    from draftwise.training import get_training

    try:
        return get_training(method).OPTIONS
    except ModuleNotFoundError as error:
        _require_installation(error)


def open_progress() -> Any:
    """Return a Progress, as a context manager, that shows a training run on stderr."""
    return _import("draftwise.training.progress").TrainingBars()


@verb(TrainRequest)
def train(request: TrainRequest, progress: Progress) -> TrainResult:
    """Train a drafter, as a checkpoint that vLLM and `serve` load.

    A run that was stopped goes on with the same request. When the progress asks to stop, or at SIGINT and SIGTERM, it
    writes a checkpoint and raises `Stopped`, whose message says how far it came. Statuses name units of work: answers,
    states, steps.
    """
    if request.method not in list_methods():
        refuse(f"There is no method {request.method!r} to train: the methods are {', '.join(list_methods())}.")
    settings = _import("draftwise.training.run_settings").TrainSettings(**_read_settings(request))
    run = _import("draftwise.training.training_run")
    if request.gpus is None or "RANK" in os.environ:
        reporter = _import("draftwise.training.progress").Reporter(progress)
        made = run.train(request.method, settings, reporter)
    else:
        made = run.train_on_gpus(request.method, settings, request.gpus, quiet=request.quiet)
    return TrainResult(
        out=made.out,
        model=made.model,
        speculative_config=made.speculative_config,
        heldout_loss=made.heldout_loss,
        acceptance=tuple(made.acceptance),
        acceptance_length=made.acceptance_length,
        num_parameters=made.num_parameters,
        is_first=os.environ.get("RANK", "0") == "0",
    )


def _read_settings(request: TrainRequest) -> dict[str, Any]:
    given = {each.name: getattr(request, each.name) for each in fields(request)}
    for name in ("method", "gpus", "quiet"):
        del given[name]
    data = (request.data,) if isinstance(request.data, str | PathLike) else request.data
    given |= {"data": tuple(map(str, data)), "target": str(request.target), "out": str(request.out)}
    given |= {"options": dict(request.options), "cache": None if request.cache is None else str(request.cache)}
    return {name: value for name, value in given.items() if value is not None}


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        _require_installation(error)


def _require_installation(error: ModuleNotFoundError) -> NoReturn:
    raise InvalidSetup.because(
        "train-not-installed",
        f"Training needs {error.name}, which is not installed.",
        fix="Run: pip install 'draftwise[train]'.",
    ) from None
