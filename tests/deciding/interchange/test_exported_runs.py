"""A run in other tools' formats: what is written reads back as what was measured."""

import errno
import json
import os
from pathlib import Path

import pytest
from tests.support.made_runs import Truth, closed, gains, make_run

from draftwise.core import InvalidSetup, Run, StorageError
from draftwise.deciding.interchange import export_run, read_results

ARMS = ("plain", "ngram k=3")


@pytest.fixture(scope="module")
def run() -> Run:
    return make_run({"ngram k=3": gains(1.5), "plain": Truth(fails=frozenset({"code-3"}))}, conditions=closed(1, 4))


def timings(run: Run, condition: str, arm: str) -> list[tuple[float | None, ...]]:
    mine = (a for a in run.answers if (a.condition, a.arm, a.error) == (condition, arm, None))
    return [(a.timing.ttft_s, a.timing.tpot_s, a.timing.e2e_s) for a in mine]


@pytest.mark.parametrize("name", ["vllm-bench", "aiperf"])
def test_what_is_written_reads_back_as_it_was_measured(run: Run, name: str, tmp_path: Path) -> None:
    files = export_run(run, name, tmp_path)
    assert len(files) == 4
    for file in files:
        (cell,) = read_results(file).cells
        condition = file.name.split("-")[1]
        arm = next(each for each in ARMS if each.split()[0] in file.name)
        good = [a for a in cell.answers if a.error is None]
        found = [(a.timing.ttft_s, a.timing.tpot_s, a.timing.e2e_s) for a in good]
        assert found == [pytest.approx(each) for each in timings(run, condition, arm)]
        assert cell.num_failed == len(cell.answers) - len(good)


def test_a_vllm_result_has_the_fields_that_its_readers_look_for(run: Run, tmp_path: Path) -> None:
    (file,) = export_run(run, "vllm-bench", tmp_path / "out.json")
    documents = [json.loads(line) for line in file.read_text().splitlines()]
    plain, candidate = (next(each for each in documents if each["label"] == arm) for arm in ARMS)
    sample = json.loads((Path(__file__).parent / "samples" / "vllm-bench-0.32.json").read_text())
    theirs = {name for name in sample if "99.9" not in name} - {
        "endpoint_type",
        "tokenizer_id",
        "request_goodput",
        "queue_times",
        "max_output_tokens_per_s",
        "max_concurrent_requests",
        "rtfx",
    }
    assert theirs <= candidate.keys()
    assert sorted(document["max_concurrency"] for document in documents) == [1, 1, 4, 4]
    assert (plain["failed"], candidate["failed"]) == (3, 0)
    assert plain["output_lens"].count(0) == 3
    assert candidate["spec_decode_acceptance_length"] == pytest.approx(2, rel=0.05)
    assert "spec_decode_num_drafts" not in plain


def test_a_full_disk_leaves_no_half_written_file(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        export_run(run, "vllm-bench", tmp_path / "out.json")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_format_is_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(InvalidSetup, match="vllm-bench, aiperf"):
        export_run(run, "excel", tmp_path / "out")
