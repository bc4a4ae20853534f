"""Statistics of a workload: how many prompts, how long, how they arrive."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from draftwise.core import Workload
from draftwise.workloads.lengths import EstimatedTokens, Tokens
from draftwise.workloads.reshape import prompt_length

__all__ = ["Lengths", "WorkloadProfile", "profile_workload"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Percentiles of lengths in tokens."""

    p50: float
    p90: float
    most: int

    @classmethod
    def of(cls, values: list[int]) -> Lengths:
        """Return those of a list that is not empty."""
        p50, p90 = np.percentile(values, (50, 90))
        return cls(p50=float(p50), p90=float(p90), most=max(values))

    def __str__(self) -> str:
        return f"P50 {self.p50:.0f}, P90 {self.p90:.0f}, at most {self.most}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadProfile:
    """What a workload is, in numbers."""

    prompts: int
    distinct: int
    """Prompts that differ in what they send."""
    chats: int
    prompt_tokens: Lengths
    output_tokens: Lengths
    """Of `max_tokens`: what answers reach where they are forced, and never pass where they are not."""
    forced: int
    """Prompts whose answers go on to `max_tokens`."""
    span_s: float | None
    """From the first recorded arrival to the last; None without recorded arrivals."""
    rate_per_s: float | None
    burstiness: float | None
    """Standard deviation over mean of the gaps between arrivals: 1 for a Poisson process, 0 for equal gaps."""
    counting: str
    """How tokens were counted."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values, by the names of the fields."""
        return asdict(self)

    def __str__(self) -> str:
        kind = {0: "texts", self.prompts: "chats"}.get(self.chats, f"prompts ({self.chats} chats)")
        parts = [
            f"{self.prompts} {kind}",
            f"prompt tokens {self.prompt_tokens}",
            f"output tokens {self.output_tokens}" + (" (forced)" if self.forced == self.prompts else ""),
        ]
        if self.distinct < self.prompts:
            parts.insert(1, f"{self.distinct} distinct")
        if self.rate_per_s is not None:
            parts.append(f"{self.rate_per_s:.3g} arrivals/s over {self.span_s:.0f} s, burstiness {self.burstiness:.2f}")
        return "; ".join((*parts, self.counting))


def profile_workload(workload: Workload, tokens: Tokens | None = None) -> WorkloadProfile:
    """Return the statistics of a workload that has prompts; without `tokens`, lengths are estimated."""
    tokens = tokens or EstimatedTokens()
    prompts = workload.prompts
    arrivals = sorted(prompt.arrival_s for prompt in prompts if prompt.arrival_s is not None)
    span = arrivals[-1] - arrivals[0] if len(arrivals) == len(prompts) > 2 else 0.0
    gaps = np.array([later - earlier for earlier, later in pairwise(arrivals)])
    return WorkloadProfile(
        prompts=len(prompts),
        distinct=len(prompts) - workload.num_repeats,
        chats=sum(bool(prompt.messages) for prompt in prompts),
        prompt_tokens=Lengths.of([prompt_length(prompt, tokens) for prompt in prompts]),
        output_tokens=Lengths.of([prompt.max_tokens for prompt in prompts]),
        forced=sum(prompt.ignore_eos for prompt in prompts),
        span_s=span or None,
        rate_per_s=len(gaps) / span if span else None,
        burstiness=float(gaps.std() / gaps.mean()) if span else None,
        counting=tokens.note,
    )
