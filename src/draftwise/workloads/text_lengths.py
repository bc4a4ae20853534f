"""Counts and cuts texts in tokens, and assembles natural texts of a given length."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from math import exp, log
from pathlib import Path
from typing import Any, Protocol

from draftwise.core import InvalidSetup, cause_of
from draftwise.knowledge.messages import refusal

CHARS_PER_TOKEN = 4.0
"""OpenAI's rule of thumb for English text (help.openai.com, "What are tokens and how to count them?")."""


class Tokens(Protocol):
    """Counts and cuts texts in a model's tokens."""

    note: str
    """How tokens are counted, in words."""

    def count(self, text: str) -> int:
        """Return the number of tokens of a text, without special tokens."""
        ...

    def cut(self, text: str, length: int) -> str:
        """Return the first `length` tokens of a text, or all of it if it has fewer."""
        ...


class EstimatedTokens:
    """Four characters per token: within some 20 % for English and code, wrong for other scripts."""

    note = f"tokens estimated at {CHARS_PER_TOKEN:g} characters each"

    def count(self, text: str) -> int:
        """Return the estimate, at least 1 for a text that is not empty."""
        return max(1, round(len(text) / CHARS_PER_TOKEN)) if text else 0

    def cut(self, text: str, length: int) -> str:
        """Return the beginning, cut between two words if one ends nearby."""
        end = round(length * CHARS_PER_TOKEN)
        if len(text) <= end:
            return text
        word = max(text.rfind(" ", end - 8, end), text.rfind("\n", end - 8, end))
        return text[: word if word > 0 else end]


class ExactTokens:
    """Counts with the tokenizer of a model."""

    def __init__(self, tokenizer: Any, source: str) -> None:
        self._tokenizer = tokenizer
        self.note = f"tokens counted with {source}"

    def count(self, text: str) -> int:
        """Return the number of tokens, without special tokens."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def cut(self, text: str, length: int) -> str:
        """Return the characters of the first `length` tokens."""
        offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
        return text if len(offsets) <= length else text[: offsets[length - 1][1]]


def find_tokens(path: Path | None, *, hint: Path | None = None) -> Tokens:
    """Return the token counter: a tokenizer, or else the estimate.

    Args:
        path: the requested tokenizer.json, or a folder with one.
        hint: likewise, used if `path` is None and this can be read: the folder of a model need not have a tokenizer,
            and its name need not be a folder.

    Raises:
        InvalidSetup: the tokenizer at `path` cannot be read, or the `tokenizers` package is missing.
    """
    if path is not None:
        return _read_tokenizer(path)
    try:
        return EstimatedTokens() if hint is None else _read_tokenizer(hint)
    except InvalidSetup:
        return EstimatedTokens()


def _read_tokenizer(path: Path) -> ExactTokens:
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        # An optional package, which the light install does not bring: measuring works without it.
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(file))
    except ImportError:
        raise refusal("no-tokenizers", file=file) from None
    except Exception as error:  # the package raises bare Exceptions for every fault of a file
        raise refusal("bad-tokenizer", case="file", file=file, error=error) from None
    return ExactTokens(tokenizer, file.name)


@dataclass(frozen=True, slots=True)
class Length:
    """A distribution of lengths in tokens, with its notation."""

    label: str
    draw: Callable[[random.Random], int]


LENGTH_FORMS = (
    "512 (fixed), 256-1024 (uniform), 512+-128 (normal: mean, standard deviation), "
    "lognormal:512:2 (median, and the factor of one standard deviation)"
)
_SHORT = ((re.compile(r"(\d+)-(\d+)"), r"uniform:\1:\2"), (re.compile(r"(.+?)(?:±|\+-)(.+)"), r"normal:\1:\2"))
_LONG = re.compile(r"(\d+)|(uniform|normal|lognormal):(\d+(?:\.\d+)?):(\d+(?:\.\d+)?)")


def parse_length(text: str) -> Length:
    """Return the distribution that a text describes; draws are at least 1.

    Raises:
        ValueError: it describes none. The message lists the notations; put the option's name in front.
    """
    long = next((form.sub(name, text) for form, name in _SHORT if form.fullmatch(text)), text)
    if found := _LONG.fullmatch(long):
        draw = _drawer(found[2] or "fixed", float(found[3] or found[1]), float(found[4] or 0))
        if draw is not None:
            return Length(text, draw)
    raise ValueError(f"must be a length in tokens, one of {LENGTH_FORMS}, got {text!r}.")


def _drawer(name: str, a: float, b: float) -> Callable[[random.Random], int] | None:
    """Return what draws from a distribution; None where its parameters make no sense."""
    if a < 1:
        return None
    if name == "normal":
        return lambda rng: max(1, round(rng.gauss(a, b)))
    if name == "lognormal":
        return (lambda rng: max(1, round(exp(rng.gauss(log(a), log(b)))))) if b >= 1 else None
    if name == "uniform":
        return (lambda rng: rng.randint(round(a), round(b))) if b >= a else None
    return lambda _: round(a)


RANDOM = "random"
SOURCES = ("code", "prose", RANDOM)
_OPENINGS = {"code": "# module_{:05d}.py\n\n\n", "prose": "Section {}\n\n"}
"""First line of every text, with its number: no two share a prefix by accident."""
_SHORTEST_OPENED = 24
"""Tokens below which a text has no such line; it would be the whole of it."""


class TextSource:
    """Makes texts of a given number of tokens.

    Args:
        name: for descriptions.
        units: pieces that make sense alone; a text is a random sequence of them, and ends within one, so that a model
            can continue it.
        joint: text between two units.
        opening: first line; `{}` becomes the number of the text.
        tokens: counts lengths.
    """

    def __init__(self, name: str, units: Sequence[str], *, joint: str, opening: str, tokens: Tokens) -> None:
        self.name = name
        self._units = units
        self._lengths = [max(1, tokens.count(unit)) for unit in units]
        self._joint, self._opening, self._tokens = joint, opening, tokens

    @property
    def is_random(self) -> bool:
        """Whether the texts are noise, which cannot show acceptance."""
        return self.name == RANDOM

    @property
    def note(self) -> str:
        """Description of the texts."""
        if self.is_random:
            return "words drawn at random"
        return f"texts recombined from {self.name}"

    def text(self, length: int, number: int, rng: random.Random) -> str:
        """Return a text of `length` tokens; equal numbers and states of `rng` give equal texts."""
        parts = [self._opening.format(number)] if self._opening and length >= _SHORTEST_OPENED else []
        # The joints make the text a little longer than its units, which the cut takes off.
        missing = length + 1
        while missing > 0:
            order = rng.sample(range(len(self._units)), len(self._units))
            for place in order:
                parts.append(self._units[place] + self._joint)
                missing -= self._lengths[place]
                if missing <= 0:
                    break
        return self.cut("".join(parts), length)

    def cut(self, text: str, length: int) -> str:
        """Return the first `length` tokens of a text."""
        return self._tokens.cut(text, length)


def find_source(name: str, tokens: Tokens) -> TextSource:
    """Return the source of a name in `SOURCES`, or one that recombines the paragraphs of a text file.

    Raises:
        InvalidSetup: there is no such source or file, or the file holds no text.
    """
    if name == "code":
        units, joint = _functions(), "\n\n\n"
    elif name == "prose":
        units, joint = _passages(), "\n\n"
    elif name == RANDOM:
        units, joint = _words(), " "
    else:
        units, joint = _paragraphs(Path(name)), "\n\n"
    return TextSource(name, units, joint=joint, opening=_OPENINGS.get(name, ""), tokens=tokens)


def _lines(name: str) -> list[dict[str, Any]]:
    text = (files("draftwise.workloads") / "bundled" / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def _functions() -> list[str]:
    """Return the whole functions among the bundled texts: those that the rewriting tasks hand over."""
    messages = [message["content"] for row in _lines("rewrite") for message in row["messages"]]
    functions = {text.partition("\n\n")[2].strip("\n") for text in messages}
    return sorted(text for text in functions if text.startswith(("def ", "class ")))


def _passages() -> list[str]:
    """Return the bundled passages, each cut back to where its last whole sentence or line ends."""
    prompts = [row["prompt"] for row in _lines("prose")]
    ends = [max(text.rfind(".\n"), text.rfind(". "), text.rfind("\n\n")) + 1 for text in prompts]
    return sorted({text[:end].rstrip() for text, end in zip(prompts, ends, strict=True) if end > 1})


def _words() -> list[str]:
    return sorted({word for text in (*_functions(), *_passages()) for word in re.findall(r"[A-Za-z]{2,}", text)})


def _paragraphs(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise refusal("unknown-source", path=path, names=", ".join(SOURCES), cause=cause_of(error)) from None
    units = sorted({part.strip("\n") for part in re.split(r"\n\s*\n", text) if part.strip()})
    if not units:
        raise InvalidSetup.because("empty-source", f"source={path} holds no text.", where=f"source={path}")
    return units
