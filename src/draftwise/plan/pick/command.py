"""A setup as lines to paste into a terminal."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from draftwise.core import Setup
from draftwise.plan.pick.requirements import Traffic

__all__ = ["decide_command", "serve_command", "to_json"]


def to_json(spec: Mapping[str, Any]) -> str:
    """Return a speculative config in one line, without spaces."""
    return json.dumps(dict(spec), separators=(",", ":"))


def serve_command(setup: Setup, *, line_per_flag: bool = False) -> str:
    """Return the `vllm serve` line of a setup; on request with a line for each flag, to be read and pasted as well."""
    parts = [["vllm", "serve", _target(setup)], *_flags(setup.args)]
    if setup.spec is not None:
        parts.append(["--speculative-config", to_json(setup.spec.to_dict())])
    return (" \\\n  " if line_per_flag else " ").join(shlex.join(part) for part in parts)


def decide_command(setup: Setup, traffic: Traffic) -> str:
    """Return the `draftwise decide` line that compares a setup with the plain one on the operator's own prompts."""
    words = ["draftwise", "decide", "--url", "http://plain:8000", "--candidate-url", "http://speculating:8000"]
    if setup.spec is not None:
        words += ["--candidate", to_json(setup.spec.to_dict())]
    words += ["--workload", "prompts.jsonl", "--temperature", f"{traffic.temperature:g}"]
    words += ["--concurrency", str(traffic.concurrency)]
    for flag, seconds in (("--slo-ttft-ms", traffic.slo_ttft_s), ("--slo-tpot-ms", traffic.slo_tpot_s)):
        if seconds is not None:
            words += [flag, f"{1e3 * seconds:g}"]
    return shlex.join(words)


def _target(setup: Setup) -> str:
    return "MODEL" if setup.target.lstrip().startswith("{") else setup.target


def _flags(args: Mapping[str, Any]) -> Iterator[list[str]]:
    for name, value in args.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            yield [flag]
        elif value is False:
            yield [flag.replace("--", "--no-", 1)]
        elif isinstance(value, list | tuple):
            yield [flag, *(str(each) for each in value)]
        elif value is not None:
            yield [flag, to_json(value) if isinstance(value, Mapping) else str(value)]
