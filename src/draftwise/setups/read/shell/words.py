"""The arguments of a program as a text writes them: quotes, line continuations and variables as bash reads them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from draftwise.core import InvalidSetup
from draftwise.setups.read.shell.environment import NOTHING_SET, Environment, describe_unknown

__all__ = ["MAX_CHARS", "HereDocument", "Mistake", "Script", "ShellCommand", "Word", "check_length", "split_words"]

MAX_CHARS = 1_000_000
"""Longest text that is read, before and after variables are put in."""

Mistake = Literal["", "unquoted-json", "json-in-double-quotes"]

_PLAIN = re.compile(r"""[^\s'"\\$`;&|()<>{]+""")
_QUOTED = re.compile(r'[^"\\$`]+')
_UNQUOTED_JSON = re.compile(r"""\{\s*["'\u201c\u201d\u2018\u2019]?\w+["'\u201c\u201d\u2018\u2019]?\s*:""")
_JSON_IN_DOUBLE_QUOTES = re.compile(r'"\{\s*"\w')
_JSON_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|[{}]')
_PLACEHOLDER = re.compile(r"<[A-Za-z][\w ./-]*>")
_VARIABLE = re.compile(r"\$(?:(\w+|[@*#?])|\{(\w+)(?:\[[@*]\])?(?::?[-=]([^{}]*)|:?\?[^{}]*)?\})")
_COMPUTED = re.compile(r"\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`|\$\{[^{}]*\}")
_NOT_SET = "not set in this text"
_ARGUMENT = re.compile(r"[\d@*#]")
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=\(")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_HERE_DOCUMENT = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_IN_HERE_DOCUMENT = re.compile(
    r"\\[$`\\]|\$(?P<name>[A-Za-z_]\w*)|\$\{(?P<braced>\w+)\}|\$\{[^{}]*\}|\$\([^()]*\)|`[^`]*`"
)
_REDIRECTION = re.compile(r"[<>&|]+-?[ \t]*[^\s;&|()<>]*")
_LOST_CONTINUATION = re.compile(r"\\[ \t]+\n")
_DECLARING = frozenset({"export", "declare", "local", "readonly"})
_MAX_UNBALANCED = 20
_MAX_HERE_DOCUMENTS = 20


@dataclass(frozen=True, slots=True)
class Word:
    """One argument as the program receives it."""

    text: str
    line: int = 0
    """Of the file or text, from 1; 0 where it is not known."""
    place: str = ""
    """Path in a YAML document, e.g. `services.vllm.command[3]`."""
    mistake: Mistake = ""
    """What a shell would have made something else of; `text` is what was meant."""
    unknown: tuple[str, ...] = ()
    """What it depends on and the text does not tell, each with where it would come from."""

    def where(self, flag: str = "") -> str:
        """Return where it stands, as findings say it: `line 12 services.vllm.command[3] --seed`.

        Args:
            flag: that it belongs to; empty for its own, if it is one.
        """
        flag = flag or (self.text.partition("=")[0][:80] if self.text.startswith("-") else "")
        line = f"line {self.line}" if self.line else ""
        return " ".join(part for part in (line, self.place, flag) if part)


@dataclass(frozen=True, slots=True)
class HereDocument:
    """A text that a script hands to a command as its input, such as a manifest or another script."""

    text: str
    """With the variables that the script has set, where the shell puts them in."""
    line: int
    """Of the script, where it begins."""
    unknown: Mapping[str, str]
    """References in it whose values the script does not tell -> how findings name them."""


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """One simple command of a script."""

    words: tuple[Word, ...]
    lost_continuations: tuple[int, ...] = ()
    """Lines that end in a backslash and a space: for a shell the command ends there, and it is read on all the same."""


def check_length(texts: Iterable[str]) -> None:
    """Refuse texts that variables have blown up.

    Raises:
        InvalidSetup: together they are longer than `MAX_CHARS`.
    """
    if sum(map(len, texts)) > MAX_CHARS:
        raise InvalidSetup.because(
            "too-long", f"The text is longer than {MAX_CHARS:,} characters with its variables put in."
        )


def split_words(text: str, *, line: int = 1, place: str = "") -> tuple[Word, ...]:
    """Return the words of a text that no shell reads: quotes and backslashes count, operators and variables do not.

    Raises:
        InvalidSetup: a quote is never closed, or the text is longer than `MAX_CHARS`.
    """
    tokens = Script(text, shell=False, line=line).tokens()
    return tuple(replace(token, place=place) for token in tokens if token is not None)


@dataclass(slots=True)
class Script:
    """A shell script that is read once, from left to right; what it assigns is put in where it uses it."""

    text: str
    line: int = 1
    """Number of its first line."""
    shell: bool = True
    """False for a text that no shell reads."""
    env: Environment = NOTHING_SET
    """What the shell finds in its environment."""
    variables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What has been assigned so far: one text, or the items of an array."""
    unknown: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What is not known of the values that have been assigned."""
    exported: set[str] = field(default_factory=set)
    """Names that programs find in their environment."""
    pos: int = 0
    start: int = 0
    """Where the word that is being read began."""
    parts: list[str] | None = None
    """What has been read of it; None between words."""
    missing: dict[str, None] = field(default_factory=dict)
    """What is not known of it."""
    lost: list[int] = field(default_factory=list)
    here_documents: list[re.Match[str]] = field(default_factory=list)
    """Those whose text begins after this line."""
    texts: list[HereDocument] = field(default_factory=list)
    """Those that have been read."""
    chars: int = 0
    counted: int = 0
    """Position up to which `line` has counted."""
    unbalanced: int = 0

    def __post_init__(self) -> None:
        self.text = self.text.replace("\r\n", "\n")
        self.variables = {name: (value,) for name, value in self.env.values.items()} | self.variables
        self._grow(len(self.text))

    def commands(self) -> Iterator[ShellCommand]:
        """Yield the simple commands as they come; `variables` then holds what was assigned before each.

        Raises:
            InvalidSetup: a quote is never closed, or the text is longer than `MAX_CHARS` with its variables put in.
        """
        words: list[Word] = []
        for token in self.tokens():
            if token is not None:
                words.append(token)
            elif words:
                yield from self._finish(words)
                words = []
        if words:
            yield from self._finish(words)

    def _finish(self, words: list[Word]) -> Iterator[ShellCommand]:
        """Remember what a command assigns if it does nothing else, else yield it."""
        rest = words[1:] if words[0].text in _DECLARING else words
        if words[0].text == "export":
            self.exported.update(word.text.partition("=")[0].removesuffix("+") for word in rest)
        found = [_ASSIGNMENT.fullmatch(word.text) for word in rest]
        if all(found):
            for match, word in zip(found, rest, strict=True):
                if match is not None:
                    before = "".join(self.variables.get(match[1], ())) if match[2] else ""
                    self.variables[match[1]] = (before + match[3],)
                    self._grow(len(before))
                    self._assign_unknown(match, word.unknown)
        else:
            yield ShellCommand(tuple(words), tuple(self.lost))
        self.lost.clear()

    def _assign_unknown(self, assigned: re.Match[str], unknown: tuple[str, ...]) -> None:
        before = self.unknown.get(assigned[1], ()) if assigned[2] else ()
        self.unknown[assigned[1]] = (*before, *unknown)

    def tokens(self, closing: str = "") -> Iterator[Word | None]:
        """Yield words, and None where a command ends; stop after `closing`."""
        while self.pos < len(self.text):
            char = self.text[self.pos]
            if self.parts is None:
                self.start = self.pos
                if self.shell and (array := _ARRAY.match(self.text, self.pos)):
                    self._read_array(array)
                    continue
            if char in '{"' and (meant := self._read_json_with_mistake()):
                yield meant
                continue
            if char.isspace() or (self.shell and char in ";&|()"):
                yield from self._close()
                self.pos += 1
                if closing and char == closing:
                    return
                if char == "\n":
                    self._read_here_documents()
                if char == "\n" or not char.isspace():
                    yield None
            elif self.shell and char == "#" and self.parts is None:
                self.pos = self._find("\n", len(self.text))
            elif self.shell and char in "<>":
                self._skip_redirection()
            else:
                yield from self._read_piece(char)
        yield from self._close()

    def _read_piece(self, char: str) -> Iterator[Word]:
        if char == "'":
            end = self._find("'")
            self._add(self.text[self.pos + 1 : end])
            self.pos = end + 1
        elif char == '"':
            yield from self._read_double_quotes()
        elif char == "\\":
            self._read_escape()
        elif self.shell and char in "$`":
            yield from self._add_words(self._expand(split=True))
        else:
            plain = _PLAIN.match(self.text, self.pos)
            self._add(plain[0] if plain else char)
            self.pos += len(plain[0]) if plain else 1

    def _read_double_quotes(self) -> Iterator[Word]:
        opened, self.pos = self.pos, self.pos + 1
        self._add("")
        while self.pos < len(self.text):
            char = self.text[self.pos]
            if char == '"':
                self.pos += 1
                return
            if char == "\\":
                following = self.text[self.pos + 1 : self.pos + 2]
                self._add(following if following in '"\\$`' else "" if following == "\n" else char + following)
                self.pos += 2
            elif self.shell and char in "$`":
                yield from self._add_words(self._expand())
            else:
                plain = _QUOTED.match(self.text, self.pos)
                self._add(plain[0] if plain else char)
                self.pos += len(plain[0]) if plain else 1
        raise self._unclosed('"', opened)

    def _read_escape(self) -> None:
        if self.shell and (lost := _LOST_CONTINUATION.match(self.text, self.pos)):
            self.lost.append(self._line_of(self.pos))
            self.pos = lost.end()
            return
        following = self.text[self.pos + 1 : self.pos + 2]
        if following != "\n":
            self._add(following or "\\")
        self.pos += 2

    def _expand(self, *, split: bool = False) -> tuple[str, ...]:
        """Read a variable or a command substitution, and return the words that it stands for.

        Args:
            split: whether its value is split at spaces, as outside of quotes.
        """
        found = _VARIABLE.match(self.text, self.pos) or _COMPUTED.match(self.text, self.pos)
        if found is None:
            self.pos += 1
            return (self.text[self.pos - 1],)
        self.pos = found.end()
        if found.re is _COMPUTED:
            self.missing[describe_unknown(found[0], "computed by the shell")] = None
            return (found[0],)
        name = found[1] or found[2]
        values = self.variables.get(name)
        origin = self.env.origin(name)
        if values is None and found[3] is not None and not origin:
            values = (found[3],)
        if values is None:
            origin = origin or ("an argument of the script" if _ARGUMENT.match(name) else _NOT_SET)
            self.missing[describe_unknown(name, origin)] = None
            values = (found[0],)
        else:
            self.missing |= dict.fromkeys(self.unknown.get(name, ()))
            values = tuple(part for value in values for part in value.split()) if split else values
        self._grow(sum(map(len, values)))
        return values

    def _add_words(self, values: tuple[str, ...]) -> Iterator[Word]:
        """Add the first value to the word, and begin a new word with each further one."""
        missing = dict(self.missing)
        for index, value in enumerate(values):
            if index:
                yield from self._close()
                self.missing |= missing
            self._add(value)

    def _add(self, text: str) -> None:
        if self.parts is None:
            self.parts = []
        self.parts.append(text)

    def _close(self) -> Iterator[Word]:
        if self.parts is not None:
            yield Word("".join(self.parts), self._line_of(self.start), unknown=self._take_missing())
            self.parts = None

    def _take_missing(self) -> tuple[str, ...]:
        unknown = tuple(self.missing)
        self.missing.clear()
        return unknown

    def _read_array(self, found: re.Match[str]) -> None:
        before = self.variables.get(found[1], ()) if found[2] else ()
        self.pos = found.end()
        items = [token for token in self.tokens(closing=")") if token is not None]
        self._grow(sum(map(len, before)))
        self.variables[found[1]] = (*before, *(item.text for item in items))
        self._assign_unknown(found, tuple(name for item in items for name in item.unknown))

    def _read_json_with_mistake(self) -> Word | None:
        """Read JSON that a shell would take apart, as it was meant."""
        if self.parts is not None and not (self.parts and self.parts[-1].endswith("=")):
            return None
        mistake: Mistake = "unquoted-json"
        begin = self.pos
        if not _UNQUOTED_JSON.match(self.text, begin):
            mistake, begin = "json-in-double-quotes", begin + 1
            if not _JSON_IN_DOUBLE_QUOTES.match(self.text, self.pos):
                return None
        end = self._end_of_json(begin)
        if end is None or (mistake == "json-in-double-quotes" and self.text[end : end + 1] != '"'):
            return None
        before = "".join(self.parts or ())
        self.pos = end if mistake == "unquoted-json" else end + 1
        self.parts = None
        text = before + self.text[begin:end]
        return Word(text, self._line_of(self.start), mistake=mistake, unknown=self._take_missing())

    def _end_of_json(self, begin: int) -> int | None:
        if self.unbalanced >= _MAX_UNBALANCED:
            return None
        depth = 0
        for piece in _JSON_PIECE.finditer(self.text, begin):
            depth += {"{": 1, "}": -1}.get(piece[0], 0)
            if depth == 0 and piece[0] == "}":
                return piece.end()
        self.unbalanced += 1
        return None

    def _skip_redirection(self) -> None:
        if (placeholder := _PLACEHOLDER.match(self.text, self.pos)) and not self.text.startswith("<<", self.pos):
            self._add(placeholder[0])
            self.pos = placeholder.end()
            return
        if self.parts is not None and "".join(self.parts).isdigit():
            self.parts = None
        if here := _HERE_DOCUMENT.match(self.text, self.pos):
            self.here_documents.append(here)
        found = here or _REDIRECTION.match(self.text, self.pos)
        self.pos = found.end() if found else self.pos + 1

    def _read_here_documents(self) -> None:
        for opened in self.here_documents[:_MAX_HERE_DOCUMENTS]:
            end = re.compile(rf"^\s*{re.escape(opened[2])}$", re.MULTILINE).search(self.text, self.pos)
            body = self.text[self.pos : end.start() if end else len(self.text)]
            self.texts.append(self._fill_in(body, self._line_of(self.pos), as_it_is=bool(opened[1])))
            self.pos = end.end() if end else len(self.text)
        self.here_documents.clear()

    def _fill_in(self, body: str, line: int, *, as_it_is: bool) -> HereDocument:
        """Return a here-document, with its variables put in unless its name stands in quotes."""
        unknown: dict[str, str] = {}

        def value(found: re.Match[str]) -> str:
            if found[0].startswith("\\"):
                return found[0][1:]
            name = found["name"] or found["braced"] or found[0]
            values = self.variables.get(name)
            if values is not None and not self.unknown.get(name):
                self._grow(sum(map(len, values)))
                return " ".join(values)
            unknown[found[0]] = describe_unknown(name, self.env.origin(name) or _NOT_SET)
            return found[0]

        return HereDocument(body if as_it_is else _IN_HERE_DOCUMENT.sub(value, body), line, unknown)

    def _find(self, wanted: str, otherwise: int | None = None) -> int:
        """Return where a character comes next; a quote that never comes is an error."""
        end = self.text.find(wanted, self.pos + 1)
        if end >= 0:
            return end
        if otherwise is not None:
            return otherwise
        raise self._unclosed(wanted, self.pos)

    def _unclosed(self, quote: str, pos: int) -> InvalidSetup:
        return InvalidSetup.because(
            "unclosed-quote",
            f"A {quote} is opened and never closed.",
            where=f"line {self._line_of(pos)}",
            fix="Close it, or write the apostrophe in a text as '\\''.",
        )

    def _line_of(self, pos: int) -> int:
        if pos >= self.counted:
            self.line += self.text.count("\n", self.counted, pos)
            self.counted = pos
            return self.line
        return self.line - self.text.count("\n", pos, self.counted)

    def _grow(self, chars: int) -> None:
        self.chars += chars
        if self.chars > MAX_CHARS:
            raise InvalidSetup.because(
                "too-long",
                f"The text is longer than {MAX_CHARS:,} characters with its variables put in.",
                where=f"line {self._line_of(self.pos)}",
                fix="Give the one command that starts the server.",
            )
