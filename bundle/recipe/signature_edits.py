"""Edits of what stands before the body: types, parameters, defaults, async, decorators."""

import ast
import random
import re

from function import DEFAULTS, Edit, Function, Span
from identifiers import Lexicon, names_in

TYPES = ["int", "str", "float", "bool", "bytes", "list[str]", "dict[str, int]", "Path", "object", "Iterable[int]"]


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
