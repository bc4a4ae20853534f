"""Reads workloads: a bundled one by name, or a JSONL file of the operator's own prompts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from draftwise.core import Finding, InvalidSetup, Prompt, Severity, Workload

__all__ = ["BUNDLED", "load_workload", "read_workload"]

BUNDLED = ("code", "prose", "rewrite")
_KEYS = ("id", "prompt", "messages", "max_tokens")
_DEFAULT_MAX_TOKENS = 128
_EXAMPLE = """Each line: {"id": "a1", "prompt": "def add(", "max_tokens": 128}, or "messages" instead of "prompt"."""


def load_workload(name: str, *, max_tokens: int | None = None) -> Workload:
    """Return the bundled workload of that name, or the one in that JSONL file.

    `max_tokens` caps every prompt's own.

    Raises:
        InvalidSetup: there is none, or its lines are wrong; all faults at once.
    """
    if name in BUNDLED:
        return read_workload(files("draftwise.measure") / "workloads" / f"{name}.jsonl", name, "bundled", max_tokens)
    path = Path(name)
    if not path.is_file():
        near = get_close_matches(name, BUNDLED, 1)
        raise InvalidSetup.because(
            "unknown-workload",
            f"{name!r} is neither a bundled workload nor a file.",
            where="--workload",
            fix=f"Did you mean {near[0]}?" if near else f"Bundled: {', '.join(BUNDLED)}; or give a .jsonl file.",
        )
    return read_workload(path, path.stem, path.name, max_tokens)


def read_workload(file: Traversable, name: str = "", source: str = "", max_tokens: int | None = None) -> Workload:
    """Return the workload in a JSONL file; see `load_workload`."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetup.because("unreadable", f"cannot be read ({error}).", where=str(file)) from None
    findings: list[Finding] = []
    given = [
        _parse(line, f"{file.name}:{number}", max_tokens, findings)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    prompts = tuple(prompt for prompt in given if prompt is not None)
    findings += _find_duplicates([prompt.id for prompt in prompts], file.name)
    if not given:
        findings.append(_fault("empty-workload", "holds no prompt.", file.name, _EXAMPLE))
    if findings:
        raise InvalidSetup(findings)
    return Workload(name=name, source=source, prompts=prompts)


def _parse(line: str, where: str, max_tokens: int | None, findings: list[Finding]) -> Prompt | None:
    """Return the prompt on a line, or add what is wrong with it to `findings`."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        findings.append(_fault("not-json", f"not valid JSON ({error.msg}).", where, _EXAMPLE))
        return None
    if faults := list(_find_faults(row)):
        findings += [_fault("bad-prompt", fault, where, _EXAMPLE) for fault in faults]
        return None
    limit = row.get("max_tokens", max_tokens or _DEFAULT_MAX_TOKENS)
    return Prompt(
        id=str(row.get("id", where)),
        text=row.get("prompt"),
        messages=tuple(row.get("messages", ())),
        max_tokens=min(limit, max_tokens) if max_tokens else limit,
    )


def _find_faults(row: Any) -> Iterable[str]:
    if not isinstance(row, Mapping):
        yield "is not a JSON object."
        return
    prompt, messages, limit = row.get("prompt"), row.get("messages"), row.get("max_tokens", 1)
    if (prompt is None) == (messages is None):
        yield "needs either a prompt or messages."
    if prompt is not None and not (isinstance(prompt, str) and prompt):
        yield "its prompt must be a text that is not empty."
    if messages is not None and not (isinstance(messages, list) and messages and all(map(_is_message, messages))):
        yield """its messages must be a list of {"role": ..., "content": ...}."""
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        yield f"max_tokens must be a positive whole number, got {limit!r}."
    for key in row:
        # Operators' logs carry keys of their own; only a slip of the pen is an error.
        if key not in _KEYS and (near := get_close_matches(key, _KEYS, 1, cutoff=0.8)):
            yield f"unknown key {key!r}; did you mean {near[0]!r}?"


def _is_message(message: Any) -> bool:
    return isinstance(message, Mapping) and {"role", "content"} <= message.keys()


def _find_duplicates(ids: list[str], where: str) -> list[Finding]:
    twice = [each for each, count in Counter(ids).items() if count > 1]
    if not twice:
        return []
    text = f"the id {twice[0]!r} is there more than once" + (f" (and {len(twice) - 1} others)." if twice[1:] else ".")
    return [_fault("duplicate-id", text, where, "Give every prompt an id of its own.")]


def _fault(code: str, message: str, where: str, fix: str) -> Finding:
    return Finding(code=code, severity=Severity.ERROR, message=message, where=where, fix=fix)
