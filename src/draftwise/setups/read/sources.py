"""Tells what a file or a text is, and reads every vLLM server in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from draftwise.core import Finding, InvalidSetup
from draftwise.facts.rules import get_rule
from draftwise.setups.read.arguments.config_file import get_flags
from draftwise.setups.read.files import read_text
from draftwise.setups.read.json_setup import read_json_setup, read_keywords
from draftwise.setups.read.manifests.compose import find_services, is_compose
from draftwise.setups.read.manifests.kubernetes import find_objects, is_manifest
from draftwise.setups.read.manifests.parts import get_mapping, walk
from draftwise.setups.read.manifests.stack import find_model_specs, is_stack
from draftwise.setups.read.manifests.systemd import find_units, is_unit
from draftwise.setups.read.manifests.yaml_text import Document, get_text, read_yaml
from draftwise.setups.read.reading import Reading, choose_release, no_server, read_launch
from draftwise.setups.read.shell.environment import Environment
from draftwise.setups.read.shell.launch import MAX_LAUNCHES, Launch, find_launches
from draftwise.setups.read.shell.place import in_file
from draftwise.setups.read.shell.words import MAX_CHARS, Script

__all__ = ["read_setups"]

_YAML = re.compile(r"(?:[ \t\r]*(?:#[^\n]*)?\n)*(?:---|[\w.-]+:(?:\s|$))")
"""How YAML begins, after blank lines and comments."""
_FILE_NAME = re.compile(r"[^\s{\[-][^\s]*\.(?:ya?ml|json|service|sh|txt)")
_DOS_SCRIPT = re.compile(r"#![^\n]*\r\n")
_MAX_LINES = 10_000
_MANIFEST_IN_JSON = re.compile(r'"(?:apiVersion|services)"\s*:')


def read_setups(
    source: str | Path, *, engine_version: str | None = None, given: Mapping[str, str] | None = None
) -> tuple[Reading, ...]:
    """Return every vLLM server that a source starts, as a setup with what its reading found.

    Args:
        source: a file, or the text itself: a command line or a shell script, a compose file, Kubernetes or KServe
            manifests, a systemd unit, the YAML of `vllm serve --config`, JSON, or a file of JSON lines (.jsonl).
        engine_version: judges every server for this release, whatever the source says.
        given: values of variables that the source takes from elsewhere.

    Raises:
        InvalidSetup: the source cannot be read, or starts no vLLM server.
    """
    path = _find_file(source)
    name = "" if path is None else str(path)
    text = str(source) if path is None else read_text(path)
    folder = Path() if path is None else path.parent
    if len(text) > MAX_CHARS:
        raise InvalidSetup.because("too-long", f"The text is longer than {MAX_CHARS:,} characters.", where=name)
    one_line = "\n" not in text.strip()
    try:
        readings = _read(text, name, _Around(engine_version, folder, given or {}))
    except InvalidSetup as error:
        raise InvalidSetup(_place(finding, name, one_line=one_line) for finding in error.findings) from None
    except RecursionError:
        raise InvalidSetup.because("too-deep", "The text nests too deep to be read.", where=name) from None
    if not readings:
        raise no_server(name)
    return tuple(
        replace(
            reading,
            where=in_file(reading.where, name, one_line=one_line),
            findings=tuple(_place(finding, name, one_line=one_line) for finding in reading.findings),
        )
        for reading in readings
    )


def _find_file(source: str | Path) -> Path | None:
    if isinstance(source, Path):
        return source
    if "\n" in source or len(source) > 1000:
        return None
    try:
        if Path(source).is_file():
            return Path(source)
    except (OSError, ValueError):
        return None
    return Path(source) if _FILE_NAME.fullmatch(source) else None


def _place(finding: Finding, name: str, *, one_line: bool) -> Finding:
    return replace(finding, where=in_file(finding.where, name, one_line=one_line))


@dataclass(frozen=True, slots=True)
class _Around:
    """What is known beside the text."""

    engine_version: str | None
    folder: Path
    given: Mapping[str, str]


def _read(text: str, name: str, around: _Around) -> list[Reading]:
    suffix = Path(name).suffix.lower()
    bare = text.lstrip("\ufeff \t\r\n")
    if suffix == ".jsonl":
        return list(_read_lines(text, around.engine_version))
    if (suffix == ".json" or bare.startswith("{")) and not _MANIFEST_IN_JSON.search(text):
        return [read_json_setup(text, name=name, engine_version=around.engine_version)]
    if is_unit(text):
        return _read_launches(find_units(text, around.given), around)
    if suffix in (".yaml", ".yml", ".json") or bare.startswith("{") or _YAML.match(text):
        return _read_documents(read_yaml(text, name=name), around)
    env = Environment(values=around.given)
    if bare.startswith("-"):
        return _read_launches(_bare_flags(bare, env), around)
    readings = _read_launches(find_launches(text, env=env), around)
    return [replace(reading, findings=(*_about_line_ends(text), *reading.findings)) for reading in readings]


def _about_line_ends(script: str) -> Iterator[Finding]:
    if _DOS_SCRIPT.match(script):
        yield get_rule("script-with-carriage-returns").ruling(
            "The lines of the script end in carriage return and line feed: its interpreter is not found, or each"
            " command gets the carriage return as part of its last word.",
            where="line 1",
            fix="Convert it with dos2unix, and keep it so with a line '*.sh text eol=lf' in .gitattributes.",
        )


def _read_lines(text: str, engine_version: str | None) -> Iterator[Reading]:
    """Yield the setup of each line of a JSON lines file, for judging many at once."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if len(lines) > _MAX_LINES:
        raise InvalidSetup.because(
            "too-many-servers", f"The file has {len(lines)} lines, and at most {_MAX_LINES:,} are read at once."
        )
    for number, line in lines:
        yield read_json_setup(line, name=f"line {number}", engine_version=engine_version)


def _bare_flags(text: str, env: Environment) -> Iterator[Launch]:
    """Yield the server whose arguments are given without a program."""
    words = tuple(token for token in Script(text, env=env).tokens() if token is not None)
    by_flag = any(word.text.partition("=")[0] == "--model" for word in words)
    yield Launch(words=words, entry="api_server" if by_flag else "serve")


def _read_launches(launches: Iterator[Launch], around: _Around) -> list[Reading]:
    readings: list[Reading] = []
    for launch in launches:
        if len(readings) == MAX_LAUNCHES:
            raise InvalidSetup.because("too-many-servers", f"The text starts more than {MAX_LAUNCHES} servers.")
        readings.append(read_launch(launch, engine_version=around.engine_version, folder=around.folder))
    return readings


def _read_documents(documents: Sequence[Document], around: _Around) -> list[Reading]:
    manifests = [document for document in documents if is_manifest(document)]
    readings = _read_launches(find_objects(manifests, around.given), around)
    for document in documents:
        if document in manifests or not isinstance(document.value, Mapping):
            continue
        if is_compose(document):
            readings += _read_launches(find_services(document, around.folder, around.given), around)
        elif is_stack(document):
            readings += _read_launches(find_model_specs(document), around)
        else:
            version = around.engine_version
            readings += _read_keywords(document, version) or _read_config_file(document, version)
    if readings:
        about_text = tuple(finding for document in documents for finding in document.findings)
        readings[0] = replace(readings[0], findings=about_text + readings[0].findings)
    return readings


def _read_keywords(document: Document, engine_version: str | None) -> list[Reading]:
    """Read the `engine_kwargs` of Ray Serve."""
    readings = []
    for path, mapping in walk(document.value):
        if not isinstance(mapping.get("engine_kwargs"), Mapping):
            continue
        model = get_mapping(mapping, "model_loading_config")
        source = model.get("model_source") if isinstance(model.get("model_source"), str) else model.get("model_id")
        value = {"model": source, "speculative_config": None, **mapping["engine_kwargs"]}
        where = f"line {document.line((*path, 'engine_kwargs'))} {get_text((*path, 'engine_kwargs'))}"
        readings.append(read_keywords(value, where=where, engine_version=engine_version))
    return readings


def _read_config_file(document: Document, engine_version: str | None) -> list[Reading]:
    """Read a file that `vllm serve --config` would take."""
    findings: list[Finding] = []
    release, _ = choose_release(engine_version)
    known = release.table("flags")
    if not any(f"--{key.replace('_', '-')}" in known for key in document.value):
        return []
    words = tuple(get_flags(document, release, findings))
    reading = read_launch(Launch(words=words, entry="api_server"), engine_version=engine_version)
    return [replace(reading, findings=(*findings, *reading.findings))]
