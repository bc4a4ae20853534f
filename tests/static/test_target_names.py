"""No branch on a platform's name: what code wants to know of a deploy target is a column of its row.

Texts of the package that are the name of a target, or tell somebody to use it (`--to NAME`), are counted in every file
but the target's own module. `ALLOWED` may only shrink: a file that has fewer must be lowered here too.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import draftwise
from draftwise.deploying import TARGETS

ROOT = Path(draftwise.__file__).parent
ROOMS = ("deploying", "guarding", "watching", "verbs", "cli")
SAYS = re.compile(rf"--to (?:{'|'.join(map(re.escape, TARGETS))})\b")
OWN = {f"deploying/targets/{target.hooks}.py": name for name, target in TARGETS.items() if target.hooks}
MESSAGES = "knowledge/data/messages/deploying.json"
ALLOWED: dict[str, int] = {MESSAGES: 6, "deploying/weights_bundle.py": 1}
"""Messages that send an operator from one platform to another, and the next step in a bundle's README."""


def count_names(source: str, own: str = "") -> int:
    """Return how many texts of a source, docstrings left out, name a target other than its own."""
    return sum(_names(text, own) for text in _texts(ast.parse(source)))


def _names(text: str, own: str) -> bool:
    said = {found.removeprefix("--to ") for found in SAYS.findall(text)}
    return bool((said | ({text} & TARGETS.keys())) - {own})


def _texts(tree: ast.Module) -> Iterator[str]:
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node.value


def test_files_name_no_more_targets_than_they_may_and_no_fewer() -> None:
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    names = {path: path.relative_to(ROOT).as_posix() for path in files}
    found = {name: count_names(path.read_text(), OWN.get(name, "")) for path, name in names.items()}
    rows = json.loads((ROOT / MESSAGES).read_text()).values()
    found[MESSAGES] = sum(_names(text, "") for row in rows for text in row.values())
    wrong = {
        name: f"{count}, allowed {ALLOWED.get(name, 0)}"
        for name, count in sorted({**dict.fromkeys(ALLOWED, 0), **found}.items())
        if count != ALLOWED.get(name, 0)
    }
    assert not wrong, "more: ask a column of knowledge/data/deploy_targets.json instead; fewer: lower ALLOWED"


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('if to == "kserve": pass', 1),
        ('if to in ("compose", "systemd"): pass', 2),
        ('FIX = "Use --to kserve with --layout."', 1),
        ('FIX = f"Use --to leaderworkerset, {x}."', 1),
        ('def f():\n    """Write for --to kserve."""', 0),
        ('FIX = "KServe mounts the claim."', 0),
    ],
)
def test_a_planted_name_is_counted(source: str, count: int) -> None:
    assert count_names(source) == count
    assert count_names('TARGETS["kserve"]', "kserve") == 0
