"""The verb `decide` from Python: the same value as the command's options, and the decision back."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.fake_server import FakeBackend, FakeScript

from draftwise.core import InvalidSetup, SpecConfig, Verdict
from draftwise.measure import Candidate, MeasurementSpec, decide
from draftwise.measure.access import Header

pytestmark = pytest.mark.usefixtures("undisturbed", "unplotted")
SCRIPTS = (FakeScript(step_s=0.004), FakeScript(step_s=0.006, k=3, accepted=(3,)))


@pytest.fixture
def urls() -> Iterator[list[str]]:
    backends = [FakeBackend(f"fake {number}", script, real_time=True) for number, script in enumerate(SCRIPTS)]
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    for backend in backends:
        asyncio.run_coroutine_threadsafe(backend.start(), loop).result(300)
    yield [backend.url for backend in backends]
    for backend in backends:
        asyncio.run_coroutine_threadsafe(backend.stop(), loop).result(300)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_a_program_gets_the_decision_and_where_its_evidence_is(urls: list[str], tmp_path: Path) -> None:
    prompts = tmp_path / "own.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"p{i}", "max_tokens": 12}) + "\n" for i in range(8)))
    spec = MeasurementSpec(
        url=urls[0],
        candidate_urls=(urls[1],),
        candidates=(Candidate(name="faster", spec=SpecConfig(method="ngram", num_speculative_tokens=3)),),
        workloads=(str(prompts),),
        repeats=2,
        out=tmp_path / "run",
    )
    decided = decide(spec)
    (comparison,) = decided.decision.comparisons
    assert (comparison.candidate, comparison.verdict) == ("faster", Verdict.ADOPT)
    assert decided.directory == tmp_path / "run"
    assert json.loads((decided.directory / "summary.json").read_text())["decision"] == decided.sentence


def test_options_that_contradict_each_other_are_findings() -> None:
    with pytest.raises(InvalidSetup, match="Give either TARGET or --url"):
        decide(MeasurementSpec())


def test_the_key_of_a_server_is_not_shown() -> None:
    assert "secret" not in repr(MeasurementSpec(headers=(Header.of_key("secret"),)))
