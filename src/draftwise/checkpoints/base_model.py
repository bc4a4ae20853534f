"""For which target a head says that it was trained, and under which names a target is known."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwise.checkpoints.dimensions import get_mapping
from draftwise.checkpoints.identity import IDENTITY_FILE, find_recorded_target
from draftwise.checkpoints.text_files import read_lines

__all__ = ["RecordedBase", "find_recorded_base", "is_same_model", "means_nothing", "names_of"]

_IN_CACHE = re.compile(r"models--([^/]+)")
_BASE_LINE = re.compile(r"base_model:\s*(.*)")
_MOST_README_LINES = 200
_COPY = re.compile(
    r"[-_.](?:fp8|fp4|nvfp4|mxfp4|int4|int8|bf16|fp16|awq|gptq|gguf|w\d+a\d+\w*|\d+bit|quantized|dynamic|block|hf|bnb"
    r"|i?q\d(?:_[01ksmlxn]+)*)(?![a-z])"
)
"""What is added to the name of a quantized or converted copy."""
_MEANINGLESS = re.compile(
    r"[0-9a-f]{24}|[0-9a-f]{40}|model|models|target|main|snapshot|checkpoint|base|final|latest|hf|vllm|output|llm",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBase:
    """What a drafter's files say about its target."""

    name: str
    """Model id, directory or name; empty where only the tokenizer is recorded."""
    source: str
    """File and field that say so."""
    tokenizer: str = ""
    """Identity of the target's vocabulary, as `Vocabulary.identity`; empty where it is not recorded."""


def find_recorded_base(directory: Path, config: Mapping[str, Any]) -> RecordedBase | None:
    """Return the target that a head was trained for as far as it says, the most trustworthy record first.

    Raises:
        InvalidSetup: draftwise.json is damaged.
    """
    return next(_records(directory, config), None)


def _records(directory: Path, config: Mapping[str, Any]) -> Iterator[RecordedBase]:
    if (target := find_recorded_target(directory)) is not None:
        yield RecordedBase(name=target.name, source=IDENTITY_FILE, tokenizer=target.tokenizer)
    verifier = get_mapping(get_mapping(config, "speculators_config"), "verifier").get("name_or_path")
    if isinstance(verifier, str) and verifier:
        yield RecordedBase(name=verifier, source="config.json, speculators_config.verifier.name_or_path")
    for key in ("base_model_name_or_path", "base_model"):
        if isinstance(name := config.get(key), str) and name:
            yield RecordedBase(name=name, source=f"config.json, {key}")
    if name := _base_in_readme(directory):
        yield RecordedBase(name=name, source="README.md, base_model")


def _base_in_readme(directory: Path) -> str:
    """Return the first `base_model` of the YAML block that heads a model card."""
    file = directory / "README.md"
    lines = read_lines(file)[:_MOST_README_LINES] if file.is_file() else []
    if not lines or lines[0].strip() != "---":
        return ""
    for i, line in enumerate(lines[1:], 1):
        if line.strip() == "---":
            return ""
        if match := _BASE_LINE.fullmatch(line.strip()):
            first = match[1] or (lines[i + 1].strip().removeprefix("-") if i + 1 < len(lines) else "")
            return first.strip(" []\"'").split(",")[0].strip(" \"'")
    return ""


def names_of(directory: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a target is called: in the hub's cache, its config, its model card, and its directory's name.

    Names that anything may have (`model`, `main`, a commit) are left out.
    """
    path = directory.resolve()
    cached = _IN_CACHE.search(path.as_posix())
    stated = config.get("_name_or_path")
    named = [cached[1].replace("--", "/") if cached else "", stated if isinstance(stated, str) else "", path.name]
    named.append(_base_in_readme(directory))
    return tuple(dict.fromkeys(name for name in named if not means_nothing(name)))


def is_same_model(recorded: str, name: str) -> bool:
    """Whether two names mean the same model, or one a quantized copy of the other.

    A model and its instruction-tuned version are two: a head for one drafts badly for the other.
    """
    return _key(recorded) == _key(name)


def means_nothing(name: str) -> bool:
    """Whether anything may have this name."""
    return not name or bool(_MEANINGLESS.fullmatch(_last_part(name)))


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", _COPY.sub("", _last_part(name).lower()))


def _last_part(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1]
