"""Records what a rehearsal and then random steps would launch on a GPU; run as a program, for Triton without a GPU.

Tensors of the CPU stand for those of a GPU: nothing is launched, so nobody looks at them. Prints for each engine the
kernels of the rehearsal, and those that only the random steps need, which a server would compile while requests wait.

Arguments: folder of the target, engine settings as JSON, and for each engine its speculative config as JSON or an empty
text.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any

import launch_without_gpu  # noqa: F401  (puts its driver in the place of a GPU's)
import torch
from torch import Tensor

from draftwise import SamplingParams
from draftwise.core import SpecConfig
from draftwise.engine.compilers import CompileJob
from draftwise.engine.core import Engine
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.kernels.cuda import CudaKernels, matmul, sampling
from draftwise.engine.kernels.cuda.compile_ahead import recording
from draftwise.engine.models import causal_lm, draft_head
from draftwise.engine.proposers import dflash, ngram
from draftwise.engine.rehearsal import Rehearsal
from draftwise.engine.sampling import tempering, verify
from draftwise.engine.step import launched
from draftwise.engine.step.scheduler import Chunk

STEPS = 6
KINDS = (
    *(SamplingParams(temperature=t, top_k=k) for t, k in ((0, 0), (1, 0), (1, 5))),
    SamplingParams(temperature=1, top_p=0.5, logprobs=2, presence_penalty=0.5),
)


class Readback:
    """Stands for a copy on its way from the device."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors


def pretend() -> None:
    """Let the engine take tensors of the CPU for those of an H200."""
    torch.Tensor.is_cuda = property(lambda self: True)
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(multi_processor_count=132, major=9, total_memory=0)
    launched.Readback = Readback
    tempering.kernels_for = verify.kernels_for = lambda logits: sampling
    for module in (causal_lm, draft_head, dflash):
        module.make_kernels = lambda shape, rope, *, eps, dtype, device: CudaKernels(shape, rope, eps, dtype)
    library: Any = lambda x, weight, bias, scale: x.new_empty(len(x), len(weight))  # noqa: E731
    matmul._library_matmul = library
    ngram.torch = SimpleNamespace(**{**vars(torch), "device": lambda name: SimpleNamespace(type="cuda")})


def run_random_steps(rehearsal: Rehearsal, engine: Engine, rng: random.Random) -> None:
    """Run steps as requests make them: prompts of all lengths, and as many decoding as there may be."""
    config = engine.config
    for _ in range(STEPS):
        room, lengths = config.max_num_batched_tokens, list[int]()
        for _ in range(rng.randint(1, config.max_num_seqs)):
            length = rng.choice((rng.randint(1, 5), rng.randint(1, 70), rng.randint(1, config.max_model_len - 2)))
            if length <= room:
                lengths.append(length)
                room -= length
        for params in KINDS:
            rehearsal._prefill(lengths, params)
        count = rng.randint(1, config.max_num_seqs)
        rehearsal._prefill([rng.randint(1, 9)] * count, KINDS[0])
        k = engine.spec.k_for(count) if engine.spec else 0
        for params in KINDS:
            rehearsal._run([], [rehearsal._sequence(slot, 1, params) for slot in range(count)], k)
        count = min(count, config.max_num_seqs - 1)
        room = config.max_num_batched_tokens - count * (k + 1)
        lengths = [length for length in lengths[: config.max_num_seqs - count] if length <= room // config.max_num_seqs]
        for params in KINDS if count else ():
            made = [rehearsal._sequence(count + i, length, params) for i, length in enumerate(lengths or [1])]
            chunks = [Chunk(sequence, 0, len(sequence.tokens)) for sequence in made]
            rehearsal._run(chunks, [rehearsal._sequence(slot, 1, params) for slot in range(count)], k)


def main() -> None:
    target, settings, *specs = sys.argv[1:]
    pretend()
    config = EngineConfig.from_settings(model=target, device="cpu", dtype="bfloat16", **json.loads(settings))
    print(json.dumps([record(config, spec) for spec in specs]))


def record(config: EngineConfig, spec: str) -> dict[str, Any]:
    """Return the kernels of the rehearsal, how many jobs the random steps made, and which of these are new."""
    engine = Engine(config, SpecConfig.parse(spec) if spec else None, lag=1)
    rehearsed: list[CompileJob] = []
    later: list[CompileJob] = []
    with recording(rehearsed.append):
        Rehearsal(engine).run(briefly=True)
    with recording(later.append):
        run_random_steps(Rehearsal(engine), engine, random.Random(3))
    missed = [f"{job.name} {json.loads(job.form)['key']}" for job in later if job not in rehearsed]
    return {"rehearsed": Counter(job.name for job in rehearsed), "later": len(later), "missed": missed}


if __name__ == "__main__":
    main()
