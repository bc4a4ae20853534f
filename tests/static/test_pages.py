"""Pages that are written from the code say what the code says."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from draftwise.knowledge.advice import all_advice
from draftwise.knowledge.findings import all_findings
from draftwise.knowledge.rules import all_rules

DOCS = Path(__file__).parents[2] / "docs"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.mark.parametrize("name", ["findings", "structure"])
def test_the_page_is_up_to_date(name: str) -> None:
    assert (DOCS / f"{name}.md").read_text() == load(name).render(), f"run: python docs/{name}.py"


def test_the_page_of_modules_starts_with_a_map() -> None:
    assert load("structure").render().splitlines().index("# Beside the package") <= 50


def test_every_code_has_one_anchor() -> None:
    anchors = re.findall(r'<a id="([^"]+)"></a>', load("findings").render())
    assert sorted(anchors) == sorted({*all_findings(), *all_rules(), *all_advice()})


def test_every_line_of_a_table_has_as_many_cells_as_its_head() -> None:
    width = 0
    for line in load("findings").render().splitlines():
        if line.startswith("|"):
            cells = line.count("|")
            width = width or cells
            assert cells == width, line
        else:
            width = 0
