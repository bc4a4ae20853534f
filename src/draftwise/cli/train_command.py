"""`draftwise train`: trains a drafter for a target."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

import click
from rich.console import Console

from draftwise.cli._options import options
from draftwise.cli._results import show
from draftwise.core.progress import Progress, Silent
from draftwise.verbs.train import Stopped, TrainRequest, TrainResult, find_options, list_trainable, open_bars
from draftwise.verbs.train import train as run_train

_FIELDS = ("target", "data", "out", "gpus")


class _MethodGroup(click.Group):
    """A command for each method, with the method's own options as flags."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list_trainable()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _command(cmd_name) if cmd_name in self.list_commands(ctx) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest the nearest method for an unknown name."""
        methods = self.list_commands(ctx)
        if args[0] not in methods:
            near = get_close_matches(args[0], methods, 1)
            hint = f"Did you mean {near[0]}?" if near else f"The methods are {', '.join(methods)}."
            ctx.fail(f"there is no method {args[0]!r} to train. {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the methods without importing them."""
        with formatter.section("Methods"):
            formatter.write_text(", ".join(self.list_commands(ctx)))


@click.group(cls=_MethodGroup, subcommand_metavar="METHOD [OPTIONS]")
def train() -> None:
    """Train a drafter for METHOD, as a checkpoint that vLLM and `draftwise serve` load."""


def _command(method: str) -> click.Command:
    own = find_options(method)

    def callback(as_json: bool, quiet: bool, **given: Any) -> None:
        given = {name: value for name, value in given.items() if value is not None}
        chosen = {name: given.pop(name) for name in (option.name for option in own) if name in given}
        fields = {name: given.pop(name) for name in _FIELDS if name in given}
        request = TrainRequest(method, **fields, settings=given, options=chosen)
        progress: Progress = Silent() if quiet else open_bars()
        try:
            result = run_train.run(request, progress)
        except Stopped as stopped:
            click.echo(str(stopped), err=True)
            raise click.Abort from None
        if result.is_first:
            show(result, render, as_json=as_json, indent=None)

    for flag in reversed(list(map(_flag, own))):
        callback = flag(callback)
    callback = options("train", target={"type": click.Path()}, data={"type": click.Path()})(callback)
    return click.command(method, help=f"Train a drafter for {method}.")(callback)


def _flag(option: Any) -> Callable[[Any], Any]:
    name, default = "--" + option.name.replace("_", "-"), option.default
    if isinstance(default, bool):
        return click.option(f"{name}/--no-{name[2:]}", option.name, default=None, help=option.help)
    kind: Any = str if isinstance(default, tuple) else type(default)
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
    text = option.help + (f"  [default: {shown}]" if shown != "" else "")
    if option.choices:
        kind = click.Choice(option.choices)
    return click.option(name, option.name, type=kind, default=None, help=text)


def render(console: Console, result: TrainResult) -> None:
    """Print how good the drafter is, and the command that serves it."""
    rates = " ".join(f"{100 * rate:.0f}" for rate in result.acceptance)
    for line in (
        f"{result.out}: accepted by position {rates} %, mean length {result.acceptance_length:.2f} (held out)",
        shlex.join(
            ["draftwise", "serve", str(result.model), "--speculative-config", json.dumps(result.speculative_config)]
        ),
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
