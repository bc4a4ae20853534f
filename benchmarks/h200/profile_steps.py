"""Where a steady step's time goes on the device, from a trace of torch.profiler.

Kernels overlap: one that depends on another is launched before that one has ended, and waits on the device. Its own
time is therefore counted from when the kernels before it have ended; own times add up to the time in which anything
runs. Tracing costs time itself: `ms_step` is measured without it, just before.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from clock import Frontend

__all__ = ["Span", "as_table", "profile_steps", "summarise"]

Span = tuple[float, float, str]
"""Start and end on the device in microseconds, and a kernel's name."""

_DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")


def profile_steps(engine: Frontend, prompts: list[list[int]], max_tokens: int, *, num_steps: int) -> dict[str, Any]:
    """Run a batch to its steady part, then time and trace `num_steps` steps each; the batch is finished afterwards."""
    for i, prompt in enumerate(prompts):
        engine.add(f"profile-{i}", prompt, max_tokens)
    started, ended = set[str](), 0

    def step() -> None:
        nonlocal ended
        for request, count, done in engine.step():
            if count:
                started.add(request)
            ended += done

    while len(started) < len(prompts):
        step()
    for _ in range(5):
        step()
    start = time.perf_counter()
    for _ in range(num_steps):
        step()
    ms_step = 1e3 * (time.perf_counter() - start) / num_steps
    spans, traced_ms = _trace(step, num_steps)
    was_steady = not ended
    while ended < len(prompts):
        step()
    return {"ms_step": round(ms_step, 4), "ms_step_traced": round(traced_ms, 4), "steady": was_steady} | summarise(
        spans, num_steps
    )


def _trace(step: Any, num_steps: int) -> tuple[list[Span], float]:
    """Return what the device did in so many steps, and how long a step took."""
    on_gpu = torch.cuda.is_available()
    kind = torch.profiler.ProfilerActivity.CUDA if on_gpu else torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[kind]):  # the first trace of a process sets the tracer up
        step()
        _synchronize(on_gpu)
    with torch.profiler.profile(activities=[kind]) as profile:
        start = time.perf_counter()
        for _ in range(num_steps):
            step()
        _synchronize(on_gpu)  # so that the steps launched are the steps traced
        ms = 1e3 * (time.perf_counter() - start) / num_steps
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        trace = json.loads(path.read_text())
    kinds = _DEVICE_WORK if on_gpu else ("cpu_op",)
    events = (event for event in trace["traceEvents"] if event.get("cat") in kinds)
    return sorted((event["ts"], event["ts"] + event["dur"], _label(event)) for event in events), ms


def _label(event: dict[str, Any]) -> str:
    """Return a kernel's short name and its grid, which tells one product from another."""
    grid = event.get("args", {}).get("grid")
    return short_name(event["name"]) + (f" {'x'.join(map(str, grid))}" if grid else "")


def _synchronize(on_gpu: bool) -> None:
    if on_gpu:
        torch.cuda.synchronize()


def summarise(spans: Iterable[Span], num_steps: int) -> dict[str, Any]:
    """Return kernels by own time, their number and sums in a step, and how long the device had nothing to do."""
    spans = list(spans)
    if not spans:
        return {"kernels_per_step": 0, "launched_ms_per_step": 0.0, "busy_ms_per_step": 0.0, "idle_share": None}
    by_name: dict[str, list[float]] = defaultdict(list)
    gaps: dict[str, list[float]] = defaultdict(list)
    busy, frontier, before = 0.0, spans[0][0], ""
    for start, end, name in spans:
        if before and start > frontier:
            gaps[f"{before} -> {name}"].append(start - frontier)
        own = max(0.0, end - max(start, frontier))
        by_name[name].append(own)
        busy += own
        if end > frontier:
            frontier, before = end, name
    whole = frontier - spans[0][0]
    return {
        "kernels_per_step": round(len(spans) / num_steps, 1),
        "launched_ms_per_step": round(sum(end - start for start, end, _ in spans) / 1e3 / num_steps, 4),
        "busy_ms_per_step": round(busy / 1e3 / num_steps, 4),
        "span_ms_per_step": round(whole / 1e3 / num_steps, 4),
        "idle_share": round(1 - busy / whole, 4),
        "top": _ranked(by_name, num_steps, 30),
        "gaps": _ranked(gaps, num_steps, 12),
    }


def _ranked(durations: dict[str, list[float]], num_steps: int, most: int) -> list[dict[str, Any]]:
    ranked = sorted(durations.items(), key=lambda item: -sum(item[1]))[:most]
    return [
        {
            "name": name,
            "calls_per_step": round(len(each) / num_steps, 2),
            "ms_per_step": round(sum(each) / 1e3 / num_steps, 4),
            "us_each": round(sum(each) / len(each), 2),
        }
        for name, each in ranked
    ]


def short_name(name: str) -> str:
    """Return a kernel's name without return type, arguments and the middle of long template parameters."""
    name = re.sub(r"^void |\(anonymous namespace\)::|std::", "", name)
    depth = 0
    for at, letter in enumerate(name):
        if letter == "(" and depth == 0:
            name = name[:at]
            break
        depth += (letter in "<(") - (letter in ">)")
    return name if len(name) <= 90 else name[:60] + "..." + name[-27:]


def as_table(profile: dict[str, Any]) -> str:
    """Return a profile as text."""
    lines = [
        f"{profile['ms_step']:.3f} ms a step ({profile['ms_step_traced']:.3f} while traced); a step has "
        f"{profile['kernels_per_step']} kernels and {profile['busy_ms_per_step']:.3f} ms in which any of them runs; "
        f"idle {profile['idle_share']}"
    ]
    for title, key in (("kernels, own time", "top"), ("nothing runs between", "gaps")):
        lines.append(f"{'ms/step':>9} {'calls':>7} {'us each':>8}  {title}")
        lines += [
            f"{row['ms_per_step']:9.4f} {row['calls_per_step']:7.1f} {row['us_each']:8.2f}  {row['name']}"
            for row in profile.get(key, ())[: 24 if key == "top" else 8]
        ]
    return "\n".join(lines)
