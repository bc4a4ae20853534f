"""The sources of the verbs that judge a configuration, and the setups that they hold."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

from draftwise.core import Device, Finding, InvalidSetup, Setup, Severity, SpecConfig, UnreadableSource
from draftwise.knowledge.gpus import get_gpu
from draftwise.knowledge.messages import refusal, unreadable
from draftwise.knowledge.models import find_model
from draftwise.knowledge.rules import find_doubts, get_rule
from draftwise.knowledge.vllm import Release, find_remarks, get_release, releases
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
from draftwise.setups.read.input_texts import read_text, suggest_sources
from draftwise.verbs.verb import refuse

Source = str | Path | Setup
"""A model, a file, a folder, a pattern of file names, a command line, `-` for standard input, or a setup."""
_STDIN = "-"
_OF_MODELS = frozenset({"architectures", "hidden_size", "text_config"})
"""Keys of a config.json that no setup has."""
_MODEL_FILES = ("config.json", "params.json", "*.safetensors", "*.gguf")
"""Files that make a folder a checkpoint."""
_MODEL_NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}(?::\w+)?", re.ASCII)
"""Name of a model on the hub, with its organization; behind a colon the quantization of a GGUF file."""
_COMMANDS = frozenset({
    ("vllm", "serve"), ("docker", "run"), ("podman", "run"), ("nerdctl", "run"), ("python", "-m"), ("python3", "-m"),
})  # fmt: skip
"""First words of the commands that start a server."""
_WRAPPERS = frozenset({"command", "env", "exec", "nice", "nohup", "numactl", "srun", "sudo", "time", "uv"})
"""Programs that start the program that their arguments name."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_SPEC = "--speculative-config"
_IN_A_FILE = "Or give the name of a file with the JSON, which works in every shell."


@dataclass(frozen=True, slots=True)
class SetupRequest:
    """Fields that the requests of these verbs have in common."""

    sources: Source | Sequence[Source] = ()
    """Models (a directory, a well-known id, config.json text), files (compose, Kubernetes, JSON, scripts), folders,
    patterns, whole command lines, `-` for standard input, or setups."""
    _: KW_ONLY
    target: str | PathLike[str] | None = None
    """Model that replaces the target in the sources, e.g. a mount path."""
    speculative_config: SpecConfig | Mapping[str, Any] | str | PathLike[str] | None = None
    """Config that replaces those in the sources: a value, its JSON, or a file that holds it."""
    gpu: str | None = None
    """GPU that serves, such as H200, or its memory, such as 48GiB. Default: the source's, else any."""
    engine_flags: Sequence[str] = ()
    """Flags of `vllm serve`, as on its command line, for a single model."""
    env_files: Sequence[str | PathLike[str]] = ()
    """Files of NAME=value lines: values of variables that the sources use, such as compose's .env."""
    usual_vllm: str | None = None
    """Release for sources that name none, unless the request names one."""
    usual_gpu: str | None = None
    """GPU for sources that name none, unless the request names one."""
    skip_other_files: bool = False
    """Whether to skip files that start no vLLM server, for hooks that pass every changed file."""


@dataclass(frozen=True, slots=True)
class JudgedRequest(SetupRequest):
    """A request whose setups are judged with the config.json of their models."""

    _: KW_ONLY
    config_from: str | PathLike[str] | None = None
    """Directory, config.json, or URL of either, for a target that draftwise does not know by name."""
    hub: bool = False
    """Whether to fetch config.json and the weights' index of unknown models from the Hugging Face hub."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSetups:
    """Setups that the sources hold, read for one release."""

    readings: tuple[SetupReading, ...]
    unread: tuple[tuple[str, Report], ...]
    """Files that may start a server and cannot be read, by name."""
    skipped: tuple[str, ...]
    """Files of a folder, or of a list of files, that start no server."""
    may_be_empty: bool = False
    """Whether to accept that no file starts a server."""

    @property
    def setups(self) -> list[Setup]:
        """The setups alone."""
        return [reading.setup for reading in self.readings]

    def require_some(self) -> None:
        """Refuse sources of which none starts a server, so that nothing would be judged.

        Raises:
            UnreadableSource: there is no server.
        """
        told = [finding for _, report in self.unread for finding in report.findings]
        if told and not self.readings and all(each.code == "no-server" for each in told):
            raise UnreadableSource(told)
        if self.skipped and not (self.readings or self.unread or self.may_be_empty):
            number = len(self.skipped)
            said = f"None of the {number} files starts" if number > 1 else "The file does not start"
            fix = f"Name the file that does. If none should, add --skip-other-files. {hint_kustomize(self.skipped)}"
            raise UnreadableSource.because("nothing-to-read", f"{said} a vLLM server.", fix=fix.rstrip())

    def require_one(self) -> SetupReading:
        """Return the only setup as it was read.

        Raises:
            InvalidSetup: it is missing, there are several, or its text has a fault.
        """
        if len(self.unread) == 1 and not self.readings:
            raise InvalidSetup(self.unread[0][1].findings)
        if len(self.readings) != 1:
            raise refusal("several-servers", case="sources", number=len(self.readings))
        self.readings[0].require()
        return self.readings[0]


def hint_kustomize(names: Iterable[str]) -> str:
    """Return how to judge the output of the last kustomization among files; empty without one."""
    folders = [Path(each).parent for each in names if Path(each).stem.lower() == "kustomization"]
    return (
        "" if not folders else f"To judge what Kustomize makes: `kubectl kustomize {folders[-1]} | draftwise check -`."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Opened sources: texts are fetched once, however often they are judged."""

    models: tuple[str, ...]
    setups: tuple[Setup, ...]
    texts: tuple[SourceText, ...]
    engine_flags: tuple[str, ...]
    variables: Mapping[str, str]
    """Values of variables that the texts use."""
    gpu: str | None
    usual_vllm: str | None
    usual_gpu: str | None
    changes: Mapping[str, Any]
    """Fields of every setup that the request replaces."""
    about_changes: tuple[Finding, ...]
    """Findings of reading these replacements."""
    may_be_empty: bool

    def read(self, version: str | None) -> FoundSetups:
        """Return the setups as read for a release; None for the one that each source names."""
        readings = [
            read_words(["vllm", "serve", model, *self.engine_flags], engine_version=version) for model in self.models
        ]
        readings += [
            SetupReading(setup=setup if version is None else replace(setup, engine_version=version), where="")
            for setup in self.setups
        ]
        unread: list[tuple[str, Report]] = []
        skipped: list[str] = []
        for text in self.texts:
            try:
                readings += read_setups(text, engine_version=version, given=self.variables)
            except InvalidSetup as error:
                if text.is_chosen or (text.may_start_vllm and not isinstance(error, NoServer)):
                    unread.append((text.name, _report_unread(text, error.findings)))
                else:
                    skipped.append(text.name)
        found = FoundSetups(
            readings=tuple(
                reading.with_fields(*self.about_changes, **self.changes, **self._fill_in(reading.setup))
                for reading in readings
            ),
            unread=tuple(unread),
            skipped=tuple(skipped),
            may_be_empty=self.may_be_empty,
        )
        found.require_some()
        return found

    def _fill_in(self, setup: Setup) -> Mapping[str, Any]:
        """Return what the request says of GPU and release. What is only usual counts where the source says nothing."""
        gpu = self.gpu or (self.usual_gpu if setup.device is None else None)
        filled: dict[str, Any] = {} if gpu is None else {"device": with_gpu(setup, gpu).device}
        if self.usual_vllm is not None and not setup.engine_version:
            filled["engine_version"] = self.usual_vllm
        return filled


def find_sources(request: SetupRequest) -> Sources:
    """Open the sources of a request.

    Raises:
        InvalidRequest: there is no source, or engine flags have no single model to go with.
        UnreadableSource: a source does not exist or cannot be opened.
        InvalidSetup: the speculative config is not one.
    """
    given = [request.sources] if isinstance(request.sources, Source) else list(request.sources)
    if not given:
        refuse("Give a model, a file (compose, Kubernetes, JSON) or a `vllm serve ...` command line.")
    changes: dict[str, Any] = {} if request.target is None else {"target": require_model(request.target, "--target")}
    about: tuple[Finding, ...] = ()
    if request.speculative_config is not None:  # first: what a shell tears off JSON looks like sources
        changes["spec"], about = read_spec(request.speculative_config)
    words = join_command([_spell(each) for each in given if not isinstance(each, Setup)])
    models = [word for word in words if word != _STDIN and _is_model(word)]
    texts = [text for word in words if word not in models for text in _open(word)]
    if request.engine_flags and (texts or len(models) > 1):
        refuse("Engine flags (after `--`, or --tp) need exactly one model as SOURCE.")
    skips = request.skip_other_files
    if empty := next((text for text in texts if text.is_chosen and text.is_nothing and not skips), None):
        name = empty.name or "The source"
        raise unreadable("nothing-to-read", case="empty", name=name, where=empty.name)
    return Sources(
        models=tuple(models),
        setups=tuple(each for each in given if isinstance(each, Setup)),
        texts=tuple(replace(text, is_chosen=text.is_chosen and not skips) for text in texts),
        engine_flags=tuple(request.engine_flags),
        variables=_read_env_files(request.env_files),
        gpu=request.gpu,
        usual_vllm=None if request.usual_vllm is None else str(open_release(request.usual_vllm, nearest=False)),
        usual_gpu=request.usual_gpu,
        changes=changes,
        about_changes=about,
        may_be_empty=skips,
    )


def open_release(version: str, *, nearest: bool) -> Release:
    """Return the release that a request names.

    Raises:
        InvalidSetup: it is unknown, and the nearest one was not asked for.
    """
    try:
        return get_release(version, nearest=nearest)
    except InvalidSetup as error:
        raise InvalidSetup(
            replace(
                each,
                where="--vllm",
                fix=f"{each.fix} To judge by the nearest release, add --nearest."
                if "nearest" in each.fix
                else each.fix,
            )
            for each in error.findings
        ) from None


def require_model(given: str | PathLike[str], where: str) -> str:
    """Return the model that a flag names: a known one, ORG/NAME, a URL, what lies here, or a path on the server.

    Raises:
        UnreadableSource: it is nothing of that.
    """
    name = str(given)
    if not (Path(name).is_absolute() or Path(name).exists() or _is_name(name)):
        raise unreadable("no-such-source", case="model", source=name, where=where)
    return name


def _is_name(source: str) -> bool:
    return bool(_MODEL_NAME.fullmatch(source) or "://" in source or find_model(source))


def with_gpu(setup: Setup, name: str | None) -> Setup:
    """Return a setup on a GPU that a request names; a server for CPUs stays one.

    Raises:
        InvalidSetup: the GPU is not in the table.
    """
    device = setup.device
    if name is None or (device is not None and device.kind == "cpu"):
        return setup
    gpu, count = get_gpu(name), 1 if device is None else device.count
    return replace(setup, device=Device(name=gpu.name, kind="cuda", count=count, memory_bytes=gpu.memory_bytes))


def remarks_on(release: Release) -> tuple[Finding, ...]:
    """Return remarks on a release that stands in for an unknown version."""
    return (*find_remarks(release), *find_doubts(release))


def require_spec(given: SpecConfig | Mapping[str, Any] | str | PathLike[str], where: str = _SPEC) -> SpecConfig:
    """Return a speculative config. Known keys of the wrong type are refused."""
    if isinstance(given, SpecConfig):
        return given
    try:
        return SpecConfig.parse(read_spec(given)[0].to_dict())
    except InvalidSetup as error:
        found = (replace(each, where=where) if each.where == _SPEC else each for each in error.findings)
        raise type(error)(found) from None


def read_spec(given: SpecConfig | Mapping[str, Any] | str | PathLike[str]) -> tuple[SpecConfig, tuple[Finding, ...]]:
    """Return a speculative config given as a value, as JSON or as a file, and findings of its JSON.

    Raises:
        UnreadableSource: a file does not exist.
        InvalidSetup: it is not a JSON object.
    """
    if isinstance(given, SpecConfig):
        return given, ()
    if isinstance(given, Mapping):
        return SpecConfig.keep(given), ()
    given = str(given)
    where, text = _SPEC, given
    if not given.lstrip(" '\"").startswith("{"):
        path = Path(given.removeprefix("@"))
        if not path.is_file():
            raise unreadable("not-json", case="neither", given=given, where=where)
        where, text = str(path), read_text(path)
    found = read_json(text)
    if found.mistake:
        raise refusal("not-json", case="text", mistake=found.mistake, where=where, fix=found.fix, in_a_file=_IN_A_FILE)
    if not isinstance(found.value, dict):
        kind = type(found.value).__name__
        raise InvalidSetup.because("not-an-object", f"{where} must be a JSON object, got {kind}.", where=where)
    return SpecConfig.keep(found.value), tuple(
        get_rule("flag-json-duplicate").ruling(key=key[:60], where=where) for key in found.duplicates
    )


def _read_env_files(paths: Sequence[str | PathLike[str]]) -> Mapping[str, str]:
    """Return the variables of files. Of several that set one, the last counts."""
    if not paths:
        return {}
    from draftwise.setups.read.manifests.references import read_env_file  # most calls have no such file

    try:
        return {name: value for path in paths for name, value in read_env_file(read_text(Path(path))).items()}
    except InvalidSetup as error:
        raise UnreadableSource(error.findings) from None


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
        found = read_json(read_text(Path(source)) if is_file else source)
        return isinstance(found.value, dict) and not _OF_MODELS.isdisjoint(found.value)
    if kind is SourceKind.FILE:
        return source.endswith(".gguf")
    if kind is not SourceKind.NAME:
        return False
    if not _is_name(source):
        raise unreadable("no-such-source", source=source, near=suggest_sources(source))
    return True


def _spell(source: Source) -> str:
    """Return a source as a word. A Path is a file or a folder, and never the name of a model."""
    if isinstance(source, Path) and not source.exists():
        source = Path.cwd() / source
    return str(source)


def flags_of_vllm() -> Collection[str]:
    """Return the flags of the newest release, as on its command line."""
    return releases()[-1].table("flags")


def find_command(words: Sequence[str]) -> int:
    """Return the index at which a command that starts a server begins, with variables and wrappers; -1 without one."""
    for index, pair in enumerate(pairwise(words)):
        if pair in _COMMANDS:
            begin = next((at for at, word in enumerate(words[:index]) if word in _WRAPPERS), index)
            while begin and _ASSIGNMENT.match(words[begin - 1]):
                begin -= 1
            return begin
    return -1


def join_command(words: Sequence[str]) -> list[str]:
    """Return the sources, with a command given word by word at the end joined into one text."""
    begin = find_command(words)
    if begin < 0:
        return list(words)
    command = [
        f"{name}={shlex.quote(value)}" if _ASSIGNMENT.match(word) else shlex.quote(word)
        for word in words[begin:]
        for name, _, value in [word.partition("=")]
    ]
    return [*words[:begin], " ".join(command)]


def _report_unread(text: SourceText, findings: Sequence[Finding]) -> Report:
    """Return the report of a text that nobody can judge. One of many is a warning, as it may be no server's at all."""
    if not text.is_chosen:
        findings = [replace(finding, severity=Severity.WARNING) for finding in findings]
    return Report(version="", setup=Setup(engine=""), findings=tuple(findings), resolved=None, is_judged=False)
