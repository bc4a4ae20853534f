"""The file of `vllm serve --config FILE`; its keys become flags between the model and the other flags."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from posixpath import normpath
from typing import TYPE_CHECKING

from draftwise.core import Finding, InvalidSetup
from draftwise.knowledge.rules import Rulebook, get_rule
from draftwise.knowledge.vllm import Release
from draftwise.setups.read.input_texts import read_text
from draftwise.setups.read.shell.words import Word

if TYPE_CHECKING:
    from draftwise.setups.read.manifests.yaml_text import YamlDocument


def put_in_config_file(
    words: Sequence[Word],
    release: Release,
    findings: list[Finding],
    *,
    folder: Path | None,
    serves: bool,
    files: Mapping[str, Word],
) -> Sequence[Word]:
    """Return the words with the file's flags in place of `--config FILE`; add faults to `findings`."""
    index = next((i for i, word in enumerate(words) if word.text == "--config"), None)
    if index is None:
        joined = next((word for word in words if word.text.startswith("--config=")), None)
        if joined is not None:
            findings.append(get_rule("config-file-with-equals").ruling(where=joined.where()))
        return words
    if index + 1 >= len(words):
        findings.append(get_rule("flag-needs-value").ruling(where=words[index].where()))
        return words[:index]
    rest = [*words[:index], *words[index + 2 :]]
    try:
        from_file = _read(words[index + 1], release, findings, folder, files)
    except InvalidSetup as error:
        findings += error.findings
        return rest
    after_model = 1 if serves and rest and not rest[0].text.startswith("-") else 0
    return [*rest[:after_model], *from_file, *rest[after_model:]]


def _read(
    word: Word, release: Release, findings: list[Finding], folder: Path | None, files: Mapping[str, Word]
) -> list[Word]:
    where = word.where()
    if not word.text.endswith((".yaml", ".yml")):
        findings.append(get_rule("config-file-refused").ruling(text=word.text, where=where))
    made = files.get(normpath(word.text))
    if folder is None if made is None else made.unknown:
        findings.append(get_rule("config-file-unread").ruling(text=word.text, where=where))
        return []
    path = (folder or Path()) / word.text
    from draftwise.setups.read.manifests.yaml_text import read_yaml  # most commands name no such file

    documents = read_yaml(read_text(path) if made is None else made.text, name=str(path))
    if not documents or not isinstance(documents[0].value, dict):
        findings.append(
            get_rule("config-file-refused").ruling(
                where=path, message=f"{path} must hold flags by name, one KEY: VALUE a line."
            )
        )
        return []
    return list(get_flags(documents[0], release, findings, name=str(path)))


def get_flags(document: YamlDocument, release: Release, findings: list[Finding], *, name: str = "") -> Iterator[Word]:
    """Yield the words that a release reads from a config file's keys."""
    negations = {row["negation"] for row in release.table("flags").values() if "negation" in row}
    for key, value in document.value.items():
        line = document.line((key,))
        word = Word(f"--{key}", place=f"{name}:{line}") if name else Word(f"--{key}", line)
        where = f"{word.place or f'line {line}'} {key}"
        if isinstance(value, bool):
            negation = f"--no-{key.replace('_', '-')}"
            if value:
                yield word
            elif Rulebook(release.version).holds("config-file-false"):
                findings.append(
                    get_rule("config-file-false").ruling(
                        key=key, place=word.place or f"line {line}", flag=key.replace("_", "-")
                    )
                )
            elif negation in negations:
                yield replace(word, text=negation)
        elif isinstance(value, list):
            yield from _list(word, value, release, findings, where)
        else:
            yield word
            if isinstance(value, dict) and Rulebook(release.version).holds("config-file-nested"):
                findings.append(
                    get_rule("config-file-nested").ruling(
                        key=key, place=word.place or f"line {line}", value=json.dumps(value)
                    )
                )
            text = json.dumps(value) if isinstance(value, dict) else document.texts.get((key,), str(value))
            text = "None" if value is None else text
            yield replace(word, text=text)


def _list(word: Word, items: list[object], release: Release, findings: list[Finding], where: str) -> Iterator[Word]:
    if Rulebook(release.version).holds("config-file-list"):
        findings.append(get_rule("config-file-list").ruling(flag=word.text.lstrip("-"), where=where))
    if items:
        yield word
        yield from (replace(word, text=str(item)) for item in items)
