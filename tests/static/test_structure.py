"""The map of the code is the code's own words."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_structure_page_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("structure", DOCS / "structure.py")
    assert spec is not None
    assert spec.loader is not None
    structure = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(structure)
    assert (DOCS / "structure.md").read_text() == structure.render(), "run: python docs/structure.py"
