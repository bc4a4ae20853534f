"""Runs the example of a rule: its files in an empty folder, then the command, as a reader would."""

from __future__ import annotations

import contextlib
import difflib
import json
import math
import os
import re
import shlex
import struct
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest import mock

from click.testing import CliRunner, Result
from docs.site.markdown import fence, plain
from packaging.version import Version

import draftwise
from draftwise.cli import main
from draftwise.core import Finding, Severity, Stage
from draftwise.knowledge.examples import RuleExample
from draftwise.knowledge.rules import VllmRule, get_rule
from draftwise.plan.check import judge
from draftwise.setups.read import read_words
from draftwise.setups.read.arguments import flags

_WEIGHTS, _GGUF = ".safetensors", ".gguf"
_LANGUAGES = {
    ".json": "json", ".yaml": "yaml", ".sh": "sh", ".py": "python", ".service": "ini", ".container": "ini",
    _WEIGHTS: "json", _GGUF: "json",
}  # fmt: skip
_DETAIL = re.compile(r"[+-] {6}\S")
"""Lines that belong to a finding, as `check` prints it: message, fix, source."""
_WIDTH = 100
_BYTES = {"BF16": 2, "I64": 8, "BOOL": 1}


def run_example(example: RuleExample) -> tuple[Finding, ...]:
    """Return every finding on an example's servers.

    Raises:
        InvalidSetup: the command or a file cannot be read at all.
    """
    words = shlex.split(example.command)
    version = example.vllm or None
    with _folder(example):
        if words[0] == "draftwise":
            return tuple(_find(json.loads(_run([*words[1:], *([] if "--json" in words else ["--json"])]).stdout)))
        if words[0] == "vllm":
            return judge(read_words(words, engine_version=version)).findings
        judged = draftwise.check(words[0], vllm=version or ()).judgements
    return tuple(finding for each in judged for finding in each.findings)


def find_effect(code: str, example: RuleExample) -> str:
    """Return the lines of the answer that a rule changes without a finding of its own; empty where it changes none.

    Lines of a release without the rule begin with `-`, those of the release as it is with `+`.
    """
    words = shlex.split(example.line)[1:]
    holds = VllmRule.holds
    forget = _forget_rules if get_rule(code).stage is Stage.CLI else tuple

    def holds_without(rule: VllmRule, version: Version | None) -> bool:
        return rule.code != code and holds(rule, version)

    with _folder(example):
        answer = _run(words).output
        with mock.patch.object(VllmRule, "holds", holds_without):
            forget()
            other = _run(words).output
        forget()
    compared = [*difflib.unified_diff(other.splitlines(), answer.splitlines(), n=0, lineterm="")]
    lines = [line.rstrip() for line in compared if not line.startswith(("---", "+++", "@@"))]
    return "\n".join([line for line in lines if not _DETAIL.match(line)] or lines)


def _forget_rules() -> None:
    """Empty the cache in which what a rule of the command line decides is kept."""
    flags._parser.cache_clear()


def show_example(code: str, example: RuleExample) -> str:
    """Return the files, the command and what it says of the rule, as Markdown.

    Raises:
        ValueError: the answer does not depend on the rule.
    """
    if example.tested:
        return _show_seen(example)
    shown = [*_files(example), fence(example.line, "sh")]
    if said := next((finding for finding in run_example(example) if finding.code == code), None):
        return "\n\n".join([*shown, fence(str(said), "text")])
    if effect := find_effect(code, example):
        return "\n\n".join([*shown, "The rule changes the answer, here from `-` to `+`:", fence(effect, "diff")])
    raise ValueError(f"{code}: its example does not meet the rule")


def _show_seen(example: RuleExample) -> str:
    """Return what a test did and saw, as Markdown."""
    typed = fence(example.line, "sh" if example.line.startswith("draftwise ") else "python")
    said = "\n".join(textwrap.wrap(example.says, _WIDTH, break_long_words=False, break_on_hyphens=False))
    shown = [*_files(example), *([typed] if example.line else []), "draftwise says:", fence(said, "text")]
    return "\n\n".join([*shown, plain(f"Checked by {example.test}.")])


@contextlib.contextmanager
def _folder(example: RuleExample) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, text in example.files.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            if name.endswith(_WEIGHTS):
                _write_weights(name, json.loads(text))
            elif name.endswith(_GGUF):
                _write_gguf(name, json.loads(text))
            else:
                Path(name).write_text(text, encoding="utf-8")
        yield


def _write_weights(name: str, tensors: Mapping[str, Any]) -> None:
    """Write a safetensors file of zeros from type and shape of its tensors."""
    header, end = {}, 0
    for tensor, (dtype, *shape) in tensors.items():
        size = _BYTES[dtype] * math.prod(shape)
        header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    Path(name).write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(name, 8 + len(text) + end)


def _write_gguf(name: str, metadata: Mapping[str, str]) -> None:
    """Write a GGUF file without tensors."""
    texts = (text.encode() for each in metadata.items() for text in each)
    written = [struct.pack("<Q", len(text)) + text for text in texts]
    values = (key + struct.pack("<I", 8) + value for key, value in zip(written[::2], written[1::2], strict=True))
    Path(name).write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(metadata)) + b"".join(values))


def _run(words: list[str]) -> Result:
    """Return what a command of draftwise prints."""
    return CliRunner().invoke(main, words, env={"COLUMNS": "100", "NO_COLOR": "1"})


def _find(document: Any) -> Iterator[Finding]:
    """Yield the findings anywhere in a JSON document, and the error that stands for one."""
    if isinstance(document, list):
        for each in document:
            yield from _find(each)
    elif isinstance(document, dict) and {"code", "message"} <= document.keys():
        known = {field.name for field in fields(Finding)}
        told = {key: value for key, value in document.items() if key in known}
        yield Finding(**{**told, "severity": Severity(document.get("severity", "error"))})
    elif isinstance(document, dict):
        yield from _find(list(document.values()))


def _files(example: RuleExample) -> Iterator[str]:
    for name, text in example.titles():
        path, _, about = name.partition(", ")
        language = _LANGUAGES.get(Path(path).suffix, "dockerfile" if Path(path).name == "Dockerfile" else "text")
        yield f"`{path}`{about and ', '}{about}:\n\n{fence(text.rstrip(), language)}"
