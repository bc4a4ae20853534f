"""Partitions that share nothing but barriers: does racecheck see races in what Triton adds to `warp_specialize`?

    python benchmarks/h200/sanitize.py --parts partitions

Called with `sums` each partition adds numbers up, which takes barriers of its own threads; with `ring` they wait for
each other; with `nothing` neither. `--registers` is what a thread of the second and third partition may use. Says how
many of the blocks wrote what they should not have.
"""

from __future__ import annotations

import argparse

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

_SPREAD = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


@gluon.jit
def _take(out_ptr, full, free, count, WHAT: gl.constexpr, PART: gl.constexpr):
    total = 0
    for i in range(count):
        if WHAT == "ring":
            mbarrier.wait(full.index(0), i & 1)
            mbarrier.arrive(free.index(0), count=1)
        if WHAT == "sums":
            total += gl.sum(gl.arange(0, 256, layout=_SPREAD) + i, 0)
    gl.store(out_ptr + 3 * gl.program_id(0) + PART, count + total)


@gluon.jit
def _give(out_ptr, full, free, count, WHAT: gl.constexpr):
    for i in range(count):
        if WHAT == "ring":
            mbarrier.wait(free.index(0), (i & 1) ^ 1)
            mbarrier.arrive(full.index(0), count=1)
    gl.store(out_ptr + 3 * gl.program_id(0) + 2, count)


@gluon.jit
def specialize(out_ptr, count, WHAT: gl.constexpr, REGISTERS: gl.constexpr):
    """Write what two partitions of four warps and one of one warp counted; out [blocks, 3], int32."""
    full = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    mbarrier.init(full.index(0), count=1)
    mbarrier.init(free.index(0), count=2)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_take, (out_ptr, full, free, count, WHAT, 0)),
            (_take, (out_ptr, full, free, count, WHAT, 1)),
            (_give, (out_ptr, full, free, count, WHAT)),
        ],
        [4, 1],
        [REGISTERS, REGISTERS],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("nothing", "sums", "ring"))
    parser.add_argument("--registers", type=int, default=24)
    parser.add_argument("--launches", type=int, default=20)
    args = parser.parse_args()
    total = sum(sum(range(256)) + 256 * i for i in range(3)) if args.what == "sums" else 0
    right = torch.tensor([3 + total, 3 + total, 3], dtype=torch.int32, device="cuda")
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(args.launches):
        out = torch.zeros(64, 3, dtype=torch.int32, device="cuda")
        specialize[(64,)](out, 3, WHAT=args.what, REGISTERS=args.registers, num_warps=4)
        wrong += (out != right).any(1).sum()
    print(f"{int(wrong)} of {64 * args.launches} blocks are wrong")


if __name__ == "__main__":
    main()
