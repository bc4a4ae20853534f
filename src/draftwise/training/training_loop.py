"""The training loop: steps, evaluation, checkpoints, resumption; Muon for matrices, AdamW for everything else."""

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
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import FSDPModule

from draftwise.core import SpecStats, Stopped
from draftwise.core.progress import Progress
from draftwise.knowledge.messages import refusal
from draftwise.training.data import BatchRows, Feed, Position, SampleOrder
from draftwise.training.frozen_target import States, TokenBatch
from draftwise.training.hidden_states import StateSource
from draftwise.training.method import DrafterTraining, DraftLoss
from draftwise.training.ranks import ALONE, Ranks
from draftwise.training.run_folder import RunFolder, draw_curves
from draftwise.training.run_settings import TrainSettings
from draftwise.training.training_progress import Bar, show_bar

_BETAS = (0.9, 0.95)
_NO_MUON = ("emb", "head")
"""Parts of names without Muon: embeddings and heads gain nothing from orthogonal steps (K. Jordan, Muon, 2024)."""
_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Loss and acceptance on held-out samples."""

    loss: float
    stats: SpecStats
    """Draft statistics at every position of the held-out answers."""

    @property
    def acceptance(self) -> tuple[float, ...]:
        """For each position, the share of (long enough) drafts whose tokens up to it are all correct."""
        return tuple(rate or 0.0 for rate in self.stats.rate_per_reached_pos)

    @property
    def length(self) -> float:
        """Expected tokens emitted per draft of full length: 1 + the sum of the acceptance."""
        return 1 + sum(self.acceptance)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """Source of batches and their hidden states."""

    feed: Feed
    states: StateSource
    order: SampleOrder


class TrainingRun:
    """One run, from its last checkpoint to its last step.

    Args:
        settings: resolved settings.
        ranks: processes that share each step's batches.
    """

    def __init__(
        self,
        method: DrafterTraining,
        settings: TrainSettings,
        *,
        learned: DataSource,
        held_out: DataSource,
        folder: RunFolder,
        progress: Progress,
        ranks: Ranks = ALONE,
    ) -> None:
        assert settings.lr is not None
        assert settings.optimizer is not None
        self._method, self._settings, self._folder, self._progress = method, settings, folder, progress
        self._learned, self._held_out, self._ranks = learned, held_out, ranks
        self._loss = ranks.spread(_Loss(method), shard=bool(settings.shard))
        self._optimizers = Optimizers(
            method.network,
            kind=settings.optimizer,
            lr=settings.lr,
            weight_decay=settings.weight_decay,
            clip=settings.clip,
        )
        self._position = self._learned.order.get_start()
        self._loss_sum, self._loss_count = torch.zeros((), device=settings.device), 0
        self._seconds, self._num_tokens = 0.0, 0
        self._log_every = max(1, min(25, settings.steps // 40))

    def run(self) -> Evaluation:
        """Run all remaining steps; return the last evaluation.

        Raises:
            Stopped: SIGINT or SIGTERM arrived. A checkpoint was written.
            InvalidSetup: the loss is no longer a number, or a batch does not fit into memory.
        """
        self._resume()
        settings = self._settings
        try:
            with (
                show_bar(self._progress, "steps", total=settings.steps, done=self._position.step) as bar,
                _catching_signals(until_second=self._ranks.size == 1) as is_stopped,
            ):
                return self._take_steps(bar, is_stopped)
        except torch.cuda.OutOfMemoryError as error:
            raise refusal(
                "out-of-memory", batch_tokens=settings.batch_tokens, cause=str(error).splitlines()[0]
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
            # The ranks' clocks differ, and so do the steps at which a signal reaches them: all do the same.
            wants_stop = is_stopped() or self._progress.stop_requested
            stops, saves = (any(each) for each in zip(*self._ranks.gather((wants_stop, is_due)), strict=True))
            if stops or saves or (settings.save_every and step % settings.save_every == 0):
                self._seconds, saved = time.monotonic() - started, time.monotonic()
                self._save()
            if stops:
                raise Stopped(f"stopped at step {step} of {settings.steps}; the same command resumes the run.")
        assert evaluation is not None
        if self._ranks.is_first:
            draw_curves(self._folder.rows(), self._folder.curve)
        return evaluation

    def _step(self) -> None:
        settings, source = self._settings, self._learned
        step = self._position.step
        parts, self._position = source.order.take_step(self._position)
        source.states.prefetch(self._ranks.share(source.order.take_step(self._position)[0]))
        num_learned = sum(part.num_learned for part in parts)
        self._method.network.train()
        mine = self._ranks.share(list(enumerate(parts)))
        for place, part in mine:
            # What a batch draws depends on the batch alone, whichever rank learns it, before or after a resumption.
            torch.manual_seed(hash((settings.seed, step, place)))
            share = part.num_learned / num_learned * self._ranks.size  # gradients are averaged over the ranks
            with self._ranks.summing(self._loss, now=place == mine[-1][0]):
                loss = self._compute_loss(source, part)[0] * share
                loss.backward()
            self._loss_sum += loss.detach() / self._ranks.size
        self._num_tokens += sum(part.num_tokens for part in parts)
        self._loss_count += 1
        assert settings.warmup is not None
        self._optimizers.step(
            compute_schedule_factor(step, steps=settings.steps, warmup=settings.warmup, shape=settings.schedule)
        )

    def _compute_loss(self, source: DataSource, rows: BatchRows) -> tuple[Tensor, DraftLoss]:
        batch = source.feed.make_batch(rows)
        states = source.states.get_states(rows, batch)
        with self._autocast():
            loss, result = self._loss(batch, states)
        return loss, result

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._settings.precision == "float32":
            return nullcontext()
        return torch.autocast(self._settings.device, torch.bfloat16)

    @torch.no_grad()
    def evaluate(self) -> Evaluation:
        """Measure loss and acceptance on held-out samples."""
        self._method.network.eval()
        counts: Tensor | None = None
        loss_sum, num_learned = torch.zeros((), device=self._settings.device), 0
        batches = list(self._held_out.order.iterate_once())
        # Every rank computes as often: where nothing is left for one, its first batch again, which does not count.
        for turn in range(0, len(batches), self._ranks.size):
            mine = turn + self._ranks.rank
            loss, result = self._compute_loss(self._held_out, batches[mine % len(batches)])
            if counts is None:
                counts = torch.zeros_like(_count(result))
            if mine < len(batches):
                loss_sum += loss * batches[mine].num_learned
                counts += _count(result)
                num_learned += batches[mine].num_learned
        assert counts is not None
        if isinstance(self._loss, FSDPModule):
            self._loss.reshard()  # what a forward pass without a backward pass has left whole
        of_ranks = self._ranks.gather((float(loss_sum), num_learned, counts.cpu()))
        loss_total, num_learned = sum(each[0] for each in of_ranks), sum(each[1] for each in of_ranks)
        drafted, accepted = torch.stack([each[2] for each in of_ranks]).sum(0).tolist()
        stats = SpecStats(
            num_drafts=drafted[0],
            num_draft_tokens=sum(drafted),
            num_accepted_tokens=sum(accepted),
            accepted_per_pos=tuple(accepted),
            drafted_per_pos=tuple(drafted),
        )
        return Evaluation(loss=loss_total / num_learned, stats=stats)

    def _log_loss(self, bar: Bar) -> None:
        loss = sum(self._ranks.gather(float(self._loss_sum))) / self._loss_count
        step, settings = self._position.step, self._settings
        if not math.isfinite(loss):
            raise refusal("diverged", loss=loss, step=step, lr=settings.lr)
        self._loss_sum.zero_()
        self._loss_count = 0
        speed = self._num_tokens / max(self._seconds, 1e-9)
        row = {"step": step, "seconds": round(self._seconds, 2), "tokens": self._num_tokens, "loss": loss}
        self._folder.append(row)
        bar.set_note(f"loss {loss:.4f}  {speed:,.0f} tokens/s")

    def _log_evaluation(self, evaluation: Evaluation) -> None:
        step = self._position.step
        row = {"step": step, "heldout_loss": evaluation.loss, "acceptance": list(evaluation.acceptance)}
        self._folder.append(row | {"acceptance_length": evaluation.length})
        rates = " ".join(f"{100 * rate:.0f}" for rate in evaluation.acceptance)
        line = f"held out: loss {evaluation.loss:.4f}, accepted by position {rates} %, length {evaluation.length:.2f}"
        self._progress.status(f"step {step}  {line}")

    def _save(self) -> None:
        network, optimizers = self._optimizers.state_dict()
        loss_sum = sum(self._ranks.gather(float(self._loss_sum)))
        self._folder.save(
            {
                "step": self._position.step,
                "position": asdict(self._position),
                "network": network,
                "optimizers": optimizers,
                "loss_sum": loss_sum,
                "counts": [self._loss_count, self._num_tokens],
                "seconds": self._seconds,
            }
        )
        if self._ranks.is_first:
            draw_curves(self._folder.rows(), self._folder.curve)

    def _resume(self) -> None:
        state = self._folder.load()
        self._ranks.wait()  # until all have read what the first one will write anew
        if state is None:
            return
        try:
            position = state["position"]
            self._position = Position(step=int(position["step"]), taken=tuple(map(int, position["taken"])))
            if not 0 <= self._position.step <= self._settings.steps:
                raise ValueError(f"it is of step {self._position.step} of {self._settings.steps}")
            if not self._learned.order.leads_to(self._position):
                raise ValueError(f"its {self._position.step} steps cannot have taken its samples")
            if not (state["network"] and all(map(state["optimizers"].get, ("state", "param_groups")))):
                raise ValueError("it is empty")  # which torch would take for nothing to do
            self._optimizers.load_state_dict(state["network"], state["optimizers"])
            self._loss_sum.fill_(state["loss_sum"] if self._ranks.is_first else 0.0)
            self._loss_count, self._num_tokens = map(int, state["counts"])
            self._seconds = float(state["seconds"])
            if not (math.isfinite(self._loss_sum) and min(self._loss_count, self._num_tokens, self._seconds) >= 0):
                raise ValueError("its sums are not those of a run")
        except (
            AttributeError,
            ArithmeticError,
            AssertionError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            raise self._folder.refuse(error) from None  # of another release, or of another target of that name
        self._progress.status(f"resuming at step {self._position.step}")


class _Loss(nn.Module):
    """A method's loss as one module's forward pass: what torch's data-parallel wrappers need."""

    def __init__(self, method: DrafterTraining) -> None:
        super().__init__()
        self.network, self._compute = method.network, method.compute_loss

    def forward(self, batch: TokenBatch, states: States) -> tuple[Tensor, DraftLoss]:
        result = self._compute(batch, states)
        return result.loss, result


def _count(result: DraftLoss) -> Tensor:
    """Return how many drafts reach each position, and how many are correct up to it, int64 [2, K]."""
    accepted, drafted = [], []
    accepted_BT: Tensor | None = None
    for hits_BT, counted_BT in zip(result.hits, result.counted, strict=True):
        accepted_BT = hits_BT if accepted_BT is None else accepted_BT & hits_BT
        drafted.append(counted_BT.sum())
        accepted.append((accepted_BT & counted_BT).sum())
    return torch.stack([torch.stack(drafted), torch.stack(accepted)])


@contextmanager
def _catching_signals(*, until_second: bool) -> Iterator[Callable[[], bool]]:
    """Turn SIGINT and SIGTERM into a flag, or the first one only, so that the second acts at once.

    A launcher passes on a signal that the terminal has sent to all, and kills in the end by itself.
    """
    seen: list[int] = []
    before: dict[int, Any] = {}

    def note(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        if until_second:
            restore()

    def restore() -> None:
        while before:
            signal.signal(*before.popitem())

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, note)
    except ValueError:  # not the main thread, which then handles signals itself
        restore()
    try:
        yield lambda: bool(seen)
    finally:
        restore()


def compute_schedule_factor(step: int, *, steps: int, warmup: int, shape: str) -> float:
    """Return the share of the peak learning rate at a step: linear warm-up, then decay to 0 at `steps`.

    Args:
        step: step number from 0.
        steps: steps of the whole run.
        warmup: steps until the peak.
        shape: `cosine`, `linear`, or `late`: constant, then linear over the last 60 %.
    """
    if step < warmup:
        return (step + 1) / warmup
    left = (steps - step) / max(steps - warmup, 1)
    return {"cosine": 0.5 - 0.5 * math.cos(math.pi * left), "linear": left, "late": min(1.0, left / 0.6)}[shape]


class Optimizers:
    """The optimizers of a network.

    Args:
        network: network; parameters that require a gradient are trained.
        kind: `muon`, or `adamw` for all parameters.
        lr: peak learning rate.
        weight_decay: weight decay of matrices; embeddings, heads, norms and biases have none.
        clip: maximum norm of the gradient.
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
        """Clip gradients, step at `factor` times the peak learning rate, and drop the gradients."""
        nn.utils.clip_grad_norm_(self.parameters, self._clip)
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = self._lr * factor
            part.step()
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the full state of network and optimizers on the CPU, by parameter. Sharded ones are gathered.

        All ranks must call it. The result may be empty except on the first.
        """
        network, optimizers = get_state_dict(self._network, self._parts, options=_WHOLE)
        return network, optimizers

    def load_state_dict(self, network: dict[str, Any], optimizers: dict[str, Any]) -> None:
        """Restore a state, from any number of ranks. The optimizers' settings stay those of this run."""
        for name, kept in optimizers["state"].items():
            for value in (network[name], *kept.values()):
                if (value.numel() > 1 and value.shape != network[name].shape) or not value.isfinite().all():
                    raise ValueError(f"{name} is not finite, or its averages have another shape")
        groups = [group for part in self._parts for group in part.param_groups]
        settings = [{key: value for key, value in group.items() if key != "params"} for group in groups]
        whole = StateDictOptions(full_state_dict=True)
        set_state_dict(self._network, self._parts, model_state_dict=network, optim_state_dict=optimizers, options=whole)
        groups = [group for part in self._parts for group in part.param_groups]
        for group, own in zip(groups, settings, strict=True):
            group.update(own)


def _is_matrix(name: str, parameter: nn.Parameter) -> bool:
    return parameter.ndim == 2 and not any(mark in part for part in name.split(".") for mark in _NO_MUON)


def _adamw(parameters: list[nn.Parameter], lr: float, weight_decay: float, *, fused: bool) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay, betas=_BETAS, fused=fused)
