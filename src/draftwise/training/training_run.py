"""A training run, from data to a checkpoint that was loaded back; one process per GPU."""

from __future__ import annotations

import dataclasses
import errno
import gc
import json
import logging
import math
import os
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from draftwise.backends.address import check_url
from draftwise.checkpoints.headers import read_headers
from draftwise.checkpoints.identity import target_identity, write_identity
from draftwise.core import Finding, InvalidSetup, Severity, Stopped, StorageError
from draftwise.core.progress import Progress, Silent
from draftwise.engine.models.gguf_unpacking import checkpoint_of
from draftwise.engine.text.tokenizer import Tokenizer
from draftwise.knowledge.messages import refusal, text_of
from draftwise.training import get_training
from draftwise.training.data import (
    AnswerSettings,
    Corpus,
    Feed,
    SampleOrder,
    TextSample,
    answer,
    cut_prompts,
    read_samples,
    split,
)
from draftwise.training.drafter_export import load_back
from draftwise.training.frozen_target import FrozenTarget
from draftwise.training.hidden_states import (
    DiskStates,
    OnlineStates,
    ServedStates,
    StateSource,
    check_served,
    write_states,
)
from draftwise.training.method import DrafterTraining, resolve_options
from draftwise.training.ranks import Ranks, joined
from draftwise.training.run_folder import RunFolder
from draftwise.training.run_settings import TrainSettings
from draftwise.training.training_loop import DataSource, Evaluation, TrainingRun
from draftwise.training.training_progress import TrainingBars
from draftwise.version import __version__

_FLOAT = 4
"""Bytes per drafter parameter, for itself, its gradient, and each optimizer average."""


def find_target_bytes(settings: TrainSettings) -> int:
    """Return the bytes of the target's full weights, from its headers."""
    itemsize = 4 if settings.precision == "float32" or settings.find_device() == "cpu" else 2
    return sum(each.num_elements for each in read_headers(Path(settings.target)).tensors.values()) * itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMemory:
    """Bytes on each GPU. Activations come on top; they grow with the batch and are unknown before the first pass."""

    target: int
    drafter: int
    """Weights, gradients, and optimizer averages; if sharded, also the weights gathered in a step."""
    states: int
    """Hidden states of one batch, passed from the target to the drafter."""
    there: int | None
    """Memory of the device; None on a CPU."""

    @classmethod
    def of(cls, method: DrafterTraining, target: FrozenTarget, settings: TrainSettings, ranks: Ranks) -> Self:
        """Return the memory of a run whose models are built, but not yet sharded by the loop."""
        trained = [each for each in method.network.parameters() if each.requires_grad]
        averages = sum(each.numel() * (1 if settings.optimizer == "muon" and each.ndim == 2 else 2) for each in trained)
        weights = sum(each.numel() for each in trained)
        kept = 2 * weights + averages  # weights, gradients, averages
        drafter = math.ceil(kept / ranks.size) + 2 * weights if settings.shard else kept
        assert settings.batch_tokens is not None
        width = (len(method.aux_layers) + 1) * target.hidden_size * target.embedding_VH.element_size()
        there = torch.cuda.get_device_properties().total_memory if settings.device == "cuda" else None
        return cls(
            target=target.count_bytes(), drafter=_FLOAT * drafter, states=settings.batch_tokens * width, there=there
        )

    @property
    def known(self) -> int:
        """Bytes that the run certainly needs."""
        return self.target + self.drafter + self.states

    def __str__(self) -> str:
        """Return one line for the operator."""
        parts = {"target": self.target, "drafter and optimizer": self.drafter, "hidden states": self.states}
        shown = " + ".join(f"{name} {size / 1e9:.2f}" for name, size in parts.items())
        there = f" of {self.there / 1e9:.1f} GB" if self.there else ""
        return f"memory of each process: {shown} = {self.known / 1e9:.2f} GB{there}, plus the activations of a batch"

    def check(self) -> None:
        """Check that the device has the memory that the run certainly needs.

        Raises:
            InvalidSetup: the device has less.
        """
        if self.there is not None and self.known > self.there:
            raise refusal("run-too-large", there=self.there / 1e9, memory=self)


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NO_ROOM_IN_RUST = "os error 28"
"""Text in errors of safetensors, which is written in Rust."""
_STOP_S = 120
"""How long the ranks have to end their step and write a checkpoint before they are killed."""
_PEER_S = 3
"""How long a rank that lost another one waits, for the launcher to see which one ended first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedDrafter:
    """Result of a run."""

    out: str
    model: str
    """What to serve."""
    speculative_config: dict[str, Any]
    """Speculative config for serving."""
    heldout_loss: float
    acceptance: tuple[float, ...]
    acceptance_length: float
    num_parameters: int
    """Number of trained parameters."""


def train(method: str, settings: TrainSettings, progress: Progress) -> TrainedDrafter:
    """Train a drafter, or resume a stopped run; as one of several ranks if torchrun started this process.

    Args:
        method: a trainable method (`knowledge.methods`).

    Raises:
        InvalidSetup: settings, data, target or output folder are invalid.
        Stopped: a signal arrived. The same call resumes the run.
        StorageError: the disk is full. The same call resumes the run.
    """
    try:
        with joined(settings.find_device()) as ranks:
            return _train(method, settings, progress if ranks.is_first else Silent(), ranks)
    except (OSError, SafetensorError) as error:
        if getattr(error, "errno", None) not in _NO_ROOM and _NO_ROOM_IN_RUST not in str(error):
            raise
        raise StorageError(text_of("training-disk-full", out=settings.out)) from None


def _train(method: str, settings: TrainSettings, progress: Progress, ranks: Ranks) -> TrainedDrafter:
    kind = get_training(method)
    options = resolve_options(kind.OPTIONS, settings.options, method=method)
    settings = dataclasses.replace(settings, options=options, target=checkpoint_of(settings.target, progress.status))
    target_bytes = find_target_bytes(settings)
    settings = settings.resolve(learning_rate=kind.learning_rate, num_ranks=ranks.size, target_bytes=target_bytes)
    folder = RunFolder(settings.out, writes=ranks.is_first)
    folder.check_free()
    identity = target_identity(settings.target)["weights"]
    cache = (Path(settings.cache) if settings.cache else folder.path / "cache") / identity[:12]
    if settings.states_url:
        check_url(settings.states_url, where="--hidden-states")
    target = FrozenTarget.load(
        settings.target,
        settings.device,
        settings.precision,
        shard=bool(settings.shard),
        num_layers=0 if settings.states_url else None,
    )
    samples = _gather(target, settings, cache, progress, ranks)
    learned, held_out = (
        Corpus.from_samples(part) for part in split(samples, settings.heldout, most_tokens=settings.heldout_tokens)
    )
    fixed = {"method": method, "target": identity, "data": learned.digest, "heldout_data": held_out.digest}
    folder.open(fixed | settings.fixed())
    trained = _build(kind, target, settings, learned)
    if settings.states_url and ranks.is_first:
        progress.status(f"comparing a text's hidden states from {settings.states_url} with the target's")
        check_served(settings.states_url, learned, FrozenTarget.load(settings.target), trained.aux_layers)
    progress.status(_describe(trained, learned, held_out, settings))
    memory = TrainingMemory.of(trained, target, settings, ranks)
    progress.status(str(memory))
    memory.check()
    job = _Job(
        method=trained,
        target=target,
        settings=settings,
        learned=learned,
        held_out=held_out,
        cache=cache,
        folder=folder,
        progress=progress,
        ranks=ranks,
    )
    evaluation = _learn(job)
    if settings.shard:
        trained = _make_whole(trained, _build(kind, target, settings, learned))
    result = _finish(trained, target, fixed | settings.fixed(), evaluation, folder) if ranks.is_first else None
    return next(each for each in ranks.gather(result) if each is not None)


def _build(
    kind: type[DrafterTraining], target: FrozenTarget, settings: TrainSettings, learned: Corpus
) -> DrafterTraining:
    """Return an untrained drafter, the same on every rank."""
    torch.manual_seed(settings.seed)
    trained = kind.build(target, settings.options)
    trained.prepare(torch.from_numpy(learned.count_learned(target.vocab_size)))
    return trained


def _make_whole(sharded: DrafterTraining, untrained: DrafterTraining) -> DrafterTraining:
    """Return the untrained drafter with the weights of the one that the ranks keep parts of."""
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(sharded.network, options=whole)
    if state:  # the first rank's
        untrained.network.load_state_dict(state)
    return untrained


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What the steps of a run need."""

    method: DrafterTraining
    target: FrozenTarget
    settings: TrainSettings
    learned: Corpus
    held_out: Corpus
    cache: Path
    folder: RunFolder
    progress: Progress
    ranks: Ranks


def _gather(
    target: FrozenTarget, settings: TrainSettings, cache: Path, progress: Progress, ranks: Ranks
) -> list[TextSample]:
    """Return the samples, with answers of the target unless the data's own are to be learned."""
    tokenizer = Tokenizer.from_pretrained(settings.target)
    limit = min(settings.max_length, target.max_length)
    given = settings.answers == "given"
    window = limit if given else min(limit, settings.prompt_tokens + settings.answer_tokens)
    samples = list(read_samples(settings.data, tokenizer, max_length=limit, window=window))
    if given:
        if not any(sample.num_prompt < len(sample.tokens) for sample in samples):
            raise refusal("no-answers")
        return samples
    answers = AnswerSettings(
        temperature=settings.temperature,
        max_tokens=min(settings.answer_tokens, limit - 1),
        seed=settings.seed,
        max_num_seqs=256 if settings.device == "cuda" else 16,
    )
    prompts = cut_prompts(samples, num_tokens=settings.prompt_tokens, room=max(limit - answers.max_tokens, 1))
    return answer(target.path, prompts, cache, answers, device=settings.device, progress=progress, ranks=ranks)


def _describe(method: DrafterTraining, learned: Corpus, held_out: Corpus, settings: TrainSettings) -> str:
    return (
        f"{method.name}: {_num_parameters(method) / 1e6:.1f} M parameters, "
        f"{len(learned)} samples of {learned.num_tokens} tokens, {len(held_out)} held out; {settings.steps} steps of "
        f"{settings.accumulate} x {settings.batch_tokens} tokens, {settings.optimizer}, peak rate {settings.lr:g}, "
        f"{settings.precision} on {settings.device}"
    )


def _num_parameters(method: DrafterTraining) -> int:
    return sum(each.numel() for each in method.network.parameters() if each.requires_grad)


def _learn(job: _Job) -> Evaluation:
    """Take the run's steps; return what the drafter is worth in the end."""
    if job.settings.compile:
        _compile(job.method, job.target)
    learned, held_out = _make_sources(job)
    return TrainingRun(
        job.method,
        job.settings,
        learned=learned,
        held_out=held_out,
        folder=job.folder,
        progress=job.progress,
        ranks=job.ranks,
    ).run()


def _compile(method: DrafterTraining, target: FrozenTarget) -> None:
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.suppress_errors = True  # what cannot be compiled runs eagerly
    torch.set_float32_matmul_precision("high")
    target.compile()
    method.compile()


def _make_sources(job: _Job) -> tuple[DataSource, DataSource]:
    """Return where batches to learn and held-out ones come from."""
    settings, device, batch_tokens = job.settings, job.target.device, job.settings.batch_tokens
    assert batch_tokens is not None
    assert settings.accumulate is not None
    order = SampleOrder(job.learned, batch_tokens=batch_tokens, accumulate=settings.accumulate, seed=settings.seed)
    held_out = SampleOrder(job.held_out, batch_tokens=batch_tokens, lengths=order.lengths)
    return (
        DataSource(
            feed=Feed(job.learned, device), states=_choose_states(job, job.learned, may_store=True), order=order
        ),
        DataSource(
            feed=Feed(job.held_out, device), states=_choose_states(job, job.held_out, may_store=False), order=held_out
        ),
    )


def _choose_states(job: _Job, corpus: Corpus, *, may_store: bool) -> StateSource:
    """Return where the hidden states of a corpus come from."""
    if url := job.settings.states_url:
        return ServedStates(corpus, job.target, job.method.aux_layers, url)
    if may_store and job.settings.hidden_states == "disk":
        return _store_states(job)
    return OnlineStates(job.target, job.method.aux_layers)


def _store_states(job: _Job) -> StateSource:
    """Write the target's states for all samples to the cache, and return what reads them."""
    layers = "-".join(map(str, job.method.aux_layers)) or "final"
    folder = job.cache / f"states-{job.learned.digest}-{job.settings.precision}-{layers}"
    write_states(job.learned, job.target, job.method.aux_layers, folder, job.progress, job.ranks)
    return DiskStates(job.learned, job.target, job.method.aux_layers, folder)


def _finish(
    method: DrafterTraining, target: FrozenTarget, settings: dict[str, Any], evaluation: Evaluation, folder: RunFolder
) -> TrainedDrafter:
    """Write the drafter, load it back, and only then move it into place."""
    k = len(evaluation.acceptance)
    measured = {"heldout_loss": evaluation.loss, "acceptance": list(evaluation.acceptance)}
    training = {"draftwise": __version__, **settings, "measured": measured}
    with tempfile.TemporaryDirectory(dir=folder.path) as scratch:
        made = Path(scratch)
        method.export(made)
        write_identity(made, target.path, training)
        load_back(*method.describe_serving(made, target.path, k))
        for file in sorted(made.iterdir(), key=lambda file: file.name == "config.json"):
            file.chmod(0o644)
            os.replace(file, folder.out / file.name)
    folder.finish()
    model, config = method.describe_serving(folder.out, target.path, k)
    return TrainedDrafter(
        out=str(folder.out),
        model=str(model),
        speculative_config=config,
        heldout_loss=evaluation.loss,
        acceptance=evaluation.acceptance,
        acceptance_length=evaluation.length,
        num_parameters=_num_parameters(method),
    )


def train_on_gpus(method: str, settings: TrainSettings, num_gpus: int, *, quiet: bool = False) -> TrainedDrafter:
    """Train a drafter on several GPUs of this host, see `run.train`; with device `cpu`, in several processes.

    A rank that dies ends the run; the same call resumes it at its last checkpoint.

    Raises:
        InvalidSetup: see `train`; or there are too few GPUs, or a process died.
        Stopped: a signal arrived. The same call resumes the run.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    settings.check_gpus(num_gpus)
    for name in ("torch.distributed.elastic", "torch.multiprocessing"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what went wrong is said below
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_gpus,
        run_id="draftwise",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
    )
    if hasattr(config, "shutdown_timeout"):  # not before torch 2.12
        config.shutdown_timeout = _STOP_S
    with tempfile.TemporaryDirectory() as notes:
        try:
            results: dict[int, TrainedDrafter] | None = elastic_launch(config, _run_rank)(
                method, settings, quiet, notes
            )
        except ChildFailedError as error:
            _explain(Path(notes))
            rank, failure = error.get_first_failure()
            raise refusal("rank-died", rank=rank, num_gpus=num_gpus, status=_name_exit(failure.exitcode)) from None
        except SignalException:
            results = None
        if results is None:
            # After a signal torch leaves the thread of its rendezvous running. If that thread is the one in which the
            # collector finds it, it cannot join itself, and says so with a traceback.
            gc.collect()
            _explain(Path(notes))
            raise Stopped("stopped before the first step; the same command starts the run again.")
    return results[0]


def _run_rank(method: str, settings: TrainSettings, quiet: bool, notes: str) -> TrainedDrafter:
    """Train as one rank; what an operator should know is left in a file for the launcher."""
    try:
        return train(method, settings, Silent() if quiet else TrainingBars())
    except InvalidSetup as error:
        _leave(notes, {"findings": [asdict(each) for each in error.findings]})
    except Stopped as stopped:
        _leave(notes, {"stopped": str(stopped)})
    except StorageError as error:
        _leave(notes, {"storage": str(error)})
    except RuntimeError:
        time.sleep(_PEER_S)
        raise
    sys.exit(1)


def _leave(notes: str, what: object) -> None:
    with tempfile.NamedTemporaryFile("w", dir=notes, suffix=".json", delete=False) as file:
        json.dump(what, file)


def _explain(notes: Path) -> None:
    """Raise what the first rank that left a note raised."""
    for file in sorted(notes.glob("*.json"), key=lambda file: file.stat().st_mtime_ns):
        note = json.loads(file.read_text())
        if "stopped" in note:
            raise Stopped(note["stopped"])
        if "storage" in note:
            raise StorageError(note["storage"])
        findings = [each | {"severity": Severity(each["severity"])} for each in note["findings"]]
        raise InvalidSetup([Finding(**each) for each in findings])


def _name_exit(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit code {status}"
