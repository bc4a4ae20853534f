"""Reads the counters that matter to a measurement out of Prometheus text."""

from __future__ import annotations

import re
from collections import defaultdict

from draftwise.core import Counters, SpecStats
from draftwise.facts.metrics import (
    SPEC_NUM_ACCEPTED_TOKENS,
    SPEC_NUM_ACCEPTED_TOKENS_PER_POS,
    SPEC_NUM_DRAFT_TOKENS,
    SPEC_NUM_DRAFTS,
    get_metric,
)

__all__ = ["parse_counters"]

_SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)", re.MULTILINE)
_POSITION = re.compile(r'\bposition="(\d+)"')


def parse_counters(text: str) -> Counters:
    """Return the counters of a server's /metrics, summed over its engines; absent ones are None or zero."""
    totals: dict[str, int] = defaultdict(int)
    per_pos: dict[int, int] = defaultdict(int)
    for sample in _SAMPLE.finditer(text):
        name, value = sample["name"], int(float(sample["value"])) if sample["name"].endswith("_total") else 0
        totals[name] += value
        position = _POSITION.search(sample["labels"] or "")
        if name == SPEC_NUM_ACCEPTED_TOKENS_PER_POS.sample and position:
            per_pos[int(position[1])] += value

    def find(name: str) -> int | None:
        return totals.get(get_metric(name).sample)

    return Counters(
        spec=SpecStats(
            num_drafts=totals.get(SPEC_NUM_DRAFTS.sample, 0),
            num_draft_tokens=totals.get(SPEC_NUM_DRAFT_TOKENS.sample, 0),
            num_accepted_tokens=totals.get(SPEC_NUM_ACCEPTED_TOKENS.sample, 0),
            accepted_per_pos=tuple(per_pos.get(i, 0) for i in range(max(per_pos, default=-1) + 1)),
        ),
        generation_tokens=find("generation_tokens"),
        prefix_queries=find("prefix_cache_queries"),
        prefix_hits=find("prefix_cache_hits"),
    )
