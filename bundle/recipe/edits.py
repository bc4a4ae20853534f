"""Edits of one function, each with the instruction that asks for it and the text it must give."""

import ast
import io
import random
import re
import tokenize
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from identifiers import FIXED, WORD, Lexicon, names_in

TYPES = ["int", "str", "float", "bool", "bytes", "list[str]", "dict[str, int]", "Path", "object", "Iterable[int]"]
DEFAULTS = ["None", "True", "False", "0", "1", "-1", "10", "64", "1024", "0.5", "''", "'utf-8'", "()"]
ERRORS = ["ValueError", "OSError", "KeyError", "TypeError", "AttributeError", "RuntimeError"]

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


def rename_function(function: Function, rng: random.Random, lexicon: Lexicon) -> Edit | None:
    old, new = function.node.name, lexicon.like(function.node.name, rng)
    hits = [t for t in function.tokens if t.type == tokenize.NAME and t.string == old]
    if len(hits) != 1 or old in function.words_outside_code():
        return None
    ask = rng.choice(
        [
            f"Rename the function to `{new}`.",
            f"Rename `{old}` to `{new}`.",
            f"Give this function the name `{new}`.",
            f"Change the function's name from `{old}` to `{new}`.",
        ]
    )
    return Edit(ask, function.replace([function.span(hits[0], new)]), {"kind": "rename_function", "new": new})


def rename_variable(function: Function, rng: random.Random, lexicon: Lexicon) -> Edit | None:
    nodes = list(ast.walk(function.node))
    bound = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    bound |= {arg.arg for arg in function.parameters}
    taken = {n.attr for n in nodes if isinstance(n, ast.Attribute)}
    taken |= {n.arg for n in nodes if isinstance(n, ast.keyword) and n.arg}
    taken |= FIXED | function.words_outside_code()
    choices = sorted(bound - taken)
    if not choices or any(isinstance(n, ast.Global | ast.Nonlocal) for n in nodes):
        return None
    old = rng.choice(choices)
    new = lexicon.like(old, rng)
    if new in names_in(function.node) or new in taken:
        return None
    spans = [function.span(t, new) for t in function.tokens if t.type == tokenize.NAME and t.string == old]
    ask = rng.choice(
        [
            f"Rename the variable `{old}` to `{new}`.",
            f"Rename `{old}` to `{new}` everywhere in this function.",
            f"Replace the name `{old}` by `{new}`.",
            f"Use `{new}` instead of `{old}`.",
        ]
    )
    return Edit(ask, function.replace(spans), {"kind": "rename_variable", "old": old, "new": new})


def rename_attribute(function: Function, rng: random.Random, lexicon: Lexicon) -> Edit | None:
    nodes = list(ast.walk(function.node))
    attributes = {n.attr for n in nodes if isinstance(n, ast.Attribute) and not n.attr.startswith("__")}
    names = {n.id for n in nodes if isinstance(n, ast.Name)} | {n.arg for n in nodes if isinstance(n, ast.arg)}
    names |= {n.arg for n in nodes if isinstance(n, ast.keyword) and n.arg} | {function.node.name}
    choices = sorted(attributes - names - function.words_outside_code())
    if not choices:
        return None
    old = rng.choice(choices)
    new = lexicon.like(old, rng)
    spans = [function.span(t, new) for t in function.tokens if t.type == tokenize.NAME and t.string == old]
    ask = rng.choice(
        [
            f"Rename the attribute `.{old}` to `.{new}`.",
            f"Replace every use of `.{old}` by `.{new}`.",
            f"The attribute `{old}` is now called `{new}`: update this function.",
        ]
    )
    return Edit(ask, function.replace(spans), {"kind": "rename_attribute", "old": old, "new": new})


def add_docstring(function: Function, rng: random.Random, lexicon: Lexicon) -> Edit | None:
    if function.docstring is not None:
        return None
    text = lexicon.sentence(rng)
    at = function.signature_end
    lines = [*function.lines[:at], f'    """{text}"""', *function.lines[at:]]
    ask = rng.choice(
        [
            f'Add the docstring "{text}"',
            f"Add a docstring to this function: {text}",
            f"Document this function with the docstring: {text}",
            f'Insert """{text}""" as the docstring.',
        ]
    )
    return Edit(ask, "\n".join(lines), {"kind": "add_docstring", "text": text})


def remove_docstring(function: Function, rng: random.Random, lexicon: Lexicon) -> Edit | None:
    body = function.node.body
    if function.docstring is None or len(body) < 2 or body[0].end_lineno == body[1].lineno:
        return None
    end = body[0].end_lineno or 0
    lines = function.lines[: body[0].lineno - 1] + function.lines[end:]
    while not lines[body[0].lineno - 1].strip():
        del lines[body[0].lineno - 1]
    ask = rng.choice(["Remove the docstring.", "Delete the docstring of this function.", "Drop the docstring."])
    return Edit(ask, "\n".join(lines), {"kind": "remove_docstring"})


def double_quotes(function: Function, rng: random.Random, lexicon: Lexicon) -> Edit | None:
    strings = [t for t in function.tokens if t.type == tokenize.STRING]
    single = [t for t in strings if t.string.endswith("'")]
    if not single or any(set('"\\') & set(t.string) or "'''" in t.string for t in single):
        return None
    spans = [function.span(t, t.string.replace("'", '"')) for t in single]
    ask = rng.choice(
        [
            "Use double quotes for all strings.",
            "Change the single quotes to double quotes.",
            "Convert every string to double quotes.",
        ]
    )
    return Edit(ask, function.replace(spans), {"kind": "double_quotes"})


def default_spans(function: Function, arg: ast.arg, hint: str) -> list[Span]:
    """Return the spans that annotate `arg` and put spaces around the = of its default."""
    assert arg.end_lineno is not None
    assert arg.end_col_offset is not None
    end = function.offset(arg.end_lineno, arg.end_col_offset)
    equals = re.compile(r"\s*=\s*").match(function.source, end)
    return [(end, equals.end() if equals else end, f": {hint} = " if equals else f": {hint}")]


def add_types(function: Function, rng: random.Random, lexicon: Lexicon) -> Edit | None:
    free = [arg for arg in function.parameters if arg.annotation is None]
    if not free or function.node.returns is not None:
        return None
    chosen = sorted(rng.sample(free, rng.randint(1, min(3, len(free)))), key=free.index)
    hints = {arg.arg: rng.choice(TYPES) for arg in chosen}
    spans = [span for arg in chosen for span in default_spans(function, arg, hints[arg.arg])]
    asked = ", ".join(f"`{name}: {hint}`" for name, hint in hints.items())
    returns = rng.choice([None, *TYPES])
    if returns:
        colon = closing_parenthesis(function) + 1
        spans.append((colon, colon, f" -> {returns}"))
        asked += f" and the return type `{returns}`"
    ask = rng.choice([f"Add type hints: {asked}.", f"Annotate {asked}.", f"Add the annotations {asked}."])
    return Edit(ask, function.replace(spans), {"kind": "add_types", "hints": hints, "returns": returns})


def closing_parenthesis(function: Function) -> int:
    """Return the offset of the ) that ends the parameter list."""
    depth = 0
    start = next(i for i, t in enumerate(function.tokens) if t.string == "def")
    for token in function.tokens[start:]:
        depth += (token.string == "(") - (token.string == ")")
        if token.string == ")" and depth == 0:
            return function.offset(*token.start)
    raise AssertionError("a function has a parameter list")


def add_parameter(function: Function, rng: random.Random, lexicon: Lexicon) -> Edit | None:
    arguments = function.node.args
    name, default = lexicon.name(rng), rng.choice(DEFAULTS)
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or name in names_in(function.node):
        return None
    end = closing_parenthesis(function)
    if function.source[end - 1] in ", \n":
        return None
    new = f"{name}={default}"
    expected = function.replace([(end, end, f", {new}" if arguments.args else new)])
    ask = rng.choice(
        [
            f"Add a parameter `{new}`.",
            f"Add `{new}` as the last parameter.",
            f"Let the function take one more parameter, `{name}`, with the default `{default}`.",
        ]
    )
    return Edit(ask, expected, {"kind": "add_parameter", "name": name, "default": default})


def change_default(function: Function, rng: random.Random, lexicon: Lexicon) -> Edit | None:
    arguments = function.node.args
    pairs = list(zip(arguments.args[-len(arguments.defaults) :], arguments.defaults, strict=False))
    pairs = [(arg, value) for arg, value in pairs if isinstance(value, ast.Constant | ast.Name)]
    if not arguments.defaults or not pairs:
        return None
    arg, value = rng.choice(pairs)
    old = ast.get_source_segment(function.source, value)
    new = rng.choice([default for default in DEFAULTS if default != old])
    assert value.end_lineno is not None
    assert value.end_col_offset is not None
    start = function.offset(value.lineno, value.col_offset)
    end = function.offset(value.end_lineno, value.end_col_offset)
    ask = rng.choice(
        [
            f"Change the default of `{arg.arg}` to `{new}`.",
            f"Make `{new}` the default value of `{arg.arg}`.",
            f"Set the default of the parameter `{arg.arg}` from `{old}` to `{new}`.",
        ]
    )
    check = {"kind": "change_default", "name": arg.arg, "default": new}
    return Edit(ask, function.replace([(start, end, new)]), check)


def reindent(function: Function, rng: random.Random, lexicon: Lexicon) -> Edit | None:
    depths = [len(line) - len(line.lstrip(" ")) for line in function.lines]
    if function.multiline_strings or any(depth % 4 for depth in depths) or "\t" in function.source:
        return None
    expected = "\n".join(line[depth // 2 :] for line, depth in zip(function.lines, depths, strict=True))
    ask = rng.choice(
        [
            "Indent with 2 spaces instead of 4.",
            "Change the indentation from 4 spaces to 2.",
            "Reformat this function to 2-space indentation.",
        ]
    )
    return Edit(ask, expected, {"kind": "reindent"})


def make_async(function: Function, rng: random.Random, lexicon: Lexicon) -> Edit | None:
    if isinstance(function.node, ast.AsyncFunctionDef):
        return None
    start = function.offset(function.node.lineno, function.node.col_offset)
    ask = rng.choice(["Make it an async function.", "Turn this into an `async def`.", "Make this function async."])
    return Edit(ask, function.replace([(start, start, "async ")]), {"kind": "make_async"})


def add_decorator(function: Function, rng: random.Random, lexicon: Lexicon) -> Edit | None:
    name = lexicon.name(rng)
    if rng.random() < 0.3:
        name += f"({rng.choice(DEFAULTS)})"
    ask = rng.choice(
        [f"Add the decorator `@{name}`.", f"Decorate the function with `@{name}`.", f"Put `@{name}` above it."]
    )
    return Edit(ask, f"@{name}\n{function.source}", {"kind": "add_decorator", "decorator": name})


def remove_comments(function: Function, rng: random.Random, lexicon: Lexicon) -> Edit | None:
    comments = [t for t in function.tokens if t.type == tokenize.COMMENT]
    if not comments:
        return None
    lines: list[str | None] = list(function.lines)
    for comment in comments:
        kept = comment.line[: comment.start[1]].rstrip()
        lines[comment.start[0] - 1] = kept or None
    ask = rng.choice(["Remove all comments.", "Delete the comments.", "Strip the comments from this function."])
    expected = "\n".join(line for line in lines if line is not None)
    return Edit(ask, expected, {"kind": "remove_comments"})


def insert_statement(function: Function, rng: random.Random, lexicon: Lexicon) -> Edit | None:
    if function.docstring is not None and len(function.node.body) < 2:
        return None
    name = function.parameters[0].arg if function.parameters else lexicon.name(rng)
    statement = rng.choice(
        [
            f"assert {name} is not None",
            f"{lexicon.name(rng)} = {rng.choice(DEFAULTS)}",
            f"{lexicon.name(rng)}({name})",
            f'print("{lexicon.name(rng)}")',
        ]
    )
    at = function.signature_end
    if function.docstring is not None:
        at = function.node.body[0].end_lineno or at
    lines = [*function.lines[:at], "    " + statement, *function.lines[at:]]
    ask = rng.choice(
        [
            f"Insert `{statement}` as the first statement.",
            f"Begin the body with `{statement}`.",
            f"Add the line `{statement}` at the start of the body.",
        ]
    )
    return Edit(ask, "\n".join(lines), {"kind": "insert_statement", "statement": statement})


def wrap_in_try(function: Function, rng: random.Random, lexicon: Lexicon) -> Edit | None:
    if function.multiline_strings or function.docstring is not None:
        return None
    error, result = rng.choice(ERRORS), rng.choice(["None", "False", "0"])
    at = function.signature_end
    body = ["    " + line if line else line for line in function.lines[at:]]
    tail = [f"    except {error}:", f"        return {result}"]
    ask = rng.choice(
        [
            f"Wrap the body in a try statement that returns {result} on {error}.",
            f"Catch {error} around the whole body and return {result}.",
        ]
    )
    expected = "\n".join([*function.lines[:at], "    try:", *body, *tail])
    return Edit(ask, expected, {"kind": "wrap_in_try", "error": error, "result": result})


EDITS: list[Callable[[Function, random.Random, Lexicon], Edit | None]] = [
    rename_function,
    rename_variable,
    rename_variable,
    rename_attribute,
    add_docstring,
    remove_docstring,
    double_quotes,
    add_types,
    add_parameter,
    change_default,
    reindent,
    make_async,
    add_decorator,
    remove_comments,
    insert_statement,
    wrap_in_try,
]
