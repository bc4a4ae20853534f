"""The page of a release: what it changes for speculation, what nobody has read yet, and which known defects end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.version import Version

from catalogue.build import DATA, known_releases, read_topic
from draftwise.knowledge.defects import all_defects
from draftwise.knowledge.rules import all_rules
from draftwise.knowledge.spans import SpanRow, decode

__all__ = ["write_page"]

_TOPICS: Mapping[str, str] = {
    "methods": "Methods",
    "spec_fields": "Keys of --speculative-config",
    "flags": "Flags",
    "engine_defaults": "Defaults of the engine",
    "async_scheduling": "Asynchronous scheduling",
    "runner_v2": "Model Runner V2",
    "cudagraph_sizes": "CUDA graphs",
    "batch_defaults": "Limits of a step by default",
    "sampling_params": "Sampling parameters while speculating",
    "env": "Environment variables",
    "metrics": "Metrics",
    "mtp_remap": "Targets with MTP modules",
}
_WIDTH = 100


def write_page(data: Path = DATA) -> str:
    """Return the Markdown page of the newest release in a data folder."""
    known = [about["version"] for about in known_releases(data)]
    newest, before = known[-1], known[-2]
    tables = {
        topic: tuple(decode(known, read_topic(data, topic), name) for name in (before, newest))
        for topic in (*_TOPICS, "messages", "judged")
    }
    lines = [f"# vLLM {newest}, after {before}", ""]
    for topic, title in _TOPICS.items():
        lines += _section(title, _changes(*tables[topic]))
    lines += _section("New refusals and warnings around speculation", _new_messages(*tables["messages"]))
    lines += _section("Functions that rules speak of and that have changed", _changed_functions(*tables["judged"]))
    lines += _section("Known defects that end with it", _defects_until(before))
    lines += _section("Known defects that it has", _defects_in(newest, "present"))
    lines += _section("Known defects of which nobody has said whether it has them", _defects_in(newest, "later"))
    return "\n".join(lines)


def _section(title: str, points: Iterable[str]) -> list[str]:
    found = list(points)
    return [f"## {title} ({len(found)})", "", *(f"- {point}" for point in found), ""] if found else []


def _changes(old: Mapping[str, SpanRow], new: Mapping[str, SpanRow]) -> Iterator[str]:
    for key in sorted(old.keys() | new.keys()):
        if key not in old:
            yield f"`{key}` is new: {_short(new[key].value)}"
        elif key not in new:
            yield f"`{key}` is gone"
        elif old[key].value != new[key].value:
            yield f"`{key}`: {_short(old[key].value)} becomes {_short(new[key].value)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return f"`{text if len(text) <= _WIDTH else text[: _WIDTH - 3] + '...'}`"


def _new_messages(old: Mapping[str, SpanRow], new: Mapping[str, SpanRow]) -> Iterator[str]:
    for text in sorted(new.keys() - old.keys()):
        row = new[text]
        rules = f"; rules: {', '.join(row.value['rules'])}" if row.value.get("rules") else ""
        yield f"{row.value['level']}, {row.source}: {text[:300]}{rules}"


def _changed_functions(old: Mapping[str, SpanRow], new: Mapping[str, SpanRow]) -> Iterator[str]:
    for name in sorted(old.keys() | new.keys()):
        left, right = (table[name].value if name in table else {} for table in (old, new))
        parts = [part for part in ("code", "refusals", "callers") if left.get(part) != right.get(part)]
        if parts:
            rules = sorted(code for code, rule in all_rules().items() if name in rule.source)
            what = ", ".join(parts) if left and right else "moved or gone"
            yield f"`{name}` ({what}): {', '.join(rules) or 'probes only'}"


def _defects_until(version: str) -> Iterator[str]:
    for row in all_defects().values():
        if row.is_end_known and row.last_release == Version(version):
            yield f"`{row.code}`: {row.what}"


def _defects_in(version: str, state: str) -> Iterator[str]:
    for row in all_defects().values():
        if row.state_in(Version(version)) == state:
            yield f"`{row.code}` ({row.certainty}): {row.what}"
