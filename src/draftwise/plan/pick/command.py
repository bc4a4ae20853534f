"""The command that measures a recommendation, to paste into a terminal."""

from __future__ import annotations

import shlex

from draftwise.core import Setup
from draftwise.plan.pick.requirements import Traffic

__all__ = ["decide_command"]


def decide_command(setup: Setup, traffic: Traffic) -> str:
    """Return the `draftwise decide` line that compares a setup with its baseline on the operator's own prompts."""
    words = ["draftwise", "decide", "--url", "http://plain:8000", "--candidate-url", "http://speculating:8000"]
    if setup.spec is not None:
        words += ["--candidate", setup.spec.to_json()]
    words += ["--workload", "prompts.jsonl", "--temperature", f"{traffic.temperature:g}"]
    words += ["--concurrency", str(traffic.concurrency)]
    for flag, seconds in (("--slo-ttft-ms", traffic.slo_ttft_s), ("--slo-tpot-ms", traffic.slo_tpot_s)):
        if seconds is not None:
            words += [flag, f"{1e3 * seconds:g}"]
    return shlex.join(words)
