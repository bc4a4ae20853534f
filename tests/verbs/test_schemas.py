"""The schemas of the verbs' JSON are generated; a change of one is a change of its committed copy.

`DRAFTWISE_UPDATE=1 pytest tests/verbs/test_schemas.py` writes the copies again.
"""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from draftwise.core.document_schema import json_schema
from draftwise.verbs import VERBS, load_verb

COPIES = Path(__file__).parent / "schemas"
MADE = [name for name, row in VERBS.items() if find_spec(f"draftwise.verbs.{row.module}")]


def make(verb: str) -> dict[str, Any]:
    return json_schema(load_verb(verb).result, title=f"draftwise {verb} --json")


@pytest.mark.parametrize("verb", MADE)
def test_a_schema_is_its_committed_copy(verb: str) -> None:
    made, copy = make(verb), COPIES / f"{verb}.json"
    if os.environ.get("DRAFTWISE_UPDATE"):
        copy.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    assert json.loads(copy.read_text(encoding="utf-8")) == made


@pytest.mark.parametrize("verb", MADE)
def test_a_schema_is_valid_and_describes_itself(verb: str) -> None:
    made = make(verb)
    Draft7Validator.check_schema(made)
    assert made.get("description") or made.get("items") or made.get("anyOf") or made.get("type")


def test_no_copy_is_left_over() -> None:
    assert {copy.stem for copy in COPIES.glob("*.json")} == set(MADE)
