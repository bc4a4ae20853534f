"""Every row of `data/messages` is used, and every use fills the placeholders of its row."""

import ast
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import draftwise
from draftwise.knowledge.stored import read_folder

PACKAGE = Path(draftwise.__file__).parent
HOME = "draftwise.knowledge.messages"
ROOMS = read_folder("messages").values()
ROWS = {key: row for room in ROOMS for key, row in room.items()}


def list_uses() -> Iterator[tuple[str, set[str]]]:
    """Yield the row and the values of each use."""
    for path in PACKAGE.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        imports = (node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == HOME)
        names = {alias.name for node in imports for alias in node.names}
        for node in nodes:
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) in names:
                given = {each.arg: each.value for each in node.keywords}
                case = ast.literal_eval(given.pop("case")) if "case" in given else ""
                code = ast.literal_eval(node.args[0])
                yield f"{code}/{case}" if case else code, {str(name) for name in given}


def test_rows_and_their_uses_agree() -> None:
    uses = list(list_uses())
    wanted = {
        key: {name for text in row.values() for _, name, _, _ in Formatter().parse(text) if name}
        for key, row in ROWS.items()
    }
    assert {key for key, _ in uses} == wanted.keys()
    assert [(key, given) for key, given in uses if given != wanted[key]] == []


def test_a_row_stands_in_one_room() -> None:
    assert sum(map(len, ROOMS)) == len(ROWS)


def test_every_message_is_a_sentence() -> None:
    assert [key for key, row in ROWS.items() if not row["message"].endswith((".", "}"))] == []
