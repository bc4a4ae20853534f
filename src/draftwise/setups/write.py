"""Writes setups: as command lines for a program or a shell, and as the JSON that every verb reads."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from draftwise.core import InvalidSetup, Setup
from draftwise.knowledge.flag_types import takes_none, takes_text
from draftwise.knowledge.rules import Rulebook
from draftwise.knowledge.vllm import Release, get_release, releases


def write_json(setup: Setup) -> str:
    """Return the JSON object of a vLLM setup, without its device."""
    return (
        json.dumps(
            {
                "target": setup.target,
                "engine_version": setup.engine_version,
                "speculative_config": None if setup.spec is None else setup.spec.to_dict(),
                "args": dict(setup.args),
                "env": dict(setup.env),
            },
            indent=1,
        )
        + "\n"
    )


_VLLM = ("vllm", "serve")
_DASHES = "-\u2013\u2014\u2010\u2011\u2212"
"""What a flag may begin with, typed or typographic: a value that begins so needs a `=` before it."""


def write_words(setup: Setup, program: Sequence[str] = _VLLM) -> list[str]:
    """Return the words of the command that serves a setup, unquoted and without `env`."""
    return [*program, _name_target(setup), *chain.from_iterable(write_flags(setup))]


def write_shell(setup: Setup, *, line_per_flag: bool = False) -> str:
    """Return the shell command that serves a setup, variables first; optionally with one line per flag."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in setup.env.items()]
    start = " ".join([*variables, shlex.join([*_VLLM, _name_target(setup)])])
    return (" \\\n  " if line_per_flag else " ").join([start, *map(shlex.join, write_flags(setup))])


def write_flags(setup: Setup) -> Iterator[list[str]]:
    """Yield the words of each flag: engine arguments, the speculative config, and words without a flag."""
    release = _find_release(setup)
    rows, has_no_unset = release.table("flags"), Rulebook(release.version).holds("none-is-no-choice")
    for name, value in setup.args.items():
        flag = f"--{name.replace('_', '-')}"
        row = rows.get(flag, {})
        if value is None and has_no_unset and row.get("choices"):
            continue  # the parser refuses the word None there; without the flag nothing is set either
        yield from _write_flag(flag, value, row)
    if setup.spec is not None:
        yield ["--speculative-config", setup.spec.to_json()]
    if setup.extra_args:
        yield list(setup.extra_args)


def _name_target(setup: Setup) -> str:
    """Return the model as a command names it. The text of a config.json, which stands for one, has no name."""
    return "MODEL" if setup.target.lstrip().startswith("{") else setup.target


def _find_release(setup: Setup) -> Release:
    """Return the release that serves a setup, the nearest one where that is not known."""
    try:
        version = setup.engine_version if setup.engine == "vllm" and setup.engine_version else "newest"
        return get_release(version, nearest=True)
    except InvalidSetup:
        return releases()[-1]


def _write_flag(flag: str, value: Any, row: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield a flag with its value, once for each item where every use adds one."""
    kind = row.get("kind")
    if kind == "json":
        yield _join(flag, [_to_json(value, row)])
    elif isinstance(value, list | tuple) and kind == "value":
        yield from (_join(flag, [_to_text(item)]) for item in value)
    elif isinstance(value, list | tuple):
        if value:
            yield _join(flag, [_to_text(item) for item in value])
    elif value is True:
        yield [flag]
    elif value is False:
        yield [row.get("negation", flag.replace("--", "--no-", 1))]
    else:
        yield _join(flag, [_to_text(value)])


def _to_json(value: Any, row: Mapping[str, Any]) -> str:
    """Return the text of a flag for JSON, some of which also take `None` or plain text."""
    if value is None and takes_none(row):
        return "None"
    return value if isinstance(value, str) and takes_text(row) else json.dumps(value)


def _to_text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, Mapping) else str(value)


def _join(flag: str, values: Sequence[str]) -> list[str]:
    """Return a flag and its values. One that looks like a flag itself is tied to it."""
    if len(values) == 1 and values[0][:1] and values[0][0] in _DASHES:
        return [f"{flag}={values[0]}"]
    return [flag, *values]
