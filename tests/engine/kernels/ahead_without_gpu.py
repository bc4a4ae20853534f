"""Records kernels, compiles them in other processes and launches them here; run as a program, for Triton without a GPU.

Prints how many kernels were recorded, which could not be compiled ahead, and for each launch afterwards whether its
kernel was there. With `again` nothing is recorded.
"""

from __future__ import annotations

import json
import sys

import launch_without_gpu  # noqa: F401  (puts its driver in the place of a GPU's)
import torch
import triton

from draftwise.engine.compilers import CompileJob, Compilers
from draftwise.engine.kernels.cuda import layer
from draftwise.engine.kernels.cuda.compile_ahead import note_late_compilations, prepare, recording
from draftwise.engine.kernels.cuda.matmul import run_matmul
from draftwise.engine.kernels.cuda.matmul_configs import Config
from draftwise.engine.kernels.cuda.sampling import argmax_rows

WAY = Config(outputs=64, columns=64, fold=1, stages=3)


def launch(width: int) -> torch.Tensor:
    """Launch a kernel of each kind: `Kernel`, Triton's own, and Gluon's with descriptors of matrices."""
    x, weights = torch.zeros(4, width, dtype=torch.bfloat16), torch.zeros(128, width, dtype=torch.bfloat16)
    layer.add_norm(x, None, weights[0], None, 1e-5)
    run_matmul(WAY, x, weights)
    return argmax_rows(x)


def main(again: bool) -> None:
    jobs: list[CompileJob] = []
    failed: list[str] = []
    prepare()
    if not again:
        with recording(jobs.append), torch.inference_mode():
            made = launch(256)
            assert not made.any(), "what a kernel would have written is zero"
            launch(256)
        with Compilers(2) as compilers:
            for job in jobs:
                compilers.begin(job)
            failed = compilers.finish()
    found: list[tuple[str, bool]] = []
    triton.knobs.compilation.listener = lambda *, src, cache_hit, **_: found.append((src.name, cache_hit))
    launch(256)
    note_late_compilations()
    if not again:
        layer.add_norm(torch.zeros(4, 64), None, torch.zeros(64), None, 1e-5)
    print(json.dumps({"jobs": sorted(job.name for job in jobs), "failed": failed, "found": found}))


if __name__ == "__main__":
    main("again" in sys.argv)
