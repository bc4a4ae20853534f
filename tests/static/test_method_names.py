"""No branch on a method's name: what code wants to know of a method is a column of its row (`knowledge.methods`).

Two things are counted in every file of the package: comparisons with the name of a method, and constants that collect
names of methods. `ALLOWED` may only shrink: a file that has fewer must be lowered here too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import draftwise
from draftwise.knowledge.methods import methods_where

ROOT = Path(draftwise.__file__).parent
NAMES = frozenset(
    name for method in methods_where().values() for name in (method.name, *method.aliases, *method.placeholders)
)
ALLOWED: dict[str, int] = {
    "plan/check/engine/model_runner.py": 1,
    "plan/check/spec/detection.py": 2,
    "plan/check/spec/drafter_config.py": 2,
    "plan/check/spec/resolve.py": 1,
    "plan/size/weight_bytes.py": 1,
}
MOST = 8
"""Of all files together, whatever is entered above."""


def count_names(source: str) -> int:
    """Return how many comparisons and module constants of a source name methods."""
    tree = ast.parse(source)
    comparisons = sum(_compares(node) for node in ast.walk(tree))
    return comparisons + sum(any(map(_collects, ast.walk(value))) for value in _constants(tree))


def _compares(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        return any(map(_is_name, [leaf for side in (node.left, *node.comparators) for leaf in _leaves(side)]))
    return isinstance(node, ast.MatchValue) and _is_name(node.value)


def _leaves(node: ast.expr) -> Iterator[ast.expr]:
    """Yield a compared value, or the entries of a collection that is written out where it is compared."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        for entry in node.elts:
            yield from _leaves(entry)
    elif isinstance(node, ast.Dict):
        yield from (key for key in node.keys if key is not None)
    else:
        yield node


def _is_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in NAMES


def _constants(tree: ast.Module) -> Iterator[ast.expr]:
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            yield node.value


def _collects(node: ast.AST) -> bool:
    """Say whether a display's own strings, or a mapping's keys or values, are names of methods and nothing else."""
    groups: list[list[ast.expr]] = []
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        groups = [node.elts]
    elif isinstance(node, ast.Dict):
        groups = [[key for key in node.keys if key is not None], node.values]
    strings = [[each for each in group if _is_text(each)] for group in groups]
    return any(group and all(map(_is_name, group)) for group in strings)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_files_name_no_more_methods_than_they_may_and_no_fewer() -> None:
    found = {path.relative_to(ROOT).as_posix(): count_names(path.read_text()) for path in ROOT.rglob("*.py")}
    wrong = {
        path: f"{count}, allowed {ALLOWED.get(path, 0)}"
        for path, count in sorted({**dict.fromkeys(ALLOWED, 0), **found}.items())
        if count != ALLOWED.get(path, 0)
    }
    assert not wrong, "more: ask a column of knowledge/data/methods.json instead; fewer: lower ALLOWED"


def test_the_package_as_a_whole_names_few_methods() -> None:
    assert sum(ALLOWED.values()) <= MOST


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('if draft.method == "eagle3": pass', 1),
        ('if "dflash" != draft.method: pass', 1),
        ('if method not in ("ngram", "suffix"): pass', 1),
        ('if method in (*FREE, "deepseek_mtp"): pass', 1),
        ('match method:\n  case "medusa": pass\n  case "mtp" | "eagle": pass', 3),
        ('HEADS = ("eagle", "eagle3")', 1),
        ('HEADS: frozenset[str] = frozenset({"eagle"})', 1),
        ('PREFIXES = {"dflash": "DFlash"}', 1),
        ('BY_PART = {"mimo": "mtp"}', 1),
        ('RULES = (("eagle", 3), ("dflash", 7))', 1),
        ('IGNORED = {"some-code": ("attention_backend", (*HEADS, "dflash"))}', 1),
        ('def f(method):\n  return method == "mtp" or method == "ngram"', 2),
        ("if draft.method == other: pass", 0),
        ('def f():\n  return {"method": "ngram", "k": 3}', 0),
        ('FIELDS = {"prompt": 1, "suffix": 2}', 0),
        ('METHOD = get_method("ngram")', 0),
    ],
)
def test_a_planted_branch_is_counted(source: str, count: int) -> None:
    assert count_names(source) == count
