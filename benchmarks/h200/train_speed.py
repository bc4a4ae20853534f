"""How fast `draftwise train` learns drafters of an 8B target, on one GPU and on several: tokens/s and memory.

Real shapes, random weights, random tokens. The target runs in each step (`--hidden-states online`), or random states
lie ready on the GPU (`--states given`): then the trainer alone is timed, beside that of speculators
(`--peer speculators`; `speculators_trainer.py` says how to fetch its wheels). Started by torchrun it measures all ranks
together. Steps before `--skip` hold the compilations and do not count.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shapes import SCALES
from speculators_trainer import measure_speculators
from transformers import LlamaConfig, LlamaForCausalLM

import draftwise
from draftwise.training import get_training
from draftwise.training.data import BatchRows, Corpus, Feed, SampleOrder
from draftwise.training.frozen_target import FrozenTarget, States, TokenBatch
from draftwise.training.hidden_states import OnlineStates, StateSource
from draftwise.training.method import resolve_options
from draftwise.training.progress import Reporter
from draftwise.training.ranks import Ranks, joined
from draftwise.training.run_folder import RunFolder
from draftwise.training.run_memory import TrainingMemory
from draftwise.training.run_settings import TrainSettings
from draftwise.training.samples import TextSample
from draftwise.training.training_loop import DataSource, TrainingRun

METHODS: dict[str, dict[str, Any]] = {
    "eagle3": {"num_speculative_tokens": 3, "draft_vocab_size": 32000},
    "dflash": {"num_speculative_tokens": 7, "num_layers": 5, "mask_token_id": 2, "anchors": 64},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=("8b", "tiny"), default="8b")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--length", type=int, default=2048, help="tokens of each sample")
    parser.add_argument("--batch-tokens", type=int, default=16384, help="of each rank in each step")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--skip", type=int, default=10, help="steps that do not count")
    parser.add_argument("--shard", action="store_true", help="FSDP2 instead of DDP")
    parser.add_argument("--states", choices=("target", "given"), default="target")
    parser.add_argument("--optimizer", choices=("muon", "adamw"), help="ours is muon, or adamw if sharded")
    parser.add_argument("--peer", choices=("speculators",), help="time this one's eagle3 instead, with given states")
    parser.add_argument("--compile", choices=("all", "attention"), default="all", help="of the peer")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, required=True, help="a .jsonl file; rows are added")
    args = parser.parse_args()
    if args.peer:
        shape = SCALES[args.scale].target
        drafted = min(METHODS["eagle3"]["draft_vocab_size"], shape["vocab_size"])
        with tempfile.TemporaryDirectory() as scratch:
            if row := measure_speculators(shape, drafted, args, Path(scratch)):
                write(row, args.out)
        return
    with joined(args.device) as ranks, tempfile.TemporaryDirectory() as scratch:
        target = make_target(args, Path(scratch))
        for method in args.methods:
            row = measure(method, target, args, ranks, Path(scratch) / method)
            if ranks.is_first:
                write(row, args.out)


def write(row: dict[str, Any], out: Path) -> None:
    """Add a row to the results, and print it."""
    with out.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


class GivenStates:
    """Random states that lie ready on the device."""

    def __init__(self, target: FrozenTarget, num_aux_layers: int, args: argparse.Namespace) -> None:
        shape = (args.batch_tokens // args.length, args.length, target.hidden_size)
        self._states = [torch.randn(shape, dtype=target.dtype, device=args.device) for _ in range(num_aux_layers + 1)]

    def prefetch(self, rows: Sequence[BatchRows]) -> None:
        """Do nothing."""

    def get_states(self, rows: BatchRows, batch: TokenBatch) -> States:  # noqa: ARG002 - any states will do
        """Return the states of as many rows and tokens as the batch has."""
        num_rows, length = batch.tokens_BT.shape
        *aux, final = (each[:num_rows, :length] for each in self._states)
        return States(aux_BTH=tuple(aux), final_BTH=final)


def make_target(args: argparse.Namespace, folder: Path) -> FrozenTarget:
    """Return a target of random weights on this rank's GPU."""
    config = SCALES[args.scale].target
    dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    torch.set_default_dtype(dtype)
    with torch.device(args.device):
        model = LlamaForCausalLM(LlamaConfig(**config, attn_implementation="sdpa")).eval().requires_grad_(False)
    torch.set_default_dtype(torch.float32)
    (folder / "config.json").write_text(json.dumps(config))
    target = FrozenTarget(model, folder, config)
    if args.device == "cuda":
        target.compile()
    return target


def measure(method: str, target: FrozenTarget, args: argparse.Namespace, ranks: Ranks, out: Path) -> dict[str, Any]:
    """Take the steps; return what they cost."""
    kind = get_training(method)
    settings = TrainSettings(
        target=str(target.path),
        data=("random",),
        out=str(out),
        options=resolve_options(kind.OPTIONS, METHODS[method], method=method),
        steps=args.steps,
        batch_tokens=args.batch_tokens,
        optimizer=args.optimizer,
        eval_every=10**9,
        save_minutes=10**6,
        device=args.device,
        shard=args.shard,
    ).resolve(learning_rate=kind.learning_rate, num_ranks=ranks.size)
    torch.manual_seed(0)
    trained = kind.build(target, settings.options)
    learnt, held_out = make_corpus(target, args, 512), make_corpus(target, args, ranks.size)
    trained.prepare(torch.from_numpy(learnt.count_learnt(target.vocab_size)))
    memory = TrainingMemory.of(trained, target, settings, ranks)
    if settings.compile:
        torch._dynamo.config.suppress_errors = True
        torch.set_float32_matmul_precision("high")
        trained.compile()
    assert settings.accumulate is not None
    assert settings.batch_tokens is not None
    order = SampleOrder(learnt, batch_tokens=settings.batch_tokens, accumulate=settings.accumulate)
    last = SampleOrder(held_out, batch_tokens=settings.batch_tokens, lengths=order.lengths)
    states: StateSource = (
        GivenStates(target, len(trained.aux_layers), args)
        if args.states == "given"
        else OnlineStates(target, trained.aux_layers)
    )
    folder = RunFolder(out, writes=ranks.is_first)
    folder.open(settings.fixed())
    started = time.monotonic()
    if args.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    TrainingRun(
        trained,
        settings,
        learnt=DataSource(feed=Feed(learnt, target.device), states=states, order=order),
        held_out=DataSource(feed=Feed(held_out, target.device), states=states, order=last),
        folder=folder,
        reporter=Reporter(quiet=True),
        ranks=ranks,
    ).run()
    rows = [row for row in folder.rows() if "loss" in row] if ranks.is_first else []
    timed = [row for row in rows if row["step"] >= args.skip]
    if not timed:
        return {}
    tokens, seconds = timed[-1]["tokens"] - timed[0]["tokens"], timed[-1]["seconds"] - timed[0]["seconds"]
    peak = torch.cuda.max_memory_allocated() if args.device == "cuda" else None
    return {
        "method": method,
        "trainer": f"draftwise {draftwise.__version__}",
        "scale": args.scale,
        "ranks": ranks.size,
        "sharded": bool(settings.shard),
        "states": args.states,
        "optimizer": settings.optimizer,
        "tokens_per_s": round(tokens / seconds),
        "seconds_a_step": round(seconds / (timed[-1]["step"] - timed[0]["step"]), 4),
        "step_tokens": rows[-1]["tokens"] // rows[-1]["step"],
        "trained_parameters": sum(each.numel() for each in trained.network.parameters() if each.requires_grad),
        "stated_gb": round(memory.known / 1e9, 2),
        "peak_gb": None if peak is None else round(peak / 1e9, 2),
        "seconds": round(time.monotonic() - started, 1),
        "gpu": torch.cuda.get_device_name() if args.device == "cuda" else None,
        "torch": torch.__version__,
    }


def make_corpus(target: FrozenTarget, args: argparse.Namespace, count: int) -> Corpus:
    """Return random samples, of which all but a short prompt is learnt."""
    drawn = np.random.default_rng(count).integers(3, target.vocab_size, (count, args.length), np.int32)
    return Corpus.from_samples(TextSample(tokens, 16) for tokens in drawn)


if __name__ == "__main__":
    main()
