"""Every row of `messages.json` is used, and every use fills the placeholders of its row."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import draftwise.deploying

ROOM = Path(draftwise.deploying.__file__).parent
MESSAGES = {"fault", "note", "refusal", "unreadable", "warning"}
ROWS = json.loads((ROOM / "messages.json").read_text(encoding="utf-8"))


def list_uses() -> Iterator[tuple[str, set[str]]]:
    """Yield the row and the values of each use."""
    for path in ROOM.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) in MESSAGES:
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


def test_every_message_is_a_sentence() -> None:
    assert [key for key, row in ROWS.items() if not row["message"].endswith((".", "}"))] == []
