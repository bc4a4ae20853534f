"""mypy looks away only where a compiler reads the code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import draftwise

REPOSITORY = Path(__file__).parents[2]
ROOT = Path(draftwise.__file__).parent
COMPILED = re.compile(r"^\s*(?:@|\w+ = )(?:njit|numba\.njit|intrinsic|triton\.jit|gluon\.jit|Kernel)\b", re.M)


def test_unchecked_files_are_compiled_ones() -> None:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    unchecked = next(each["module"] for each in settings["overrides"] if each.get("ignore_errors"))
    for name in unchecked:
        path = ROOT.parent / (name.replace(".", "/") + ".py")
        assert COMPILED.search(path.read_text(encoding="utf-8")), f"{name} holds nothing that is compiled"
