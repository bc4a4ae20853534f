"""One function as source, syntax tree and tokens, and what an edit of it is."""

import ast
import io
import tokenize
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from identifiers import WORD

DEFAULTS = ["None", "True", "False", "0", "1", "-1", "10", "64", "1024", "0.5", "''", "'utf-8'", "()"]

Span = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class Edit:
    """What to ask for, the function that must come out, and the facts to check it by."""

    instruction: str
    expected: str
    check: dict[str, Any]


@dataclass
class Function:
    """The ASCII source of one function at column 0, with its syntax tree and tokens."""

    source: str

    @cached_property
    def node(self) -> ast.FunctionDef | ast.AsyncFunctionDef:
        node = ast.parse(self.source).body[0]
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        return node

    @cached_property
    def tokens(self) -> list[tokenize.TokenInfo]:
        return list(tokenize.generate_tokens(io.StringIO(self.source).readline))

    @cached_property
    def lines(self) -> list[str]:
        return self.source.split("\n")

    @cached_property
    def docstring(self) -> str | None:
        return ast.get_docstring(self.node, clean=False)

    @cached_property
    def multiline_strings(self) -> bool:
        return any(t.type == tokenize.STRING and t.start[0] != t.end[0] for t in self.tokens)

    @cached_property
    def signature_end(self) -> int:
        """The number of lines up to the end of the signature."""
        start = next(i for i, t in enumerate(self.tokens) if t.string == "def")
        return next(t.start[0] for t in self.tokens[start:] if t.type == tokenize.NEWLINE)

    @cached_property
    def parameters(self) -> list[ast.arg]:
        """The plain positional parameters without self and cls."""
        return [arg for arg in self.node.args.args if arg.arg not in ("self", "cls")]

    def offset(self, line: int, column: int) -> int:
        """Return the index in the source of a 1-based line and 0-based column."""
        return sum(len(text) + 1 for text in self.lines[: line - 1]) + column

    def span(self, token: tokenize.TokenInfo, text: str) -> Span:
        return self.offset(*token.start), self.offset(*token.end), text

    def replace(self, spans: list[Span]) -> str:
        text = self.source
        for start, end, new in sorted(spans, reverse=True):
            text = text[:start] + new + text[end:]
        return text

    def words_outside_code(self) -> set[str]:
        """Return the words in strings and comments, where a renaming would be ambiguous."""
        kinds = (tokenize.STRING, tokenize.COMMENT)
        return {word for t in self.tokens if t.type in kinds for word in WORD.findall(t.string)}
