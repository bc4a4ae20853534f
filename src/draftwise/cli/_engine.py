"""Options and progress that `serve` and `warm-up` share: the engine's flags, and a line per phase of its start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import click

from draftwise.cli._console import open_console
from draftwise.cli._options import options
from draftwise.core.progress import Silent
from draftwise.verbs.engine import DEVICES, DTYPES, KV_CACHE_DTYPES, LOAD_FORMATS, QUANTIZATIONS

if TYPE_CHECKING:
    from draftwise.verbs.engine import StartupPhase


def _read_sizes(_: click.Context, __: click.Parameter, words: tuple[str, ...]) -> list[int] | None:
    """Read the sizes, each in a flag of its own or several with commas between."""
    try:
        return [int(each) for word in words for each in word.split(",")] or None
    except ValueError:
        raise click.BadParameter("give numbers, such as 1,2,4,8.") from None


engine_options = options(
    "engine", cudagraph_capture_sizes={"callback": _read_sizes}, dtype=click.Choice(DTYPES),
    quantization=click.Choice(QUANTIZATIONS), load_format=click.Choice(LOAD_FORMATS), device=click.Choice(DEVICES),
    kv_cache_dtype=click.Choice(KV_CACHE_DTYPES),
)  # fmt: skip
"""Flags of the engine's settings, with vLLM's names; None if not given."""


@click.command()
@engine_options
def _engine_command() -> None: ...


_SETTINGS = frozenset(each.name for each in _engine_command.params)


def split_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request, with the engine's flags collected under `settings`."""
    own = {name: value for name, value in given.items() if name not in _SETTINGS}
    return {**own, "settings": {name: value for name, value in given.items() if name in _SETTINGS}}


class PhaseLines(Silent):
    """Shows the phases of a start on stderr, one line each, animated in a terminal."""

    def __init__(self, *, says_to_stderr: bool = False) -> None:
        self._says_to_stderr = says_to_stderr
        self._console = open_console(stderr=True)
        self._status = self._console.status("") if self._console.is_terminal else None

    def __enter__(self) -> PhaseLines:
        return self

    def __exit__(self, *_: object) -> None:
        self._hide()

    def status(self, text: str) -> None:
        """Print that the server is ready, to stdout unless that is for JSON."""
        click.echo(text, err=self._says_to_stderr)

    def update(self, result: object) -> None:
        """Draw a phase that begins, or print one that is over."""
        phase = cast("StartupPhase", result)
        if phase.seconds is not None:
            self._hide()
            self._console.print(f"{phase.name}: {phase.seconds:.1f} s", highlight=False)
        elif self._status is not None:
            self._status.update(phase.name)
            self._status.start()

    def _hide(self) -> None:
        if self._status is not None:
            self._status.stop()
