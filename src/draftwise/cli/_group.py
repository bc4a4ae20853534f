"""The command group: imports a verb's file on demand, and turns errors into messages and exit codes."""

from __future__ import annotations

import codecs
import errno
import gc
import importlib
import io
import json
import re
import signal
import sys
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import click
from click.core import ParameterSource

from draftwise.core import DraftwiseError, Finding, InvalidSetup, cause_of
from draftwise.core.exit_codes import ExitCode, exit_code_of
from draftwise.verbs import VERBS, Group, Row, load_verb
from draftwise.version import __version__

AS_JSON = "draftwise.as_json"
"""Key of a context's `meta`: whether the command line requests JSON, known before its options are parsed."""

_WORDS = "draftwise.words"
_NO_CHOICE = re.compile(r"'([^']{1,80})' is not one of")
_INSTEAD = {
    "--yes": "To go on without a question, pass --yes.",
    "--out": "Name another --out, or move the old one away.",
}
"""Options of a verb -> what to do where others have --force."""
_FROM_DEFAULTS = "You did not type it: `draftwise config` says where it comes from."
_DURATIONS = "a time, such as 500ms, 30s or 5m"
_PLAINER = {
    **dict.fromkeys("█▉▊▋▌▍▎▏", "#"), "✓": "+", "✗": "x", "·": "-", "→": "->", "≥": ">=", "≤": "<=", "…": "...",
}  # fmt: skip
_URL = re.compile(r"https?://", re.I)
_HELP = Path(__file__).with_name("help")
_LISTED = re.compile(r"^(?=\S.*:\n  )", re.M)
"""The start of a paragraph of the help whose lines stay as they are."""

BEGAN = "draftwise.began_s"
"""Key of a context's `meta`: monotonic time at which the command began, before its verb's file was imported."""


def _import(name: str) -> ModuleType:
    """Import a verb's module without looking for garbage, of which it leaves none: a tenth of a short verb's time."""
    if name in sys.modules or not gc.isenabled():
        return importlib.import_module(name)
    gc.disable()
    try:
        module = importlib.import_module(name)
        gc.freeze()
    finally:
        gc.enable()
    return module


class VerbGroup(click.Group):
    """The verbs as commands; `draftwise.cli.serve_command` holds the command `serve`.

    It exits with a code of `ExitCode`. Without an answer, stderr has the reason, and with `--json` stdout too.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(
            **attributes, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
        )
        self.params.append(_version_option())

    def main(self, args: Sequence[str] | None = None, *more: Any, standalone_mode: bool = True, **options: Any) -> Any:
        """Run the command line and exit; without `standalone_mode`, raise errors instead."""
        stdout = _settle_streams()
        run: Any = super().main
        if not standalone_mode:
            return run(args, *more, standalone_mode=False, **options)
        as_json = _wants_json(sys.argv[1:] if args is None else args)
        try:
            with _terminable():
                code = run(args, *more, standalone_mode=False, **options)
        except Exception as error:
            code = _report(error, as_json=as_json)
        if stdout is not None:
            sys.stdout.flush()
            if stdout.failure is not None:
                click.echo(f"error: stdout cannot be written ({cause_of(stdout.failure)}).", err=True)
                code = ExitCode.FAILED
        sys.exit(code if isinstance(code, int) else ExitCode.GOOD)

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the verbs."""
        return sorted(VERBS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb's file and return its command; None for an unknown verb."""
        if (row := VERBS.get(cmd_name)) is None:
            return None
        command: click.Command = getattr(_import(f"draftwise.cli.{row.module}_command"), row.module)
        if command.short_help is None:
            command.short_help, command.help = row.summary, f"{command.help}\n\n{_read_help(row)}"
        return command

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the exit codes, which all verbs share."""
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(int(code)), code.meaning) for code in ExitCode])

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs by group, without importing them."""
        width = max(map(len, VERBS))
        for group in Group:
            with formatter.section(group):
                rows = [(row.name.ljust(width), row.summary) for row in VERBS.values() if row.group is group]
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; suggest one for a misspelled name, and reject empty arguments."""
        ctx.meta[AS_JSON], ctx.meta[_WORDS] = _wants_json(args), args
        _refuse_empty(ctx, args)
        ctx.default_map = _read_defaults()
        try:
            name, command, words = super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = _find_near(args[0][:80], VERBS)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean {near}?", ctx) from None
        if command is not None:
            _refuse_urls(click.Context(command, parent=ctx, info_name=name), words)
        return name, command, words

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; its errors name only options that it has."""
        ctx.meta[BEGAN] = time.monotonic()
        try:
            return super().invoke(ctx)
        except InvalidSetup as error:
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            options = {name for each in getattr(command, "params", ()) for name in each.opts}
            of_verb = [replace(each, where="") if _is_foreign(each.where, options) else each for each in error.findings]
            usual = [str(value) for value in (ctx.default_map or {}).get(ctx.invoked_subcommand or "", {}).values()]
            of_verb = [
                replace(each, fix=f"{each.fix} {_FROM_DEFAULTS}".strip())
                if each.where not in ctx.meta[_WORDS] and any(value in each.message for value in usual)
                else each
                for each in of_verb
            ]
            raise type(error)(of_verb).with_traceback(error.__traceback__) from None


def _read_help(row: Row) -> str:
    """Return what a verb's help says after its first sentence. `{about}` stands for what its function says, too."""
    text = (_HELP / f"{row.module}.txt").read_text("utf-8")
    if "{about}" in text:
        text = text.replace("{about}", load_verb(row.name).about.split("\n\n")[1])
    return _LISTED.sub("\b\n", text)


def _read_defaults() -> dict[str, dict[str, Any]]:
    """Return the values of draftwise.toml and the environment, by verb and parameter."""
    from draftwise.verbs.config import DEFAULTS, find_defaults

    found: dict[str, dict[str, Any]] = {}
    for row in find_defaults(Path()):
        for verb, name in DEFAULTS[row.key][1].items() if row.value is not None else ():
            found.setdefault(verb, {})[name] = [row.value] if name == "workloads" else row.value
    return found


def _is_foreign(where: str, options: Container[str]) -> bool:
    """Whether a place is an option of some verb, and neither one of these nor a flag of vLLM."""
    if not where.startswith("--") or where in options:
        return False
    from draftwise.verbs.sources import flags_of_vllm

    return where not in flags_of_vllm()


def _wants_json(words: Sequence[str]) -> bool:
    own = list(words[: words.index("--")] if "--" in words else words)
    return "--json" in own or "--format=json" in own or ("--format", "json") in pairwise(own)


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does: servers go down, leases are given back, what was measured stays."""

    def interrupt(_number: int, _frame: object) -> None:
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # the shell started it in the background
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread, as in tests
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _report(error: Exception, *, as_json: bool) -> int:
    """Say why there is no answer, as text on stderr and as JSON on stdout. Return the exit code."""
    cause: BaseException = error
    if isinstance(error, click.Abort):
        code, cause = ExitCode.INTERRUPTED, KeyboardInterrupt()
        click.echo("interrupted", err=True)
    elif isinstance(error, click.ClickException):
        _explain(error)
        code, cause = ExitCode.USAGE, InvalidSetup(_describe_usage(error))
        error.show()
    else:
        code = exit_code_of(error)
        if isinstance(error, InvalidSetup):
            for finding in error.findings:
                click.echo(f"{finding.severity}: {finding}", err=True)
        elif isinstance(error, DraftwiseError):
            click.echo(f"error: {error}", err=True)
        else:
            import traceback

            traceback.print_exc()
    if as_json:
        from draftwise.verbs.error_documents import describe_error

        click.echo(json.dumps(describe_error(cause)))
    return code


def _explain(error: click.ClickException) -> None:
    """Add the meaning of a missing option, and put click's names of types into plain words."""
    text = error.message
    if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Option) and error.param.help:
        text = text or f"{error.param.help.partition('  [')[0].rstrip('.')}.{_list_missing(error, error.param)}"
    elif isinstance(error, click.BadParameter):
        for kind, words in (("float", "a number"), ("integer", "a whole number"), ("duration", _DURATIONS)):
            text = re.sub(rf"a valid {kind}( range)?\.", f"{words}.", text)
        if (told := _NO_CHOICE.match(text)) and isinstance(type_ := getattr(error.param, "type", None), click.Choice):
            near = _find_near(told[1], list(map(str, type_.choices)))
            text += f" Did you mean {near}?" if near else ""
        name = error.param.name if error.param is not None else None
        if name and error.ctx and error.ctx.get_parameter_source(name) is ParameterSource.DEFAULT_MAP:
            text += f" {_FROM_DEFAULTS}"
    elif isinstance(error, click.NoSuchOption) and error.option_name in ("--force", "--overwrite"):
        own = {name for param in error.ctx.command.params for name in param.opts} if error.ctx is not None else set()
        if hint := next((hint for name, hint in _INSTEAD.items() if name in own), ""):
            text = f"{text} {hint}"
            object.__setattr__(error, "possibilities", [])
    elif text.startswith("Got unexpected extra argument") and _has_target(error):
        text += ". Pass the target with --target."
    object.__setattr__(error, "message", text)  # click declares it final


def _find_near(word: str, names: Iterable[str]) -> str:
    """Return the name that a word is an abbreviation or a misspelling of. Empty for no such name."""
    from difflib import get_close_matches  # read only when something is misspelled

    word = word.lower()
    short = re.sub(r"(?<=\w)\d{1,2}(?=\w)", lambda number: rf"\w{{{number[0]}}}", re.escape(word))  # k8s
    begun = [name for name in names if re.fullmatch(short, name) or name.startswith(word)]
    return next(iter(begun if len(begun) == 1 else get_close_matches(word, names, n=1)), "")


def _has_target(error: click.ClickException) -> bool:
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    return ctx is not None and any("--target" in param.opts for param in ctx.command.params)


def _list_missing(error: click.MissingParameter, named: click.Option) -> str:
    """Return a sentence with the other required options that the command line lacks, so that one look is enough."""
    if error.ctx is None:
        return ""
    given = {word.partition("=")[0] for word in error.ctx.meta.get(_WORDS, ())}
    missing = [
        param.opts[0]
        for param in error.ctx.command.params
        if isinstance(param, click.Option) and param.required and param is not named and given.isdisjoint(param.opts)
    ]
    return f" Also missing: {', '.join(missing)}." if missing else ""


def _describe_usage(error: click.ClickException) -> Finding:
    message = error.format_message()
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    fix = "" if ctx is None else f"Run `{ctx.command_path} --help`."
    if isinstance(error, click.NoSuchOption):
        return Finding.error("no-such-option", message, fix=fix)
    if isinstance(error, click.MissingParameter):
        return Finding.error("missing-argument", message, fix=fix)
    if isinstance(error, click.BadParameter):
        return Finding.error("unusable-value", message, fix=fix)
    if message.startswith("No such command"):
        return Finding.error("unknown-verb", message, fix=fix)
    return Finding.error("wrong-usage", message, fix=fix)


def _refuse_empty(ctx: click.Context, args: Sequence[str]) -> None:
    """Refuse what a shell makes of a variable that is not set: an empty path would be the current folder."""
    of_draftwise = args[: args.index("--")] if "--" in args else args
    for before, word in pairwise(("", *of_draftwise)):
        is_empty = not word and before != "--installed"  # for which it means that nothing is
        if is_empty or (word.startswith("--") and word.endswith("=")):
            name = word.rstrip("=") or (before if before.startswith("-") else "an argument")
            raise click.UsageError(f"{name} is empty. Is a variable of the shell not set?", ctx)


def _refuse_urls(ctx: click.Context, words: Sequence[str]) -> None:
    """Refuse a URL in the place of a file, which a path would garble."""
    if not any(map(_URL.search, words)):
        return
    if isinstance(ctx.command, click.Group):
        if inner := ctx.command.get_command(ctx, words[0]):
            _refuse_urls(click.Context(inner, parent=ctx, info_name=words[0]), words[1:])
        return
    by_name = {
        name: param
        for param in ctx.command.params
        for name in (param.opts if isinstance(param, click.Option) and not param.is_flag else ())
    }
    first = next((param for param in ctx.command.params if isinstance(param, click.Argument)), None)
    for before, word in pairwise(("", *(words[: words.index("--")] if "--" in words else words))):
        name, _, value = word.partition("=") if word.startswith("--") else (before, "", word)
        param = by_name.get(name, first)
        if _URL.match(value) and param is not None and isinstance(param.type, click.Path):
            what = name if name in by_name else param.make_metavar(ctx).strip("[].")
            raise click.UsageError(
                f"{value} is a URL, but {what} is a file or a folder on this machine. "
                "`draftwise watch URL` and `draftwise verify URL --setup FILE` look at a server.",
                ctx,
            )


def _version_option() -> click.Option:
    def show(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
        if wanted:
            click.echo(f"draftwise {__version__}")
            ctx.exit()

    return click.Option(
        ["--version"], is_flag=True, expose_value=False, is_eager=True, callback=show, help="Show the version."
    )


class _Pipe(io.FileIO):
    """A file whose reader may leave early: `draftwise check ... | head -1` goes on to its exit code."""

    failure: OSError | None = None
    """Why something was not written, unless the reader left."""

    def write(self, data: object) -> int:
        """Write; what a closed pipe or a full disk does not take is dropped."""
        try:
            return super().write(data) or 0  # type: ignore[arg-type]  # FileIO.write takes any buffer
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EINVAL):  # the latter on Windows
                self.failure = error
            return len(data)  # type: ignore[arg-type]


def _write_plainly(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_PLAINER.get(each, "?") for each in text), error.end


def _settle_streams() -> _Pipe | None:
    """Write plainer what the encoding lacks (PYTHONIOENCODING=ascii, pipes on Windows), and survive closed streams.

    Return the file that stdout is; None for a terminal, and for what is no file.
    """
    codecs.register_error("draftwise", _write_plainly)
    sys.stdin = sys.stdin or io.StringIO()
    pipe = None
    for name in ("stderr", "stdout"):
        stream, pipe = getattr(sys, name), None
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="draftwise")
        try:
            descriptor, is_terminal = stream.fileno(), stream.isatty()
        except (OSError, ValueError, AttributeError):  # not a file, closed, or none at all
            continue
        if not is_terminal:
            pipe, coded = _Pipe(descriptor, "w", closefd=False), {"encoding": stream.encoding, "errors": "draftwise"}
            setattr(sys, name, io.TextIOWrapper(io.BufferedWriter(pipe), **coded, line_buffering=name == "stderr"))
    return pipe
