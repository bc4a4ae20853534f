"""Runs the example of a rule: its files in an empty folder, then `check`, as a reader would."""

from __future__ import annotations

import contextlib
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

from docs.site.markdown import fence

import draftwise
from draftwise.core import Finding
from draftwise.knowledge.examples import RuleExample
from draftwise.plan.check import judge
from draftwise.setups.read import read_words

_LANGUAGES = {".json": "json", ".yaml": "yaml", ".sh": "sh", ".py": "python", ".service": "ini", ".container": "ini"}


def run_example(example: RuleExample) -> tuple[Finding, ...]:
    """Return every finding on an example's servers.

    Raises:
        InvalidSetup: the command or a file cannot be read at all.
    """
    words = shlex.split(example.command)
    version = example.vllm or None
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, text in example.files.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(text, encoding="utf-8")
        if words[0] == "vllm":
            return judge(read_words(words, engine_version=version)).findings
        judged = draftwise.check(words[0], vllm=version or ()).judgements
    return tuple(finding for each in judged for finding in each.findings)


def show_example(code: str, example: RuleExample) -> str:
    """Return the files, the command and what it says of the rule, as Markdown."""
    said = next(finding for finding in run_example(example) if finding.code == code)
    return "\n\n".join([*_files(example), fence(_command(example), "sh"), fence(str(said), "text")])


def _command(example: RuleExample) -> str:
    return " ".join(["draftwise check", *(["--vllm", example.vllm] if example.vllm else []), example.command])


def _files(example: RuleExample) -> Iterator[str]:
    for name, text in example.files.items():
        path = Path(name)
        language = _LANGUAGES.get(path.suffix, "dockerfile" if path.name == "Dockerfile" else "text")
        yield f"`{name}`:\n\n{fence(text.rstrip(), language)}"
