"""Conditions under which functions raise, read off their source."""

from __future__ import annotations

from pathlib import Path

from draftwise.extract.guards import CheckWalk
from draftwise.extract.tree import Tree

SOURCE = """
LIMIT = 4


def helper(limit):
    if limit > LIMIT:
        raise ValueError(f"{limit} is too much")


class Config:
    a: int = 1
    b: int | None = None
    c: str = "x"

    @property
    def double(self):
        return self.a * 2

    def check(self):
        size = self.a if self.b is None else self.b
        if size > 8 and self.double > 4:
            raise ValueError("large")
        if (kind := self.c) and self.b is None and kind != "z":
            raise ValueError("both")
        if self.c == "y":
            return
        helper(self.a)
        if unknown():
            raise ValueError("nobody knows")
        self.a = size
        assert self.a != 3, "not three"
        for item in self.items:
            if item < 0:
                raise ValueError("negative")
        external(self)
        if self.a > 100:
            raise ValueError("after it was given away")
"""


def guards(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/config.py").write_text(SOURCE)
    module = Tree(tmp_path, "1").get("vllm/config.py")
    walk = CheckWalk(module, module.get_class("Config"), frozenset({"a", "b", "c", "items"}))
    walk.run(module.get_function("check", of="Config"))
    return {guard.message: guard.text for guard in walk.guards}


def test_conditions_are_followed_back_to_fields(tmp_path: Path) -> None:
    found = guards(tmp_path)
    assert found["large"] == "(a if b is None else b) > 8 and a * 2 > 4"
    assert found["both"] == "c and b is None and (c != 'z')"
    assert found["{limit} is too much"] == "c != 'y' and a > 4"
    assert found["not three"] == "c != 'y' and (a if b is None else b) == 3"
    assert found["negative"] == "c != 'y' and any((item < 0 for item in items))"


def test_what_hangs_on_anything_else_is_left_out(tmp_path: Path) -> None:
    assert not {"nobody knows", "after it was given away"} & guards(tmp_path).keys()
