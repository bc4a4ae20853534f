"""Figures of wordings, names and prose: no figure grows, and each finds what it should find."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.static.counts import COMMITTED, ROOT, compare, count_all, lower
from tests.static.prose import BANNED, banned_in, measure, sentences_of

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
    """What to do: use other words or another name. `counts.py --show NAME` lists the places behind a figure."""
    rates, prose = measure(ROOT)
    grown = compare(count_all(ROOT) | prose, json.loads(COMMITTED.read_text(encoding="utf-8")), rates)
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
    assert compare({"long": ["a.py:1: text"]}, {"long": 40}, {"long": 45}) == [
        "long: 45, at most 40 before\n  a.py:1: text"
    ]
    assert lower({"long": []}, {"long": 40}, {"long": 35}) == {"long": 35}


EXAMPLES = {
    "is none": "The text is none.",
    "beside": "Put it beside the file.",
    "so many": "It needs so many drafts.",
    "others than": "The tokens are others than before.",
    "otherwise than": "It runs otherwise than ordered.",
    "that which": "It is that which counts.",
    "what as a subject": "What is accepted no longer pays.",
    "so that": "It fails, so that nothing is written.",
    "is told": "The server is told to stop.",
    "tells by itself": "The log tells which release runs.",
    "of its own": "The head has weights of its own.",
    "is to be": "The file is to be read.",
    "is said": "It is said to be unknown.",
    "let pass": "Errors are let pass.",
    "held against": "Outputs are held against the baseline.",
    "in force": "The old manifest is in force.",
    "has not": "It reads layers the target has not.",
    "take a": "Take another method.",
    "there is nothing": "The layers which there are none of.",
    "British": "The tokeniser is cancelled, its behaviour optimised.",
}


def test_prose_is_measured_by_sentence_and_every_ban_finds_its_example(tmp_path: Path) -> None:
    assert set(EXAMPLES) == set(BANNED)
    assert all(name in banned_in(text) for name, text in EXAMPLES.items())
    assert not list(banned_in("What is k? Otherwise, revise the enterprise's spelling, which is filled in."))
    assert list(sentences_of("Set `a. b` to 1. Then restart it. No.")) == ["Set CODE to 1.", "Then restart it."]
    data = tmp_path / "src/draftwise/knowledge/data/findings"
    data.mkdir(parents=True)
    for name in ("advice", "spec_keys", "terms", "methods"):
        (data.parent / f"{name}.json").write_text("[]", encoding="utf-8")
    long = f"The config is rejected {'and again ' * 12}by vLLM."
    (data / "a.json").write_text(json.dumps({"findings": [{"code": "c", "fix": f"Use a key. {long}", "source": long}]}))
    (tmp_path / "README.md").write_text("# A heading that is skipped\n\n| is | written |\n\nBeside it is one.\n")
    rates, places = measure(tmp_path)
    assert places["findings: long sentences per 1000"] == [f"a.json:c.fix: (30) {long}"]
    assert places["findings: passive sentences per 1000"] == [f"a.json:c.fix: {long}"]
    assert places["findings: banned constructions per 1000"] == []
    assert rates["findings: words per 100 sentences"] == 1650
    assert rates["findings: long sentences per 1000"] == 500
    assert rates["pages: words per 100 sentences"] == 400
    assert measure(tmp_path)[0]["help: long sentences per 1000"] == 0
