"""Agreement is counted on the right cases, and disagreements are grouped by what they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from catalogue.oracle.compare import Prediction, compare, find_differences, not_decidable, report_of
from catalogue.oracle.models import write_models
from catalogue.oracle.sample import compact, read_sample, write_sample

NGRAM = {
    "method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 5, "prompt_lookup_max": 5,
    "draft_tensor_parallel_size": None, "model": "ngram",
}  # fmt: skip


def case(name: str, spec: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"id": name, "target": "llama", "spec": spec, "flags": {}, "env": {}}


def refused(stage: str = "speculative config", exception: str = "ValidationError", message: str = "") -> dict[str, Any]:
    return {"accepted": False, "stage": stage, "exception": exception, "message": message}


def test_a_verdict_that_differs_is_the_only_difference() -> None:
    assert find_differences(refused(), Prediction(accepted=True)) == {"verdict": (False, True)}


def test_a_refusal_agrees_when_check_names_its_stage_and_exception() -> None:
    said = Prediction(accepted=False, stages=("command line", "speculative config"), exceptions=("ValidationError",))
    assert find_differences(refused(), said) == {}
    assert set(find_differences(refused(stage="engine config", exception="TypeError"), said)) == {"stage", "exception"}


def test_resolved_values_are_compared_one_by_one() -> None:
    said = Prediction(accepted=True, resolved=NGRAM | {"num_speculative_tokens": 4, "fields.unseen": 1})
    outcome = {"accepted": True, "resolved": NGRAM | {"fields": {}}}
    assert find_differences(outcome, said) == {"num_speculative_tokens": (3, 4)}


def test_rates_of_synthetic_acceptance_may_differ_by_rounding_only() -> None:
    said = Prediction(accepted=True, resolved={"synthetic_acceptance_rates": [1.0, 0.1 + 0.2]})
    outcome = {"accepted": True, "resolved": {"fields": {"synthetic_acceptance_rates": [1.0, 0.3]}}}
    assert find_differences(outcome, said) == {}
    outcome["resolved"]["fields"]["synthetic_acceptance_rates"] = [1.0, 0.2]  # type: ignore[index]
    assert set(find_differences(outcome, said)) == {"synthetic_acceptance_rates"}


def test_a_name_of_the_hub_says_nothing_and_a_directory_does(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    outcome = refused(message="Value error, Invalid repository ID or local directory specified: 'x'.")
    assert not_decidable(case("1", {"model": "somebody/something"}), outcome, tmp_path)
    assert not not_decidable(case("1", {"model": "empty"}), outcome, tmp_path)


def test_agreement_is_counted_and_false_acceptances_are_listed(tmp_path: Path) -> None:
    write_models(tmp_path)
    good = {"method": "ngram", "num_speculative_tokens": 3}
    cases = [case("guide-1", good), case("2", good), case("3", good | {"num_speculative_tokens": 0}), case("4", good)]
    outcomes = {
        "guide-1": refused(message="3 validation errors for SpeculativeConfig"),
        "2": {"accepted": True, "resolved": NGRAM | {"fields": {}}},
        "3": refused(),
        "4": {"crashed": -9},
    }
    report = report_of(compare(cases, outcomes, "0.32.0", "cuda", tmp_path))
    assert (report["cases"], report["accepted_by_vllm"]) == (3, 1)
    assert report["not_decidable"] == {"the oracle's process died": 1}
    assert report["agreement"] == round(2 / 3, 5)
    assert report["false_accepted_guides"] == ["guide-1"]
    signatures = [group["signature"] for group in report["disagreements"]]
    assert any(signature.startswith("false accepted | speculative config") for signature in signatures)


def test_a_sample_gives_back_the_outcomes_of_every_release(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    cases = [case(str(k), {"method": "ngram", "num_speculative_tokens": k}) for k in range(1, 5)]
    accepted = {"accepted": True, "resolved": NGRAM | {"fields": {}}}
    outcomes = {"0.32.0": [accepted, refused(), accepted, refused()], "0.19.1": [accepted] * 4}
    _write(tmp_path / "cases.jsonl", cases)
    for version, found in outcomes.items():
        _write(tmp_path / f"{version}.cuda.jsonl", [{"id": c["id"], **o} for c, o in zip(cases, found, strict=True)])
    assert write_sample(tmp_path, tmp_path / "sample.gz", 3) <= 3
    sampled = list(read_sample(tmp_path / "sample.gz"))
    assert {version for version, _, _, _ in sampled} == set(outcomes)
    for version, platform, of, outcome in sampled:
        assert platform == "cuda"
        original = outcomes[version][int(of["id"]) - 1]
        assert outcome == {"id": of["id"], **compact(original)}
    assert {outcome["accepted"] for version, _, _, outcome in sampled if version == "0.32.0"} == {True, False}


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    import json

    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
