"""What `size` says of the cache of every architecture is what vLLM's own planner said (catalogue/kv_law)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from catalogue.kv_law.compare import differences, sized

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
        wrong += [f"{case['id']}: {each}" for each in differences(row["answer"], ours)]
    assert wrong == []
