"""Writes structure.md from the first sentence of every module: `python docs/structure.py` (a test keeps it true)."""

from __future__ import annotations

import ast
import tomllib
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "draftwise"
HEAD = """# Structure

draftwise is one package, layered by the operator's verbs. Imports go downward only; `make check` enforces it:

<!-- not run: the layers, the top one first -->
```
{layers}
```

{rooms}

State lives in four places: the engine (sequences, pages, the runner's tensors), a server's process, the run directory,
and the files of a guard. Only `engine`, `training` and `serve` import torch.

# Outside the package
- `bundle/`: the bundled model and the recipe that trained it.
- `benchmarks/`: scripts with their committed results.
- `catalogue/`: the maintainer's scripts. They read vLLM's wheels into `knowledge/data` and compare `check` with vLLM.
- `tests/`: mirrors the package.

This page is written by `python docs/structure.py`.

# Every module
"""


def render() -> str:
    """Return the page: a map that fits on a screen, then one sentence a module."""
    layers = read_layers()
    rooms = list(chain.from_iterable(layer.split(" | ") for layer in layers))
    parts = [HEAD.format(layers="\n".join(layers), rooms="\n".join(f"- **{room}**: {about(room)}" for room in rooms))]
    for room in rooms:
        parts.append(f"\n## {room}\n{about(room)}\n\n")
        for path in sorted((PACKAGE / room).rglob("*.py")):
            name = path.relative_to(PACKAGE / room).with_suffix("").as_posix()
            if name != "__init__":
                parts.append(f"- `{name.removesuffix('/__init__')}`: {sentence(path)}\n")
    return "".join(parts)


def read_layers() -> list[str]:
    """Return the layers as the import contract in pyproject.toml has them, the top one first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    return next(each["layers"] for each in contracts if each.get("exhaustive"))


def about(room: str) -> str:
    """Return what a room holds, in its own words."""
    return sentence(PACKAGE / room / "__init__.py")


def sentence(path: Path) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").splitlines()[0]


if __name__ == "__main__":
    (ROOT / "docs" / "structure.md").write_text(render(), encoding="utf-8")
