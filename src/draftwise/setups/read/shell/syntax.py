"""Shell scripts as trees of lists, branches, loops, functions and words; other text is read on as commands."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal as OneOf

from draftwise.core import InvalidSetup
from draftwise.setups.read.shell.words import Mistake, find_meant_json, unclosed_quote


@dataclass(frozen=True, slots=True)
class Literal:
    """Text of a word as it stands."""

    text: str
    quoted: bool = False
    is_operand: bool = False
    """Whether it stands inside of `${NAME:-...}`, where an unquoted text is split at spaces."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """`$NAME` and `${NAME...}`."""

    name: str
    shown: str
    """The reference as written."""
    quoted: bool = False
    index: ShellWord | str = ""
    """`@`, `*` or the index of an array's item; empty for none."""
    operator: str = ""
    operand: ShellWord | None = None
    prefix: str = ""
    """`#` for the length, `!` for what the value names."""


@dataclass(frozen=True, slots=True)
class Substitution:
    """A command substitution, a process substitution, or an expansion that is not read."""

    shown: str
    quoted: bool = False
    script: str = ""
    """What a command substitution runs."""


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
        """Its text, where it is nothing but unquoted text; else empty."""
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
    """A here-document; its body follows behind the line."""

    delimiter: str
    is_quoted: bool
    body: tuple[Part, ...] = ()
    line: int = 0


@dataclass(frozen=True, slots=True)
class Simple:
    """A command with its arguments, or assignments alone."""

    words: tuple[ShellWord | Array, ...]
    documents: tuple[Document, ...] = ()
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
    """Commands that run in shells of their own: `A | B`, `A &`."""

    commands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class CommandList:
    """A list of commands; in parentheses it runs in a shell of its own."""

    commands: tuple[Node, ...]
    is_subshell: bool = False
    documents: tuple[Document, ...] = ()


@dataclass(frozen=True, slots=True)
class Branches:
    """`if`, with what stands under each condition; the last condition of an `else` is None."""

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
_IN_OPERAND = re.compile(r"""[^'"\\$`}]+""")
_PLACEHOLDER = re.compile(r"<[A-Za-z](?:[\w ./-]*[\w./-])?>")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9]|[@*#?$!-]")
_BRACED_NAME = re.compile(r"[A-Za-z_]\w*|[0-9]+|[@*#?$!-]")
_OPERATOR = re.compile(r":?[-=?+]|##?|%%?|//?[#%]?|\^\^?|,,?|@[A-Za-z]|:")
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=\(")
_HERE = re.compile(r"<<-?[ \t]*(?:'([^'\n]+)'|\"([^\"\n]+)\"|(\\?)([\w.-]+))")
_REDIRECTION = re.compile(r"(?:&>>?|<<<|<>|>>|>\||[<>]&|[<>])[ \t]*-?")
_LOST = re.compile(r"\\[ \t]+\r?\n")
_RESERVED = re.compile(
    r"(?:if|then|elif|else|fi|case|esac|for|while|until|do|done|function|\{|\}|!|\[\[)(?=[\s;&|()<>]|$)"
)
_CASE = re.compile(r"case\s[^\n]*?\sin(?=\s|$)")
_FOR = re.compile(r"for[ \t]+(?:([A-Za-z_]\w*)|\(\()")
_FUNCTION = re.compile(
    r"(?:function[ \t]+([\w.:-]+)[ \t]*(?:\([ \t]*\))?|([A-Za-z_][\w.:-]*)[ \t]*\([ \t]*\))[ \t\n]*(?=[{(])"
)
_SEPARATOR = re.compile(r";;&|;;|;&|&&|\|\||\|&|[;&|\n]")
_CLOSING = frozenset({"then", "elif", "else", "fi", "esac", "do", "done", "}"})
_UNARY = re.compile(r"-[a-zA-Z]$")
_BINARY = frozenset({"=", "==", "!=", "=~", "<", ">", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef"})
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "e": "\x1b"}
_MAX_DOCUMENTS = 20


def parse(text: str, *, line: int = 1) -> CommandList:
    """Return a script, whose first line has a number, as a tree.

    Raises:
        InvalidSetup: a quote is never closed.
    """
    parser = _Parser(text, line)
    return CommandList(tuple(parser.read_list(frozenset())))


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
    waiting: list[Document] = field(default_factory=list)
    num_documents: int = 0
    lost: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.newlines = [found.start() for found in re.finditer("\n", self.text)]

    def line_at(self, pos: int) -> int:
        """Return the number of the line that a position is in."""
        return self.first_line + bisect_right(self.newlines, pos - 1)

    # Lists and pipelines

    def read_list(self, closing: frozenset[str]) -> Iterator[Node]:
        """Yield commands until one of the words, which stays to be read; what closes nothing is skipped."""
        while self.pos < len(self.text):
            self.skip_blank()
            found = self.reserved()
            if self.text.startswith(";;", self.pos) or self.text.startswith(";&", self.pos):
                if "esac" in closing:
                    return
                self.pos += 2
            elif found in closing or (self.text[self.pos : self.pos + 1] == ")" and ")" in closing):
                return
            elif found in _CLOSING:
                self.pos += len(found)
            elif separator := _SEPARATOR.match(self.text, self.pos):
                self.take_separator(separator)
            elif self.text[self.pos : self.pos + 1] == ")":
                self.pos += 1
            elif self.pos < len(self.text):
                before = self.pos
                node = self.read_and_or()
                self.skip_blank()
                if self.text.startswith("&", self.pos) and not self.text.startswith("&&", self.pos):
                    node = Pipeline((node,))
                yield node
                if self.pos == before:
                    self.pos += 1

    def take_separator(self, found: re.Match[str]) -> None:
        self.pos = found.end()
        if found[0] == "\n":
            self.read_documents()

    def skip_blank(self, *, newlines: bool = False) -> None:
        """Skip spaces, continued lines and comments."""
        while self.pos < len(self.text):
            if blank := _BLANK.match(self.text, self.pos):
                self.pos = blank.end()
            elif lost := _LOST.match(self.text, self.pos):
                self.lost.append(self.line_at(self.pos))
                self.pos = lost.end()
            elif self.text[self.pos] == "#":
                end = self.text.find("\n", self.pos)
                self.pos = len(self.text) if end < 0 else end
            elif newlines and self.text[self.pos] == "\n":
                self.pos += 1
                self.read_documents()
            else:
                return

    def reserved(self) -> str:
        """Return the reserved word that comes next; empty for none."""
        found = _RESERVED.match(self.text, self.pos)
        return found[0] if found else ""

    def read_and_or(self) -> Node:
        node = self.read_pipeline()
        while True:
            self.skip_blank()
            operator = self.text[self.pos : self.pos + 2]
            if operator not in ("&&", "||"):
                return node
            self.pos += 2
            self.skip_blank(newlines=True)
            if self.pos >= len(self.text):
                return node
            right = self.read_pipeline()
            node = AndOr(node, "&&" if operator == "&&" else "||", right)

    def read_pipeline(self) -> Node:
        self.skip_blank()
        negated = False
        while self.reserved() == "!":
            self.pos += 1
            negated = not negated
            self.skip_blank()
        commands = [self.read_command()]
        while True:
            self.skip_blank()
            if not self.text.startswith("|", self.pos) or self.text.startswith("||", self.pos):
                break
            self.pos += 2 if self.text.startswith("|&", self.pos) else 1
            self.skip_blank(newlines=True)
            commands.append(self.read_command())
        node = commands[0] if len(commands) == 1 else Pipeline(tuple(commands))
        return Not(node) if negated else node

    # Compound commands

    def read_command(self) -> Node:
        if function := _FUNCTION.match(self.text, self.pos):
            self.pos = function.end()
            body = self.read_command()
            return Function(function[1] or function[2], body if isinstance(body, CommandList) else CommandList((body,)))
        word = self.reserved()
        node = self.read_reserved(word) if word else None
        if node is not None:
            return node
        if self.text.startswith("((", self.pos) and (arithmetic := self.read_arithmetic(self.pos)) is not None:
            return arithmetic
        if self.text.startswith("(", self.pos):
            self.pos += 1
            return replace(self.read_group(")"), is_subshell=True)
        return self.read_simple()

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
        commands = tuple(self.read_list(frozenset(closing)))
        self.skip_word(*closing)
        return CommandList(commands, documents=self.read_redirections())

    def skip_word(self, *words: str) -> str:
        """Skip one of the words if it comes next, and return it."""
        self.skip_blank(newlines=True)
        for word in words:
            if self.text.startswith(word, self.pos):
                self.pos += len(word)
                return word
        return ""

    def read_redirections(self) -> tuple[Document, ...]:
        """Read what follows behind a compound command on its line."""
        documents: list[Document] = []
        self.skip_blank()
        while found := re.compile(r"\d*(?=[<>])|(?=&>)").match(self.text, self.pos):
            self.pos = found.end()
            self.read_redirection(documents)
            self.skip_blank()
        return tuple(documents)

    def read_if(self) -> Node:
        self.pos += 2
        branches: list[tuple[CommandList | None, CommandList]] = []
        while True:
            condition = CommandList(tuple(self.read_list(frozenset({"then", "fi"}))))
            if not self.skip_word("then"):
                self.skip_word("fi")
                return CommandList((condition, *(Branches(tuple(branches)),))) if branches else condition
            body = CommandList(tuple(self.read_list(frozenset({"elif", "else", "fi"}))))
            branches.append((condition, body))
            ending = self.skip_word("elif", "else", "fi")
            if ending == "else":
                branches.append((None, CommandList(tuple(self.read_list(frozenset({"fi"}))))))
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
                if self.text[self.pos : self.pos + 1] != "|":
                    break
                self.pos += 1
                self.skip_blank()
            if not self.skip_word(")"):
                self.pos += not patterns
                continue
            body = CommandList(tuple(self.read_list(frozenset({"esac"}))))
            ending = self.skip_word(";;&", ";;", ";&") or ";;"
            clauses.append(Clause(tuple(patterns), body, ending))
        self.skip_word("esac")
        self.read_redirections()
        return Case(subject, tuple(clauses), line)

    def read_for(self, found: re.Match[str]) -> Node:
        line = self.line_at(self.pos)
        words: tuple[ShellWord, ...] | None = ()
        if found[1] is None:
            arithmetic = self.read_arithmetic(found.end() - 2)
            if arithmetic is None:
                self.pos = found.end()
        else:
            self.pos = found.end()
            self.skip_blank(newlines=True)
            if re.compile(r"in(?=\s|;|$)").match(self.text, self.pos):
                self.pos += 2
                words = tuple(self.read_words())
            else:
                words = None
        self.skip_separators()
        if not self.skip_word("do", "{"):
            return CommandList(())
        body = self.read_group("done", "}")
        return For(found[1] or "", words, body, line)

    def skip_separators(self) -> None:
        self.skip_blank(newlines=True)
        while self.text[self.pos : self.pos + 1] == ";":
            self.pos += 1
            self.skip_blank(newlines=True)

    def read_while(self, word: str) -> Node:
        line = self.line_at(self.pos)
        self.pos += 5
        condition = CommandList(tuple(self.read_list(frozenset({"do"}))))
        if not self.skip_word("do"):
            return condition
        return While(condition, self.read_group("done"), word == "until", line)

    def read_arithmetic(self, begin: int) -> Arithmetic | None:
        """Read `((...))`, if that is what stands there."""
        depth = 0
        for found in re.compile(r"[()\n]").finditer(self.text, begin):
            depth += {"(": 1, ")": -1}.get(found[0], 0)
            if depth == 0 and found[0] == ")":
                if self.text[found.start() - 1] != ")":
                    return None
                text = self.text[begin + 2 : found.start() - 1]
                line = self.line_at(begin)
                self.pos = found.end()
                return Arithmetic(text, f"(({text}))", line=line)
        return None

    def read_test(self) -> Node:
        line = self.line_at(self.pos)
        self.pos += 2
        test = self.read_alternatives(line)
        self.skip_blank(newlines=True)
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
        if self.at_test_end():
            return Test("word", (left,), line)
        if _UNARY.match(left.plain):
            return Test(left.plain, (self.read_word() or ShellWord(()),), line)
        if self.text[self.pos : self.pos + 1] in ("<", ">"):
            operator = self.text[self.pos]
            self.pos += 1
        else:
            operator = (self.read_word() or ShellWord(())).plain
        self.skip_blank(newlines=True)
        right = self.read_regex() if operator == "=~" else self.read_word(is_pattern=True) or ShellWord(())
        return Test(operator if operator in _BINARY else "?", (left, right), line)

    def at_test_end(self) -> bool:
        rest = self.text[self.pos : self.pos + 2]
        return not rest or rest in ("]]", "&&", "||") or rest[0] == ")"

    def read_regex(self) -> ShellWord:
        """Read the pattern behind `=~`, in which parentheses and bars are plain."""
        parts: list[Part] = []
        depth = 0
        while self.pos < len(self.text):
            char = self.text[self.pos]
            if char.isspace() and depth == 0:
                break
            if char in "()":
                depth += 1 if char == "(" else -1
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
        begin = self.pos
        line = self.line_at(begin)
        words: list[ShellWord | Array] = []
        documents: list[Document] = []
        self.lost = []
        before = -1
        while self.pos < len(self.text) and self.pos != before:
            before = self.pos
            self.skip_blank()
            if array := _ARRAY.match(self.text, self.pos):
                words.append(self.read_array(array))
            elif self.at_redirection():
                self.read_redirection(documents)
            elif (word := self.read_word()) is not None:
                if (
                    word.plain.isdecimal()
                    and self.text[self.pos : self.pos + 1] in ("<", ">")
                    and self.at_redirection()
                ):
                    self.read_redirection(documents)
                else:
                    words.append(word)
            else:
                break
        return Simple(tuple(words), tuple(documents), tuple(self.lost), line)

    def read_words(self) -> Iterator[ShellWord]:
        """Yield words up to the end of a command."""
        while True:
            self.skip_blank()
            word = self.read_word()
            if word is None:
                return
            yield word

    def read_array(self, found: re.Match[str]) -> Array:
        line = self.line_at(self.pos)
        self.pos = found.end()
        items: list[ShellWord] = []
        while self.pos < len(self.text):
            self.skip_blank(newlines=True)
            if self.text[self.pos : self.pos + 1] == ")":
                self.pos += 1
                break
            word = self.read_word()
            if word is None:
                self.pos += 1
            else:
                items.append(word)
        return Array(found[1], bool(found[2]), tuple(items), line)

    def at_redirection(self) -> bool:
        char = self.text[self.pos : self.pos + 1]
        if char == "&":
            return self.text.startswith("&>", self.pos)
        is_text = _PLACEHOLDER.match(self.text, self.pos) or self.text[self.pos + 1 : self.pos + 2] == "("
        return char in ("<", ">") and not is_text

    def read_redirection(self, documents: list[Document]) -> None:
        if (here := _HERE.match(self.text, self.pos)) and not self.text.startswith("<<<", self.pos):
            self.pos = here.end()
            name = here[1] or here[2] or here[4]
            document = Document(name, here[4] is None or bool(here[3]))
            documents.append(document)
            self.waiting.append(document)
            return
        found = _REDIRECTION.match(self.text, self.pos)
        self.pos = found.end() if found else self.pos + 1
        self.read_word()

    def read_documents(self) -> None:
        """Read the bodies of the here-documents of the line before."""
        waiting, self.waiting = self.waiting, []
        for document in waiting:
            self.num_documents += 1
            if self.num_documents > _MAX_DOCUMENTS:
                return
            # Spaces around it: meant as an end even where a shell would go on.
            end = re.compile(rf"^[ \t]*{re.escape(document.delimiter)}[ \t\r]*$", re.MULTILINE).search(
                self.text, self.pos
            )
            stop = end.start() if end else len(self.text)
            document.line = self.line_at(self.pos)
            if document.is_quoted:
                document.body = (Literal(self.text[self.pos : stop], True),)
            else:
                document.body = self.read_body(stop)
            self.pos = end.end() if end else len(self.text)

    def read_body(self, stop: int) -> tuple[Part, ...]:
        inner = _Parser(self.text[self.pos : stop], self.line_at(self.pos))
        parts: list[Part] = []
        while inner.pos < len(inner.text):
            char = inner.text[inner.pos]
            if char == "\\" and inner.text[inner.pos + 1 : inner.pos + 2] in ("$", "`", "\\", "\n"):
                parts.append(Literal(inner.text[inner.pos + 1].strip("\n"), True))
                inner.pos += 2
            elif char in "$`":
                inner.read_expansion(parts, quoted=True)
            else:
                plain = re.compile(r"[^\\$`]+|\\").match(inner.text, inner.pos)
                text = plain[0] if plain else char
                parts.append(Literal(text, True))
                inner.pos += len(text)
        return tuple(parts)

    def read_word(self, *, is_pattern: bool = False) -> ShellWord | None:
        """Read one word; None where a command ends."""
        begin = self.pos
        parts: list[Part] = []
        mistake: Mistake = ""
        while self.pos < len(self.text):
            char = self.text[self.pos]
            if char in '{"' and (found := self.read_json_with_mistake(parts)):
                mistake = found
                break
            if char.isspace() or char in ";&|()":
                break
            if char in "<>" and not is_pattern:
                if self.text[self.pos + 1 : self.pos + 2] == "(":
                    parts.append(self.read_substitution(self.pos + 1, self.pos, quoted=False))
                elif placeholder := _PLACEHOLDER.match(self.text, self.pos):
                    parts.append(Literal(placeholder[0]))
                    self.pos = placeholder.end()
                else:
                    break
            elif lost := _LOST.match(self.text, self.pos):
                self.lost.append(self.line_at(self.pos))
                self.pos = lost.end()
                break
            else:
                self.read_piece(parts)
        if self.pos == begin:
            return None
        return ShellWord(tuple(parts), self.line_at(begin), mistake)

    def read_piece(self, parts: list[Part]) -> None:
        """Read a quoted text, an expansion, an escape or plain text."""
        char = self.text[self.pos]
        if char == "'":
            end = self.find("'", self.pos)
            parts.append(Literal(self.text[self.pos + 1 : end], True))
            self.pos = end + 1
        elif char == '"':
            self.read_double_quotes(parts)
        elif char == "\\":
            following = self.text[self.pos + 1 : self.pos + 2]
            if following != "\n":
                parts.append(Literal(following or "\\", True))
            self.pos += 2
        elif char in "$`":
            self.read_expansion(parts, quoted=False)
        else:
            plain = _PLAIN.match(self.text, self.pos)
            text = plain[0] if plain else char
            if parts and isinstance(parts[-1], Literal) and not parts[-1].quoted:
                parts[-1] = Literal(parts[-1].text + text)
            else:
                parts.append(Literal(text))
            self.pos += len(text)

    def read_double_quotes(self, parts: list[Part]) -> None:
        opened, self.pos = self.pos, self.pos + 1
        before = len(parts)
        while self.pos < len(self.text):
            char = self.text[self.pos]
            if char == '"':
                self.pos += 1
                if len(parts) == before:
                    parts.append(Literal("", True))
                return
            if char == "\\":
                self.read_quoted_escape(parts)
            elif char in "$`":
                self.read_expansion(parts, quoted=True)
            else:
                plain = _IN_QUOTES.match(self.text, self.pos)
                text = plain[0] if plain else char
                parts.append(Literal(text, True))
                self.pos += len(text)
        raise self.unclosed('"', opened)

    def read_quoted_escape(self, parts: list[Part]) -> None:
        following = self.text[self.pos + 1 : self.pos + 2]
        text = following if following and following in '"\\$`' else "" if following == "\n" else "\\" + following
        parts.append(Literal(text, True))
        self.pos += 2

    def read_expansion(self, parts: list[Part], *, quoted: bool) -> None:
        """Read what begins with `$` or a backtick."""
        begin = self.pos
        if self.text[begin] == "`":
            end = self.find("`", begin)
            self.pos = end + 1
            parts.append(Substitution(self.text[begin : self.pos], quoted, self.text[begin + 1 : end]))
            return
        following = self.text[begin + 1 : begin + 2]
        if self.text.startswith("$((", begin) and (found := self.read_arithmetic(begin + 1)) is not None:
            parts.append(Arithmetic(found.text, self.text[begin : self.pos], quoted, found.line))
        elif following == "(":
            parts.append(self.read_substitution(begin + 1, begin, quoted=quoted))
        elif following == "{":
            self.pos = begin + 2
            parts.append(self.read_braced(begin, quoted=quoted))
        elif following == "'" and not quoted:
            self.read_escaped_text(parts)
        elif following == '"' and not quoted:
            self.pos += 1
            self.read_double_quotes(parts)
        elif name := _NAME.match(self.text, begin + 1):
            self.pos = name.end()
            parts.append(Parameter(name[0], self.text[begin : self.pos], quoted))
        else:
            parts.append(Literal("$", quoted))
            self.pos += 1

    def read_escaped_text(self, parts: list[Part]) -> None:
        """Read `$'...'`."""
        self.pos += 2
        opened, text = self.pos, ""
        while self.pos < len(self.text) and self.text[self.pos] != "'":
            if self.text[self.pos] == "\\":
                following = self.text[self.pos + 1 : self.pos + 2]
                text += _ESCAPES.get(following, "\\" + following)
                self.pos += 2
            else:
                text += self.text[self.pos]
                self.pos += 1
        if self.pos >= len(self.text):
            raise self.unclosed("'", opened)
        self.pos += 1
        parts.append(Literal(text, True))

    def read_substitution(self, opened: int, begin: int, *, quoted: bool) -> Substitution:
        """Read the commands in parentheses that are run for their output."""
        inner = _Parser(self.text, self.first_line, opened + 1, self.newlines)
        for _ in inner.read_list(frozenset({")"})):
            pass
        self.pos = min(inner.pos + 1, len(self.text))
        return Substitution(self.text[begin : self.pos], quoted, self.text[opened + 1 : inner.pos])

    def read_braced(self, begin: int, *, quoted: bool) -> Part:
        """Read `${...}`; `pos` stands behind the brace."""
        prefix = ""
        if self.text[self.pos : self.pos + 1] in ("#", "!") and self.text[self.pos + 1 : self.pos + 2] not in (
            "}",
            ":",
            "-",
        ):
            prefix = self.text[self.pos]
            self.pos += 1
        name = _BRACED_NAME.match(self.text, self.pos)
        if name is not None:
            self.pos = name.end()
        index: ShellWord | str = ""
        if name is not None and self.text[self.pos : self.pos + 1] == "[":
            self.pos += 1
            end = self.text.find("]", self.pos)
            inner = self.text[self.pos : end] if end >= 0 else ""
            if inner in ("@", "*"):
                index = inner
                self.pos = end + 1
            elif end >= 0:
                index = _Parser(inner, self.line_at(begin)).read_operand(to="")
                self.pos = end + 1
        operator = _OPERATOR.match(self.text, self.pos) if name is not None else None
        operand = None
        if operator is not None:
            self.pos = operator.end()
        is_text = operator is None or operator[0][-1] in "-=?+:"
        operand = self.read_operand(quoted=quoted and is_text)
        self.pos += 1
        shown = self.text[begin : self.pos]
        is_odd = name is None or (operator is None and operand.parts)
        if is_odd or name is None:
            return Substitution(shown, quoted)
        return Parameter(name[0], shown, quoted, index, operator[0] if operator else "", operand, prefix)

    def read_operand(self, *, quoted: bool = False, to: str = "}") -> ShellWord:
        """Read the text up to a closing brace, in which quotes and expansions count."""
        begin, parts = self.pos, list[Part]()
        while self.pos < len(self.text) and self.text[self.pos] != to:
            char = self.text[self.pos]
            if char == '"':
                if quoted:
                    self.pos += 1  # ends and begins the quotes around it
                else:
                    self.read_double_quotes(parts)
            elif char == "'" and not quoted:
                self.read_piece(parts)
            elif char == "\\":
                if quoted:
                    following = self.text[self.pos + 1 : self.pos + 2]
                    if following == "}":
                        parts.append(Literal("}", True))
                        self.pos += 2
                    else:
                        self.read_quoted_escape(parts)
                else:
                    self.read_piece(parts)
            elif char in "$`":
                self.read_expansion(parts, quoted=quoted)
            else:
                plain = _IN_OPERAND.match(self.text, self.pos)
                text = plain[0] if plain else char
                parts.append(Literal(text, quoted, is_operand=True))
                self.pos += len(text)
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
        return unclosed_quote(quote, self.line_at(pos))
