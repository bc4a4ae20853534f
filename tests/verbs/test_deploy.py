"""The verb `deploy` from Python and in a terminal: what was written, and what nobody measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.made_runs import arm, gains, make_run, save_run, workload

import draftwise
from draftwise.core import Arm, InvalidSetup

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
NGRAM = {"method": "ngram", "num_speculative_tokens": 5}


def test_what_nobody_measured_is_listed(tmp_path: Path) -> None:
    made = draftwise.deploy(
        LLAMA, speculative_config=NGRAM, vllm="0.33.0", to="kubernetes", out=tmp_path / "deploy", observe=False
    )
    fit, start = made.to_dict()["not_measured"]
    assert "fits into GPU memory" in fit
    assert "cold start" in start
    assert f"not measured: {start}" in str(made)


@pytest.mark.parametrize("candidate", [Arm(name="candidate 1"), arm(3)], ids=["unknown", "known"])
def test_a_config_is_taken_where_the_run_does_not_hold_it(candidate: Arm, tmp_path: Path) -> None:
    """As with `--url` and `--candidate-url` alone: no client can see how such servers were started."""
    arms = [Arm(name="plain"), candidate]
    run = make_run({candidate.name: gains(1.6)}, arms=arms, workloads=[workload("prose")])
    given = {"vllm": "0.33.0", "gpu": "H200", "to": "compose", "out": tmp_path / "deploy", "candidate": candidate.name}
    source = save_run(tmp_path / "run", run)
    if candidate.setup.spec is not None:
        with pytest.raises(InvalidSetup, match="knows the config of ngram k=3"):
            draftwise.deploy(source, speculative_config=NGRAM, target=LLAMA, **given)
        return
    with pytest.raises(InvalidSetup, match="Give a speculative config"):
        draftwise.deploy(source, target=LLAMA, **given)
    (served := tmp_path / "compose.yaml").write_text(f"services: {{a: {{command: vllm serve {LLAMA}}}}}\n")
    with pytest.raises(InvalidSetup, match=r"does not hold the config of candidate 1\. Name it"):
        draftwise.deploy(source, candidate=candidate.name, edit=served)
    made = draftwise.deploy(source, speculative_config=NGRAM, target=LLAMA, **given)
    assert '"num_speculative_tokens":5' in (tmp_path / "deploy" / "spec.yaml").read_text().replace(" ", "")
    assert any(each.startswith("The speculative config: you named it") for each in made.to_dict()["not_measured"])
