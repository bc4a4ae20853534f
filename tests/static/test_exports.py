"""What a package says it exports is what it has: `__all__` against what its `__init__` defines and brings in."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import draftwise

ROOT = Path(draftwise.__file__).parent
PACKAGES = sorted(path.relative_to(ROOT).parent.as_posix() for path in ROOT.rglob("__init__.py"))


def imported(tree: ast.Module) -> set[str]:
    """Return the names that a package takes from elsewhere, lazily and for types only too."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module != "__future__"]
    return {alias.asname or alias.name for node in imports for alias in node.names}


def defined(tree: ast.Module) -> set[str]:
    """Return the names that a package gives to values of its own."""
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    targets = [node.targets[0] for node in tree.body if isinstance(node, ast.Assign)]
    targets += [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
    return names | {target.id for target in targets if isinstance(target, ast.Name)}


def exported(tree: ast.Module) -> set[str]:
    """Return `__all__` as it is written."""
    values = [node.value for node in tree.body if isinstance(node, ast.Assign) and "__all__" in ast.unparse(node)]
    return set(ast.literal_eval(values[0])) if values else set()


def find_faults(source: str) -> set[str]:
    """Return names that are exported and not there, or public and not exported.

    What a package with code of its own imports serves that code; one without imports in order to export.
    """
    tree = ast.parse(source)
    own = defined(tree) - {"__all__"}
    public = {name for name in own or imported(tree) if not name.startswith("_")}
    return (exported(tree) - own - imported(tree)) | (public - exported(tree))


@pytest.mark.parametrize("package", PACKAGES)
def test_all_is_what_a_package_exports(package: str) -> None:
    assert find_faults((ROOT / package / "__init__.py").read_text(encoding="utf-8")) == set()


@pytest.mark.parametrize(
    ("source", "faults"),
    [
        ("from draftwise.a import b\n__all__ = ['b']", set()),
        ("from draftwise.a import b, c\n__all__ = ['b']", {"c"}),
        ("from draftwise.a import b", {"b"}),
        ("def f(): ...\n__all__ = ['f', 'g']", {"g"}),
        ("from draftwise.a import b\ndef f(): ...\nLIMIT = b\n__all__ = ['f']", {"LIMIT"}),
    ],
)
def test_a_difference_is_seen(source: str, faults: set[str]) -> None:
    assert find_faults(source) == faults
