"""A training run from data to a checkpoint that has been loaded back."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from draftwise import __version__
from draftwise.checkpoints.identity import target_identity, write_identity
from draftwise.engine.text.tokenizer import Tokenizer
from draftwise.train import get_training
from draftwise.train.answers import AnswerSettings, answer, cut_prompts
from draftwise.train.checkpoint import load_back
from draftwise.train.data import Corpus, Feed, Order, split
from draftwise.train.features import DiskStates, OnlineStates, StateSource, write_states
from draftwise.train.loop import Evaluation, Lessons, Training
from draftwise.train.method import Method
from draftwise.train.options import resolve_options
from draftwise.train.progress import Reporter
from draftwise.train.reading import Sample, read_samples
from draftwise.train.run_folder import RunFolder
from draftwise.train.settings import TrainSettings
from draftwise.train.target import Target

__all__ = ["TrainResult", "train"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """What a run made."""

    out: str
    model: str
    """What to serve."""
    speculative_config: dict[str, Any]
    """How to serve it."""
    heldout_loss: float
    acceptance: tuple[float, ...]
    acceptance_length: float
    num_parameters: int
    """Trained ones."""


def train(method: str, settings: TrainSettings, reporter: Reporter) -> TrainResult:
    """Train a drafter, or go on with a run that was stopped.

    Args:
        method: one that is trainable (`facts.methods`).
        settings: of the run.
        reporter: shows how far it is.

    Raises:
        InvalidSetup: settings, data, target or the folder that is to be written cannot work.
        Stopped: by a signal; the same call goes on.
    """
    kind = get_training(method)
    options = resolve_options(kind.OPTIONS, settings.options, method=method)
    settings = dataclasses.replace(settings, options=options).resolve(learning_rate=kind.learning_rate)
    folder = RunFolder(settings.out)
    folder.check_free()
    identity = target_identity(settings.target)["weights"]
    cache = (Path(settings.cache) if settings.cache else folder.path / "cache") / identity[:12]
    target = Target.load(settings.target, settings.device, settings.precision)
    samples = _gather(target, settings, cache, reporter)
    learnt, held_out = (
        Corpus.of(part) for part in split(samples, settings.heldout, most_tokens=settings.heldout_tokens)
    )
    fixed = {"method": method, "target": identity, "data": learnt.digest, "heldout_data": held_out.digest}
    folder.open(fixed | settings.fixed())
    torch.manual_seed(settings.seed)
    trained = kind.build(target, options)
    trained.prepare(torch.from_numpy(learnt.learnt_counts(target.vocab_size)))
    reporter.tell(_describe(trained, learnt, held_out, settings))
    evaluation = _learn(trained, target, learnt, held_out, settings, cache, folder, reporter)
    return _finish(trained, target, fixed | settings.fixed(), evaluation, folder)


def _gather(target: Target, settings: TrainSettings, cache: Path, reporter: Reporter) -> list[Sample]:
    """Return the samples, answered by the target if that is wanted."""
    tokenizer = Tokenizer.from_pretrained(settings.target)
    limit = min(settings.max_length, target.max_length)
    given = settings.answers == "given"
    window = limit if given else min(limit, settings.prompt_tokens + settings.answer_tokens)
    samples = list(read_samples(settings.data, tokenizer, max_length=limit, window=window))
    if given:
        return samples
    answers = AnswerSettings(
        temperature=settings.temperature,
        max_tokens=min(settings.answer_tokens, limit - 1),
        seed=settings.seed,
        max_num_seqs=256 if settings.device == "cuda" else 16,
    )
    prompts = cut_prompts(samples, num_tokens=settings.prompt_tokens, room=max(limit - answers.max_tokens, 1))
    return answer(target.path, prompts, cache, answers, device=settings.device, reporter=reporter)


def _describe(method: Method, learnt: Corpus, held_out: Corpus, settings: TrainSettings) -> str:
    return (
        f"{method.name}: {_num_parameters(method) / 1e6:.1f} M parameters, "
        f"{len(learnt)} samples of {learnt.num_tokens} tokens, {len(held_out)} held out; {settings.steps} steps of "
        f"{settings.accumulate} x {settings.batch_tokens} tokens, {settings.optimizer}, peak rate {settings.lr:g}, "
        f"{settings.precision} on {settings.device}"
    )


def _num_parameters(method: Method) -> int:
    return sum(each.numel() for each in method.network.parameters() if each.requires_grad)


def _learn(
    method: Method,
    target: Target,
    learnt: Corpus,
    held_out: Corpus,
    settings: TrainSettings,
    cache: Path,
    folder: RunFolder,
    reporter: Reporter,
) -> Evaluation:
    """Take the run's steps."""
    if settings.compile:
        torch._dynamo.config.recompile_limit = 64
        torch._dynamo.config.suppress_errors = True  # what cannot be compiled runs as it is
        torch.set_float32_matmul_precision("high")
        target.compile()
        method.compile()
    assert settings.batch_tokens is not None
    order = Order(learnt, batch_tokens=settings.batch_tokens, accumulate=settings.accumulate, seed=settings.seed)
    measured = Order(held_out, batch_tokens=settings.batch_tokens, lengths=order.lengths)
    online = OnlineStates(target, method.taps)
    states: StateSource = online
    if settings.hidden_states == "disk":
        taps = "-".join(map(str, method.taps))
        states_folder = cache / f"states-{learnt.digest}-{settings.precision}-{taps or 'final'}"
        write_states(learnt, target, method.taps, states_folder, reporter)
        states = DiskStates(learnt, target, method.taps, states_folder)
    return Training(
        method,
        settings,
        Lessons(feed=Feed(learnt, target.device), states=states, order=order),
        Lessons(feed=Feed(held_out, target.device), states=online, order=measured),
        folder,
        reporter,
    ).run()


def _finish(
    method: Method, target: Target, settings: dict[str, Any], evaluation: Evaluation, folder: RunFolder
) -> TrainResult:
    """Write the drafter, load it back, and only then put it into its place."""
    k = len(evaluation.acceptance)
    measured = {"heldout_loss": evaluation.loss, "acceptance": list(evaluation.acceptance)}
    training = {"draftwise": __version__, **settings, "measured": measured}
    with tempfile.TemporaryDirectory(dir=folder.path) as scratch:
        made = Path(scratch)
        method.export(made)
        write_identity(made, target.path, training)
        load_back(*method.serving(made, target.path, k))
        for file in sorted(made.iterdir(), key=lambda file: file.name == "config.json"):
            file.chmod(0o644)
            os.replace(file, folder.out / file.name)
    folder.finish()
    model, config = method.serving(folder.out, target.path, k)
    return TrainResult(
        out=str(folder.out),
        model=str(model),
        speculative_config=config,
        heldout_loss=evaluation.loss,
        acceptance=evaluation.acceptance,
        acceptance_length=evaluation.length,
        num_parameters=_num_parameters(method),
    )
