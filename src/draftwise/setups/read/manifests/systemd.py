"""systemd units and Podman's Quadlet files: the server that ExecStart or the described container starts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from draftwise.setups.read.input_texts import read_text
from draftwise.setups.read.manifests.references import SYSTEMD, read_env_file
from draftwise.setups.read.place import Place
from draftwise.setups.read.shell.environment import Environment, describe_unknown
from draftwise.setups.read.shell.launch import Launch, find_launch, run_image
from draftwise.setups.read.shell.words import Word, split_words

_HEADER = re.compile(r"\[([\w-]+)\]")
_SETTING = re.compile(r"([A-Za-z]+)\s*=\s*(.*)", re.DOTALL)
_WHOLE = re.compile(r"\$([A-Za-z_]\w*)")
_QUOTED = re.compile(r""""(?:[^"\\]|\\.)*(?:"|\\?\Z)|'((?:[^'\\]|\\.)*)(?:'|\\?(\Z))""", re.DOTALL)
_SPECIFIER = re.compile(r"%(%|[A-Za-z])")


def find_units(text: str, given: Mapping[str, str]) -> Iterator[Launch]:
    """Yield the servers of a unit file.

    Raises:
        InvalidSetup: a quote is never closed, or a file of variables cannot be read.
    """
    sections = _read_sections(text)
    settings = sections.get("Service", [])
    env, place = _read_environment(settings, given), _get_place(sections)
    for line, name, value in settings:
        if name == "ExecStart":
            launch = find_launch(read_words(value.lstrip("-@:+!"), env, line), env=env)
            if launch is not None:
                yield replace(launch, env=env | launch.env, where=f"line {line} ExecStart", place=place)


def _read_sections(text: str) -> dict[str, list[tuple[int, str, str]]]:
    """Return line, name and value of the settings of each section."""
    sections: dict[str, list[tuple[int, str, str]]] = {}
    inside: list[tuple[int, str, str]] = []
    for line, setting in _join_lines(text.replace("\r\n", "\n")):
        match = _SETTING.fullmatch(setting)
        if setting.startswith("["):
            header = _HEADER.fullmatch(setting)
            inside = sections.setdefault(header[1], []) if header is not None else []
        elif match is not None:
            inside.append((line, match[1], match[2]))
    return sections


def _get_place(sections: Mapping[str, Sequence[tuple[int, str, str]]]) -> Place:
    """Return the surroundings of a unit's server: section, name and value of every setting."""
    values = ((section, name, value) for section, settings in sections.items() for _, name, value in settings)
    return Place(form="unit", value=tuple(values))


def _join_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield settings with their first line. A backslash at the end goes on in the next line."""
    start, parts = 0, list[str]()
    for number, line in enumerate(text.split("\n"), start=1):
        if line.lstrip().startswith(("#", ";")):
            continue
        if not parts:
            start = number
        if line.endswith("\\"):
            parts.append(line[:-1] + " ")
            continue
        yield start, "".join([*parts, line]).strip()
        parts = []
    if parts:
        yield start, "".join(parts).strip()


def _read_environment(settings: Sequence[tuple[int, str, str]], given: Mapping[str, str]) -> Environment:
    """Return the variables of a unit; those from its files override its own."""
    own: list[Environment] = []
    for line, name, value in settings:
        if name == "Environment":
            own += map(_read_assignment, _split(value, line))
        elif name == "PassEnvironment":
            own.append(Environment(unknown=dict.fromkeys(value.split(), "inherited from the system manager")))
    files = (_read_file(value) for _, name, value in settings if name == "EnvironmentFile")
    return Environment.join((*own, *files)).given(given)


def _read_assignment(word: Word) -> Environment:
    word = _fill_specifiers(word)
    name, _, text = word.text.partition("=")
    return Environment(unknown={name: ", ".join(word.unknown)}) if word.unknown else Environment(values={name: text})


def _read_file(name: str) -> Environment:
    """Return the variables of a file. A path that begins with `-` may be missing."""
    path = Path(name.removeprefix("-"))
    if path.is_absolute() and path.is_file():
        return Environment(values=read_env_file(read_text(path)))
    return Environment(elsewhere=f"the EnvironmentFile {path}, which is missing here")


def read_words(text: str, env: Environment, line: int) -> tuple[Word, ...]:
    """Return the words of a command: `${NAME}` is part of a word; `$NAME` is split into the words of its value.

    Quotes in that value count for splitting, and go.
    """
    words: list[Word] = []
    for word in map(_fill_specifiers, _split(text, line)):
        whole = _WHOLE.fullmatch(word.text)
        value = "" if whole is None else env.values.get(whole[1], "")
        if whole is None:
            words.append(SYSTEMD.fill_in(word, env))
        elif origin := env.origin(whole[1]):
            words.append(replace(word, unknown=(*word.unknown, describe_unknown(whole[1], origin))))
        else:
            words += (replace(each, mistake=each.mistake and "split-by-systemd") for each in _split(value, line))
    return tuple(words)


def _split(text: str, line: int) -> tuple[Word, ...]:
    """Return the words of a setting: systemd takes escapes in single quotes, too."""

    def requote(found: re.Match[str]) -> str:
        is_closed = found[1] is not None and found[2] is None
        return shlex.quote(re.sub(r"\\(['\"\\])", r"\1", found[1])) if is_closed else found[0]

    return split_words(_QUOTED.sub(requote, text), line=line)


def _fill_specifiers(word: Word) -> Word:
    """Return a word in which `%%` is a percent sign. Other specifiers are filled in by systemd."""
    names = [found for found in _SPECIFIER.findall(word.text) if found != "%"]
    text = _SPECIFIER.sub(lambda found: "%" if found[1] == "%" else found[0], word.text)
    return replace(word, text=text, unknown=tuple(describe_unknown(f"%{name}", "a specifier") for name in names))


_UNIT = Environment(elsewhere="the environment of the unit that Podman generates from this file")


def find_containers(text: str, given: Mapping[str, str]) -> Iterator[Launch]:
    """Yield the server of a `.container` file.

    Raises:
        InvalidSetup: a quote is never closed, or a file of variables cannot be read.
    """
    sections = _read_sections(text)
    settings = sections.get("Container", [])
    env = _read_environment(settings, given)
    unit = _UNIT.given(given)
    values = {name: (line, value) for line, name, value in settings}
    line, _ = values.get("Exec") or values.get("Image") or (1, "")
    entrypoint, command = (_read(values.get(name), unit) for name in ("Entrypoint", "Exec"))
    image = next(iter(_read(values.get("Image"), unit)), Word(""))
    launch = run_image(image, entrypoint, command, env=env)
    if launch is not None:
        yield replace(launch, where=f"line {line} Exec", place=_get_place(sections))


def _read(setting: tuple[int, str] | None, unit: Environment) -> tuple[Word, ...]:
    return () if setting is None else read_words(setting[1], unit, setting[0])
