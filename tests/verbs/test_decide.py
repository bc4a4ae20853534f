"""The verb `decide` from Python: the same fields as the command's options, and the decision back."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.fake_server import FakeBackend, FakeScript
from tests.support.virtual_network import virtual_network

from draftwise.core import Finding, InvalidRequest, SpecConfig, Verdict
from draftwise.core.progress import Silent, Stopped
from draftwise.measure.access import Header
from draftwise.measure.measurement_spec import Candidate, MeasurementSpec
from draftwise.verbs.decide import DecideRequest, decide

pytestmark = pytest.mark.usefixtures("undisturbed", "unplotted")
SCRIPTS = (FakeScript(step_s=0.004), FakeScript(step_s=0.006, k=3, accepted=(3,)))


@pytest.fixture
def urls() -> Iterator[list[str]]:
    backends = [FakeBackend(f"fake {number}", script) for number, script in enumerate(SCRIPTS)]
    with virtual_network(*backends):
        yield [backend.url for backend in backends]


def test_a_program_gets_the_decision_and_where_its_evidence_is(urls: list[str], tmp_path: Path) -> None:
    prompts = tmp_path / "own.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"p{i}", "max_tokens": 12}) + "\n" for i in range(8)))
    decided = decide(
        url=urls[0],
        candidate_urls=(urls[1],),
        candidates=(Candidate(name="faster", spec=SpecConfig(method="ngram", num_speculative_tokens=3)),),
        workloads=str(prompts),
        repeats=2,
        out=tmp_path / "run",
    )
    (comparison,) = decided.decision.comparisons
    assert (comparison.candidate, comparison.verdict) == ("faster", Verdict.ADOPT)
    assert decided.directory == tmp_path / "run"
    assert json.loads((decided.directory / "summary.json").read_text())["decision"] == decided.sentence
    assert decided.to_dict()["decision"] == decided.sentence
    assert decided.sentence in str(decided)
    assert (decided.is_finished, decided.exit_code) == (True, 0)


class Stopping(Silent):
    """Asks to stop once some requests are answered, and keeps what is told."""

    def __init__(self, after: int) -> None:
        self.done, self.after = 0, after
        self.told: list[Finding] = []

    @property
    def stop_requested(self) -> bool:  # type: ignore[override]
        return self.done >= self.after

    def step(self, done: int, seconds_left: float | None = None, text: str = "") -> None:
        self.done = done

    def notice(self, finding: Finding) -> None:
        self.told.append(finding)


def test_a_stop_keeps_what_is_measured_and_resume_goes_on_with_it(urls: list[str], tmp_path: Path) -> None:
    prompts = tmp_path / "own.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"p{i}", "max_tokens": 12}) + "\n" for i in range(8)))
    asked = DecideRequest(
        url=urls[0], candidate_urls=(urls[1],), workloads=str(prompts), repeats=2, adaptive=False, out=tmp_path / "run"
    )
    stopped = decide.run(asked, Stopping(after=4))
    assert (stopped.is_finished, stopped.exit_code) == (False, 130)
    assert 0 < len(stopped.run.answers) < 32
    with pytest.raises(InvalidRequest, match="leave out repeats"):
        decide(resume=stopped.directory, repeats=3)
    resumed = decide(resume=stopped.directory)
    assert resumed.is_finished
    assert [each.verdict for each in resumed.decision.comparisons] == [Verdict.ADOPT]


def test_a_stop_before_anything_is_measured_leaves_nothing(urls: list[str], tmp_path: Path) -> None:
    asked = DecideRequest(url=urls[0], candidate_urls=(urls[1],), workloads="code", prompts=2, out=tmp_path / "run")
    with pytest.raises(Stopped):
        decide.run(asked, Stopping(after=0))
    assert not (tmp_path / "run").exists()


def test_options_that_contradict_each_other_are_findings() -> None:
    with pytest.raises(InvalidRequest, match="Pass either TARGET or --url"):
        decide()


def test_the_key_of_a_server_is_not_shown() -> None:
    assert "secret" not in repr(MeasurementSpec(headers=(Header.of_key("secret"),)))
