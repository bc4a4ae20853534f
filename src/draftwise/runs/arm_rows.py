"""The arms of a run as JSON rows, and back: also those of runs from before arms held setups."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from draftwise.core import Arm, InvalidSetup, Setup, SpecConfig

__all__ = ["arm_to_row", "row_to_arm"]


def arm_to_row(arm: Arm) -> dict[str, Any]:
    """Return an arm as JSON values."""
    setup = arm.setup
    return {
        "name": arm.name,
        "url": arm.url,
        "metrics_url": arm.metrics_url,
        "header_names": list(arm.header_names),
        "spec": None if setup.spec is None else setup.spec.to_dict(),
        "setup": {
            "target": setup.target,
            "engine": setup.engine,
            "engine_version": setup.engine_version,
            "args": dict(setup.args),
            "env": dict(setup.env),
            "extra_args": list(setup.extra_args),
        },
    }


def row_to_arm(row: Mapping[str, Any], context: Mapping[str, Any]) -> Arm:
    """Return the arm that `arm_to_row` wrote.

    Args:
        row: the arm's own.
        context: the run's, from which the setups of earlier runs are made.

    Raises:
        KeyError, TypeError: it is something else.
        InvalidSetup: its speculative config is none.
    """
    spec = None if row["spec"] is None else SpecConfig.parse(row["spec"])
    if (given := row.get("setup")) is not None:
        setup = Setup(**{**given, "extra_args": tuple(given["extra_args"])})
    else:
        setup = _setup_of_earlier_run(row["name"], context)
    return Arm(
        name=row["name"],
        setup=replace(setup, spec=spec),
        url=row["url"],
        metrics_url=row.get("metrics_url"),
        header_names=tuple(row.get("header_names") or ()),
    )


def _setup_of_earlier_run(arm: str, context: Mapping[str, Any]) -> Setup:
    """Return the setup that the operator's options led to, or that the operator's note of a command tells."""
    # Only here: processes that only send load import this package, too.
    from draftwise.setups.read import read_setups, read_words

    options = context.get("wish") or {}
    server = (context.get("servers") or {}).get(arm) or {}
    version = (server.get("version") or {}).get("version") or ""
    if target := options.get("target"):
        engine, words = options["engine"], ["vllm", "serve", target, *options["serve_args"]]
        reading = read_words(words, engine_version=version if engine == "vllm" and version else None)
        return replace(reading.setup, engine=engine, engine_version=version)
    with suppress(InvalidSetup):
        return read_setups(server.get("command") or "", engine_version=version or None)[0].setup
    return Setup(engine="")
