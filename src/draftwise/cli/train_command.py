"""`draftwise train`: trains a drafter for a target."""

from __future__ import annotations

import json
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

import click
from rich.console import Console

from draftwise.cli._options import option
from draftwise.cli._results import json_option, show
from draftwise.core.progress import Progress, Silent
from draftwise.verbs.train import Stopped, TrainRequest, TrainResult, find_options, list_trainable, open_bars
from draftwise.verbs.train import train as run_train

_FIELDS = ("target", "data", "out", "gpus")

_FLAGS: tuple[Callable[[Any], Any], ...] = (
    option("--target DIR", "The target's checkpoint.", type=click.Path(), required=True),
    option(
        "--data FILE",
        "Training data: .txt or .jsonl, also .gz; repeatable.",
        type=click.Path(),
        required=True,
        multiple=True,
    ),
    option("--out DIR", "Output directory; resumes a stopped run.", required=True),
    option(
        "--answers",
        "Answers to learn: the target's own, or those in the data.  [default: target]",
        type=click.Choice(["target", "given"]),
    ),
    option("--temperature", "Temperature of the target's answers.  [default: 0]", type=float),
    option("--answer-tokens N", "Longest answer.  [default: 256]", type=int),
    option("--prompt-tokens N", "Length of prompts from plain text.  [default: 64]", type=int),
    option("--max-length N", "Longest sample, in tokens.  [default: 2048]", type=int),
    option("--heldout SHARE", "Samples held out for evaluation.  [default: 0.02]", type=float),
    option("--heldout-tokens N", "Maximum of held-out tokens.  [default: 262144]", type=int),
    option(
        "--hidden-states [online|disk|URL]",
        "Compute hidden states in each step, once to disk, or on a vLLM server.  [default: online]",
    ),
    option("--cache DIR", "Folder of answers and states; runs may share it.  [default: inside --out]"),
    option("--steps N", "Optimizer steps.  [default: 1500]", type=int),
    option("--batch-tokens N", "Tokens per batch.  [default: 65536 on CUDA, 4096 on CPU]", type=int),
    option("--accumulate N", "Batches per step.  [default: one for each GPU]", type=int),
    option("--optimizer", "Optimizer.  [default: muon if torch has it]", type=click.Choice(["muon", "adamw"])),
    option("--lr", "Peak learning rate.  [default: the method's]", type=float),
    option("--warmup STEPS", "Warm-up steps of the learning rate.  [default: 100, at most a tenth]", type=int),
    option(
        "--schedule",
        "Decay of the learning rate; late: linear in the last 60 %.  [default: late]",
        type=click.Choice(["cosine", "linear", "late"]),
    ),
    option("--weight-decay", "Weight decay of matrices.  [default: 0.05]", type=float),
    option("--clip NORM", "Largest norm of the gradient.  [default: 1]", type=float),
    option("--seed", "Random seed.  [default: 0]", type=int),
    option("--precision", "Training precision.", type=click.Choice(["auto", "bfloat16", "float32"])),
    option("--device", "Device to train on.", type=click.Choice(["auto", "cpu", "cuda"])),
    option("--gpus N", "GPUs to use on this host, one process each.  [default: 1]", type=int),
    option("--shard/--no-shard", "Split the models across GPUs.  [default: only large ones]", default=None),
    option("--compile/--no-compile", "Use torch.compile.  [default: on CUDA]", default=None),
    option("--eval-every STEPS", "Steps between evaluations.  [default: 250]", type=int),
    option("--save-every STEPS", "Steps between extra checkpoints.", type=int),
    option("--save-minutes N", "Minutes between checkpoints.  [default: 5]", type=float),
    json_option,
    option("--quiet", "Show no progress.", is_flag=True),
)


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


@click.group(cls=_MethodGroup, short_help="Train a drafter for a model.", subcommand_metavar="METHOD [OPTIONS]")
def train() -> None:
    """Train a drafter for METHOD, as a checkpoint that vLLM and `draftwise serve` load.

    A run needs a target, data and an output directory. METHOD --help shows all other options. To resume a stopped run,
    run the same command again.
    """


def _command(method: str) -> click.Command:
    options = find_options(method)
    own = [option.name for option in options]

    def callback(as_json: bool, quiet: bool, **given: Any) -> None:
        given = {name: value for name, value in given.items() if value is not None}
        chosen = {name: given.pop(name) for name in own if name in given}
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

    for flag in reversed([*_FLAGS, *map(_flag, options)]):
        callback = flag(callback)
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
        f"draftwise serve {result.model} --speculative-config '{json.dumps(result.speculative_config)}'",
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
