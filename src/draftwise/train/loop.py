"""The training loop: steps, evaluation, checkpoints, and going on after a stop."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from draftwise.core import InvalidSetup, SpecStats
from draftwise.train.curves import draw_curves
from draftwise.train.data import Feed, Order, Position, Rows
from draftwise.train.features import StateSource
from draftwise.train.lesson import Lesson
from draftwise.train.method import Method
from draftwise.train.optimizers import Optimizers, schedule_factor
from draftwise.train.progress import Bar, Reporter
from draftwise.train.run_folder import RunFolder
from draftwise.train.settings import TrainSettings

__all__ = ["Evaluation", "Lessons", "Stopped", "Training"]


class Stopped(Exception):  # noqa: N818 - no error: the run was asked to stop, and its checkpoint is written
    """A signal ended the run; its message says how to go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What the drafter is worth on held-out samples."""

    loss: float
    stats: SpecStats
    """A draft for every place of the held-out answers."""

    @property
    def acceptance(self) -> tuple[float, ...]:
        """Share of drafts, of those that reach so far, whose tokens up to each position are all right."""
        return tuple(rate or 0.0 for rate in self.stats.rate_per_reached_pos)

    @property
    def length(self) -> float:
        """Expected tokens of a verified draft that is not cut off: 1 + the sum of the acceptance."""
        return 1 + sum(self.acceptance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """Where batches come from, with their states."""

    feed: Feed
    states: StateSource
    order: Order


class Training:
    """One run, from wherever it was to its last step.

    Args:
        method: the drafter in training.
        settings: resolved ones.
        learnt: what is learnt.
        held_out: what is only measured.
        folder: where checkpoints and log go.
        reporter: shows how far it is.
    """

    def __init__(
        self,
        method: Method,
        settings: TrainSettings,
        learnt: Lessons,
        held_out: Lessons,
        folder: RunFolder,
        reporter: Reporter,
    ) -> None:
        assert settings.lr is not None
        assert settings.optimizer is not None
        self._method, self._settings, self._folder, self._reporter = method, settings, folder, reporter
        self._learnt, self._held_out = learnt, held_out
        self._optimizers = Optimizers(
            method.network,
            kind=settings.optimizer,
            lr=settings.lr,
            weight_decay=settings.weight_decay,
            clip=settings.clip,
        )
        self._position = self._learnt.order.start()
        self._loss_sum, self._loss_count = torch.zeros((), device=settings.device), 0
        self._seconds, self._num_tokens = 0.0, 0
        self._log_every = max(1, min(25, settings.steps // 40))

    def run(self) -> Evaluation:
        """Take all steps that are left; return what the drafter is worth in the end.

        Raises:
            Stopped: by SIGINT or SIGTERM, after a checkpoint was written.
            InvalidSetup: the loss is no longer a number, or a batch does not fit into memory.
        """
        self._resume()
        settings = self._settings
        try:
            with (
                self._reporter.bar("steps", total=settings.steps, done=self._position.step) as bar,
                _catching_signals() as is_stopped,
            ):
                return self._take_steps(bar, is_stopped)
        except torch.cuda.OutOfMemoryError as error:
            raise InvalidSetup.because(
                "out-of-memory",
                f"a batch of {settings.batch_tokens} tokens does not fit: {str(error).splitlines()[0]}",
                where="--batch-tokens",
                fix="Halve --batch-tokens and double --accumulate.",
            ) from None

    def _take_steps(self, bar: Bar, is_stopped: Callable[[], bool]) -> Evaluation:
        settings, saved = self._settings, time.monotonic()
        evaluation = self.evaluate() if self._position.step in (0, settings.steps) else None
        if evaluation is not None and self._position.step == 0:
            self._log_evaluation(evaluation)
        started = time.monotonic() - self._seconds
        while (step := self._position.step) < settings.steps:
            self._step()
            step += 1
            if step % self._log_every == 0 or step == settings.steps:
                self._seconds = time.monotonic() - started
                self._log_loss(bar)
            bar.advance()
            if step % settings.eval_every == 0 or step == settings.steps:
                evaluation = self.evaluate()
                self._log_evaluation(evaluation)
            is_due = time.monotonic() - saved > settings.save_minutes * 60
            if is_stopped() or is_due or (settings.save_every and step % settings.save_every == 0):
                self._seconds, saved = time.monotonic() - started, time.monotonic()
                self._save()
            if is_stopped():
                raise Stopped(f"stopped at step {step} of {settings.steps}; the same command goes on from there.")
        assert evaluation is not None
        draw_curves(self._folder.rows(), self._folder.curve)
        return evaluation

    def _step(self) -> None:
        settings, source = self._settings, self._learnt
        parts, self._position = source.order.step(self._position)
        source.states.expect(source.order.step(self._position)[0])
        num_learnt = sum(part.num_learnt for part in parts)
        self._method.network.train()
        for part in parts:
            loss = self._lesson(source, part).loss * (part.num_learnt / num_learnt)
            loss.backward()
            self._loss_sum += loss.detach()
            self._num_tokens += part.num_tokens
        self._loss_count += 1
        assert settings.warmup is not None
        self._optimizers.step(
            schedule_factor(
                self._position.step - 1, steps=settings.steps, warmup=settings.warmup, shape=settings.schedule
            )
        )

    def _lesson(self, source: Lessons, rows: Rows) -> Lesson:
        batch = source.feed.batch(rows)
        states = source.states.states(rows, batch)
        with self._autocast():
            return self._method.lesson(batch, states)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._settings.precision == "float32":
            return nullcontext()
        return torch.autocast(self._settings.device, torch.bfloat16)

    @torch.no_grad()
    def evaluate(self) -> Evaluation:
        """Measure loss and acceptance on held-out samples."""
        self._method.network.eval()
        counts: Tensor | None = None
        loss_sum, num_learnt = torch.zeros((), device=self._settings.device), 0
        for rows in self._held_out.order.once():
            lesson = self._lesson(self._held_out, rows)
            loss_sum += lesson.loss * rows.num_learnt
            counted = _count(lesson)
            counts = counted if counts is None else counts + counted
            num_learnt += rows.num_learnt
        assert counts is not None
        drafted, accepted = counts.tolist()
        stats = SpecStats(
            num_drafts=drafted[0],
            num_draft_tokens=sum(drafted),
            num_accepted_tokens=sum(accepted),
            accepted_per_pos=tuple(accepted),
            drafted_per_pos=tuple(drafted),
        )
        return Evaluation(loss=float(loss_sum) / num_learnt, stats=stats)

    def _log_loss(self, bar: Bar) -> None:
        loss = float(self._loss_sum) / self._loss_count
        step, settings = self._position.step, self._settings
        if not math.isfinite(loss):
            raise InvalidSetup.because(
                "diverged",
                f"the loss is {loss} at step {step}.",
                where="--lr",
                fix=f"Use less than {settings.lr:g}, or a longer --warmup; the last checkpoint is from before.",
            )
        self._loss_sum.zero_()
        self._loss_count = 0
        speed = self._num_tokens / max(self._seconds, 1e-9)
        row = {"step": step, "seconds": round(self._seconds, 2), "tokens": self._num_tokens, "loss": loss}
        self._folder.append(row)
        bar.note(f"loss {loss:.4f}  {speed:,.0f} tokens/s")

    def _log_evaluation(self, evaluation: Evaluation) -> None:
        step = self._position.step
        row = {"step": step, "heldout_loss": evaluation.loss, "acceptance": list(evaluation.acceptance)}
        self._folder.append(row | {"acceptance_length": evaluation.length})
        rates = " ".join(f"{100 * rate:.0f}" for rate in evaluation.acceptance)
        line = f"held out: loss {evaluation.loss:.4f}, accepted by position {rates} %, length {evaluation.length:.2f}"
        self._reporter.tell(f"step {step}  {line}")

    def _save(self) -> None:
        on_gpu = self._settings.device == "cuda"
        self._folder.save(
            {
                "step": self._position.step,
                "position": asdict(self._position),
                "network": self._method.network.state_dict(),
                "optimizers": self._optimizers.state_dict(),
                "rng": torch.get_rng_state(),
                "cuda_rng": torch.cuda.get_rng_state() if on_gpu else None,
                "loss_sum": self._loss_sum,
                "counts": [self._loss_count, self._num_tokens],
                "seconds": self._seconds,
            }
        )
        draw_curves(self._folder.rows(), self._folder.curve)

    def _resume(self) -> None:
        state = self._folder.load()
        if state is None:
            return
        position = state["position"]
        self._position = Position(step=position["step"], taken=tuple(position["taken"]))
        self._method.network.load_state_dict(state["network"])
        self._optimizers.load_state_dict(state["optimizers"])
        torch.set_rng_state(state["rng"])
        if state["cuda_rng"] is not None and self._settings.device == "cuda":
            torch.cuda.set_rng_state(state["cuda_rng"])
        self._loss_sum.copy_(state["loss_sum"])
        self._loss_count, self._num_tokens = state["counts"]
        self._seconds = state["seconds"]
        self._reporter.tell(f"going on from step {self._position.step}")


def _count(lesson: Lesson) -> Tensor:
    """Return how many drafts reach each position and how many are right up to there, int64 [2, K]."""
    accepted, drafted = [], []
    stands: Tensor | None = None
    for hits_BT, counted_BT in zip(lesson.hits, lesson.counted, strict=True):
        stands = hits_BT if stands is None else stands & hits_BT
        drafted.append(counted_BT.sum())
        accepted.append((stands & counted_BT).sum())
    return torch.stack([torch.stack(drafted), torch.stack(accepted)])


@contextmanager
def _catching_signals() -> Iterator[Callable[[], bool]]:
    """Turn the first SIGINT or SIGTERM into a flag; the second one acts at once."""
    seen: list[int] = []
    before: dict[int, Any] = {}

    def note(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        restore()

    def restore() -> None:
        while before:
            signal.signal(*before.popitem())

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, note)
    except ValueError:  # not the main thread: whoever runs it there handles signals
        restore()
    try:
        yield lambda: bool(seen)
    finally:
        restore()
