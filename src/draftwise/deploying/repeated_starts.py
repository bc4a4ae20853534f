"""Finds commands that start one server after another, each of a model that only a loop or a call names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from draftwise.setups.read import SetupReading

_SET_BY_LOOP = re.compile(r"set (?:in|by) a loop")
_VALUE = re.compile(r"depends on (.+?) \((computed by the (?:program|shell)|[^()]*)\)")
_LINE = re.compile(r":(\d+)(?: |$)")
_TEMPLATE_VARIABLES = re.compile(
    r"""\{%-?\s*for\s+(\w+)|\bloop_var:\s*["']?(\w+)|^[ \t]*(?:-[ \t]*)?(?:loop|with_\w+):()|\bfor_each\s*=()""",
    re.MULTILINE,
)
"""Variables of loops in templates, or none where a platform has a name for them."""
_ADDED = re.compile(r"the words that (?:xargs|parallel|find) adds")
_OF_PLATFORMS = ("item", "each")
_TEXT = re.compile(r"""(?:^|\s)#.*|"[^"\n]*"|'[^'\n]*'""", re.MULTILINE)
"""Comments, and quotes that end on their line, in none of which a loop begins."""
_LOOP_WORD = re.compile(r"(?:^|[;&]|\)\)|\bfor[ \t]+\w+(?=[ \t]))[ \t]*(do|done)(?=[\s;&|)}<>]|$)", re.MULTILINE)
_SERVER = re.compile(r"vllm[ /.]|api_server|--model")
_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


def starts_several(text: str, reading: SetupReading, *, is_python: bool) -> bool:
    """Say whether a server's command may start servers of several models, of which no edit reaches one alone."""
    told = reading.unknown.get("model")
    if told is None:
        return reading.setup.target == "{}"  # of a program that is not named
    if _ADDED.search(told.message):
        return True
    found, place = _VALUE.search(told.message), _LINE.search(told.where)
    if _SET_BY_LOOP.search(told.message):
        return True
    if found is None or place is None:
        return False
    value, origin, line = found[1].strip("{} "), found[2], int(place[1])
    if origin == "computed by the program":
        return is_python and any(_binds(node, value) for node in _list_repeated(ast.parse(text), line))
    if origin == "computed by the shell":
        lines = text.split("\n")
        server = _SERVER.search(text, len("\n".join(lines[: line - 1])))
        before = text[: server.start()] if server else "\n".join(lines[:line])
        words = _LOOP_WORD.findall(_TEXT.sub("", before))
        return words.count("do") > words.count("done")
    names = {name for match in _TEMPLATE_VARIABLES.finditer(text) for name in match.groups() if name is not None}
    return any(
        re.fullmatch(rf"{name}(?:\W.*|_.*)?", value) for each in names for name in ([each] if each else _OF_PLATFORMS)
    )


def _list_repeated(tree: ast.Module, line: int) -> Iterator[ast.AST]:
    """Yield the loops around a line, and the functions around it that are not called at one place alone."""
    nodes = list(ast.walk(tree))
    loops = [node for node in nodes if isinstance(node, _LOOPS)]
    yield from (node for node in loops if _holds(node, line))
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _holds(node, line):
            uses = [each for each in nodes if node.name in (getattr(each, "id", ""), getattr(each, "attr", ""))]
            calls = [each for each in nodes if isinstance(each, ast.Call) and each.func in uses]
            again = [each for each in calls if any(_holds(loop, each.lineno) for loop in loops)]
            if uses and (again or len(uses) > 1 or not calls):
                yield node


def _holds(node: ast.AST, line: int) -> bool:
    return getattr(node, "lineno", 0) <= line <= getattr(node, "end_lineno", 0)


def _binds(node: ast.AST, value: str) -> bool:
    """Say whether what repeats gives a value anew each time: it sets one of its names, or calls what gives it."""
    try:
        used = list(ast.walk(ast.parse(value)))
    except SyntaxError:
        return True  # it is cut off
    inside = list(ast.walk(node))
    bound = {each.id for each in inside if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    bound |= {each.arg for each in inside if isinstance(each, ast.arg)}
    return any(isinstance(each, ast.Call) or getattr(each, "id", "") in bound for each in used)
