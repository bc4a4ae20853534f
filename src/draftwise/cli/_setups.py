"""What the verbs that judge a configuration have in common: their arguments, and the setups these describe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from draftwise.cli._options import add_options
from draftwise.core import Finding, InvalidSetup, Setup, Severity, SpecConfig, UnreadableSource
from draftwise.knowledge.rules import get_rule
from draftwise.knowledge.vllm import Release, get_release
from draftwise.plan.check import Report
from draftwise.setups.read import (
    NoServer,
    SetupReading,
    SourceKind,
    SourceText,
    find_kind,
    find_texts,
    read_setups,
    read_stdin,
    read_words,
)
from draftwise.setups.read.arguments.flag_values import read_json
from draftwise.setups.read.input_texts import read_text

__all__ = [
    "Found",
    "Sources",
    "find_sources",
    "nearest_option",
    "open_release",
    "setup_command",
    "tell_remarks",
    "tell_skipped",
]

_F = TypeVar("_F", bound=Callable[..., Any])
_STDIN = "-"
_OF_MODELS = frozenset({"architectures", "hidden_size", "text_config"})
"""Keys of a config.json that no setup has."""
_MODEL_FILES = ("config.json", "params.json", "*.safetensors", "*.gguf")
"""By which a folder is a checkpoint's."""
_SPEC = "--speculative-config"


class _SetupCommand(click.Command):
    """A command whose words after `--` are flags of `vllm serve`; they reach it as `engine_flags`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Cut the words off, and parse those before them."""
        cut = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:cut])
        ctx.params["engine_flags"] = tuple(args[cut + 1 :])
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the words of the usage line."""
        return [*super().collect_usage_pieces(ctx), "[-- ENGINE FLAGS]"]


_of_setups = add_options(
    click.argument("sources", nargs=-1, metavar="[SOURCE]..."),
    click.option("--target", metavar="MODEL", help="What the target in SOURCE stands for, e.g. where it is a mount."),
    click.option(_SPEC, "-sc", "spec", metavar="JSON|FILE", help="As vLLM takes it, or a file that holds it."),
    click.option("--env-file", "env_files", multiple=True, type=click.Path(path_type=Path),
                 help="NAME=value lines: variables that SOURCE takes from elsewhere, in compose those of .env."),
    click.option("--skip-other-files", "skip", is_flag=True,
                 help="Pass over files that start no vLLM server, as hooks hand over all that changed."),
)  # fmt: skip


def setup_command(*, short_help: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Return what makes a verb of a function, with the arguments `sources`, `engine_flags` and those of its options."""

    def make(function: Callable[..., Any]) -> click.Command:
        return click.command(cls=_SetupCommand, short_help=short_help)(_of_setups(function))

    return make


def _read_env_files(paths: Sequence[Path]) -> Mapping[str, str]:
    """Return the variables of files; of several that set one, the last counts."""
    if not paths:
        return {}
    from draftwise.setups.read.manifests.references import read_env_file  # most calls have no such file

    try:
        return {name: value for path in paths for name, value in read_env_file(read_text(path)).items()}
    except InvalidSetup as error:
        raise UnreadableSource(error.findings) from None


def nearest_option(function: _F) -> _F:
    """Add --nearest to a verb."""
    return click.option(
        "--nearest", is_flag=True, help="Judge a release that is not known by the nearest that is, and say so."
    )(function)


def open_release(version: str, *, nearest: bool) -> Release:
    """Return the release that an option names.

    Raises:
        InvalidSetup: it is not known, and the nearest was not asked for.
    """
    try:
        return get_release(version, nearest=nearest)
    except InvalidSetup as error:
        raise InvalidSetup(replace(finding, where="--vllm") for finding in error.findings) from None


def tell_remarks(remarks: Iterable[Finding]) -> None:
    """Say on stderr what must be known of the release that stands for the version that was asked for."""
    for remark in remarks:
        click.echo(f"{remark.severity}: {remark}", err=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the sources of a verb hold, read for one release."""

    readings: tuple[SetupReading, ...]
    unread: tuple[tuple[str, Report], ...]
    """Files that may start a server and cannot be read, by name."""
    skipped: tuple[str, ...]
    """Files, of a folder or of many, that start none."""
    may_be_empty: bool = False
    """Whether it is right that no file starts a server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What the arguments of a verb name: models, and texts, which are fetched once however often they are judged."""

    models: tuple[str, ...]
    texts: tuple[SourceText, ...]
    engine_flags: tuple[str, ...]
    given: Mapping[str, str]
    """Values of variables that texts take from elsewhere."""
    changes: Mapping[str, Any]
    """Fields of every setup that options replace."""
    about_options: tuple[Finding, ...]
    """What the reading of these options found."""
    may_be_empty: bool
    """Whether it is right that no source starts a server."""

    def read(self, version: str | None) -> Found:
        """Return the setups.

        Args:
            version: judges them by this release, whatever the sources say.
        """
        readings = [
            read_words(["vllm", "serve", model, *self.engine_flags], engine_version=version) for model in self.models
        ]
        unread: list[tuple[str, Report]] = []
        skipped: list[str] = []
        for text in self.texts:
            try:
                readings += read_setups(text, engine_version=version, given=self.given)
            except InvalidSetup as error:
                if text.is_chosen or (text.may_start_vllm and not isinstance(error, NoServer)):
                    unread.append((text.name, _report_unread(text, error.findings)))
                else:
                    skipped.append(text.name)
        return Found(
            readings=tuple(reading.with_fields(*self.about_options, **self.changes) for reading in readings),
            unread=tuple(unread),
            skipped=tuple(skipped),
            may_be_empty=self.may_be_empty,
        )


def find_sources(
    sources: Sequence[str],
    spec: str | None,
    engine_flags: Sequence[str],
    *,
    target: str | None = None,
    env_files: Sequence[Path] = (),
    skip: bool = False,
) -> Sources:
    """Return what the arguments name.

    Args:
        sources: each a model (directory, well-known id, config.json text), a file, a folder, a pattern of file names,
            `-` for standard input, or a whole command line.
        spec: a speculative config that replaces those in `sources`.
        engine_flags: flags of `vllm serve`, as they would stand on its command line, for the one model.
        target: a model that replaces those in `sources`.
        env_files: hold values of variables that `sources` take from elsewhere.
        skip: whether a file may start no server.

    Raises:
        UsageError: there is no source, or engine flags have no one model to go with.
        UnreadableSource: a source is not there or cannot be opened.
        InvalidSetup: the speculative config is none.
    """
    if not sources:
        raise click.UsageError("Give a model, a file (compose, Kubernetes, JSON) or a `vllm serve ...` command line.")
    models = [source for source in sources if source != _STDIN and _is_model(source)]
    texts = [text for source in sources if source not in models for text in _open(source)]
    if engine_flags and (texts or len(models) > 1):
        raise click.UsageError("Engine flags behind -- go with one model, and with nothing else as SOURCE.")
    changes: dict[str, Any] = {} if target is None else {"target": target}
    about_options: tuple[Finding, ...] = ()
    if spec is not None:
        value, about_options = _read_spec(spec)
        changes["spec"] = SpecConfig.keep(value)
    return Sources(
        models=tuple(models),
        texts=tuple(replace(text, is_chosen=text.is_chosen and not skip) for text in texts),
        engine_flags=tuple(engine_flags),
        given=_read_env_files(env_files),
        changes=changes,
        about_options=about_options,
        may_be_empty=skip,
    )


def tell_skipped(found: Found, *, verbose: bool) -> None:
    """Say on stderr how many files start no server, or which.

    Raises:
        UnreadableSource: none of a folder's files starts one, so that nothing would be judged.
    """
    if found.skipped and not (found.readings or found.unread or found.may_be_empty):
        raise UnreadableSource.because(
            "nothing-to-read",
            f"No file starts a vLLM server, of {len(found.skipped)} that were looked at.",
            fix="Name the file that does, or add --skip-other-files where that is right.",
        )
    if verbose:
        for name in found.skipped:
            click.echo(f"{name} starts no vLLM server.", err=True)
    elif found.skipped:
        number = "1 file starts" if len(found.skipped) == 1 else f"{len(found.skipped)} files start"
        click.echo(f"{number} no vLLM server (--verbose names them).", err=True)


def _open(source: str) -> Iterator[SourceText]:
    if source == _STDIN:
        yield read_stdin()
    else:
        yield from find_texts(source)


def _is_model(source: str) -> bool:
    """Whether a source is a model (name, directory, config.json), and not a file, a command line or JSON to be read."""
    kind = find_kind(source)
    if kind is SourceKind.FOLDER:
        return any(next(Path(source).glob(name), None) is not None for name in _MODEL_FILES)
    if source.lstrip().startswith("{") or (kind is SourceKind.FILE and source.endswith(".json")):
        is_file = kind is SourceKind.FILE
        found = read_json(Path(source).read_text(encoding="utf-8", errors="replace") if is_file else source)
        return isinstance(found.value, dict) and not _OF_MODELS.isdisjoint(found.value)
    if kind is SourceKind.FILE:
        return source.endswith(".gguf")
    return kind in (SourceKind.NAME, SourceKind.TEXT) and not any(map(str.isspace, source))


def _report_unread(text: SourceText, findings: Sequence[Finding]) -> Report:
    """Return the report of a text that nobody can judge; one of many is a warning, as it may be no server's at all."""
    if not text.is_chosen:
        findings = [replace(finding, severity=Severity.WARNING) for finding in findings]
    return Report(version="", setup=Setup(engine=""), findings=tuple(findings), resolved=None, is_judged=False)


def _read_spec(given: str) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """Return the speculative config of the option, and what is to be said of its JSON."""
    where, text = _SPEC, given
    if not given.lstrip().startswith("{"):
        path = Path(given.removeprefix("@"))
        if not path.is_file():
            raise UnreadableSource.because(
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
    return found.value, tuple(
        get_rule("flag-json-duplicate").ruling(key=key[:60], where=where) for key in found.duplicates
    )
