"""The codec: every kind of type is written and read back, and what is damaged is named by its place."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from draftwise.core import InvalidSetup, SpecConfig
from draftwise.core.document_schema import json_schema
from draftwise.core.documents import HIDDEN, DocumentError, Format, from_json, json_form, read_document, to_json


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Circle:
    JSON_KIND: ClassVar[str] = "circle"
    radius: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Square:
    JSON_KIND: ClassVar[str] = "square"
    side: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A value that holds values of its own type."""

    name: str
    branches: tuple[Tree, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Everything:
    """A field of each kind."""

    JSON_FORMAT: ClassVar[Format] = Format(
        name="test-everything",
        version=3,
        noun="an everything",
        foreign="not-everything",
        other_version="everything-version",
        damaged="damaged-everything",
        written_by="a file that the test wrote",
        again="Write it again.",
    )
    JSON_DERIVED: ClassVar[tuple[str, ...]] = ("size",)
    text: str
    """Some text."""
    whole: int
    number: float
    flag: bool
    color: Color
    level: Literal["low", "high", 3] = "low"
    maybe: int | None = None
    either: int | str = 0
    shape: Circle | Square | None = None
    path: Path = Path()
    spec: SpecConfig | None = None
    tree: Tree | None = None
    clock: tuple[tuple[float, int], ...] = field(default=(), metadata=json_form(raw=True))
    pair: tuple[str, int] = ("", 0)
    names: frozenset[str] = frozenset()
    by_color: Mapping[Color, Sequence[float]] = field(default_factory=dict)
    by_k: Mapping[int, Tree] = field(default_factory=dict)
    nested: str = field(default="", metadata=json_form(key="inner.deep.value"))
    end: float = field(default=math.inf, metadata=json_form(null=math.inf))
    zero: int = field(default=0, metadata=json_form(null=0))
    told: str | None = field(default=None, metadata=json_form(key="as told", omit_empty=True))
    known: str | None = field(default=None, metadata=json_form(omit_null=True))
    cents: int = field(
        default=0, metadata=json_form(wire=str, to_wire=lambda n: f"{n}c", from_wire=lambda text: int(text[:-1]))
    )
    anything: Any = None
    memo: int = field(default=0, metadata=HIDDEN)

    @property
    def size(self) -> int:
        """Number of characters."""
        return len(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What has no field of its own is kept."""

    JSON_OTHERS: ClassVar[str] = "others"
    name: str = ""
    others: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def from_earlier(row: Mapping[str, Any]) -> Mapping[str, Any]:
        return {("name" if key == "title" else key): value for key, value in row.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Positive:
    value: int

    def __post_init__(self) -> None:
        if self.value <= 0:
            raise ValueError(f"{self.value} is not positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    items: tuple[Positive, ...]


REQUIRED: dict[str, Any] = {"text": "ab", "whole": 1, "number": 0.5, "flag": True, "color": "red"}
ROW: dict[str, Any] = {"format": "test-everything", "version": 3, **REQUIRED}

wholes = st.integers(-(2**100), 2**100)
finite = st.floats(allow_nan=False, allow_infinity=False)
trees = st.recursive(
    st.builds(Tree, name=st.text(max_size=3)),
    lambda inner: st.builds(Tree, name=st.text(max_size=3), branches=st.lists(inner, max_size=3).map(tuple)),
    max_leaves=5,
)
keys = st.text(min_size=1, max_size=6)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | finite | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
values = st.builds(
    Everything,
    text=st.text(),
    whole=wholes,
    number=finite,
    flag=st.booleans(),
    color=st.sampled_from(Color),
    level=st.sampled_from(["low", "high", 3]),
    maybe=st.none() | wholes,
    either=wholes | st.text(),
    shape=st.none() | st.builds(Circle, radius=finite) | st.builds(Square, side=wholes),
    path=st.sampled_from([Path("a/b"), Path("/x")]),
    spec=st.none() | st.builds(SpecConfig, method=st.none() | st.just("ngram"), options=st.dictionaries(keys, finite)),
    tree=st.none() | trees,
    clock=st.lists(st.tuples(finite, wholes), max_size=5).map(tuple),
    pair=st.tuples(st.text(), wholes),
    names=st.frozensets(st.text(max_size=3)),
    by_color=st.dictionaries(st.sampled_from(Color), st.lists(finite, max_size=3).map(tuple)),
    by_k=st.dictionaries(wholes, trees, max_size=3),
    nested=st.text(),
    end=finite | st.just(math.inf),
    zero=st.integers(-1, 1),
    told=st.none() | st.text(min_size=1),
    known=st.none() | st.text(),
    cents=wholes,
    anything=json_values,
)


@given(values)
def test_every_value_is_read_back_as_it_was_and_fits_its_schema(value: Everything) -> None:
    row = json.loads(json.dumps(to_json(value), allow_nan=False))
    assert read_document(Everything, row, "x") == value
    assert [error.message for error in Draft7Validator(SCHEMA).iter_errors(row)] == []


SCHEMA = json_schema(Everything, title="everything")


def test_a_document_begins_with_its_format_and_ends_with_what_is_derived() -> None:
    row = to_json(from_json(Everything, ROW))
    assert list(row)[:2] == ["format", "version"]
    assert (row["format"], row["version"], row["size"]) == ("test-everything", 3, 2)
    assert row["inner"] == {"deep": {"value": ""}}
    assert (row["end"], row["zero"], row["cents"]) == (None, None, "0c")
    assert {"as told", "known", "memo"}.isdisjoint(row)


def test_a_schema_has_the_docstrings() -> None:
    assert SCHEMA["description"] == "A field of each kind."
    assert SCHEMA["properties"]["text"] == {"description": "Some text.", "type": "string"}
    assert SCHEMA["properties"]["size"] == {"description": "Number of characters.", "type": "integer"}
    assert "known" not in SCHEMA["required"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text": 1}, "text: must be text, not 1"),
        ({"whole": 1.5}, "whole: must be a whole number, not 1.5"),
        ({"whole": True}, "whole: must be a whole number, not True"),
        ({"whole": 10**400}, "whole: must be a whole number, not 1000"),
        ({"number": -(10**400)}, "number: must be a finite number, not -1000"),
        ({"shape": {"kind": []}}, "shape: must be of a kind among circle, square, not []"),
        ({"clock": [[10**400, 1]]}, "clock[0][0]: must be a finite number, not 1000"),
        ({"clock": [[0.5, 10**400]]}, "clock[0][1]: must be a whole number, not 1000"),
        ({"number": "1"}, "number: must be a finite number, not '1'"),
        ({"number": math.nan}, "number: must be a finite number, not nan"),
        ({"number": None}, "number: must be a finite number, not None"),
        ({"flag": 0}, "flag: must be true or false, not 0"),
        ({"color": "green"}, "color: must be one of red, blue, not 'green'"),
        ({"level": "3"}, "level: must be one of low, high, 3, not '3'"),
        ({"maybe": "x"}, "maybe: must be a whole number, not 'x'"),
        ({"either": []}, "either: must be text, not []"),
        ({"shape": {"kind": "line"}}, "shape: must be of a kind among circle, square, not 'line'"),
        ({"shape": {"kind": "circle"}}, "shape: lacks the key 'radius'"),
        ({"shape": 3}, "shape: must be an object, not 3"),
        ({"path": 1}, "path: must be text, not 1"),
        ({"spec": []}, "spec: must be an object, not []"),
        ({"tree": {"name": "a", "branches": [{"name": "b"}, {"name": 2}]}}, "tree.branches[1].name: must be text"),
        ({"tree": {"name": "a", "leaves": 1}}, "tree: has the unknown key 'leaves'"),
        ({"clock": {}}, "clock: must be an array, not {}"),
        ({"clock": [[0.5, 1], [0.5]]}, "clock[1]: must be an array of 2, not [0.5]"),
        ({"clock": [[0.5, 1], ["a", 1]]}, "clock[1][0]: must be a finite number, not 'a'"),
        ({"clock": [[0.5, 1], [0.5, 1.5]]}, "clock[1][1]: must be a whole number, not 1.5"),
        ({"clock": [[math.inf, 1]]}, "clock[0][0]: must be a finite number, not inf"),
        ({"clock": [[0.5, 1], 3]}, "clock[1]: must be an array of 2, not 3"),
        ({"pair": ["a", 1, 2]}, "pair: must be an array of 2"),
        ({"names": ["a", None]}, "names[1]: must be text, not None"),
        ({"by_color": {"green": []}}, "by_color.green: must be one of red, blue, not 'green'"),
        ({"by_color": {"red": [1, "2"]}}, "by_color.red[1]: must be a finite number, not '2'"),
        ({"by_k": {"x": {"name": ""}}}, "by_k.x: must be a number, not 'x'"),
        ({"by_k": []}, "by_k: must be an object, not []"),
        ({"inner": {"deep": {"value": 1}}}, "inner.deep.value: must be text, not 1"),
        ({"more": 1, "even": 2}, "has the unknown key 'more'"),
    ],
)
def test_damage_is_named_by_its_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DocumentError) as caught:
        from_json(Everything, ROW | change)
    assert str(caught.value).startswith(message)
    with pytest.raises(InvalidSetup, match=r"f\.json is damaged: ") as refused:
        read_document(Everything, ROW | change, "f.json")
    assert refused.value.findings[0].code == "damaged-everything"


@pytest.mark.parametrize("name", REQUIRED)
def test_a_key_without_a_default_is_required(name: str) -> None:
    with pytest.raises(DocumentError, match=f"lacks the key '{name}'"):
        from_json(Everything, {key: value for key, value in ROW.items() if key != name})


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ([], "not-everything"),
        (None, "not-everything"),
        ({**ROW, "format": "other"}, "not-everything"),
        ({**ROW, "version": 4}, "everything-version"),
        ({"format": "test-everything"}, "everything-version"),
    ],
)
def test_another_format_or_version_is_named(row: Any, code: str) -> None:
    with pytest.raises(InvalidSetup) as caught:
        read_document(Everything, row, "f.json")
    (finding,) = caught.value.findings
    assert (finding.code, finding.where) == (code, "f.json")


def test_a_whole_number_may_be_written_as_a_float() -> None:
    found = from_json(Everything, ROW | {"whole": 3.0, "number": 2})
    assert (found.whole, type(found.whole), found.number) == (3, int, 2)


def test_a_value_that_its_class_refuses_has_a_place() -> None:
    with pytest.raises(DocumentError, match=r"items\[1\]: -1 is not positive"):
        from_json(Holder, {"items": [{"value": 1}, {"value": -1}]})


def test_other_keys_are_kept_and_earlier_ones_renamed() -> None:
    found = from_json(Described, {"title": "a", "rack": 7})
    assert found == Described(name="a", others={"rack": 7})
    assert to_json(found) == {"name": "a", "rack": 7}


def test_two_classes_of_one_name_are_refused_in_a_schema() -> None:
    other = make_dataclass("Circle", [("radius", float)])
    holder = make_dataclass("Both", [("one", Circle), ("other", other)])
    with pytest.raises(TypeError, match="have the same name"):
        json_schema(holder, title="both")
