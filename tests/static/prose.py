"""Measures prose that users read: the length of sentences, passives, and constructions of other languages.

The places are counted by `counts.py`, per 1,000 sentences of each area: a new text counts only where it is worse than
the others.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["LONG", "find_texts", "measure"]

LONG = 25
"""A sentence with more words is long."""
GRAIN = 5
"""Rates are rounded up to a multiple of this: one sentence more in a large area changes none."""

FIELDS = {
    "title",
    "explains",
    "message",
    "fix",
    "told_by",
    "about",
    "what",
    "when",
    "meaning",
    "text",
    "note",
    "reason",
}
"""Fields of the data rows that hold sentences for users."""

BANNED = {
    "is none": r"\b(?:is|are|was|were) none\b",
    "beside": r"\bbeside\b",
    "so many": r"\bso many\b",
    "others than": r"\bothers? than\b",
    "otherwise than": r"\botherwise than\b",
    "that which": r"\bthat which\b",
    "what as a subject": r"^What (?!.*\?)",
    "so that": r", so that\b",
    "is told": r"\b(?:is|are|was|were|not) told\b",
    "tells by itself": r"\btells? (?:it|them|its|their|no|nothing|which|whether)\b",
    "of its own": r"\bof (?:its|their|your|his) own\b",
    "is to be": r"\b(?:is|are) to be\b",
    "is said": r"\b(?:is|are) said to be\b",
    "let pass": r"\blet (?:pass|through)\b",
    "held against": r"\bh[eo]lds? .{0,40}\bagainst\b|\bheld against\b",
    "in force": r"\bin force\b",
    "has not": r"\b(?:has|have) not(?=[.,;:)]|$)",
    "take a": r"^Take (?:a|an|the|another)\b",
    "there is nothing": r"\bwhich there (?:is|are)\b",
    "British": r"(?i)\b(?:behaviour|colour|favour|neighbour|honour|labour|licence|artefact|learnt|whilst|"
    r"analyse(?!s\b)|"
    r"(?:token|recogn|normal|optim|initial|summar|minim|maxim|synchron|organ|special|util|serial|general|real|quant)"
    r"is(?:e|er|ed|es|ing|ation)|(?:cancel|label|model|travel|level|channel|signal)l(?:ed|ing|er))\w*\b",
}
"""Name -> pattern, searched in each sentence. `words.md` style: the actor is the subject, and a clause has one."""
IRREGULAR = (
    "begun bound brought built chosen cut done drawn driven fallen found given gone held hidden kept known laid led "
    "left lost made meant met paid put read run said seen sent set shown split spent taken taught thought told "
    "understood withheld won written"
)
PASSIVE = re.compile(
    r"\b(?:is|are|was|were|be|been|being)(?: (?:not|never|only|also|then|already|still|\w+ly))? "
    rf"(?:\w+ed|{'|'.join(IRREGULAR.split())})\b"
)

GENERATED = "page is written by `python "
"""Such a page is measured where its texts come from."""

SENTENCE_END = re.compile(r"(?<=[.!?])[)\"*]*\s+(?=[(\"*]*[A-Z`{\d])|\n{2,}")
CODE = re.compile(r"`[^`]*`|\{[^{}]*\}|\$\([^)]*\)|https?://\S+")


def sentences_of(text: str) -> Iterator[str]:
    """Yield sentences, with each piece of code as one word."""
    for part in SENTENCE_END.split(CODE.sub("CODE", text)):
        sentence = " ".join(part.split())
        if sentence.count(" ") >= 2:
            yield sentence


def find_texts(root: Path) -> Mapping[str, list[tuple[str, str]]]:
    """Return area -> (place, text) of everything that users read."""
    return {
        "findings": list(find_rows(root)),
        "help": list(find_help(root)),
        "pages": list(find_pages(root)),
        "docstrings": list(find_docstrings(root)),
    }


def find_rows(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the sentences of the data rows: findings, rules, advice, defects, keys."""
    data = root / "src/draftwise/knowledge/data"
    files = [*data.glob("findings/*.json"), *data.glob("rules/*.json"), *data.glob("defects/*.json")]
    for path in sorted([*files, *(data / f"{name}.json" for name in ("advice", "spec_keys", "terms", "methods"))]):
        yield from walk(json.loads(path.read_text(encoding="utf-8")), path.name)


def walk(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield the texts below a value of JSON; a row's code or name becomes part of the place."""
    if isinstance(value, dict):
        name = value.get("code") or value.get("id") or value.get("name") or ""
        inner = f"{place}:{name}" if isinstance(name, str) and name else place
        for key, each in value.items():
            if isinstance(each, str) and key in FIELDS:
                yield f"{inner}.{key}", each
            else:
                yield from walk(each, inner)
    elif isinstance(value, list):
        for each in value:
            yield from walk(each, place)


def help_of(node: ast.AST) -> ast.expr | None:
    """Return the help of an option: the argument `help` of a call, or the last one without a name of `option(...)`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "option":
        return node.args[-1] if len(node.args) > 1 else None
    return node.value if isinstance(node, ast.keyword) and node.arg == "help" else None


def find_help(root: Path) -> Iterator[tuple[str, str]]:
    """Yield help texts of options and verbs."""
    for path in sorted((root / "src/draftwise/cli").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (value := help_of(node)) is not None:
                parts = value.values if isinstance(value, ast.JoinedStr) else [value]
                text = "".join(str(each.value) if isinstance(each, ast.Constant) else "CODE" for each in parts)
                yield f"{path.name}:{value.lineno}", text
            elif isinstance(node, ast.FunctionDef) and node.name.endswith("_command"):
                yield f"{path.name}:{node.lineno}", (ast.get_docstring(node) or "").replace("\b", "")
    for path in sorted((root / "src/draftwise/cli/options").glob("*.json")):
        for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if found := re.search(r'"help": ("(?:[^"\\]|\\.)*")', text):
                yield f"{path.name}:{line}", json.loads(found[1])


def find_docstrings(root: Path) -> Iterator[tuple[str, str]]:
    """Yield docstrings of the verbs and nouns, which the public Python API consists of."""
    for folder in ("verbs", "core"):
        for path in sorted((root / "src/draftwise" / folder).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                value = node.value if isinstance(node, ast.Expr) else None
                if isinstance(node, ast.Expr) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield f"{folder}/{path.name}:{node.lineno}", value.value


def find_pages(root: Path) -> Iterator[tuple[str, str]]:
    """Yield paragraphs of pages that are written by hand, without tables, code and headings."""
    pages = [root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    for path in [*filter(Path.exists, pages), *sorted((root / "docs").rglob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        if GENERATED in text:
            continue
        text = re.sub(r"^(```|~~~).*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
        text = re.sub(r"<!--[\s\S]*?-->|^[|#].*$|^ {4}.*$", "", text, flags=re.MULTILINE)
        text = re.sub(
            r"!?\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"^\s*(?:[-*>]|\d+\.) ", "\n\n", text, flags=re.MULTILINE)
        )
        for paragraph in text.split("\n\n"):
            if paragraph.strip():
                yield path.relative_to(root).as_posix(), paragraph


def measure(root: Path) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Return the rates of each area, and the places behind each."""
    rates, places = {}, {}
    for area, texts in find_texts(root).items():
        sentences = [(place, each) for place, text in texts for each in sentences_of(text)]
        words = [len(each.split()) for _, each in sentences]
        kinds = {
            "long sentences": [
                f"{place}: ({count}) {each}"
                for (place, each), count in sorted(zip(sentences, words, strict=True), key=lambda pair: -pair[1])
                if count > LONG
            ],
            "passive sentences": [f"{place}: {each}" for place, each in sentences if PASSIVE.search(each)],
            "banned constructions": [
                f"{place}: ({name}) {each}" for place, each in sentences for name in banned_in(each)
            ],
        }
        total = max(1, len(sentences))
        rates[f"{area}: words per 100 sentences"] = round_up(100 * sum(words) / total)
        for kind, found in kinds.items():
            places[name := f"{area}: {kind} per 1000"] = found
            rates[name] = round_up(1000 * len(found) / total)
    return rates, places


def banned_in(sentence: str) -> Iterator[str]:
    """Yield the names of the banned constructions of a sentence."""
    for name, pattern in BANNED.items():
        yield from [name] * len(re.findall(pattern, sentence))


def round_up(rate: float) -> int:
    """Return a rate as the next multiple of the grain."""
    return -int(-rate // GRAIN) * GRAIN
