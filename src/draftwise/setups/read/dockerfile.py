"""Dockerfiles: the server that the last stage's image starts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from draftwise.core import Finding
from draftwise.knowledge.images import find_release
from draftwise.knowledge.rules import get_rule
from draftwise.setups.read.arguments.flag_values import read_json
from draftwise.setups.read.manifests.references import References
from draftwise.setups.read.pinned_release import find_installed_packages, install
from draftwise.setups.read.shell.environment import NOTHING_SET, Environment
from draftwise.setups.read.shell.launch import Launch, run_image
from draftwise.setups.read.shell.open_texts import PER_COMMAND, check_work
from draftwise.setups.read.shell.words import Word, split_words

_INSTRUCTION = re.compile(r"\s*([A-Za-z]+)\s+(.*)", re.DOTALL)
_CONTINUED = re.compile(r"\\[ \t]*$")
_HERE_DOCUMENT = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?")
_SHELL = ("/bin/sh", "-c")
_REFERENCES = References(
    re.compile(r"\\\$|\$(?:(?P<name>\w+)|\{(?P<braced>\w+)(?P<operator>:?[-+])?)"), unset_is_empty=True
)
"""Dockerfile reference, Environment replacement."""


def find_image(text: str, given: Mapping[str, str], folder: Path) -> Iterator[Launch]:
    """Yield the server that the image of a Dockerfile's last stage starts; none for an image that names no command.

    Raises:
        InvalidSetup: a quote is never closed, or the expanded text is too long.
    """
    stages: dict[str, _Stage] = {}
    stage, work = _Stage(), 0
    for line, name, value in _find_instructions(text):
        work += PER_COMMAND + len(stage.args.values) + len(stage.env.values) + len(stage.args.unknown)
        check_work(work, line)
        if name == "FROM":
            stage = stage.begin(Word(value, line), stages)
        else:
            stage = stage.change(name, Word(value, line), given, folder)
        stages[stage.name] = stage
    if stage.entrypoint or stage.command:
        launch = run_image(stage.image, stage.entrypoint, stage.command, env=stage.env)
        if launch is not None:
            where = f"line {stage.line} {'CMD' if stage.command else 'ENTRYPOINT'}"
            version = stage.version or launch.version
            found = (*stage.findings, *launch.findings)
            packages = {**stage.packages, **launch.packages}
            yield replace(launch, version=version, where=where, findings=found, packages=packages)


def _find_instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, name and text of each instruction. Continued lines stay apart, comments between them go."""
    start, parts, ending = 0, list[str](), ""
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        if ending:
            ending = "" if line.strip() == ending else ending
            continue
        is_comment = line.lstrip().startswith("#") or not line.strip()
        if not parts:
            start = number
            if is_comment:
                continue
        parts.append("\\" if is_comment else line)
        if is_comment or _CONTINUED.search(line):
            continue
        found, parts = _INSTRUCTION.fullmatch("\n".join(parts)), []
        if found is not None:
            here = _HERE_DOCUMENT.search(found[2]) if found[1].upper() in ("RUN", "COPY", "ADD") else None
            ending = here[1] if here else ""
            yield start, found[1].upper(), found[2].strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """What an image brings along when it starts."""

    name: str = ""
    image: Word = field(default_factory=lambda: Word(""))
    args: Environment = NOTHING_SET
    """Build arguments."""
    env: Environment = NOTHING_SET
    entrypoint: tuple[Word, ...] = ()
    command: tuple[Word, ...] = ()
    line: int = 0
    """Line of the start command."""
    version: str = ""
    """Version of the vLLM in it; text if an installation leaves it open."""
    packages: Mapping[str, bool] = field(default_factory=dict)
    """Optional packages -> whether the stage installs them, or takes them away."""
    findings: tuple[Finding, ...] = ()

    def begin(self, word: Word, stages: Mapping[str, _Stage]) -> _Stage:
        """Return the stage that `FROM IMAGE AS NAME` begins; an image may be a stage before it."""
        parts = [part for part in word.text.split() if not part.startswith("--")]
        name = parts[2] if len(parts) > 2 and parts[1].lower() == "as" else ""
        before = stages.get(parts[0])
        if before is not None and parts[0]:
            return replace(before, name=name)
        image = _REFERENCES.fill_in(replace(word, text=parts[0]), stages[""].args if "" in stages else self.args)
        return _Stage(name=name, image=image, args=self.args, version=find_release(image.text))

    def change(self, name: str, word: Word, given: Mapping[str, str], folder: Path) -> _Stage:
        """Return the stage after an instruction."""
        match name:
            case "ARG":
                return replace(self, args=self.args | self._read_argument(word, given))
            case "ENV":
                return replace(self, env=self.env | self._read_env(word))
            case "RUN":
                text = _REFERENCES.fill_in(word, self.args | self.env).text.replace("\\\n", " ")
                packages = {**self.packages, **find_installed_packages(text)}
                return replace(self, version=install(self.version, text, folder), packages=packages)
            case "ENTRYPOINT":
                words, findings = _read_command(word)
                none = (Word("", word.line),)  # `ENTRYPOINT []` takes the image's away
                return replace(self, entrypoint=words or none, command=(), line=word.line, findings=tuple(findings))
            case "CMD":
                words, findings = _read_command(word)
                return replace(self, command=words, line=word.line, findings=(*self.findings, *findings))
        return self

    def _read_argument(self, word: Word, given: Mapping[str, str]) -> Environment:
        name, separator, default = word.text.partition("=")
        if separator:
            return self._assign(name, replace(word, text=default.strip("\"'")))
        if name in self.args.values:
            return NOTHING_SET
        unknown = Environment(unknown={name: "a build argument without a default"})
        return unknown.given(given)

    def _read_env(self, word: Word) -> Environment:
        return Environment.join(self._assign(*pair) for pair in _split_pairs(word))

    def _assign(self, name: str, value: Word) -> Environment:
        filled = _REFERENCES.fill_in(value, self.args | self.env)
        if filled.unknown:
            return Environment(unknown={name: ", ".join(filled.unknown)})
        return Environment(values={name: filled.text})


def _split_pairs(word: Word) -> Iterator[tuple[str, Word]]:
    """Yield the variables of `ENV A=b C="d e"`, or of the old form `ENV A b c`."""
    name, _, rest = word.text.partition(" ")
    if "=" not in name:
        yield name, replace(word, text=rest.strip())
        return
    for pair in split_words(word.text, line=word.line):
        name, _, text = pair.text.partition("=")
        yield name, replace(pair, text=text)


def _read_command(word: Word) -> tuple[tuple[Word, ...], Iterable[Finding]]:
    """Return the words of the exec form, a JSON list, or of the shell form; and what is wrong with it."""
    if not word.text.startswith("["):
        return (*(Word(text, word.line) for text in _SHELL), word), ()
    found = read_json(re.sub(r"\\[ \t]*\n", "\n", word.text))
    items = found.value if isinstance(found.value, list) else []
    words = tuple(Word(text, word.line) for text in items if isinstance(text, str))
    if not found.mistake and len(words) == len(items):
        return words, ()
    mistake = get_rule("exec-form-not-json").ruling(
        mistake=found.mistake or "has a word that is not text",
        line=word.line,
        fix=found.fix or "Put every word in double quotes.",
    )
    return words, (mistake,)
