"""Edits of the body: docstring, quotes, indentation, comments, statements."""

import random
import tokenize

from function import DEFAULTS, Edit, Function
from identifiers import Lexicon

ERRORS = ["ValueError", "OSError", "KeyError", "TypeError", "AttributeError", "RuntimeError"]


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
