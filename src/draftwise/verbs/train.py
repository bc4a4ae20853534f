"""`train`: trains a drafter for a target."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, fields
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from draftwise.core import InvalidRequest
from draftwise.core.documents import HIDDEN
from draftwise.core.grouping import copy_fields
from draftwise.core.progress import Progress, Stopped
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.methods import all_methods
from draftwise.machine.processes import require_posix
from draftwise.verbs.field_types import find_wrong_types
from draftwise.verbs.verb import Result, refuse, verb
from draftwise.version import tell_install

if TYPE_CHECKING:
    from draftwise.training.method import Option

__all__ = ["Stopped", "TrainRequest", "TrainResult", "find_options", "list_trainable", "open_bars", "train"]


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """A training run. Repeat the request to resume a run that was stopped."""

    method: str
    """Method to train a drafter for: one of `list_trainable()`."""
    _: KW_ONLY
    target: str
    """Checkpoint of the target."""
    data: str | Sequence[str]
    """.txt or .jsonl files, also .gz."""
    out: str
    """Directory of the drafter."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further settings by name (`training.run_settings.TrainSettings`), e.g. `{"steps": 3000, "lr": 0.001}`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the method by name (`find_options`)."""
    gpus: int | None = None
    """Number of GPUs of this host, with one process each; None trains in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult(Result):
    """The trained drafter."""

    VERB: ClassVar[str] = "train"
    out: str
    model: str
    """What to serve."""
    speculative_config: Mapping[str, Any]
    """How to serve it."""
    heldout_loss: float
    acceptance: tuple[float, ...]
    """Share of held-out drafts accepted, by position."""
    acceptance_length: float
    """Mean tokens per step on held-out samples."""
    num_parameters: int
    """Trained parameters."""
    is_first: bool = field(default=True, metadata=HIDDEN)
    """Whether this process, of several that torchrun started, reports the result (rank 0)."""


@verb(TrainRequest)
def train(request: TrainRequest, progress: Progress) -> TrainResult:
    """Train a drafter as a checkpoint that vLLM and `draftwise serve` load.

    Raises:
        Stopped: a stop was requested. The checkpoint is written; the same request resumes the run.
    """
    require_posix("Training runs")
    with _explain_missing():
        from draftwise.training.run_settings import TrainSettings
        from draftwise.training.training_progress import TrainingBars
        from draftwise.training.training_run import train as run
        from draftwise.training.training_run import train_on_gpus
    data = (request.data,) if isinstance(request.data, str) else tuple(request.data)
    known = {each.name for each in fields(TrainSettings)} - {"target", "data", "out", "options"}
    if unknown := [each for each in request.settings if each not in known]:
        refuse(f"Unknown setting {unknown[0]!r}: give one of {', '.join(sorted(known))}.", where="settings")
    try:
        settings = TrainSettings(
            target=request.target, data=data, out=request.out, options=request.options, **request.settings
        )
    except TypeError:  # a range was asked of a value of another type
        raise InvalidRequest(find_wrong_types(SimpleNamespace(**request.settings), of=TrainSettings)) from None
    if wrong := [*find_wrong_types(settings)]:
        raise InvalidRequest(wrong)
    if request.gpus is None or "RANK" in os.environ:
        made = run(request.method, settings, progress)
    else:
        made = train_on_gpus(request.method, settings, request.gpus, quiet=not isinstance(progress, TrainingBars))
    return copy_fields(TrainResult, made, is_first=os.environ.get("RANK", "0") == "0")


@contextmanager
def _explain_missing() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise refusal("train-not-installed", name=error.name, install=tell_install("train")) from None


def list_trainable() -> list[str]:
    """Return the methods that can be trained."""
    return list(all_methods(trainable=True))


def find_options(method: str) -> Sequence[Option]:
    """Return a method's own options.

    Raises:
        InvalidSetup: what training needs is not installed.
    """
    from draftwise.training import get_training

    with _explain_missing():
        return get_training(method).OPTIONS


def open_bars() -> Progress:
    """Return a Progress that draws bars on stderr."""
    with _explain_missing():
        from draftwise.training.training_progress import TrainingBars
    return TrainingBars()
