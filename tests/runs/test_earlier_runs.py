"""A run that was written before arms held setups (`earlier_run`, of a server that died) is read and gone on with."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support import virtual_time
from tests.support.fake_server import FakeBackend, FakeScript
from tests.support.reports import write_report

from draftwise.core import InvalidSetup, LaunchOptions, Run, RunContext, Setup, Silent, SpecConfig
from draftwise.core.documents import from_json, to_json
from draftwise.measure.session import Session
from draftwise.runs import RunDirectory

SCRIPTS = (FakeScript(seed=1), FakeScript(k=3, accepted=(3, 1, 0), step_s=0.0045, seed=2))
PLAIN = Setup(
    target="/models/fake",
    engine="vllm",
    engine_version="0.26.0",
    args={"tensor_parallel_size": 2, "max_model_len": 8000},
    extra_args=("--no-such-flag", "1"),
)


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    shutil.copytree(Path(__file__).with_name("earlier_run"), tmp_path / "run")
    return RunDirectory(tmp_path / "run")


def go_on(directory: RunDirectory, run: Run, version: str = "0.26.0", context: RunContext | None = None) -> None:
    scripts = [replace(script, version={"version": version}) for script in SCRIPTS]
    backends = [FakeBackend(arm.name, script) for arm, script in zip(run.plan.arms, scripts, strict=True)]
    session = Session(
        plan=run.plan,
        backends=backends,
        directory=directory,
        context=context or run.context,
        progress=Silent(),
        resume=True,
    )
    virtual_time.run(session.run())


def test_its_arms_have_the_setups_that_its_options_led_to(directory: RunDirectory) -> None:
    plain, candidate = directory.read().plan.arms
    assert plain.setup == PLAIN
    assert candidate.setup == replace(PLAIN, spec=SpecConfig(method="ngram", num_speculative_tokens=3))


def test_its_context_has_what_the_operator_told(directory: RunDirectory) -> None:
    context = directory.read().context
    assert context.launch == LaunchOptions(vllm="/venv/bin/vllm", gpus=("0",))
    assert context.notes == {"precision": "bfloat16"}
    assert (context.hardware.cores, context.software.os, context.model.dtype) == (2, "Linux", "bfloat16")
    assert context.thresholds == {"margin": 0.05}
    assert context.server("plain").release == "0.26.0"
    assert from_json(RunContext, to_json(context)) == context


def test_it_is_gone_on_with_and_reported(directory: RunDirectory) -> None:
    (directory.path / "ballast").write_bytes(b"\0")  # disk space that such a run reserved, and left when it was killed
    before = directory.read()
    assert len(before.answers) == 5
    go_on(directory, before)
    assert not {"ballast", "reserved"} & {each.name for each in directory.path.iterdir()}
    after = directory.read()
    assert after.answers[:5] == before.answers
    assert len(after.answers) == 8
    _, summary = write_report(directory)
    assert summary.context.server("plain").command == "fake plain"


def test_on_another_release_machine_or_setup_it_is_not(directory: RunDirectory) -> None:
    run = directory.read()
    with pytest.raises(InvalidSetup, match=r"servers\.plain\.\S+ changed from \"\S+\" to \"0\.27\.0\""):
        go_on(directory, run, version="0.27.0")
    with pytest.raises(InvalidSetup, match=r"hardware\.cores changed from 2 to 8\."):
        go_on(directory, run, context=replace(run.context, hardware=replace(run.context.hardware, cores=8)))
    other = tuple(replace(arm, setup=replace(arm.setup, args={})) for arm in run.plan.arms)
    with pytest.raises(InvalidSetup, match=r"setups\.plain\.args\.\S+ changed from .* to nothing"):
        go_on(directory, replace(run, plan=replace(run.plan, arms=other)))
