"""Arguments and options shared by the verbs that judge a configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import click

from draftwise.cli._options import PanelCommand
from draftwise.verbs.sources import find_command, flags_of_vllm, hint_kustomize, join_command

_ABOUT_FLAGS = "Put vLLM flags after `--`, behind a model; or quote the whole command: 'vllm serve MODEL --FLAG ...'."
_QUOTED_FLAGS = re.compile(r"--?\w[\w.-]*(?:\s+\S|=[^\s{'\"]*\s+-)")
_NAMES_OF_FILES = ("-f", "--file", "--filename", "--manifest")


class SetupCommand(PanelCommand):
    """A command whose words after `--` are flags of `vllm serve`; they reach it as `engine_flags`.

    Unquoted words of a command line (`vllm serve ...`, `docker run ...`) are one source. Options of the verb stand
    before them; behind them, those are taken that vLLM does not have.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Cut the words off, and parse those before them."""
        cut = args.index("--") if "--" in args else len(args)
        if find_command(args[cut + 1 :]) == 0:  # `check -- vllm serve MODEL`
            del args[cut]
            cut = len(args)
        try:
            rest = super().parse_args(ctx, self._join(ctx, args[:cut]))
        except click.NoSuchOption as error:
            if error.option_name in _NAMES_OF_FILES:
                hint = f"Name a file without an option: {ctx.command_path} FILE."
            elif error.option_name in flags_of_vllm():
                hint = _ABOUT_FLAGS
            else:
                raise
            raise click.UsageError(f"{error.format_message()} {hint}", ctx) from None
        ranks = ctx.params.pop("ranks", None)
        ctx.params["engine_flags"] = (*args[cut + 1 :], *(("--tensor-parallel-size", str(ranks)) if ranks else ()))
        return rest

    def _join(self, ctx: click.Context, args: list[str]) -> list[str]:
        begin = find_command(args)
        if begin < 0:  # a space in front keeps click from taking flags in one quoted text for an option
            return [f" {each}" if _QUOTED_FLAGS.match(each) else each for each in args]
        options = self._own_options(ctx)
        ours, words = args[:begin], []
        rest = iter(args[begin:])
        for word in rest:
            name, given, _ = word.partition("=")
            if name in options:
                ours += [word] if given or not options[name] else [word, *islice(rest, 1)]
            else:
                words.append(word)
        return [*ours, *join_command(words)]

    def _own_options(self, ctx: click.Context) -> dict[str, bool]:
        """Return the long options that no flag of vLLM has the name of, and whether a value follows them."""
        flags = flags_of_vllm()
        return {
            name: not (param.is_flag or param.count)
            for param in self.get_params(ctx)
            if isinstance(param, click.Option)
            for name in param.opts
            if name.startswith("--") and name not in flags
        }

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the words of the usage line."""
        return [*super().collect_usage_pieces(ctx), "[-- ENGINE FLAGS]"]


def setup_command(function: Callable[..., Any]) -> click.Command:
    """Turn a function into a command, with the sources of a `SetupRequest`."""
    function = click.argument("sources", nargs=-1, metavar="[SOURCE]...")(function)
    return click.command(cls=SetupCommand)(function)


def report_skipped(names: Sequence[str], *, verbose: bool) -> None:
    """Print to stderr how many files start no server, or which."""
    if verbose:
        for name in names:
            click.echo(f"{name} starts no vLLM server.", err=True)
    elif names:
        number = "1 file starts" if len(names) == 1 else f"{len(names)} files start"
        click.echo(f"{number} no vLLM server (--verbose names them). {hint_kustomize(names)}".rstrip(), err=True)
