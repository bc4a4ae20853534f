"""The suite itself: every folder is declared as light or as the engine's, and the light part cannot shrink unseen."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.conftest import ENGINE_PACKAGES, ENGINE_PARTS, LIGHT_FOLDERS, LONGEST, needs_engine

TESTS = Path(__file__).parents[1]
ROOMS = {path.parent.name for path in (TESTS.parent / "src" / "draftwise").glob("*/__init__.py")}
FILES = sorted(path for path in TESTS.rglob("*.py") if path.parent != TESTS)


def test_every_folder_is_declared_once() -> None:
    folders = {path.name for path in TESTS.iterdir() if list(path.rglob("test_*.py"))}
    declared = [*LIGHT_FOLDERS, *(part for part in ENGINE_PARTS if "/" not in part)]
    assert sorted(declared) == sorted(folders)
    assert all((TESTS / part).exists() for part in (*ENGINE_PARTS, *LONGEST))


def test_what_may_not_import_torch_is_tested_without_it() -> None:
    assert ROOMS - set(LIGHT_FOLDERS) == {"engine", "lookup", "serve", "training"}


def names_the_engine(source: str) -> list[int]:
    """Return the lines of a module that import the engine or its packages when the module is imported."""
    heavy = (*ENGINE_PACKAGES, *(f"draftwise.{room}" for room in ("engine", "serve", "training")))
    lines = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
            lines += [node.lineno for module in modules if module.startswith(heavy)]
    return lines


def test_light_files_import_no_engine() -> None:
    light = [path for path in FILES if not path.is_relative_to(TESTS / "support") and not needs_engine(path)]
    found = {path.relative_to(TESTS).as_posix(): names_the_engine(path.read_text(encoding="utf-8")) for path in light}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_an_import_of_the_engine_is_seen() -> None:
    assert names_the_engine("import json\nimport torch\nfrom draftwise.engine.llm import LLM") == [2, 3]
    assert names_the_engine("def test():\n    import torch") == []


def test_no_file_waits_for_what_is_not_installed() -> None:
    """The marker `engine` says what a test needs; `importorskip` is for oracles that no environment of ours has."""
    absent = {"vllm", "arctic_inference", "kubernetes_validate", "speculators"}
    absent |= {"triton"}  # not for every platform
    absent |= {"anyio", "mcp", "playwright", "skills_ref", "zensical"}  # extras, which the light environment lacks
    for path in FILES:
        for name in re.findall(r"pytest\.importorskip\((?:\"([\w.]+)\")?", path.read_text(encoding="utf-8")):
            assert name.partition(".")[0] in absent, path
