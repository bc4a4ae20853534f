"""Wordings and colliding names that are counted: no count grows, and each count finds what it is meant to find."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.static.counts import COMMITTED, ROOT, compare, count_all, lower

PLANTED = {
    "src/a/reading.py": '''"""What is read."""


class Found:
    """A rule.

    Attributes:
        name: of the rule.
        text: the sentence.
    """

    limit: int
    """Of all files together, beside those that are none."""


def add(command):
    return command(help="Per workload."), command(help="Prompts per workload."), f"{command}: so many of them"
''',
    "src/b/reading.py": '"""The reader."""\n\n\nclass Speed:\n    """Tokens a second."""\n',
    "src/b/other.py": "class Speed:\n    beside = 1\n\n\nclass _Speed:\n    pass\n",
    "docs/page.md": "The proxy is told so. So many are let pass.\n",
}


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    for name, text in PLANTED.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_no_count_grew() -> None:
    """What to do: use other words or another name. `counts.py --show NAME` lists all places of a count."""
    grown = compare(count_all(ROOT), json.loads(COMMITTED.read_text(encoding="utf-8")))
    assert not grown, "\n".join(grown)


def test_every_construction_is_found(planted: Path) -> None:
    found = {name: [place.partition(": ")[0] for place in places] for name, places in count_all(planted).items()}
    assert {name: places for name, places in found.items() if places} == {
        "beside": ["src/a/reading.py:13"],
        "is none": ["src/a/reading.py:13"],
        "so many": ["src/a/reading.py:17"],
        "is let": ["docs/page.md:1"],
        "is told": ["docs/page.md:1"],
        "module docstrings with what": ["src/a/reading.py:1"],
        "attributes begun with a preposition": ["src/a/reading.py:13", "src/a/reading.py:4"],
        "help begun with a preposition": ["src/a/reading.py:17"],
        "participles as classes": ["src/a/reading.py:4"],
        "colliding file names": ["reading.py"],
        "colliding public classes": ["Speed"],
    }


def test_more_than_committed_fails_with_its_places_and_an_update_only_lowers() -> None:
    places = {"beside": ["a.py:1: beside", "a.py:2: beside"], "learnt": [], "new": ["b.py:1: new"]}
    committed = {"beside": 1, "learnt": 3}
    assert compare(places, committed) == [
        "beside: 2, at most 1 before\n  a.py:1: beside\n  a.py:2: beside",
        "new: 1, at most 0 before\n  b.py:1: new",
    ]
    assert lower(places, committed) == {"beside": 1, "learnt": 0, "new": 1}
