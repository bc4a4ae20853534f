"""Check that a rewritten function parses, holds the asked edit, and is otherwise what was expected."""

import ast
import io
import tokenize
from collections.abc import Callable
from typing import Any

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Check = dict[str, Any]


def parse_function(text: str) -> FunctionNode | None:
    """Return the one function that `text` consists of, or None."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return None
    return body[0] if len(body) == 1 and isinstance(body[0], FunctionNode) else None


def names(node: ast.AST) -> set[str]:
    """Return the variable and parameter names in `node`."""
    found = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return found | {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}


def attributes(node: ast.AST) -> set[str]:
    return {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}


def defaults(node: FunctionNode) -> dict[str, str]:
    """Return the default of each positional parameter that has one, as source text."""
    args = node.args.args[len(node.args.args) - len(node.args.defaults) :]
    return {arg.arg: ast.unparse(value) for arg, value in zip(args, node.args.defaults, strict=True)}


def annotations(node: FunctionNode) -> dict[str, str]:
    return {arg.arg: ast.unparse(arg.annotation) for arg in node.args.args if arg.annotation}


def same_code(left: str, right: str) -> bool:
    return ast.unparse(ast.parse(left)) == ast.unparse(ast.parse(right))


def without_docstring(node: FunctionNode) -> list[ast.stmt]:
    return node.body[1:] if ast.get_docstring(node) is not None else node.body


def token_strings(text: str, kind: int) -> list[str]:
    return [t.string for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type == kind]


def has_try(node: FunctionNode, error: str, result: str) -> bool:
    """Return whether the body is one try statement that returns `result` on `error`."""
    body = node.body
    if len(body) != 1 or not isinstance(body[0], ast.Try) or len(body[0].handlers) != 1:
        return False
    handler = body[0].handlers[0]
    caught = handler.type is not None and ast.unparse(handler.type) == error
    return caught and ast.unparse(handler.body[-1]) == f"return {result}"


EDIT_TESTS: dict[str, Callable[[str, FunctionNode, Check], bool]] = {
    "rename_function": lambda _, f, c: f.name == c["new"],
    "rename_variable": lambda _, f, c: c["old"] not in names(f) and c["new"] in names(f),
    "rename_attribute": lambda _, f, c: c["old"] not in attributes(f) and c["new"] in attributes(f),
    "add_docstring": lambda _, f, c: ast.get_docstring(f) == c["text"],
    "remove_docstring": lambda _, f, c: ast.get_docstring(f) is None,
    "double_quotes": lambda text, _, c: not any(s.endswith("'") for s in token_strings(text, tokenize.STRING)),
    "add_types": lambda _, f, c: (
        annotations(f) == c["hints"] and (ast.unparse(f.returns) if f.returns else None) == c["returns"]
    ),
    "add_parameter": lambda _, f, c: defaults(f).get(c["name"]) == c["default"],
    "change_default": lambda _, f, c: defaults(f).get(c["name"]) == c["default"],
    "reindent": lambda text, f, c: f.body[0].col_offset == 2,
    "make_async": lambda _, f, c: isinstance(f, ast.AsyncFunctionDef),
    "add_decorator": lambda _, f, c: (
        bool(f.decorator_list) and same_code(ast.unparse(f.decorator_list[0]), c["decorator"])
    ),
    "remove_comments": lambda text, _, c: not token_strings(text, tokenize.COMMENT),
    "insert_statement": lambda _, f, c: (
        bool(without_docstring(f)) and same_code(ast.unparse(without_docstring(f)[0]), c["statement"])
    ),
    "wrap_in_try": lambda _, f, c: has_try(f, c["error"], c["result"]),
}


def judge(output: str, check: Check) -> dict[str, bool]:
    """Return what holds of a rewrite: parses, contains_edit, same_code, exact.

    `same_code` compares the syntax trees and `exact` the texts of the output and the one
    expected answer, check["expected"]; both imply that nothing else was changed.
    """
    node = parse_function(output)
    if node is None:
        return {"parses": False, "contains_edit": False, "same_code": False, "exact": False}
    return {
        "parses": True,
        "contains_edit": EDIT_TESTS[check["kind"]](output, node, check),
        "same_code": ast.dump(node) == ast.dump(ast.parse(check["expected"]).body[0]),
        "exact": output == check["expected"],
    }
