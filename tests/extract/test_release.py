"""A release as a whole: read topic by topic, stored, and found again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from catalogue.build import build
from packaging.version import Version

from draftwise.core import InvalidSetup
from draftwise.extract.release import TOPICS, add_release, read_tables, refuse_known
from draftwise.extract.speculative import Facts
from draftwise.extract.tree import NotFound, Tree
from draftwise.extract.wheel_sources import VllmSources
from draftwise.knowledge.vllm import get_release, releases, topics

Wheel = Callable[..., Path]


def _methods(tree: Tree) -> Facts:
    module = tree.get("vllm/words.py")
    return {line: (len(line), module.source(line)) for line in module.text.split()}


def _moved(tree: Tree) -> Facts:
    raise NotFound(f"vLLM {tree.version}: no class Gone in vllm/words.py")


def _tripped(_tree: Tree) -> Facts:
    return {}["x"]  # type: ignore[no-any-return]


def _sources(root: Path, version: str) -> VllmSources:
    return VllmSources(root=root, version=Version(version), built="2026-11-20", read_from="here")


@pytest.mark.usefixtures("user_data")
def test_an_added_release_says_what_a_build_says(wheel: Wheel) -> None:
    folder = wheel("99.1", {"vllm/words.py": "ngram zap"})
    add_release(_sources(folder / "99.1", "99.1+cu130"), {"methods": _methods})
    rows = build(folder, {"methods": _methods})["methods"]
    release = get_release("99.1")
    assert release.table("methods") == {row.key: row.value for row in rows}
    assert [release.source("methods", row.key) for row in rows] == [f"vLLM 99.1, {row.source}" for row in rows]


@pytest.mark.usefixtures("user_data")
def test_a_topic_that_moved_is_named_and_the_others_stay(wheel: Wheel) -> None:
    folder = wheel("99.1", {"vllm/words.py": "ngram"})
    added = add_release(_sources(folder / "99.1", "99.1"), {"methods": _methods, "flags": _moved, "metrics": _tripped})
    assert list(added.topics) == ["methods"]
    assert added.missing == {
        "flags": "vLLM 99.1: no class Gone in vllm/words.py.",
        "metrics": "Its sources are not understood (KeyError: 'x').",
    }
    assert get_release("99.1").table("methods") == {"ngram": 5}


@pytest.mark.usefixtures("user_data")
def test_sources_of_which_nothing_can_be_read_are_refused(wheel: Wheel) -> None:
    folder = wheel("99.1", {"vllm/__init__.py": ""})
    with pytest.raises(InvalidSetup, match=r"Nothing of vLLM 99\.1 can be read"):
        add_release(_sources(folder / "99.1", "99.1"))
    assert releases()[-1].added is None


@pytest.mark.usefixtures("user_data")
def test_a_table_that_has_become_empty_is_not_believed(wheel: Wheel) -> None:
    folder = wheel("99.1", {"vllm/words.py": "ngram"})
    added = add_release(_sources(folder / "99.1", "99.1"), {"methods": _methods, "flags": lambda _tree: {}})
    assert list(added.topics) == ["methods"]
    assert added.missing["flags"].startswith("It is empty, although that of ")


@pytest.mark.parametrize(("version", "code"), [("0.33.0", "facts-shipped"), ("0.8.5", "facts-too-old")])
def test_releases_that_cannot_be_added(version: str, code: str) -> None:
    with pytest.raises(InvalidSetup) as caught:
        refuse_known(Version(version))
    assert caught.value.findings[0].code == code


def test_a_release_is_read_for_every_topic_that_is_shipped(wheel: Wheel) -> None:
    assert set(TOPICS) == set(topics())
    tables, missing = read_tables(wheel("99.1", {"vllm/__init__.py": ""}) / "99.1", "99.1")
    assert tables.keys() | missing.keys() == set(topics())
    assert {"methods", "flags", "architectures"} <= missing.keys()


def test_packages_beside_vllm_are_not_looked_into(wheel: Wheel) -> None:
    tree = Tree(wheel("1.0", {"vllm/a.py": "from other.b import X", "other/b.py": "X = 1"}) / "1.0", "1.0")
    assert tree.find("other/b.py") is None
    assert tree.resolve(tree.get("vllm/a.py"), "X") is None
