"""The peer of `train_speed.py`: the trainer of `speculators` at the same shapes, with its own defaults.

The hidden states are given to it on the GPU, as `train_speed.py --states given` gives them to ours: both are timed
without a target and without loading. Its model, loss, optimizers and loop are used as they come; its defaults leave the
output matrix frozen, which ours trains. One thing is changed, in its favour: the block mask of its attention is
computed without torch.compile, and once instead of in each step. Compiled, it has a sort kernel over the blocks, on
which ptxas was still busy after 87 s (torch 2.11). `--compile attention` is for where the rest takes too long as well:
then only flex_attention is compiled, as transformers does it. Its wheels come from the package index, for a machine
without a network (Python 3.12 on x86-64):

    pip download --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux2014_x86_64 \\
        --platform manylinux_2_17_x86_64 --platform manylinux_2_28_x86_64 --dest WHEELS \\
        speculators==0.9.0 hs-connectors==0.9.0 datasets==4.4.2 dill==0.4.0 multiprocess==0.70.18 openai==2.54.0 \\
        jiter distro sniffio loguru pydantic==2.14.3 pydantic-core==2.50.4 pydantic-settings python-dotenv \\
        annotated-types typing-extensions typing-inspection
    pip install --no-index --no-deps --target SITE WHEELS/*.whl && export PYTHONPATH=$PYTHONPATH:SITE
"""

from __future__ import annotations

import argparse
import inspect
import json
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from shapes import Config

__all__ = ["measure_speculators"]

_POSITIONS = 3


class _Batches:
    """What a step is given: the same batch, already on the device; stands where speculators has a DataLoader."""

    batch_sampler = None

    def __init__(self, batch: dict[str, Any], steps: int) -> None:
        self._batch, self._steps = batch, steps

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for _ in range(self._steps):
            yield dict(self._batch)


def measure_speculators(
    target: Config, draft_vocab_size: int, args: argparse.Namespace, scratch: Path
) -> dict[str, Any] | None:
    """Take the steps; return what they cost on the first rank, None on the others.

    Args:
        target: its config.json.
        draft_vocab_size: rows of the head's output matrix.
        args: of `train_speed.py`.
        scratch: a folder of this rank.
    """
    from speculators.models import attention
    from speculators.models.eagle3 import Eagle3DraftModel
    from speculators.train import distributed, trainer
    from speculators.train.trainer import Trainer, TrainerConfig

    Eagle3DraftModel._build_attn_mask = torch.compiler.disable(_once(Eagle3DraftModel._build_attn_mask))
    if args.compile == "attention":
        Eagle3DraftModel.forward = inspect.unwrap(Eagle3DraftModel.forward)
        attention.flex_attention = torch.compile(attention.flex_attention)
    on_gpu = args.device == "cuda"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    if on_gpu:
        distributed.maybe_setup_distributed()
    else:
        trainer.get_local_rank = lambda: "cpu"
    torch.manual_seed(0)
    model, options = _make_model(target, draft_vocab_size, args, scratch)
    torch.set_float32_matmul_precision("high")
    call = type(model).get_trainer_kwargs(**options)
    config = TrainerConfig(
        lr=options["lr"],
        num_epochs=1,
        save_path=str(scratch / "checkpoints"),
        train_call_kwargs=call[0],
        optimizer=args.optimizer,
        muon_lr=options["muon_lr"],
        hidden_states_dtype=dtype,
        log_freq=10**9,  # every logged step waits for the GPU several times
        fsdp_shard=args.shard,
    )
    batch = _make_batch(target, args, dtype)
    run = Trainer(model, config, _Batches(batch, args.steps))
    run.global_step = 1  # step 0 would be a logged one
    started = time.monotonic()
    marks: list[float] = []

    def mark() -> None:
        if len(marks) in (args.skip - 1, args.steps - 1) and on_gpu:
            torch.cuda.synchronize()
        marks.append(time.perf_counter())
        print(f"step {len(marks)} after {time.monotonic() - started:.1f} s", flush=True)

    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    run.train_epoch(0, step_callback=mark)
    ranks, is_first = distributed.get_world_size(), distributed.get_rank() == 0
    distributed.maybe_destroy_distributed()
    if not is_first:
        return None
    seconds = (marks[-1] - marks[args.skip - 1]) / (args.steps - args.skip)
    tokens = args.batch_tokens * ranks
    trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
    return {
        "method": "eagle3",
        "trainer": f"speculators {version('speculators')}",
        "scale": args.scale,
        "ranks": ranks,
        "sharded": args.shard,
        "states": "given",
        "compiled": args.compile,
        "optimizer": args.optimizer,
        "tokens_per_s": round(tokens / seconds),
        "seconds_a_step": round(seconds, 4),
        "step_tokens": tokens,
        "trained_parameters": trained,
        "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2) if on_gpu else None,
        "seconds": round(time.monotonic() - started, 1),
        "gpu": torch.cuda.get_device_name() if on_gpu else None,
        "torch": torch.__version__,
    }


def _once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes its result the first time only: all steps here have the same documents."""
    results: list[Any] = []

    def get(*args: Any, **named: Any) -> Any:
        if not results:
            results.append(function(*args, **named))
        return results[0]

    return get


def _make_model(
    target: Config, draft_vocab_size: int, args: argparse.Namespace, scratch: Path
) -> tuple[Any, dict[str, Any]]:
    """Return a fresh EAGLE-3 drafter, and the options that made it: speculators' defaults but for the shapes."""
    from speculators.models.eagle3 import Eagle3DraftModel
    from speculators.train.cli import create_transformer_layer_config
    from speculators.train.config import TrainConfig

    folder = scratch / "target"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(target))
    wide = (target["vocab_size"], target["hidden_size"])
    names = {"model.embed_tokens.weight": wide, "lm_head.weight": wide, "model.norm.weight": wide[1:]}
    drawn = {name: torch.randn(shape, dtype=torch.bfloat16, device=args.device) for name, shape in names.items()}
    tensors = {name: (each * 0.02).cpu() for name, each in drawn.items()}
    save_file(tensors, folder / "model.safetensors")
    options = TrainConfig().flatten() | {
        "verifier_name_or_path": str(folder),
        "draft_vocab_size": draft_vocab_size,
        "ttt_steps": _POSITIONS,
        "fsdp_shard": args.shard,
    }
    if args.device == "cpu":
        options |= {"draft_attn_impl": "eager", "loss_implementation": "eager"}
    layers = create_transformer_layer_config(
        verifier_name_or_path=str(folder),
        num_layers=options["num_layers"],
        draft_arch=options["draft_arch"],
        hidden_act=options["draft_hidden_act"],
        sliding_window=options["sliding_window"],
        full_attention_indices=options["full_attention_indices"],
        mrope_full_head_hack=options["draft_mrope_full_head_hack"],
    )
    named_V = torch.arange(target["vocab_size"]) < draft_vocab_size
    offsets_U = torch.zeros(draft_vocab_size, dtype=torch.long)
    return Eagle3DraftModel.from_training_args(layers, t2d=named_V, d2t=offsets_U, **options), options


def _make_batch(target: Config, args: argparse.Namespace, dtype: torch.dtype) -> dict[str, Any]:
    """Return random samples, packed into one sequence by speculators' own collation."""
    from speculators.models.eagle3.data import shift_batch
    from speculators.train.data import CollateFn

    hidden, length = target["hidden_size"], args.length + 1  # the shift drops a token of each
    samples = [
        {
            "hidden_states": torch.randn(length, 3 * hidden, dtype=dtype),
            "verifier_last_hidden_states": torch.randn(length, hidden, dtype=dtype),
            "input_ids": torch.randint(3, target["vocab_size"], (length,)),
            "loss_mask": torch.arange(length) >= 16,
            "lengths": torch.tensor([length]),
            "position_ids": torch.arange(length),
        }
        for _ in range(args.batch_tokens // args.length)
    ]
    batch = CollateFn(args.batch_tokens, hidden, dtype=dtype, preprocess=shift_batch)(samples)
    return {key: each.to(args.device) if isinstance(each, torch.Tensor) else each for key, each in batch.items()}
