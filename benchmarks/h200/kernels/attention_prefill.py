"""Causal attention of prompts on one GPU: the paged kernel beside what torch offers.

    python benchmarks/h200/kernels/attention_prefill.py --out attention_prefill.json

torch's kernels get keys and values that lie in order already; `gather` is what it costs to bring one layer's there.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from attention import DEVICE, SHAPES, Batch, attempt, brief, graph_us, make_batch, make_pool, reference
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from draftwise.engine.kernels.cuda.attention import Tiling

PROMPTS = ((1, 512, 512), (16, 512, 512), (1, 2048, 2048), (1, 512, 8192), (1, 2048, 24576), (1, 16384, 16384))
"""Sequences, new tokens of each, context."""


def prefill_tilings() -> list[Tiling]:
    def make(rows: int, keys: int, warps: int, stages: int) -> Tiling:
        return Tiling(rows=rows, keys=keys, warps=warps, stages=stages, splits=1)

    return [make(128, 64, 8, 3), make(64, 32, 4, 3)]


def contiguous(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return keys and values [1, G, B * T, D] of the first cache, gathered."""
    tokens = batch.caches[0].index_select(0, batch.table_BP.flatten().long()).flatten(0, 1)
    return tuple(tokens[:, i].transpose(0, 1).unsqueeze(0) for i in (0, 1))  # type: ignore[return-value]


def prefill_baselines(batch: Batch) -> dict[str, Callable[[int], Any]]:
    """Return what torch offers, on keys and values that lie in order already, and what it costs to bring them there."""
    num_seqs, chunk, start = len(batch.starts_B), batch.width, int(batch.starts_B[0])
    context = start + chunk
    k, v = contiguous(batch)
    k_BGTD, v_BGTD = (x[0].unflatten(1, (num_seqs, -1)).transpose(0, 1)[:, :, :context].contiguous() for x in (k, v))
    q_BACD = batch.q_NAD.unflatten(0, (num_seqs, chunk)).transpose(1, 2)
    flat_q, flat_k, flat_v = (
        batch.q_NAD,
        k_BGTD.transpose(1, 2).flatten(0, 1).contiguous(),
        v_BGTD.transpose(1, 2).flatten(0, 1).contiguous(),
    )
    ends_q, ends_k = (torch.arange(num_seqs + 1, device=DEVICE, dtype=torch.int32) * n for n in (chunk, context))

    def flash(_: int) -> Any:
        return torch.ops.aten._flash_attention_forward(
            flat_q, flat_k, flat_v, ends_q, ends_k, chunk, context, 0.0, True, False
        )

    def sdpa(backend: SDPBackend) -> Callable[[int], Any]:
        def call(_: int) -> Any:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q_BACD, k_BGTD, v_BGTD, is_causal=True, enable_gqa=True)

        return call

    def cudnn_two(_: int) -> Any:
        """The chunk's own keys and those before it by themselves, joined by their weights: exact."""
        op = torch.ops.aten._scaled_dot_product_cudnn_attention
        old, old_log, *_ = op(q_BACD, k_BGTD[:, :, :start], v_BGTD[:, :, :start], None, True, 0.0, False)
        new, new_log, *_ = op(q_BACD, k_BGTD[:, :, start:], v_BGTD[:, :, start:], None, True, 0.0, True)
        share = torch.sigmoid(old_log - new_log).to(old.dtype).view(*old.shape[:3], 1)
        return torch.lerp(new, old, share)

    found: dict[str, Callable[[int], Any]] = {"flash varlen": flash, "gather": lambda _: contiguous(batch)}
    if start == 0:
        found |= {"sdpa flash": sdpa(SDPBackend.FLASH_ATTENTION), "sdpa cudnn": sdpa(SDPBackend.CUDNN_ATTENTION)}
    else:
        found["cudnn in two"] = cudnn_two
    return found


def time_prefill(pool: Tensor, log: list[dict[str, Any]]) -> None:
    shape = SHAPES["8B"]
    for num_seqs, chunk, context in PROMPTS:
        start = context - chunk
        batch = make_batch(shape, [start] * num_seqs, [chunk] * num_seqs, chunk, pool)
        flops = num_seqs * 4 * shape.heads * shape.dim * (chunk * start + chunk * (chunk + 1) // 2)
        calls = attempt(lambda b=batch: prefill_baselines(b))
        calls = calls if isinstance(calls, dict) else {}
        want = attempt(lambda b=batch: reference(b, 0, True)[0])
        for tiling in [*prefill_tilings(), None]:
            name = brief(tiling) if tiling else "auto"
            calls[f"paged {name}"] = lambda i, t=tiling, b=batch: b.call(t, layer=i)
        times: dict[str, Any] = {}
        first_s = {}
        for name, call in calls.items():
            began = time.perf_counter()
            attempt(lambda c=call: (c(0), torch.cuda.synchronize()))
            first_s[name] = round(time.perf_counter() - began, 3)
            times[name] = attempt(lambda c=call, f=flops: graph_us(c, f / 400e12 * 1e6))
            got = attempt(lambda c=call, b=batch: first_output(c(0), b))
            if isinstance(got, Tensor) and isinstance(want, Tensor):
                error = float((got.double() - want).norm() / want.norm())
                if not error < 1e-2:
                    print(f"FAIL {name}: error {error:.2e}", flush=True)
                    times[f"{name} error"] = error
        log.append(
            {"seqs": num_seqs, "chunk": chunk, "context": context, "flops": flops, "us": times, "first_s": first_s}
        )
        print(f"prefill {num_seqs} x {chunk} of {context}:", flush=True)
        for name, us in times.items():
            text = (
                f"{us:8.1f} us {flops / us / 1e6:6.0f} TFLOP/s, first call {first_s.get(name)} s"
                if isinstance(us, float)
                else us
            )
            print(f"    {name:28} {text}", flush=True)


def first_output(result: Any, batch: Batch) -> Tensor | None:
    """Return the first sequence's output [C, A * D], whatever the layout; None for keys and values."""
    out = result[0] if isinstance(result, tuple) and len(result) > 2 else result
    if not isinstance(out, Tensor):
        return None
    if out.dim() == 4:
        return out[0].transpose(0, 1).flatten(1)
    return out[: batch.width].flatten(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    rows: list[dict[str, Any]] = []
    time_prefill(make_pool(), rows)
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
