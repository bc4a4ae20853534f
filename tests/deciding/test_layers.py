"""The floors inside of decide: what stands in pyproject holds, and an import that climbs is noticed."""

import tomllib
from pathlib import Path

import grimp
import pytest

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture(scope="module")
def layers() -> list[grimp.Layer]:
    contracts = tomllib.loads(PYPROJECT.read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = (each for each in contracts if each.get("containers") == ["draftwise.deciding"])
    return [grimp.Layer(*layer.split(" | "), independent=True) for layer in contract["layers"]]


def find_climbs(graph: grimp.ImportGraph, layers: list[grimp.Layer]) -> set[tuple[str, str]]:
    found = graph.find_illegal_dependencies_for_layers(layers=layers, containers={"draftwise.deciding"})
    return {(each.importer.rpartition(".")[2], each.imported.rpartition(".")[2]) for each in found}


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("comparison.cell", "validity.all_checks"),
        ("validity.load_checks", "verdict"),
        ("verdict", "bands"),
        ("bands", "recommendations"),
        ("recommendations", "conclusions"),
    ],
)
def test_an_import_that_climbs_is_noticed(layers: list[grimp.Layer], importer: str, imported: str) -> None:
    graph = grimp.build_graph("draftwise")
    assert find_climbs(graph, layers) == set()
    graph.add_import(importer=f"draftwise.deciding.{importer}", imported=f"draftwise.deciding.{imported}")
    assert (importer.partition(".")[0], imported.partition(".")[0]) in find_climbs(graph, layers)
