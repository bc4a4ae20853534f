"""What the verbs that judge a configuration have in common: their arguments, and the setups these describe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from draftwise.core import InvalidSetup, SpecConfig
from draftwise.setups.read import Reading, read_setups, read_words
from draftwise.setups.read.arguments.json_text import read_json

__all__ = ["read_sources", "setup_arguments"]

_F = TypeVar("_F", bound=Callable[..., Any])
_LONGEST_PATH = 1000
_OF_MODELS = frozenset({"architectures", "hidden_size", "text_config"})
"""Keys of a config.json that no setup has."""


def setup_arguments(function: _F) -> _F:
    """Add SOURCE, --target, --speculative-config and the engine flags behind `--` to a verb."""
    function = click.argument("engine_flags", nargs=-1, metavar="[-- ENGINE FLAGS]")(function)
    function = click.option(
        "--speculative-config", "-sc", "spec", metavar="JSON|FILE", help="As vLLM takes it, or a file that holds it."
    )(function)
    function = click.option(
        "--target", metavar="MODEL", help="What the target in SOURCE stands for, e.g. where it is a mount."
    )(function)
    return click.argument("source", required=False)(function)


def read_sources(
    source: str | None,
    spec: str | None,
    engine_flags: Sequence[str],
    *,
    version: str | None,
    target: str | None = None,
) -> tuple[Reading, ...]:
    """Return the setups that the arguments describe.

    Args:
        source: a model (directory, well-known id, config.json text), a file, or a whole command line.
        spec: a speculative config that replaces the one in `source`.
        engine_flags: flags of `vllm serve`, as they would stand on its command line.
        version: release whose flags are meant, where `source` names none.
        target: a model that replaces the one in `source`.

    Raises:
        InvalidSetup: something cannot be read.
    """
    if source is None:
        raise click.UsageError("Give a model, a file (compose, Kubernetes, JSON) or a `vllm serve ...` command line.")
    if engine_flags or _is_model(source):
        readings: Sequence[Reading] = [read_words(["vllm", "serve", source, *engine_flags], engine_version=version)]
    else:
        readings = read_setups(source, engine_version=version)
    changes: dict[str, Any] = {} if target is None else {"target": target}
    if spec is not None:
        changes["spec"] = SpecConfig.keep(_json_object(spec))
    return tuple(replace(reading, setup=replace(reading.setup, **changes)) for reading in readings)


def _is_model(source: str) -> bool:
    """Whether a source is a model (name, directory, config.json), and not a file, a command line or JSON to be read."""
    is_file = len(source) < _LONGEST_PATH and Path(source).is_file()
    if source.lstrip().startswith("{") or (is_file and source.endswith(".json")):
        found = read_json(Path(source).read_text(encoding="utf-8", errors="replace") if is_file else source)
        return isinstance(found.value, dict) and not _OF_MODELS.isdisjoint(found.value)
    return not (is_file or any(c.isspace() for c in source))


def _json_object(given: str) -> dict[str, Any]:
    where, text = "--speculative-config", given
    if not given.lstrip().startswith("{"):
        path = Path(given.removeprefix("@"))
        if not path.is_file():
            raise InvalidSetup.because(
                "not-json", f"{given!r} is neither a JSON object nor a file.", where=where,
                fix="""Example: '{"method": "ngram", "num_speculative_tokens": 5}'.""",
            )  # fmt: skip
        where, text = str(path), path.read_text(encoding="utf-8", errors="replace")
    found = read_json(text)
    if found.mistake:
        raise InvalidSetup.because("not-json", f"The text {found.mistake}.", where=where, fix=found.fix)
    if not isinstance(found.value, dict):
        kind = type(found.value).__name__
        raise InvalidSetup.because("not-an-object", f"{where} must be a JSON object, got {kind}.", where=where)
    return found.value
