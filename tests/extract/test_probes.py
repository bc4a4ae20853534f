"""Where a rule is seen in a release."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from draftwise.extract.judged_functions import find_rule
from draftwise.extract.tree import Tree
from draftwise.knowledge.rules import Probe

Wheel = Callable[..., Path]
SOURCE = """
    import os
    LIMIT: int = 8
    NAMES = (
        "one",
        "two",
    )
    class Config:
        kind = "plain"
        @cached
        def check(self):
            if self.tokens:
                raise ValueError("too long")
    if os.name:
        def outside():
            return "nested"
"""


@pytest.fixture
def tree(wheel: Wheel) -> Tree:
    return Tree(wheel("1.0", {"vllm/new.py": SOURCE}) / "1.0", "1.0")


@pytest.mark.parametrize(
    ("pattern", "where"),
    [
        ("too long", "vllm/new.py: Config.check"),
        (r"\s+raise ValueError", "vllm/new.py: Config.check"),
        ("@cached", "vllm/new.py: Config.check"),
        ('"plain"', "vllm/new.py: Config.kind"),
        ("class Config.*too long", "vllm/new.py: Config"),
        ("LIMIT", "vllm/new.py: LIMIT"),
        ('"two"', "vllm/new.py: NAMES"),
        ("nested", "vllm/new.py: outside"),
        ("import os", "vllm/new.py"),
    ],
)
def test_the_place_is_the_file_and_the_names_around(tree: Tree, pattern: str, where: str) -> None:
    sighting = find_rule(Probe(files=("vllm/gone.py", "vllm/new.py"), pattern=pattern), tree)
    assert sighting is not None
    assert sighting.where == where


def test_what_is_absent_is_seen_in_the_file_that_lacks_it(tree: Tree) -> None:
    sighting = find_rule(Probe(files=("vllm/new.py",), pattern="no such text", absent=True), tree)
    assert sighting is not None
    assert sighting.where == "vllm/new.py"
    assert find_rule(Probe(files=("vllm/new.py",), pattern="too long", absent=True), tree) is None


def test_without_the_file_nothing_is_seen_anywhere(tree: Tree) -> None:
    assert find_rule(Probe(files=("vllm/gone.py",), pattern="x"), tree) is None
    sighting = find_rule(Probe(files=("vllm/gone.py",), pattern="x", absent=True), tree)
    assert sighting is not None
    assert sighting.where == ""
