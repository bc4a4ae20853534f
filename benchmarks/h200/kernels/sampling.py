"""Times what follows the logits on one GPU: argmax, draws, truncation and whole verification, Triton against torch.

Each case is first compared with the plain torch code on the same tensors, then timed in CUDA graphs of several calls.
Logits stay where the head's product would have left them: in the L2 cache while they fit.

    PYTHONPATH=src python benchmarks/h200/kernels/sampling.py --out sampling.json

Shape letters: B sequences, S rows of logits a sequence, K draft tokens, R = B * S, V vocabulary.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from draftwise.engine.kernels.cuda import launch
from draftwise.engine.kernels.cuda import sampling as kernels
from draftwise.engine.sampling import tempering as sampling
from draftwise.engine.sampling import verify
from draftwise.engine.sampling.acceptance import Standard, Synthetic, place
from draftwise.engine.sampling.draft import Draft
from draftwise.engine.sampling.params import SamplingParams
from draftwise.engine.sampling.random import Lane
from draftwise.engine.sampling.tempering import Tempering

VOCABULARIES, ROWS, NUM_DRAFTED = (128256, 32000), (1, 4, 8, 32, 256, 512), 3
SETTINGS = {
    "greedy": SamplingParams(temperature=0),
    "temperature": SamplingParams(temperature=0.8),
    "top-p": SamplingParams(temperature=0.8, top_p=0.9),
    "top-k": SamplingParams(temperature=0.8, top_k=50),
}
DEVICE = torch.device("cuda")


@contextmanager
def plain_torch() -> Iterator[None]:
    """Let the engine's functions do without their Triton kernels."""
    with (
        mock.patch.object(sampling, "kernels_for", return_value=None),
        mock.patch.object(verify, "kernels_for", return_value=None),
    ):
        yield


@contextmanager
def without_pdl() -> Iterator[None]:
    """Let every kernel start after its predecessor has ended."""
    with mock.patch.dict(os.environ, DRAFTWISE_PDL="0"):
        launch.pdl.cache_clear()
        yield
    launch.pdl.cache_clear()


class Inputs:
    """One batch: random logits with some ties, drafts of which about half are right."""

    def __init__(self, num_rows: int, vocab_size: int, settings: str, *, dtype: torch.dtype = torch.bfloat16) -> None:
        self.rows = 1 if num_rows < NUM_DRAFTED + 1 else NUM_DRAFTED + 1
        num_seqs = num_rows // self.rows
        generator = torch.Generator(DEVICE).manual_seed(num_rows + vocab_size)
        logits = torch.randn(num_seqs, self.rows, vocab_size, device=DEVICE, generator=generator) * 3
        self.logits_BSV = logits.to(dtype)
        params = [SETTINGS[settings]] * num_seqs
        self.tempering = Tempering.of(params, DEVICE)
        self.seeds_B = torch.randint(0, 2**62, (num_seqs,), device=DEVICE, generator=generator)
        self.positions_B = torch.randint(0, 4096, (num_seqs,), device=DEVICE, generator=generator)
        guesses_BK = torch.randint(0, vocab_size, (num_seqs, self.rows - 1), device=DEVICE, generator=generator)
        right_BK = torch.rand(guesses_BK.shape, device=DEVICE, generator=generator) < 0.5
        tokens_BK = torch.where(right_BK, self.draw()[:, :-1], guesses_BK)
        self.draft = Draft(tokens_BK=tokens_BK, lengths_B=torch.full_like(self.seeds_B, self.rows - 1))

    def with_probabilities(self) -> Inputs:
        """Give the draft's tokens probabilities not far from the target's."""
        near_BKV = self.logits_BSV[:, :-1].float() + torch.randn_like(self.logits_BSV[:, :-1].float())
        self.draft = replace(self.draft, probs_BKV=near_BKV.softmax(-1))
        return self

    def argmax(self) -> Tensor:
        return sampling.argmax(self.logits_BSV)

    def draw(self) -> Tensor:
        if self.tempering.all_greedy:
            return self.argmax()
        counters = {"seeds_B": self.seeds_B, "positions_B": self.positions_B, "lane": Lane.TOKEN}
        return sampling.sample(self.logits_BSV, self.tempering, **counters)

    def find_floors(self) -> Tensor:
        return sampling.find_floors(self.logits_BSV, self.tempering)

    def verify(self, rule: Any) -> Tensor:
        return verify.verify(
            self.logits_BSV,
            self.draft,
            tempering=self.tempering,
            seeds_B=self.seeds_B,
            positions_B=self.positions_B,
            acceptance=rule,
        ).tokens_BS


def microseconds(call: Callable[[], Any]) -> float:
    """Return the median time of a call, in graphs that hold enough of them."""
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        call()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        num_calls = max(1, min(20, int(20 / max(start.elapsed_time(end), 0.1))))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(num_calls):
                call()
        graph.replay()
        times = []
        for _ in range(5):
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) * 1000 / num_calls)
    return statistics.median(times)


def cases(num_rows: int, vocab_size: int) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Yield what is timed: a name, and a call that gives tokens (or floors)."""
    batch = {name: Inputs(num_rows, vocab_size, name) for name in SETTINGS}
    coins = place(Synthetic(rates=tuple(0.6914**i for i in range(1, NUM_DRAFTED + 1))), DEVICE)
    yield "argmax", batch["greedy"].argmax
    yield "draw", batch["temperature"].draw
    yield "floors top-p", batch["top-p"].find_floors
    yield "floors top-k", batch["top-k"].find_floors
    yield "verify greedy", lambda: batch["greedy"].verify(Standard())
    yield "verify synthetic", lambda: batch["greedy"].verify(coins)
    yield "verify temperature", lambda: batch["temperature"].verify(Standard())
    yield "verify top-p", lambda: batch["top-p"].verify(Standard())
    if num_rows > NUM_DRAFTED:
        batch["probabilities"] = Inputs(num_rows, vocab_size, "temperature").with_probabilities()
        yield "verify probabilities", lambda: batch["probabilities"].verify(Standard())


def compare(call: Callable[[], Tensor]) -> tuple[bool, float]:
    """Return whether Triton and torch agree well enough, and the share of values in which they differ."""
    got = call()
    with plain_torch():
        expected = call()
    share = (got != expected).double().mean().item()
    close = torch.allclose(got, expected, rtol=1e-5, atol=1e-5) if got.dtype == torch.float32 else False
    # Logarithms and sums may be rounded otherwise, which moves a draw once in a great many.
    return bool(close or share <= 0.005), share


def check_ties_and_types() -> list[dict[str, Any]]:
    """Compare the kernels on awkward logits: ties, -inf, a signed zero, few and odd columns."""
    rows = []
    for dtype in (torch.bfloat16, torch.float32):
        for vocab_size in (37, 50257, 262144):
            logits = torch.randint(-3, 3, (7, vocab_size), device=DEVICE).to(dtype)
            logits[1] = -0.0
            logits[1, vocab_size // 2 :] = 0.0
            logits[2] = -torch.inf
            logits[2, -1] = -5
            # The lowest index among equals, which torch's argmax on CUDA does not promise.
            best = logits == logits.amax(-1, keepdim=True)
            expected = torch.where(best, torch.arange(vocab_size, device=DEVICE), vocab_size).amin(-1)
            passed = torch.equal(kernels.argmax_rows(logits), expected)
            rows.append({"case": f"argmax ties {dtype} V={vocab_size}", "passed": passed})
            logits = (torch.randn(5, 2, vocab_size, device=DEVICE) * 3).to(dtype)
            params = [SamplingParams(temperature=t) for t in (0, 0.3, 1, 1e-4, 2)]
            inputs = {"seeds_B": torch.arange(5, device=DEVICE), "positions_B": torch.arange(5, device=DEVICE) * 9}
            temperature_B = Tempering.of(params, DEVICE).temperature_B
            got = sampling.draw(logits, temperature_B, lane=Lane.DRAFT, **inputs)
            with plain_torch():
                expected = sampling.draw(logits, temperature_B, lane=Lane.DRAFT, **inputs)
            same_logits = logits.gather(2, got.unsqueeze(2)) == logits.gather(2, expected.unsqueeze(2))
            passed = bool(((got == expected) | (same_logits.squeeze(2) & (temperature_B == 0).unsqueeze(1))).all())
            rows.append({"case": f"draw {dtype} V={vocab_size}", "passed": passed})
    return rows


def measure(num_rows: int, vocab_size: int) -> Iterator[dict[str, Any]]:
    """Check and time every case of one size; a case that fails is reported and does not stop the others."""
    for name, call in cases(num_rows, vocab_size):
        row: dict[str, Any] = {"case": name, "rows": num_rows, "vocab": vocab_size}
        try:
            row["passed"], row["differ"] = compare(call)
            row["triton_us"] = microseconds(call)
            with plain_torch():
                row["torch_us"] = microseconds(call)
            if num_rows <= 4:
                with without_pdl():
                    row["no_pdl_us"] = microseconds(call)
        except Exception:
            row["passed"], row["error"] = False, traceback.format_exc()[-600:]
        yield row


def show(row: dict[str, Any]) -> None:
    """Print one line of the table."""
    times = [f"{name[:-3]} {row[name]:9.1f}" for name in ("triton_us", "torch_us", "no_pdl_us") if name in row]
    verdict = {True: "PASS", False: "FAIL"}.get(row.get("passed", ""), "")
    where = f"R {row.get('rows', '-'):>3} V {row.get('vocab', '-'):>6}"
    rest = f"differ {row['differ']:.4f}" if row.get("differ") else ""
    print(f"{row['case']:34} {where}  {'  '.join(times):52} {verdict} {rest}", flush=True)
    if "error" in row:
        print(row["error"], flush=True)


def main() -> None:
    """Run all of it, write the rows, print the table last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write all rows as JSON")
    arguments = parser.parse_args()
    began = time.perf_counter()
    rows = check_ties_and_types()
    for vocab_size in VOCABULARIES:
        for num_rows in ROWS:
            rows += measure(num_rows, vocab_size)
    for row in rows:
        if "rows" in row or not row["passed"]:
            show(row)
    if arguments.out:
        about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "pdl": launch.pdl()}
        arguments.out.write_text(json.dumps({"about": about, "rows": rows}, indent=1))
    num_failed = sum(row.get("passed") is False for row in rows)
    print(f"{len(rows)} rows, {num_failed} FAIL, microseconds a call, {time.perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    main()
