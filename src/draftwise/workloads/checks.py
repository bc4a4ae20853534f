"""Finds workloads that cannot carry the conclusion that is to be drawn from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from draftwise.core import Finding, Workload

__all__ = ["check_workloads"]

_RANDOM_SOURCE = (
    "vllm-project/vllm#33497 (low MTP acceptance, measured with `--dataset-name random`); "
    "SPEED-Bench, arXiv 2604.09557 (random tokens overstate throughput by some 23 %)"
)
_REPEATED = 0.1
"""Share of repeated prompts from which a cache of earlier texts is worth a warning."""


def check_workloads(
    workloads: Sequence[Workload], *, measures_acceptance: bool, needs_arrivals: bool = False
) -> list[Finding]:
    """Return what keeps these workloads from being measured as planned.

    Args:
        workloads: what is to be sent.
        measures_acceptance: whether drafts are judged by the prompts: false when the engine draws acceptance
            itself (`rejection_sample_method: synthetic`), or when nothing but load is wanted.
        needs_arrivals: whether recorded arrival times are to be replayed.
    """
    return [
        finding
        for workload in workloads
        for finding in _check(workload, measures_acceptance=measures_acceptance, needs_arrivals=needs_arrivals)
    ]


def _check(workload: Workload, *, measures_acceptance: bool, needs_arrivals: bool) -> Iterator[Finding]:
    if workload.random_tokens and measures_acceptance:
        yield Finding.error(
            "random-tokens",
            f"The prompts of {workload.name} are random tokens and say nothing about acceptance: what follows "
            "noise is noise or a loop, which no drafter meets in real traffic.",
            where=workload.name,
            fix="Use real prompts (--workload code, or a file of your own) or synthetic:source=code; random tokens "
            "serve for load, with acceptance drawn by the engine (rejection_sample_method synthetic).",
            source=_RANDOM_SOURCE,
        )
    if needs_arrivals and any(prompt.arrival_s is None for prompt in workload.prompts):
        yield Finding.error(
            "no-arrivals",
            f"{workload.name} holds no recorded arrival times to replay.",
            where=workload.name,
            fix="Give a log or a trace with a time in every row, or a rate (--rate) instead of a replay.",
        )
    repeated = workload.num_repeats
    if measures_acceptance and repeated > _REPEATED * len(workload.prompts):
        yield Finding.warning(
            "repeated-prompts",
            f"{repeated} of {len(workload.prompts)} prompts of {workload.name} repeat earlier ones: what a "
            "server remembers (prefix cache, suffix drafts) makes them faster than at the first time.",
            where=workload.name,
            fix="Fine if your traffic repeats itself as much; else leave the repetitions out.",
        )
