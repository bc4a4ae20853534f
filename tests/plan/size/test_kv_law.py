"""What `size` says of the cache of every architecture is what vLLM's own planner said (catalogue/kv_law)."""

from __future__ import annotations

import gzip
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from catalogue.kv_law import law
from catalogue.kv_law.compare import differences, sized
from catalogue.kv_law.law import judge
from packaging.version import Version

from draftwise.knowledge import kv_proofs
from draftwise.knowledge.model_types import types_with
from draftwise.knowledge.stored import read_data
from draftwise.plan.size.decoder_parts import decoder_parts
from draftwise.plan.size.shapes import read_shape, read_text_config
from draftwise.plan.size.weight_parts import elements

RECORDS = Path(__file__).with_name("kv_law")
RELEASES = sorted(path.name.removesuffix(".jsonl.gz") for path in RECORDS.glob("*.jsonl.gz"))


def read(release: str) -> Iterator[dict[str, Any]]:
    with gzip.open(RECORDS / f"{release}.jsonl.gz", "rt") as lines:
        yield from map(json.loads, lines)


@pytest.mark.parametrize("release", RELEASES)
def test_blocks_tokens_and_largest_batch_are_those_of_vllm(release: str, tmp_path: Path) -> None:
    wrong = []
    for row in read(release):
        if "model" in row:
            (tmp_path / row["model"]).mkdir()
            (tmp_path / row["model"] / "config.json").write_text(json.dumps(row["config"]))
            continue
        case = row["case"]
        head = (case.get("spec") or {}).get("model")
        ours = sized(case, str(tmp_path / case["target"]), release, head and str(tmp_path / head))
        found = differences(row["answer"], ours)
        if bool(found) != row.get("differs", False):
            wrong.append((case["id"], found))
    assert wrong == []


@pytest.mark.parametrize("release", RELEASES)
def test_the_table_of_proofs_is_what_the_record_says(release: str) -> None:
    table, said = read_data("kv_proofs")["releases"][release], law.prove(list(read(release)))
    assert {name: table[name] for name in said} == said


def test_a_short_grid_replaces_the_cases_that_it_ran_and_keeps_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def row(name: str, key: str, blocks: int, **further: Any) -> dict[str, Any]:
        flags = {"tp2": {"tensor_parallel_size": 2}, "default": {}}[key]
        return {"case": {"id": f"{name}:{key}", "target": name, "flags": flags}, "answer": {"blocks": blocks}} | further

    names, record, folder = ("asked", "failed", "absent"), tmp_path / "0.32.0.jsonl.gz", tmp_path / "folder"
    configs = {name: {"architectures": [name.title()]} for name in names}
    law._write_lines(
        record,
        [{"model": name, "config": configs[name]} for name in names]
        + [row(name, "default", 7) for name in names]
        + [row("asked", "tp2", 8, differs=True), row("absent", "tp2", 7)],
    )
    for name in names[:2]:
        (folder / "models" / name).mkdir(parents=True)
        (folder / "models" / name / "config.json").write_text(json.dumps(configs[name]))
    grid = [row(name, "default", 0)["case"] for name in names[:2]]
    (folder / "few.jsonl").write_text("".join(json.dumps(case) + "\n" for case in grid))
    answers = [{"id": "asked:default", "blocks": 9}, {"id": "failed:default", "error": "no answer in time"}]
    (folder / "answers.jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    monkeypatch.setattr(law, "RECORDS", tmp_path)
    monkeypatch.setattr(law, "PROOFS", tmp_path / "proofs.json")
    monkeypatch.setattr(law, "compare", lambda case, answer, *_: [] if answer["blocks"] == 7 else ["blocks"])
    law._prove(folder, folder / "answers.jsonl", "0.32.0")
    proofs = json.loads((tmp_path / "proofs.json").read_text())["releases"]["0.32.0"]
    assert proofs == {"Asked": "!plain !tp", "Failed": "plain", "Absent": "plain tp"}


ROWS = [frozenset(each) for n in range(4) for each in itertools.combinations(("fp8", "tp", "lookup"), n)]


@pytest.mark.parametrize("seed", range(300))
def test_a_case_that_differs_blames_a_feature_and_one_that_agrees_alone_proves_it(seed: int) -> None:
    draw = random.Random(seed)
    rows = [(each | {"plain"}, draw.random() < 0.7) for each in draw.choices(ROWS, k=draw.randint(1, 8))]
    marks = judge(rows).split()
    assert len({mark.removeprefix("!") for mark in marks}) == len(marks)
    for features, agrees in rows:
        assert agrees or any(f"!{name}" in marks for name in features)
        always = all(same for other, same in rows if other == features)
        if always and len(features) == 1:
            assert "plain" in marks
    assert {mark for mark in marks if mark[0] != "!"} <= {
        name for features, agrees in rows if agrees for name in features
    }


@pytest.mark.parametrize(
    ("architecture", "is_simple", "unknown", "different"),
    [
        ("Both", False, (), ()),
        ("Older", False, ("fp8", "plain"), ()),
        ("Older", True, (), ()),
        ("Wrong", True, (), ("fp8",)),
        ("Nobody", True, ("fp8", "plain"), ()),
    ],
)
def test_what_was_not_compared_is_not_what_differs(
    monkeypatch: pytest.MonkeyPatch, architecture: str, is_simple: bool, unknown: tuple[str], different: tuple[str]
) -> None:
    right = frozenset({"plain", "fp8"})
    older = {"Both": right, "Older": right, "Wrong": right}
    newer = {"Both": right, "Wrong": frozenset({"plain", "!fp8"})}
    monkeypatch.setattr(kv_proofs, "_read", lambda: {Version("0.10.0"): older, Version("0.20.0"): newer})
    found = kv_proofs.find_unproved(architecture, Version("0.15.0"), ("plain", "fp8"), is_simple=is_simple)
    assert found == ([*unknown], [*different])


@pytest.mark.parametrize("release", RELEASES)
def test_each_compared_release_tells_what_differs(release: str) -> None:
    assert any("!" in marks for marks in read_data("kv_proofs")["releases"][release].values())


@pytest.mark.parametrize("path", sorted((RECORDS / "weights").iterdir()), ids=lambda path: path.name)
def test_parameters_are_those_that_vllm_builds(path: Path) -> None:
    """vLLM pads vocabularies to 64 rows, norms have biases in some families, and 0.26.0 builds a tower for images."""
    wrong, seen = [], set()
    for row in map(json.loads, gzip.decompress(path.read_bytes()).splitlines()):
        kind, architecture = str(row["config"]["model_type"]), row["config"]["architectures"][0]
        if kind in types_with("known") and architecture.endswith(("CausalLM", "HeadModel")):
            text = read_text_config(row["config"])
            built = sum(count for part, count in row["weights"].items() if part != "visual")
            share = elements(decoder_parts(text, read_shape(text))) / built
            seen.add(kind)
            wrong += [] if 0.999 < share < 1.001 else [(row["model"], share)]
    assert wrong == []
    assert len(seen) >= 15
