"""Whether the servers were alike but for the speculative config, and what came along with it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from itertools import pairwise

from draftwise.core import Finding, Run, ServerRecord
from draftwise.decide.validity.finding import error, info, join_names, warning

__all__ = ["check_setup"]

_SAME = ("engine", "version", "dtype", "device")
"""What /version tells and no speculative config changes."""
_FOLLOWS = {
    "async_scheduling": "asynchronous scheduling",
    "runner": "model runner",
    "attention_backend": "attention backend",
}
"""What an engine may choose otherwise because it speculates."""
_OWN = (
    "--speculative-config",
    "--spec-",
    "--per-request-spec-decode-metrics",
    "--port",
    "--host",
    "--served-model-name",
    "--name",
    "--publish",
    "--gpus",
)
"""Arguments that may differ from arm to arm (beginnings of their names); the last three are those of containers."""
_LESS_CACHE = 0.9


def check_setup(run: Run) -> Iterator[Finding]:
    """Yield what differs between the arms beside the speculative config, each candidate held against the baseline."""
    servers = run.context.servers
    baseline, *candidates = (arm.name for arm in run.plan.arms)
    for name in candidates:
        if baseline in servers and name in servers:
            yield from _identity(name, servers[baseline], servers[name])
            yield from _commands(name, servers[baseline].command, servers[name].command)
            yield from _consequences(name, servers[baseline], servers[name])


def _identity(name: str, baseline: ServerRecord, candidate: ServerRecord) -> Iterator[Finding]:
    ours, theirs = baseline.version, candidate.version
    for key in _SAME:
        if key in ours and key in theirs and ours[key] != theirs[key]:
            text = (
                f"its {key} is {theirs[key]!r}, the baseline's {ours[key]!r}: the comparison is not one of speculation "
                "alone."
            )
            yield error("arms-differ", text, "Serve both alike but for --speculative-config.", where=name)
    if baseline.hardware and candidate.hardware and baseline.hardware != candidate.hardware:
        text = f"it runs on {candidate.hardware}, the baseline on {baseline.hardware}: machines are compared as well."
        yield error("arms-differ", text, "Serve both on the same hardware.", where=name)
    if baseline.model and candidate.model and baseline.model != candidate.model:
        text = (
            f"it serves {candidate.model!r}, the baseline {baseline.model!r}: under another name it may be another "
            "model."
        )
        yield warning("arms-differ", text, "Make sure that both serve the same checkpoint.", where=name)
    lengths = (baseline.max_model_len, candidate.max_model_len)
    if None not in lengths and lengths[0] != lengths[1]:
        text = f"its max_model_len is {lengths[1]}, the baseline's {lengths[0]}."
        yield warning("arms-differ", text, "Give both the same --max-model-len.", where=name)


def _commands(name: str, baseline: str | None, candidate: str | None) -> Iterator[Finding]:
    if baseline is None or candidate is None:
        return
    ours, theirs = _arguments(baseline), _arguments(candidate)
    other = [
        f"{key} ({_shown(theirs, key)}, baseline {_shown(ours, key)})"
        for key in dict.fromkeys((*ours, *theirs))
        if ours.get(key) != theirs.get(key) and not key.startswith(_OWN)
    ]
    if other:
        text = f"it was served otherwise than the baseline, beside the speculative config: {join_names(other)}."
        yield warning("commands-differ", text, "Serve both alike but for --speculative-config.", where=name)


def _arguments(command: str) -> dict[str, str]:
    """Return the options of a command with their values ("" for flags); words before the first option are left out."""
    try:
        words = shlex.split(command)
    except ValueError:
        return {}
    options: dict[str, str] = {}
    for word, following in pairwise([*words, "--"]):
        if word.startswith("--"):
            key, separator, value = word.partition("=")
            options[key.replace("_", "-")] = value if separator else "" if following.startswith("--") else following
    return options


def _shown(options: Mapping[str, str], key: str) -> str:
    return (options[key] or "set") if key in options else "not given"


def _consequences(name: str, baseline: ServerRecord, candidate: ServerRecord) -> Iterator[Finding]:
    """What an engine did differently because it speculates: part of the method's price, and often its reason."""
    ours, theirs = baseline.version, candidate.version
    for key, words in _FOLLOWS.items():
        if key in ours and key in theirs and ours[key] != theirs[key]:
            text = f"{words}: {theirs[key]}, with the baseline {ours[key]}. That is part of what it costs."
            yield info("engine-chose-otherwise", text, where=name)
    usual, left = (each.started.get("kv_cache_tokens") for each in (baseline, candidate))
    if isinstance(usual, int | float) and isinstance(left, int | float) and left < usual * _LESS_CACHE:
        text = f"its KV cache holds {left:.0f} tokens, the baseline's {usual:.0f}: under load it is full sooner."
        yield info("less-kv-cache", text, where=name)
