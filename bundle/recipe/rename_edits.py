"""Edits that give a function, a variable or an attribute another name."""

import ast
import random
import tokenize

from function import Edit, Function
from identifiers import FIXED, Lexicon, names_in


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
