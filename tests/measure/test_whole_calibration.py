"""A whole calibration against servers whose steps are known, on a virtual clock: steps and crossover are that truth."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support import virtual_time
from tests.support.fake_server import FakeScript
from tests.support.fake_server.script import find_crossover
from tests.support.made_gguf import LLAMA as LLAMA_GGUF
from tests.support.made_gguf import write_gguf
from tests.support.measuring import CONTEXT, make_plan, make_session, make_workload

from draftwise.core import (
    Acceptance,
    AcceptanceAtK,
    Calibration,
    ClosedLoop,
    Condition,
    Exactness,
    Interval,
    InvalidSetup,
    Profile,
    ReplayedLog,
    ReplayedTarget,
    RunPlan,
    Setup,
    SpecConfig,
)
from draftwise.measure.calibrating import find_packing, make_calibration, require_known
from draftwise.plan.forecast.forecasting import forecast
from draftwise.runs import RunDirectory
from draftwise.verbs.calibrate import calibrate

PLAIN = FakeScript(row_s=0.0001, knee=8, first_token_s=0.004, jitter=0.02, seed=1)
DRAFTING = replace(PLAIN, step_s=0.0045, k=3, accepted=(3, 1, 0), seed=2)
"""Steps grow with the batch from 8 rows on; a draft of 3 fills the batch four times as fast."""
LENGTH = 1 + 4 / 3
NGRAM = SpecConfig(method="ngram", num_speculative_tokens=3)
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    path = tmp_path_factory.mktemp("runs") / "run"
    conditions = tuple(Condition(load=ClosedLoop(concurrency=each)) for each in (1, 8, 32))
    workloads = (make_workload(num_prompts=12, max_tokens=80),)
    plan = make_plan(conditions=conditions, workloads=workloads, repeats=2)
    virtual_time.run(make_session(path, plan, (PLAIN, DRAFTING), context=CONTEXT).run())
    return replace(
        make_calibration(RunDirectory(Path(path)).read(), target=LLAMA), engine="draftwise", engine_version=""
    )


def test_steps_are_those_of_the_servers(calibration: Calibration) -> None:
    for setting, script in (("plain", PLAIN), ("candidate 1", DRAFTING)):
        pure = [point for point in calibration.points_of(setting) if not point.prefill_tokens]
        assert pure
        for point in pure:
            rows = point.batch * (script.k + 1)
            truth = script.step_s + script.row_s * max(0.0, rows - script.knee)
            assert point.step_ms == pytest.approx(1e3 * truth, rel=0.06)
    assert all(point.drafted == pytest.approx(3, abs=0.2) for point in calibration.points_of("candidate 1"))


def test_the_forecast_finds_the_load_where_drafting_stops_paying(calibration: Calibration) -> None:
    spec = calibration.candidates[0].spec
    assert spec is not None
    found = AcceptanceAtK(
        steps=1000,
        emitted=1000 * LENGTH,
        drafts=1000,
        drafted=3000,
        accepted=1000 * (LENGTH - 1),
        tokens_per_step=Interval(value=LENGTH, low=0.98 * LENGTH, high=1.02 * LENGTH),
        per_request=(2.0, LENGTH, 2.6),
    )
    entry = Acceptance(candidate=spec, temperature=0.0, exactness=Exactness.EXACT, requests=50, by_k={3: found})
    log = ReplayedLog(rows=50, used=50, tokens_out=4300, prompt_tokens=(2, 2, 2))
    profile = Profile(target=ReplayedTarget(name=LLAMA), log=log, entries=(entry,))
    made = forecast(profile, calibration, concurrency=(1, 4, 8, 16, 24, 32, 48))
    (end,) = made.crossovers
    assert end.value == pytest.approx(find_crossover(PLAIN, DRAFTING), rel=0.25)
    assert end.low <= find_crossover(PLAIN, DRAFTING) <= end.high


def unknown_plan(**settings: Any) -> RunPlan:
    """Servers of which nothing is known but their addresses."""
    plan = make_plan(workloads=(make_workload(num_prompts=12, max_tokens=80),), concurrency=8, repeats=2, **settings)
    arms = (
        replace(arm.with_spec(None), url=f"http://10.0.0.{n}:8000", setup=Setup(target="", engine=""))
        for n, arm in enumerate(plan.arms, 1)
    )
    return replace(plan, arms=tuple(arms), remembering={})


@pytest.mark.parametrize(
    ("target", "specs", "codes"),
    [
        (LLAMA, {}, {"candidate-unknown"}),
        (
            "nobody/knows-this",
            {"candidate 1": SpecConfig(method="ngram", num_speculative_tokens=3)},
            {"target-unknown"},
        ),
        ("nobody/knows-this", {}, {"candidate-unknown", "target-unknown"}),
        (  # a folder of the server's machine, which is another one here
            "nobody/knows-this",
            {"candidate 1": SpecConfig(method="eagle3", model="/", num_speculative_tokens=3)},
            {"target-unknown"},
        ),
    ],
)
def test_what_a_calibration_would_lack_is_said_before_the_first_load(tmp_path, target, specs, codes) -> None:
    examine = partial(require_known, target=target, specs=specs)
    session = make_session(tmp_path / "run", unknown_plan(), (PLAIN, DRAFTING), examine=examine)
    with pytest.raises(InvalidSetup) as caught:
        virtual_time.run(session.run())
    assert {each.code for each in caught.value.findings} == codes
    assert sum(len(each.engine.served) for each in session.backends) < 20  # greetings


def test_what_was_not_known_can_be_given_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "run"
    virtual_time.run(make_session(path, unknown_plan(), (PLAIN, DRAFTING)).run())
    with pytest.raises(InvalidSetup, match="does not report its drafting method") as caught:
        calibrate(from_run=path, model=LLAMA)
    assert f"calibrate --from {path}" in str(caught.value)
    spec = 'candidate 1={"method": "ngram", "num_speculative_tokens": 3}'
    found = calibrate(from_run=path, model=LLAMA, candidates=[spec]).calibration
    assert [each.name for each in found.settings] == ["plain", "candidate 1"]
    assert found.candidates[0].k == 3


@pytest.mark.parametrize(
    ("kind", "block", "args", "named"),
    [
        ("Q4_1", 20, {}, "int4"),
        ("Q8_0", 34, {"dtype": "bfloat16"}, "int8"),
        ("Q4_1", 20, {"dtype": "float32"}, None),
        ("BF16", 64, {}, None),
    ],
)
def test_a_processor_reads_the_matrices_of_a_gguf_file_as_they_are(
    tmp_path: Path, kind: str, block: int, args: dict[str, Any], named: str | None
) -> None:
    tensors = {
        "blk.0.ffn_up.weight": (kind, (64, 32), bytes(64 * block)),
        "blk.0.attn_norm.weight": ("F32", (32,), bytes(128)),
    }
    file = write_gguf(tmp_path / "model.gguf", LLAMA_GGUF, tensors)
    config = find_packing(Setup(target=str(file), args=args))
    assert config.get("quantization_config", {}).get("quant_method") == named
    assert find_packing(Setup(target=str(tmp_path), args=args)) == {}
