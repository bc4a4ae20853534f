"""The schemas of the verbs' JSON are generated; a change of one is a change of its committed copy.

`DRAFTWISE_UPDATE=1 pytest tests/verbs/test_schemas.py` writes the copies again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from draftwise.core.document_schema import json_schema
from draftwise.verbs import VERBS, load_verb

COPIES = Path(__file__).parent / "schemas"


def make(verb: str) -> dict[str, Any]:
    return json_schema(load_verb(verb).result, title=f"draftwise {verb} --json")


def lay_out(schema: dict[str, Any], indent: str = "") -> str:
    """Return JSON with one line per property of the schema and of its definitions."""
    inner = indent + " "
    rows = []
    for key, value in schema.items():
        if key == "definitions":
            text = _join({name: lay_out(each, f"{inner} ") for name, each in value.items()}, inner)
        elif key == "properties":
            text = _join({name: json.dumps(each) for name, each in value.items()}, inner)
        else:
            text = json.dumps(value)
        rows.append(f"{inner}{json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(rows) + f"\n{indent}}}"


def _join(texts: dict[str, str], indent: str) -> str:
    rows = (f"{indent} {json.dumps(name)}: {text}" for name, text in texts.items())
    return "{\n" + ",\n".join(rows) + f"\n{indent}}}"


@pytest.mark.parametrize("verb", VERBS)
def test_a_schema_is_its_committed_copy(verb: str) -> None:
    made, copy = make(verb), COPIES / f"{verb}.json"
    if os.environ.get("DRAFTWISE_UPDATE"):
        copy.write_text(lay_out(made) + "\n", encoding="utf-8")
    assert json.loads(copy.read_text(encoding="utf-8")) == made


@pytest.mark.parametrize("verb", VERBS)
def test_a_schema_is_valid_and_describes_itself(verb: str) -> None:
    made = make(verb)
    Draft7Validator.check_schema(made)
    assert made.get("description") or made.get("items") or made.get("anyOf") or made.get("type")


def test_no_copy_is_left_over() -> None:
    assert {copy.stem for copy in COPIES.glob("*.json")} == set(VERBS)
