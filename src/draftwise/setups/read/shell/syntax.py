"""Parses shell scripts into trees of lists, branches, loops, functions and words; other text becomes commands."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Literal as OneOf

from draftwise.core import InvalidSetup
from draftwise.knowledge.messages import refusal
from draftwise.setups.read.shell.words import Mistake, find_meant_json


@dataclass(frozen=True, slots=True)
class Literal:
    """Literal text of a word."""

    text: str
    quoted: bool = False
    is_operand: bool = False
    """Whether it is inside `${NAME:-...}`, where unquoted text is split at spaces."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """`$NAME` and `${NAME...}`."""

    name: str
    shown: str
    """The reference as written."""
    quoted: bool = False
    index: ShellWord | str = ""
    """`@`, `*` or the index of an array's item; empty without one."""
    operator: str = ""
    operand: ShellWord | None = None
    prefix: str = ""
    """`#` for the length, `!` for the variable that the value names."""


@dataclass(frozen=True, slots=True)
class Substitution:
    """A command substitution, a process substitution, or an expansion that is not read."""

    shown: str
    quoted: bool = False
    script: str = ""
    """Script of a command substitution."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`$((...))`, or `((...))` as a command."""

    text: str
    shown: str = ""
    quoted: bool = False
    line: int = 0


Part = Literal | Parameter | Substitution | Arithmetic


@dataclass(frozen=True, slots=True)
class ShellWord:
    """One word before its expansion."""

    parts: tuple[Part, ...]
    line: int = 0
    mistake: Mistake = ""

    @property
    def plain(self) -> str:
        """Its text if it is only unquoted text; else empty."""
        match self.parts:
            case (Literal(text, False, _),):
                return text
        return ""


@dataclass(frozen=True, slots=True)
class Array:
    """`NAME=(ITEM ...)`."""

    name: str
    appends: bool
    items: tuple[ShellWord, ...]
    line: int = 0


@dataclass(slots=True)
class Document:
    """A here-document, whose body follows the line, or a here-string, whose body is the word."""

    delimiter: str
    is_quoted: bool
    strips: bool
    """Whether tabs at the beginning of its lines go."""
    body: tuple[Part, ...] = ()
    line: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """`> FILE`, `>> FILE`."""

    file: ShellWord
    appends: bool


@dataclass(frozen=True, slots=True)
class Simple:
    """A command with its arguments, or only assignments."""

    words: tuple[ShellWord | Array, ...]
    documents: tuple[Document | Output, ...] = ()
    lost: tuple[int, ...] = ()
    """Lines that end in a backslash and a space."""
    line: int = 0


@dataclass(frozen=True, slots=True)
class AndOr:
    """`LEFT && RIGHT`, `LEFT || RIGHT`."""

    left: Node
    operator: OneOf["&&", "||"]
    right: Node


@dataclass(frozen=True, slots=True)
class Not:
    """`! COMMAND`."""

    inner: Node


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands that run in subshells: `A | B`, `A &`."""

    commands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class CommandList:
    """A list of commands; in parentheses, it runs in a subshell."""

    commands: tuple[Node, ...]
    is_subshell: bool = False
    documents: tuple[Document | Output, ...] = ()


@dataclass(frozen=True, slots=True)
class Branches:
    """`if` with the commands of each condition; the condition of `else` is None."""

    branches: tuple[tuple[CommandList | None, CommandList], ...]


@dataclass(frozen=True, slots=True)
class Clause:
    """One clause of a `case`."""

    patterns: tuple[ShellWord, ...]
    body: CommandList
    ending: str = ";;"


@dataclass(frozen=True, slots=True)
class Case:
    """`case WORD in ... esac`."""

    subject: ShellWord
    clauses: tuple[Clause, ...]
    line: int


@dataclass(frozen=True, slots=True)
class For:
    """`for NAME in WORDS`; words are None for the arguments, the name is empty for `for ((...))`."""

    name: str
    words: tuple[ShellWord, ...] | None
    body: CommandList
    line: int


@dataclass(frozen=True, slots=True)
class While:
    """`while` and `until`."""

    condition: CommandList
    body: CommandList
    until: bool
    line: int


@dataclass(frozen=True, slots=True)
class Function:
    """The definition of a function."""

    name: str
    body: CommandList


@dataclass(frozen=True, slots=True)
class Test:
    """`[[ ... ]]`: an operator with its operands, which are tests or words."""

    operator: str
    """`&&`, `||`, `!`, a unary or binary operator; `word` for a word alone."""
    operands: tuple[Test | ShellWord, ...]
    line: int


Node = Simple | AndOr | Not | Pipeline | CommandList | Branches | Case | For | While | Function | Test | Arithmetic

_BLANK = re.compile(r"(?:[ \t\r\f\v]|\\\r?\n)+")
_COMMENT = re.compile(r"#[^\n]*")
_PLAIN = re.compile(r"""[^\s'"\\$`;&|()<>{]+""")
_IN_QUOTES = re.compile(r'[^"\\$`]+')
_IN_BODY = re.compile(r"[^\\$`]+")
_IN_ESCAPED = re.compile(r"[^\\']+")
_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)
_IN_OPERAND = re.compile(r"""[^'"\\$`}]+""")
_PLACEHOLDER = re.compile(r"<[A-Za-z](?:[\w ./-]*[\w./-])?>")
_NAME = re.compile(r"\$([A-Za-z_]\w*|[0-9]|[@*#?$!-])")
_PREFIX = re.compile(r"[#!](?![}:-])")
_BRACED_NAME = re.compile(r"[A-Za-z_]\w*|[0-9]+|[@*#?$!-]")
_OPERATOR = re.compile(r":?[-=?+]|##?|%%?|//?[#%]?|\^\^?|,,?|@[A-Za-z]|:")
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=\(")
_HERE = re.compile(r"<<-?[ \t]*(?:'([^'\n]+)'|\"([^\"\n]+)\"|(\\?)([\w.-]+))")
_REDIRECTION = re.compile(r"(?:&>>?|<<<|<>|>>|>\||[<>]&|[<>])[ \t]*-?")
_AT_REDIRECTION = re.compile(r"\d*(?=[<>])|(?=&>)")
_OUTPUTS = frozenset({">", ">>", ">|", "&>", "&>>"})
_LOST = re.compile(r"\\[ \t]+\r?\n")
_RESERVED = re.compile(
    r"(?:if|then|elif|else|fi|case|esac|for|while|until|do|done|function|\{|\}|!|\[\[)(?=[\s;&|()<>]|$)"
)
_CASE = re.compile(r"case\s[^\n]{0,1000}?\sin(?=\s|$)")
_FOR = re.compile(r"for[ \t]+(?:([A-Za-z_]\w*)|\(\()")
_FUNCTION = re.compile(
    r"(?:function[ \t]+([\w.:-]+)[ \t]*(?:\([ \t]*\))?|([A-Za-z_][\w.:-]*)[ \t]*\([ \t]*\))[ \t\n]*(?=[{(])"
)
_IN = re.compile(r"in(?=\s|;|$)")
_AND_OR = re.compile(r"&&|\|\|")
_PIPE = re.compile(r"\|(?!\|)&?")
_SEPARATOR = re.compile(r";;&|;;|;&|&&|\|\||\|&|[;&|\n]")
_CLOSING = frozenset({"then", "elif", "else", "fi", "esac", "do", "done", "}"})
_UNARY = re.compile(r"-[a-zA-Z]$")
_BINARY = frozenset({"=", "==", "!=", "=~", "<", ">", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef"})
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "e": "\x1b"}
_MAX_DOCUMENTS = 20


def parse(text: str, *, line: int = 1) -> CommandList:
    """Return a script as a tree; `line` is the number of its first line.

    Raises:
        InvalidSetup: a quote is never closed.
    """
    return _Parser(text, line).read_commands()


def walk(node: Node) -> Iterator[Node]:
    """Yield a tree's nodes, outer ones first."""
    yield node
    inner: tuple[Node | None, ...] = ()
    match node:
        case AndOr(left, _, right):
            inner = left, right
        case Not(only) | Function(_, only):
            inner = (only,)
        case Pipeline(commands) | CommandList(commands):
            inner = commands
        case Branches(branches):
            inner = tuple(each for branch in branches for each in branch)
        case Case():
            inner = tuple(clause.body for clause in node.clauses)
        case For():
            inner = (node.body,)
        case While():
            inner = node.condition, node.body
    for each in inner:
        if each is not None:
            yield from walk(each)


@dataclass(slots=True)
class _Parser:
    text: str
    first_line: int
    pos: int = 0
    newlines: list[int] = field(default_factory=list)
    closed: dict[int, int] = field(default_factory=dict)
    """Where a parenthesis opens -> where it closes; -1 for the text itself."""
    waiting: list[Document] = field(default_factory=list)
    num_documents: int = 0
    lost: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.closed:
            return
        opened: list[int] = []
        self.closed[-1] = len(self.text)
        for found in re.finditer(r"[()\n]", self.text):
            if found[0] == "\n":
                self.newlines.append(found.start())
            elif found[0] == "(":
                opened.append(found.start())
            elif opened:
                self.closed[opened.pop()] = found.start()

    def line_at(self, pos: int) -> int:
        """Return the number of the line that a position is in."""
        return self.first_line + bisect_right(self.newlines, pos - 1)

    def at(self, *texts: str) -> bool:
        """Say whether one of the texts comes next."""
        return self.text.startswith(texts, self.pos)

    def take(self, pattern: re.Pattern[str] | str) -> re.Match[str] | None:
        """Return what comes next, and go behind it, if it is of a pattern."""
        known = pattern if isinstance(pattern, re.Pattern) else re.compile(pattern)
        found = known.match(self.text, self.pos)
        if found is not None:
            self.pos = found.end()
        return found

    def take_text(self, pattern: re.Pattern[str]) -> str:
        """Return the text of a pattern that comes next, else the next character, and go behind it."""
        found = pattern.match(self.text, self.pos)
        text = found[0] if found else self.text[self.pos]
        self.pos += len(text)
        return text

    # Lists and pipelines

    def read_commands(self, *closing: str) -> CommandList:
        """Read commands up to one of the words, which stays to be read."""
        return CommandList(tuple(self.read_list(closing)))

    def read_list(self, closing: Collection[str]) -> Iterator[Node]:
        """Yield commands until one of the words, which stays to be read; what closes nothing is skipped."""
        while self.pos < len(self.text):
            self.skip_blank()
            found = self.reserved()
            if self.at(";;", ";&"):
                if "esac" in closing:
                    return
                self.pos += 2
            elif found in closing or (self.at(")") and ")" in closing):
                return
            elif found in _CLOSING:
                self.pos += len(found)
            elif separator := self.take(_SEPARATOR):
                if separator[0] == "\n":
                    self.read_documents()
            elif self.at(")"):
                self.pos += 1
            elif self.pos < len(self.text):
                before = self.pos
                node = self.read_and_or()
                self.skip_blank()
                yield Pipeline((node,)) if self.at("&") and not self.at("&&") else node
                if self.pos == before:
                    self.pos += 1

    def skip_blank(self, *, newlines: bool = False) -> None:
        """Skip spaces, continued lines and comments."""
        while self.pos < len(self.text):
            if lost := self.take(_LOST):
                self.lost.append(self.line_at(lost.start()))
            elif newlines and self.take("\n"):
                self.read_documents()
            elif not self.take(_BLANK) and not self.take(_COMMENT):
                return

    def reserved(self) -> str:
        """Return the reserved word that comes next; empty for none."""
        found = _RESERVED.match(self.text, self.pos)
        return found[0] if found else ""

    def read_and_or(self) -> Node:
        node = self.read_pipeline()
        self.skip_blank()
        while found := self.take(_AND_OR):
            self.skip_blank(newlines=True)
            if self.pos >= len(self.text):
                break
            node = AndOr(node, "&&" if found[0] == "&&" else "||", self.read_pipeline())
            self.skip_blank()
        return node

    def read_pipeline(self) -> Node:
        self.skip_blank()
        negated = False
        while self.reserved() == "!":
            self.pos += 1
            negated = not negated
            self.skip_blank()
        commands = [self.read_command()]
        self.skip_blank()
        while self.take(_PIPE):
            self.skip_blank(newlines=True)
            commands.append(self.read_command())
            self.skip_blank()
        node = commands[0] if len(commands) == 1 else Pipeline(tuple(commands))
        return Not(node) if negated else node

    # Compound commands

    def read_command(self) -> Node:
        if function := self.take(_FUNCTION):
            body = self.read_command()
            return Function(function[1] or function[2], body if isinstance(body, CommandList) else CommandList((body,)))
        word = self.reserved()
        if word and (node := self.read_reserved(word)) is not None:
            return node
        if self.at("((") and (arithmetic := self.read_arithmetic(self.pos)) is not None:
            return arithmetic
        return replace(self.read_group(")"), is_subshell=True) if self.take(r"\(") else self.read_simple()

    def read_reserved(self, word: str) -> Node | None:
        """Read what a reserved word begins; None where it begins nothing."""
        match word:
            case "if":
                return self.read_if()
            case "case" if _CASE.match(self.text, self.pos):
                return self.read_case()
            case "for" if found := _FOR.match(self.text, self.pos):
                return self.read_for(found)
            case "while" | "until":
                return self.read_while(word)
            case "[[":
                return self.read_test()
            case "{":
                self.pos += 1
                return self.read_group("}")
        return None

    def read_group(self, *closing: str) -> CommandList:
        """Read the commands up to one of the words, and skip it."""
        commands = self.read_commands(*closing)
        self.skip_word(*closing)
        return replace(commands, documents=self.read_redirections())

    def skip_word(self, *words: str) -> str:
        """Skip one of the words if it comes next, and return it."""
        self.skip_blank(newlines=True)
        word = next(filter(self.at, words), "")
        self.pos += len(word)
        return word

    def read_redirections(self) -> tuple[Document | Output, ...]:
        """Read what follows behind a compound command on its line."""
        documents: list[Document | Output] = []
        self.skip_blank()
        while found := self.take(_AT_REDIRECTION):
            self.read_redirection(documents, is_numbered=bool(found[0]))
            self.skip_blank()
        return tuple(documents)

    def read_if(self) -> Node:
        self.pos += 2
        branches: list[tuple[CommandList | None, CommandList]] = []
        while True:
            condition = self.read_commands("then", "fi")
            if not self.skip_word("then"):
                self.skip_word("fi")
                return CommandList((condition, Branches(tuple(branches)))) if branches else condition
            branches.append((condition, self.read_commands("elif", "else", "fi")))
            ending = self.skip_word("elif", "else", "fi")
            if ending == "else":
                branches.append((None, self.read_commands("fi")))
                self.skip_word("fi")
            if ending != "elif":
                break
        self.read_redirections()
        return Branches(tuple(branches))

    def read_case(self) -> Node:
        line = self.line_at(self.pos)
        self.pos += 4
        self.skip_blank()
        subject = self.read_word() or ShellWord(())
        self.skip_word("in")
        clauses: list[Clause] = []
        while self.pos < len(self.text):
            self.skip_blank(newlines=True)
            if self.reserved() == "esac":
                break
            self.skip_word("(")
            patterns: list[ShellWord] = []
            while (pattern := self.read_word()) is not None:
                patterns.append(pattern)
                self.skip_blank()
                if not self.take(r"\|"):
                    break
                self.skip_blank()
            if not self.skip_word(")"):
                self.pos += not patterns
                continue
            body = self.read_commands("esac")
            clauses.append(Clause(tuple(patterns), body, self.skip_word(";;&", ";;", ";&") or ";;"))
        self.skip_word("esac")
        self.read_redirections()
        return Case(subject, tuple(clauses), line)

    def read_for(self, found: re.Match[str]) -> Node:
        words: tuple[ShellWord, ...] | None = ()
        if found[1] is not None:
            self.pos = found.end()
            self.skip_blank(newlines=True)
            words = tuple(self.read_words()) if self.take(_IN) else None
        elif self.read_arithmetic(found.end() - 2) is None:
            self.pos = found.end()
        self.skip_blank(newlines=True)
        while self.take(";"):
            self.skip_blank(newlines=True)
        if not self.skip_word("do", "{"):
            return CommandList(())
        return For(found[1] or "", words, self.read_group("done", "}"), self.line_at(found.start()))

    def read_while(self, word: str) -> Node:
        line = self.line_at(self.pos)
        self.pos += 5
        condition = self.read_commands("do")
        if not self.skip_word("do"):
            return condition
        return While(condition, self.read_group("done"), word == "until", line)

    def read_arithmetic(self, begin: int) -> Arithmetic | None:
        """Read `((...))`, if that is what stands there."""
        end = self.closed.get(begin)
        if end is None or self.text[end - 1] != ")":
            return None
        text = self.text[begin + 2 : end - 1]
        self.pos = end + 1
        return Arithmetic(text, f"(({text}))", line=self.line_at(begin))

    def read_test(self) -> Node:
        line = self.line_at(self.pos)
        self.pos += 2
        test = self.read_alternatives(line)
        self.skip_word("]]")
        self.read_redirections()
        return test

    def read_alternatives(self, line: int) -> Test:
        test = self.read_conjunction(line)
        while self.skip_word("||"):
            test = Test("||", (test, self.read_conjunction(line)), line)
        return test

    def read_conjunction(self, line: int) -> Test:
        test = self.read_primary(line)
        while self.skip_word("&&"):
            test = Test("&&", (test, self.read_primary(line)), line)
        return test

    def read_primary(self, line: int) -> Test:
        self.skip_blank(newlines=True)
        if self.reserved() == "!":
            self.pos += 1
            return Test("!", (self.read_primary(line),), line)
        if self.skip_word("("):
            inner = self.read_alternatives(line)
            self.skip_word(")")
            return inner
        left = self.read_word() or ShellWord(())
        self.skip_blank(newlines=True)
        if self.pos >= len(self.text) or self.at("]]", "&&", "||", ")"):
            return Test("word", (left,), line)
        if _UNARY.match(left.plain):
            return Test(left.plain, (self.read_word() or ShellWord(()),), line)
        found = self.take("[<>]")
        operator = found[0] if found else (self.read_word() or ShellWord(())).plain
        self.skip_blank(newlines=True)
        right = self.read_regex() if operator == "=~" else self.read_word(is_pattern=True) or ShellWord(())
        return Test(operator if operator in _BINARY else "?", (left, right), line)

    def read_regex(self) -> ShellWord:
        """Read the pattern behind `=~`, in which parentheses and bars are plain."""
        parts: list[Part] = []
        depth = 0
        while self.pos < len(self.text):
            char = self.text[self.pos]
            if char.isspace() and depth == 0:
                break
            depth += {"(": 1, ")": -1}.get(char, 0)
            if depth < 0:
                break
            if char in "'\"$\\`":
                self.read_piece(parts)
            else:
                parts.append(Literal(char))
                self.pos += 1
        return ShellWord(tuple(parts), self.line_at(self.pos))

    # Simple commands and words

    def read_simple(self) -> Simple:
        line = self.line_at(self.pos)
        words: list[ShellWord | Array] = []
        documents: list[Document | Output] = []
        self.lost = []
        before = -1
        while self.pos < len(self.text) and self.pos != before:
            before = self.pos
            self.skip_blank()
            if array := self.take(_ARRAY):
                words.append(self.read_array(array))
            elif self.at_redirection():
                self.read_redirection(documents)
            elif (word := self.read_word()) is None:
                break
            elif word.plain.isdecimal() and self.at("<", ">") and self.at_redirection():
                self.read_redirection(documents, is_numbered=True)
            else:
                words.append(word)
        return Simple(tuple(words), tuple(documents), tuple(self.lost), line)

    def read_words(self) -> Iterator[ShellWord]:
        """Yield words up to the end of a command."""
        self.skip_blank()
        while (word := self.read_word()) is not None:
            yield word
            self.skip_blank()

    def read_array(self, found: re.Match[str]) -> Array:
        items: list[ShellWord] = []
        while self.pos < len(self.text):
            self.skip_blank(newlines=True)
            if self.take(r"\)"):
                break
            if (word := self.read_word()) is None:
                self.pos += 1
            else:
                items.append(word)
        return Array(found[1], bool(found[2]), tuple(items), self.line_at(found.start()))

    def at_redirection(self) -> bool:
        is_text = self.at("<(", ">(") or _PLACEHOLDER.match(self.text, self.pos) is not None
        return self.at("&>", "<", ">") and not is_text

    def read_redirection(self, documents: list[Document | Output], *, is_numbered: bool = False) -> None:
        if not self.at("<<<") and (here := self.take(_HERE)):
            document = Document(
                here[1] or here[2] or here[4], here[4] is None or bool(here[3]), here[0].startswith("<<-")
            )
            documents.append(document)
            self.waiting.append(document)
            return
        if not (found := self.take(_REDIRECTION)):
            self.pos += 1
        file, operator = self.read_word(), found[0].rstrip("- \t") if found else ""
        if file is not None and operator == "<<<":
            documents.append(Document("", True, False, (*file.parts, Literal("\n", True)), file.line))
        elif file is not None and operator in _OUTPUTS and not is_numbered:
            documents.append(Output(file, ">>" in operator))

    def read_documents(self) -> None:
        """Read the bodies of the here-documents of the line before."""
        waiting, self.waiting = self.waiting, []
        for document in waiting:
            self.num_documents += 1
            if self.num_documents > _MAX_DOCUMENTS:
                return
            # Spaces around it: meant as an end even where a shell would go on.
            delimiter = re.compile(rf"^[ \t]*{re.escape(document.delimiter)}[ \t\r]*$", re.MULTILINE)
            end = delimiter.search(self.text, self.pos)
            text = self.text[self.pos : end.start() if end else len(self.text)]
            text = re.sub(r"(?m)^\t+", "", text) if document.strips else text
            document.line = self.line_at(self.pos)
            document.body = (Literal(text, True),) if document.is_quoted else _read_body(text, document.line)
            self.pos = end.end() if end else len(self.text)

    def read_word(self, *, is_pattern: bool = False) -> ShellWord | None:
        """Read one word; None where a command ends."""
        begin = self.pos
        parts: list[Part] = []
        mistake: Mistake = ""
        while self.pos < len(self.text):
            char = self.text[self.pos]
            if char in '{"' and (mistake := self.read_json_with_mistake(parts)):
                break
            if char.isspace() or char in ";&|()":
                break
            if char in "<>" and not is_pattern:
                if self.at("<(", ">("):
                    parts.append(self.read_substitution(self.pos + 1, self.pos, quoted=False))
                elif placeholder := self.take(_PLACEHOLDER):
                    parts.append(Literal(placeholder[0]))
                else:
                    break
            elif lost := self.take(_LOST):
                self.lost.append(self.line_at(lost.start()))
                break
            else:
                self.read_piece(parts)
        return None if self.pos == begin else ShellWord(tuple(_join_plain(parts)), self.line_at(begin), mistake)

    def read_piece(self, parts: list[Part]) -> None:
        """Read a quoted text, an expansion, an escape or plain text."""
        if self.at("'"):
            end = self.find("'", self.pos)
            parts.append(Literal(self.text[self.pos + 1 : end], True))
            self.pos = end + 1
        elif self.at('"'):
            self.read_double_quotes(parts)
        elif escape := self.take(_ESCAPE):
            if escape[1] != "\n":
                parts.append(Literal(escape[1] or "\\", True))
        elif self.at("$", "`"):
            self.read_expansion(parts, quoted=False)
        else:
            parts.append(Literal(self.take_text(_PLAIN)))

    def read_double_quotes(self, parts: list[Part]) -> None:
        opened, before = self.pos, len(parts)
        self.pos += 1
        while self.pos < len(self.text):
            if self.take('"'):
                if len(parts) == before:
                    parts.append(Literal("", True))
                return
            if self.at("\\"):
                self.read_quoted_escape(parts)
            elif self.at("$", "`"):
                self.read_expansion(parts, quoted=True)
            else:
                parts.append(Literal(self.take_text(_IN_QUOTES), True))
        raise self.unclosed('"', opened)

    def read_quoted_escape(self, parts: list[Part]) -> None:
        following = self.text[self.pos + 1 : self.pos + 2]
        text = following if following and following in '"\\$`' else "" if following == "\n" else "\\" + following
        parts.append(Literal(text, True))
        self.pos += 2

    def read_expansion(self, parts: list[Part], *, quoted: bool) -> None:
        """Read what begins with `$` or a backtick."""
        begin = self.pos
        if self.at("`"):
            end = self.find("`", begin)
            self.pos = end + 1
            parts.append(Substitution(self.text[begin : self.pos], quoted, self.text[begin + 1 : end]))
        elif self.at("$((") and (found := self.read_arithmetic(begin + 1)) is not None:
            parts.append(Arithmetic(found.text, self.text[begin : self.pos], quoted, found.line))
        elif self.at("$("):
            parts.append(self.read_substitution(begin + 1, begin, quoted=quoted))
        elif self.take(r"\$\{"):
            parts.append(self.read_braced(begin, quoted=quoted))
        elif not quoted and self.take(r"\$'"):
            self.read_escaped_text(parts)
        elif not quoted and self.at('$"'):
            self.pos += 1
            self.read_double_quotes(parts)
        elif name := self.take(_NAME):
            parts.append(Parameter(name[1], name[0], quoted))
        else:
            parts.append(Literal("$", quoted))
            self.pos += 1

    def read_escaped_text(self, parts: list[Part]) -> None:
        """Read `$'...'`; `pos` stands behind the quote."""
        opened, text = self.pos, ""
        while self.pos < len(self.text) and not self.at("'"):
            escape = self.take(_ESCAPE)
            text += _ESCAPES.get(escape[1], escape[0]) if escape else self.take_text(_IN_ESCAPED)
        if not self.take("'"):
            raise self.unclosed("'", opened)
        parts.append(Literal(text, True))

    def read_substitution(self, opened: int, begin: int, *, quoted: bool) -> Substitution:
        """Read the commands in parentheses that are run for their output."""
        inner = replace(self, pos=opened + 1, waiting=[], num_documents=0, lost=[])
        inner.read_commands(")")
        self.pos = min(inner.pos + 1, len(self.text))
        return Substitution(self.text[begin : self.pos], quoted, self.text[opened + 1 : inner.pos])

    def read_braced(self, begin: int, *, quoted: bool) -> Part:
        """Read `${...}`; `pos` stands behind the brace."""
        prefix = self.take(_PREFIX)
        name = self.take(_BRACED_NAME)
        index: ShellWord | str = ""
        if name is not None and self.take(r"\[") and (end := self.text.find("]", self.pos)) >= 0:
            inner = self.text[self.pos : end]
            index = inner if inner in ("@", "*") else _Parser(inner, self.line_at(begin)).read_operand(to="")
            self.pos = end + 1
        operator = self.take(_OPERATOR) if name is not None else None
        is_text = operator is None or operator[0][-1] in "-=?+:"
        operand = self.read_operand(quoted=quoted and is_text)
        self.pos += 1
        shown = self.text[begin : self.pos]
        if name is None or (operator is None and operand.parts):
            return Substitution(shown, quoted)
        sign = operator[0] if operator else ""
        return Parameter(name[0], shown, quoted, index, sign, operand, prefix[0] if prefix else "")

    def read_operand(self, *, quoted: bool = False, to: str = "}") -> ShellWord:
        """Read the text up to a closing brace, in which quotes and expansions count."""
        begin, parts = self.pos, list[Part]()
        while self.pos < len(self.text) and self.text[self.pos] != to:
            if self.at("$", "`"):
                self.read_expansion(parts, quoted=quoted)
            elif self.at('"') or (not quoted and self.at("'", "\\")):
                self.read_piece(parts)
            elif self.take(r"\\}"):
                parts.append(Literal("}", True))
            elif self.at("\\"):
                self.read_quoted_escape(parts)
            else:
                parts.append(Literal(self.take_text(_IN_OPERAND), quoted, is_operand=True))
        return ShellWord(tuple(parts), self.line_at(begin))

    def read_json_with_mistake(self, parts: list[Part]) -> Mistake:
        """Read JSON that a shell would take apart as it was meant; empty for other text."""
        last = parts[-1] if parts else None
        if last is not None and not (isinstance(last, Literal) and last.text.endswith("=")):
            return ""
        found = find_meant_json(self.text, self.pos)
        if found is None:
            return ""
        text, self.pos, mistake = found
        parts.append(Literal(text, True))
        return mistake

    def find(self, wanted: str, pos: int) -> int:
        """Return where a quote is closed."""
        end = self.text.find(wanted, pos + 1)
        if end < 0:
            raise self.unclosed(wanted, pos)
        return end

    def unclosed(self, quote: str, pos: int) -> InvalidSetup:
        return refusal("unclosed-quote", quote=quote, line=self.line_at(pos))


def _join_plain(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield the parts of a word, with its plain text in one piece."""
    for is_plain, group in groupby(parts, lambda part: isinstance(part, Literal) and not part.quoted):
        pieces = [*group]
        yield from [Literal("".join(each.text for each in pieces if isinstance(each, Literal)))] if is_plain else pieces


def _read_body(text: str, line: int) -> tuple[Part, ...]:
    """Return what the text of a here-document consists of."""
    inner, parts = _Parser(text, line), list[Part]()
    while inner.pos < len(text):
        if escape := inner.take(r"\\([$`\\\n])"):
            parts.append(Literal(escape[1].strip("\n"), True))
        elif inner.at("$", "`"):
            inner.read_expansion(parts, quoted=True)
        else:
            parts.append(Literal(inner.take_text(_IN_BODY), True))
    return tuple(parts)
