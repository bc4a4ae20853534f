"""Compose files: each service whose container starts a vLLM server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any

from draftwise.setups.read.input_texts import read_text
from draftwise.setups.read.manifests.parts import Findings, get_mapping, get_words
from draftwise.setups.read.manifests.references import COMPOSE, read_env_file
from draftwise.setups.read.manifests.yaml_text import Path, YamlDocument, get_text
from draftwise.setups.read.place import Place
from draftwise.setups.read.shell.environment import Environment
from draftwise.setups.read.shell.launch import Launch, run_image
from draftwise.setups.read.shell.words import Word

_CALLER = "set where docker compose runs, or in a .env file next to this one"
_COMMANDS = ("entrypoint", "command")
_COMMANDS_OF_AKASH = ("command", "args")
"""Akash's SDL, which looks like a compose file, has Kubernetes' names."""


def find_services(document: YamlDocument, folder: FilePath, given: Mapping[str, str]) -> Iterator[Launch]:
    """Yield the servers of a compose file.

    Args:
        document: the file's content.
        folder: folder of the file, of its `.env` and of the files in `env_file`.
        given: variables that replace those of `.env`, as with `docker compose --env-file`.

    Raises:
        InvalidSetup: a file of variables cannot be read, or a quote is never closed.
    """
    beside = folder / ".env"
    values = given or (read_env_file(read_text(beside)) if beside.is_file() else {})
    project = _Project(document, folder, Environment(values=values, elsewhere=_CALLER), given)
    for name, service in get_mapping(document.value, "services").items():
        if isinstance(service, Mapping):
            launch = project.read_service(("services", name), service)
            if launch is not None:
                yield launch


@dataclass(frozen=True, slots=True)
class _Project:
    """A compose file with what it finds around it."""

    document: YamlDocument
    folder: FilePath
    caller: Environment
    """What `${NAME}` in the file refers to."""
    given: Mapping[str, str]

    def read_service(self, path: Path, service: Mapping[str, Any]) -> Launch | None:
        """Return the server that a service starts, or None."""
        found: Findings = []
        env = self._read_env(path, service)
        keys = _COMMANDS_OF_AKASH if "args" in service else _COMMANDS
        entrypoint, command = (self._read_words((*path, key), service.get(key), found) for key in keys)
        image = COMPOSE.fill_in(Word(str(service.get("image") or "")), self.caller)
        if service.get("entrypoint") in ([], ""):
            entrypoint = (Word(""),)  # takes the image's away
        launch = run_image(image, entrypoint, command, env=env)
        if launch is None:
            return None
        document, variables = self.document.value, self.caller.values
        return replace(
            launch,
            num_gpus=_count_gpus(service) or launch.num_gpus,
            where=f"line {self.document.line(path)} {get_text(path)}",
            findings=(*found, *launch.findings),
            place=Place(form="services", value=document, path=path, folder=self.folder, variables=variables),
        )

    def _read_words(self, path: Path, value: Any, found: Findings) -> tuple[Word, ...]:
        if isinstance(value, str):
            return COMPOSE.split(Word(value, self.document.line(path), get_text(path)), self.caller)
        return tuple(COMPOSE.fill_in(word, self.caller) for word in get_words(self.document, path, value, found))

    def _read_env(self, path: Path, service: Mapping[str, Any]) -> Environment:
        """Return the variables of a service: those of its files, and over them its own."""
        found: list[Environment] = []
        files = service.get("env_file")
        for file in files if isinstance(files, list) else [files]:
            name = file.get("path") if isinstance(file, Mapping) else file
            if isinstance(name, str):
                found.append(self._read_file(name))
        own = _get_variables(self.document, (*path, "environment"), service.get("environment"))
        found += (self._read_variable(name, text) for name, text in own)
        return Environment.join(found).given(self.given)

    def _read_file(self, name: str) -> Environment:
        file = self.folder / COMPOSE.fill_in(Word(name), self.caller).text
        if not file.is_file():
            return Environment(elsewhere=f"the env_file {name}, which does not exist")
        return Environment.join(self._read_variable(*row) for row in read_env_file(read_text(file)).items())

    def _read_variable(self, name: str, text: str | None) -> Environment:
        """Return a variable. One without a value is passed on from where docker compose runs."""
        word = COMPOSE.fill_in(Word(f"${{{name}}}" if text is None else text), self.caller)
        if word.unknown:
            return Environment(unknown={name: ", ".join(word.unknown) if text else _CALLER})
        return Environment(values={name: word.text}, assumed={name: ", ".join(word.assumed)} if word.assumed else {})


def _get_variables(document: YamlDocument, path: Path, value: Any) -> Iterator[tuple[str, str | None]]:
    """Yield variables from `{A: b}` or `["A=b"]`. None for one without a value."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            text = document.texts.get((*path, key), inner)
            yield key, text if isinstance(text, str) and inner is not None else None
    else:
        for item in value if isinstance(value, Sequence) and not isinstance(value, str) else ():
            name, separator, text = str(item).partition("=")
            yield name, text if separator else None


def _count_gpus(service: Mapping[str, Any]) -> int | None:
    devices = get_mapping(service, "deploy", "resources", "reservations").get("devices")
    first = devices[0] if isinstance(devices, list) and devices else {}
    ids = first.get("device_ids") if isinstance(first, Mapping) else None
    if isinstance(ids, list):
        return len(ids)
    count = first.get("count") if isinstance(first, Mapping) else None
    given = service.get("gpus") if count is None else count
    return given if isinstance(given, int) and not isinstance(given, bool) and given > 0 else None
