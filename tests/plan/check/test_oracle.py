"""`check` against what vLLM's own configuration code did with the same cases, release by release."""

from __future__ import annotations

import json
import os
import subprocess
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from catalogue.oracle.cases import generate, read_guides
from catalogue.oracle.compare import HEADLINE, compare, find_differences, predict, read_lines
from catalogue.oracle.models import write_models
from catalogue.oracle.sample import read_sample
from tests.support.combinations import EVERY_CASE

ROOT = Path(__file__).parents[3]

SAMPLE = Path(__file__).with_name("oracle_outcomes") / "outcomes.jsonl.gz"
OUTCOMES = list(read_sample(SAMPLE))
RELEASES = sorted({(version, platform) for version, platform, _, _ in OUTCOMES})
GUIDES = ROOT / "catalogue" / "oracle" / "guides.jsonl"

EXPLAINED: dict[tuple[str, str], str] = {
    ("0.10.0", "target_architectures"): "0.10.0 appends its Transformers fallback to the list, and loads the first",
    ("0.10.0", "draft_architectures"): "0.10.0 appends its Transformers fallback to the list, and loads the first",
}
"""(release, name of what differs) -> why `check` and vLLM may differ there."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


@pytest.fixture
def among_models(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(models)


@pytest.mark.usefixtures("among_models")
@pytest.mark.parametrize(("version", "platform"), RELEASES)
def test_check_says_what_vllm_did(version: str, platform: str) -> None:
    """Each release with every third of its cases, the next ones with the others; `make every-case` takes them all."""
    wrong = []
    mine = [(case, outcome) for release, on, case, outcome in OUTCOMES if (release, on) == (version, platform)]
    for case, outcome in mine if EVERY_CASE else mine[RELEASES.index((version, platform)) % 3 :: 3]:
        differs = find_differences(outcome, predict(case, version, platform))
        wrong += [(case["id"], name, *pair) for name, pair in differs.items() if (version, name) not in EXPLAINED]
    assert wrong == []


@pytest.mark.usefixtures("among_models")
def test_every_explained_difference_still_occurs() -> None:
    occurring = set()
    for version, platform, case, outcome in OUTCOMES:
        if version in {release for release, _ in EXPLAINED}:
            occurring |= {(version, name) for name in find_differences(outcome, predict(case, version, platform))}
    assert set(EXPLAINED) <= occurring


def test_the_sample_covers_the_releases_and_the_guides() -> None:
    assert len({version for version, _ in RELEASES}) >= 9
    assert {"0.32.0", "0.33.0", "0.19.1", "0.10.2"} <= {version for version, _ in RELEASES}
    sampled = {case["id"] for _, _, case, _ in OUTCOMES}
    assert {guide["id"] for guide in read_guides(GUIDES)} <= sampled


def test_both_verdicts_of_every_release_are_sampled() -> None:
    for release in RELEASES:
        verdicts = [outcome["accepted"] for version, on, _, outcome in OUTCOMES if (version, on) == release]
        assert min(verdicts.count(True), verdicts.count(False)) >= 40


@pytest.mark.usefixtures("among_models")
def test_a_wrong_prediction_is_noticed() -> None:
    """The outcomes of one release do not fit another."""
    late = [(case, outcome) for version, on, case, outcome in OUTCOMES if (version, on) == ("0.33.0", "cuda")]
    differing = [case for case, outcome in late if find_differences(outcome, predict(case, "0.19.1", "cuda"))]
    assert len(differing) > len(late) / 5


LIVE = os.environ.get("DRAFTWISE_VLLM_PYTHON")


@pytest.mark.skipif(not LIVE, reason="DRAFTWISE_VLLM_PYTHON names no interpreter that has vLLM")
def test_check_says_what_the_installed_vllm_does(models: Path, tmp_path: Path) -> None:
    cases: list[dict[str, Any]] = [*islice(generate(7, 60), 60), *read_guides(GUIDES)]
    (tmp_path / "cases.jsonl").write_text("".join(json.dumps(case) + "\n" for case in cases))
    worker = ROOT / "catalogue" / "oracle" / "worker.py"
    subprocess.run(
        [str(LIVE), worker, "--cases", tmp_path / "cases.jsonl", "--out", tmp_path / "out.jsonl", "--models", models],
        check=True, timeout=1200,
    )  # fmt: skip
    version = subprocess.run(
        [str(LIVE), "-c", "from importlib.metadata import version; print(version('vllm'))"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    outcomes = {outcome["id"]: outcome for outcome in read_lines(tmp_path / "out.jsonl")}
    agreement = compare(cases, outcomes, version, "cpu", models)
    assert agreement.cases > 0.9 * len(cases)
    assert agreement.rate >= 0.98, dict(agreement.disagreements)
    assert not [name for name in agreement.false_accepted if name.startswith("guide-")]


def test_the_headline_is_what_the_report_promises() -> None:
    assert set(HEADLINE) == {
        "method", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max", "draft_tensor_parallel_size",
    }  # fmt: skip
