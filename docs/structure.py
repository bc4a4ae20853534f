"""Writes structure.md from the first sentence of every module: `python docs/structure.py` (a test keeps it true)."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "draftwise"
LAYERS = ("cli", "serve", "measure", "train", "backends", "plan", "engine", "checkpoints", "facts", "core")
HEAD = """# Structure

One package, layered by the operator's verbs; imports go downward only, and `make check` enforces it:

```
cli
serve | measure | train
backends
plan | engine
checkpoints
facts
core
```

The state of a run lives in three places: the engine (sequences, pages, the runner's tensors), a server's process, the
run directory. torch is reachable from `engine`, `train` and `serve` only, so measuring works on a laptop without it.

Beside the package: `bundle/` holds the bundled model and the recipe that trained it, `benchmarks/` scripts with their
committed results, `catalogue/` the maintainer's scripts that read vLLM's wheels into `facts/data` and hold `check`
against vLLM itself, `tests/` mirrors the package. This page is written by `python docs/structure.py`.
"""


def render() -> str:
    """Return the page."""
    parts = [HEAD]
    for layer in LAYERS:
        parts.append(f"\n## {layer}\n{sentence(PACKAGE / layer / '__init__.py')}\n\n")
        for path in sorted((PACKAGE / layer).rglob("*.py")):
            name = path.relative_to(PACKAGE / layer).with_suffix("").as_posix()
            if name != "__init__":
                parts.append(f"- `{name.removesuffix('/__init__')}`: {sentence(path)}\n")
    return "".join(parts)


def sentence(path: Path) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()[0]


if __name__ == "__main__":
    (ROOT / "docs" / "structure.md").write_text(render())
