"""What `draftwise guard` shows: steps and findings as they come, as text or as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click
from rich.text import Text

from draftwise.cli._console import open_console
from draftwise.cli._findings import render_findings
from draftwise.core import Window
from draftwise.guarding.service_guard import Tick

__all__ = ["JsonShow", "TextShow", "tick_to_dict"]


class JsonShow:
    """One object a look, on one line."""

    def show(self, tick: Tick) -> None:
        """Print the object."""
        click.echo(json.dumps(tick_to_dict(tick), allow_nan=False))


class TextShow:
    """Steps, and findings when they are new; a service that goes on as before prints nothing."""

    def __init__(self) -> None:
        self._console = open_console(stderr=False)
        self._told: frozenset[tuple[str, str]] = frozenset()

    def show(self, tick: Tick) -> None:
        """Print what is new."""
        new = [each for each in tick.findings if (each.code, each.where) not in self._told]
        self._told = frozenset((each.code, each.where) for each in tick.findings)
        if new or tick.actions:
            self._console.print(Text(time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(tick.at_s)), "dim"))
        for action in tick.actions:
            does = ("does    ", "bold red") if action.executes else ("proposes", "bold yellow")
            where = ", ".join(action.replicas) or "the service"
            self._console.print(Text.assemble(does, f"  {action.step}  {where}: {action.reason}"), soft_wrap=True)
        if new:
            self._console.print(render_findings(new))


def tick_to_dict(tick: Tick) -> dict[str, Any]:
    """Return what one snapshot came to as JSON."""
    return {
        "at_s": tick.at_s,
        "replicas": [*_replicas("spec", tick.reading.spec, tick), *_replicas("plain", tick.reading.plain, tick)],
        "actions": [{**asdict(each), "replicas": list(each.replicas)} for each in tick.actions],
        "findings": [each.to_dict() for each in tick.findings],
    }


def _replicas(pool: str, windows: Mapping[str, Window | None], tick: Tick) -> list[dict[str, Any]]:
    return [
        {
            "url": name,
            "pool": pool,
            "answers": window is not None,
            "tokens_per_step": None if window is None else window.tokens_per_step,
            "out_of_traffic": None if (latch := tick.state.latches.get(name)) is None else str(latch.step),
        }
        for name, window in windows.items()
    ]
