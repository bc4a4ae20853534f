"""Reads what matters to a measurement out of Prometheus text: counters of the work done, gauges of the load."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache

from draftwise.core import Counters, ServerLoad, SpecStats
from draftwise.facts.server_metrics import CACHE_CONFIG, get_server, read_server_metrics

__all__ = ["find_engine", "has_spec_counters", "parse_cache_tokens", "parse_counters", "parse_gauges", "parse_start"]

_POSITION = re.compile(r'\bposition="(\d+)"')
_START = re.compile(r"^process_start_time_seconds(?:\{[^}]*\})? (\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_RANK = re.compile(r'\b(?:tp|pp)_rank="(?!0")')
"""A copy of what rank 0 reports (SGLang, when all its schedulers export)."""


def parse_counters(text: str) -> Counters:
    """Return the counters of a server's /metrics, summed over its engines; absent ones are None or zero."""
    totals = _sum_up(text)
    per_pos = _sum_positions(text)
    return Counters(
        spec=SpecStats(
            num_drafts=int(totals.get("num_drafts", 0)),
            num_draft_tokens=int(totals.get("num_draft_tokens", 0)),
            num_accepted_tokens=int(totals.get("num_accepted_tokens", 0)),
            accepted_per_pos=tuple(per_pos.get(i, 0) for i in range(max(per_pos, default=-1) + 1)),
        ),
        generation_tokens=_whole(totals.get("generation_tokens")),
        prefix_queries=_whole(totals.get("prefix_queries")),
        prefix_hits=_whole(totals.get("prefix_hits")),
    )


def parse_start(text: str) -> float | None:
    """Return when the process started, in seconds since the epoch (a default of Prometheus' client libraries)."""
    found = _START.search(text)
    return None if found is None else _number([found[1]])


def parse_gauges(text: str) -> ServerLoad:
    """Return how loaded a server is: requests summed over its engines, KV use of the fullest one."""
    totals = _sum_up(text)
    return ServerLoad(running=totals.get("running"), waiting=totals.get("waiting"), kv_usage=_largest(text, "kv_usage"))


def find_engine(text: str) -> str | None:
    """Return the engine whose metrics these are; None where no sample of it is known."""
    known = read_server_metrics()
    names = (line.partition(" ")[0].partition("{")[0] for line in text.splitlines())
    return next((get_server(name) for name in names if name in known), None)


def has_spec_counters(text: str) -> bool:
    """Return whether the server counts drafts at all: vLLM does exactly when it was started to speculate."""
    return any(reading == "num_drafts" for reading, _, _, _ in _samples(text))


def parse_cache_tokens(text: str) -> int | None:
    """Return the tokens that vLLM's KV cache holds, summed over its engines: its config is the labels of a metric.

    Older releases tell blocks and their size only, which is more than the cache holds where layers differ in what they
    keep. None where it is not reported.
    """
    total = 0
    for line in text.splitlines():
        if line.startswith(CACHE_CONFIG):
            labels = dict(_LABEL.findall(line))
            given = labels.get("kv_cache_size_tokens", "None")
            blocks, size = (labels.get(name, "None") for name in ("num_gpu_blocks", "block_size"))
            if given.isdigit():
                total += int(given)
            elif blocks.isdigit() and size.isdigit():
                total += int(blocks) * int(size)
    return total or None


def _sum_up(text: str) -> dict[str, float]:
    """Return each reading's total, by the best of its names."""
    totals: dict[tuple[str, int], float] = defaultdict(float)
    for reading, rank, _, value in _samples(text):
        totals[reading, rank] += value
    return {reading: totals[reading, rank] for reading, rank in sorted(totals, reverse=True)}


def _largest(text: str, wanted: str) -> float | None:
    found = [(rank, -value) for reading, rank, _, value in _samples(text) if reading == wanted]
    return -min(found)[1] if found else None


def _sum_positions(text: str) -> dict[int, int]:
    per_pos: dict[int, int] = defaultdict(int)
    for reading, _, labels, value in _samples(text):
        if reading == "accepted_per_pos" and (position := _POSITION.search(labels)):
            per_pos[int(position[1])] += int(value)
    return per_pos


@lru_cache(maxsize=2)
def _samples(text: str) -> tuple[tuple[str, int, str, float], ...]:
    """Return reading, rank, labels and value of every sample that is known; one page is asked for several things."""
    return tuple(_read_samples(text))


def _read_samples(text: str) -> Iterator[tuple[str, int, str, float]]:
    """Yield the samples of `_samples`; damaged lines are passed over."""
    known = read_server_metrics()
    for line in text.splitlines():
        name = line.partition(" ")[0].partition("{")[0]
        if name in known:
            labels, _, rest = line[len(name) :].rpartition("}")
            value = _number(rest.split())
            if value is not None and not _RANK.search(labels):
                yield (*known[name], labels, value)


def _number(words: list[str]) -> float | None:
    """Return the value of a sample, which a timestamp may follow."""
    try:
        value = float(words[0])
    except (IndexError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
