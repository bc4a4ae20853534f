"""Profiles a workload in numbers, and judges whether it can support the intended conclusions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np

from draftwise.core import Finding, InvalidSetup, Prompt, Workload
from draftwise.knowledge.messages import fault, note, warning
from draftwise.workloads.reshape import list_texts, prompt_length
from draftwise.workloads.text_lengths import EstimatedTokens, ExactTokens, Tokens, find_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Percentiles of lengths in tokens."""

    p50: float
    p90: float
    most: int

    @classmethod
    def of(cls, values: list[int]) -> Lengths:
        """Return the percentiles of a list that is not empty."""
        p50, p90 = np.percentile(values, (50, 90))
        return cls(p50=float(p50), p90=float(p90), most=max(values))

    def __str__(self) -> str:
        return f"P50 {self.p50:.0f}, P90 {self.p90:.0f}, at most {self.most}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadProfile:
    """Statistics of a workload."""

    prompts: int
    distinct: int
    """Number of distinct prompts."""
    chats: int
    prompt_tokens: Lengths
    output_tokens: Lengths
    """Lengths of `max_tokens`: forced answers reach it, other answers never exceed it."""
    forced: int
    """Number of prompts whose answers continue to `max_tokens`."""
    span_s: float | None
    """Seconds from the first recorded arrival to the last; None without recorded arrivals."""
    rate_per_s: float | None
    burstiness: float | None
    """Standard deviation over mean of the gaps between arrivals: 1 for a Poisson process, 0 for equal gaps."""
    counting: str
    """How tokens were counted."""

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
    """Return the statistics of a workload with prompts; without `tokens`, lengths are estimated."""
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


def report_left_out(workloads: Iterable[Workload]) -> Iterator[Finding]:
    """Yield a finding for each workload whose log has rows that are not used."""
    for each in workloads:
        if each.unread:
            yield warning("rows-left-out", name=each.name, rows=each.left_out)
        elif each.left_out:
            yield note("rows-left-out", name=each.name, rows=each.left_out)


_MOST_CHARS_A_TOKEN = 1024
"""No known vocabulary has a token of this many characters; the longest are runs of a few hundred spaces."""
_ENOUGH = 8
"""Characters per token of the context that are counted of a text: they hold more tokens than fit, or it may fit."""
_MOST_COUNTED = 2_000_000
"""Characters to count in all, about 3 s, from the longest prompts on; the server refuses what is left."""


def keep_fitting(workload: Workload, context: int, tokenizer: Path | None) -> tuple[Workload, str]:
    """Return a workload without the prompts that cannot fit into a server's context, and a sentence about those.

    The sentence is empty if all may fit.

    Args:
        workload: its prompts; one whose tokens are not counted stays.
        context: tokens of prompt and answer, as the server tells.
        tokenizer: tokenizer.json, or the folder of a model. If it cannot be read, only the characters decide.

    Raises:
        InvalidSetup: none fits.
    """
    longest = sorted(((sum(map(len, list_texts(each))), each) for each in workload.prompts), key=lambda pair: -pair[0])
    tokens = find_tokens(None, hint=tokenizer) if longest[0][0] >= context else EstimatedTokens()
    counted = accumulate(min(chars, _ENOUGH * context) for chars, _ in longest)
    gone = {
        prompt.id
        for (chars, prompt), so_far in zip(longest, counted, strict=True)
        if chars > _MOST_CHARS_A_TOKEN * context
        or (
            isinstance(tokens, ExactTokens)
            and chars >= context
            and so_far <= _MOST_COUNTED
            and _count_beginning(prompt, _ENOUGH * context, tokens) >= context
        )
    }
    if not gone:
        return workload, ""
    kept = tuple(each for each in workload.prompts if each.id not in gone)
    ids = [each.id for each in workload.prompts if each.id in gone]
    more = f" and {len(ids) - _SHOWN:,} more" if len(ids) > _SHOWN else ""
    text = (
        f"{len(gone):,} of {len(workload.prompts):,} prompts do not fit into the server's context of {context:,} "
        f"tokens: {', '.join(ids[:_SHOWN])}{more}"
    )
    if not kept:
        raise InvalidSetup.because("empty-workload", f"{text}.", where=workload.name)
    fitting = replace(
        workload,
        prompts=kept,
        description="; ".join(filter(None, (workload.description, text))),
        left_out="; ".join(filter(None, (workload.left_out, text))),
        population=round(workload.population * len(kept) / len(workload.prompts)),
    )
    return fitting, text


def _count_beginning(prompt: Prompt, chars: int, tokens: Tokens) -> int:
    """Return the tokens of the first `chars` characters of a prompt's texts."""
    total = 0
    for text in list_texts(prompt):
        total += tokens.count(text[: max(0, chars)])
        chars -= len(text)
    return total


_SHOWN = 10
"""Prompts that are named of those that are left out."""
_RANDOM_SOURCE = (
    "vllm-project/vllm#33497 (low MTP acceptance, measured with `--dataset-name random`); "
    "SPEED-Bench, arXiv 2604.09557 (random tokens overstate throughput by some 23 %)"
)
_REPEATED = 0.1
"""Share of repeated prompts from which a cache of earlier texts is worth a warning."""


def check_workloads(
    workloads: Sequence[Workload], *, measures_acceptance: bool, needs_arrivals: bool = False
) -> list[Finding]:
    """Return findings about workloads that cannot be measured as planned.

    Args:
        workloads: the workloads to send.
        measures_acceptance: whether the prompts decide acceptance: false if acceptance is synthetic
            (`rejection_sample_method: synthetic`), or if the workloads only load the server.
        needs_arrivals: whether recorded arrival times are replayed.
    """
    return [
        finding
        for workload in workloads
        for finding in _check(workload, measures_acceptance=measures_acceptance, needs_arrivals=needs_arrivals)
    ]


def _check(workload: Workload, *, measures_acceptance: bool, needs_arrivals: bool) -> Iterator[Finding]:
    yield from report_left_out([workload])
    if workload.random_tokens and measures_acceptance:
        yield fault("random-tokens", name=workload.name, paper=_RANDOM_SOURCE)
    if needs_arrivals and any(prompt.arrival_s is None for prompt in workload.prompts):
        yield fault("no-arrivals", case="workload", name=workload.name)
    repeated = workload.num_repeats
    if measures_acceptance and repeated > _REPEATED * len(workload.prompts):
        yield warning("repeated-prompts", repeated=repeated, prompts=len(workload.prompts), name=workload.name)
