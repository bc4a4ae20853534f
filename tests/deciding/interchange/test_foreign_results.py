"""What other load generators measured, read by draftwise's definitions: their own numbers come out again."""

import json
import math
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from draftwise.core import InvalidSetup, SpecStats
from draftwise.deciding.compare import compare_sides, read_side
from draftwise.deciding.interchange import ArmResults, Results, read_results
from draftwise.deciding.interchange.results import make_load_label, make_timing
from draftwise.reporting.compared_runs import to_markdown

SAMPLES = Path(__file__).parent / "samples"
"""Files that the tools wrote about four requests of 20 tokens to a server that sends up to three tokens a chunk."""


def only_cell(results: Results) -> ArmResults:
    (cell,) = results.cells
    return cell


def values(cell: ArmResults, reading: str) -> list[float]:
    found: list[float] = []
    for answer in cell.answers:
        value = getattr(answer.timing, f"{reading}_s")
        found += value if isinstance(value, tuple) else [value]
    return found


def load(name: str) -> Any:
    return json.loads((SAMPLES / name).read_text())


def save(path: Path, *documents: Any) -> Path:
    path.write_text("\n".join(map(json.dumps, documents)))
    return path


class TestVllmBench:
    NAME = "vllm-bench-0.32.json"

    def test_its_means_and_percentiles_follow_from_the_readings(self) -> None:
        document, cell = load(self.NAME), only_cell(read_results(SAMPLES / self.NAME))
        assert cell.key == ("prompts", "c=2", "server")
        for theirs, ours in {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e"}.items():
            milliseconds = [1e3 * value for value in values(cell, ours)]
            assert np.mean(milliseconds) == pytest.approx(document[f"mean_{theirs}_ms"])
            assert np.percentile(milliseconds, 99.9) == pytest.approx(document[f"p99.9_{theirs}_ms"])
        assert [answer.timing.num_tokens for answer in cell.answers] == document["output_lens"]

    def test_acceptance_counters_are_read(self) -> None:
        assert only_cell(read_results(SAMPLES / self.NAME)).spec == SpecStats(
            num_drafts=52, num_draft_tokens=104, num_accepted_tokens=28, accepted_per_pos=(28, 0)
        )

    def test_a_result_of_0_9_has_no_starts_latencies_or_failures(self, tmp_path: Path) -> None:
        later = ("start_times", "latencies", "queue_times", "failed", "backend", "rtfx", "max_concurrent_requests")
        document = {k: v for k, v in load(self.NAME).items() if k not in later and not k.startswith("spec_decode")}
        new, old = read_results(SAMPLES / self.NAME), read_results(save(tmp_path / "old.json", document))
        assert values(only_cell(old), "tpot") == pytest.approx(values(only_cell(new), "tpot"))
        assert only_cell(old).spec is None
        assert any("usage chunk" in note for note in old.notes)

    def test_without_details_there_are_aggregates_only(self, tmp_path: Path) -> None:
        document = {k: v for k, v in load(self.NAME).items() if not isinstance(v, list)}
        cell = only_cell(read_results(save(tmp_path / "plain.json", document)))
        assert cell.answers == ()
        assert cell.aggregates["tpot"].mean == pytest.approx(document["mean_tpot_ms"] / 1e3)
        assert sorted(cell.aggregates["ttft"].percentiles) == [50, 90, 99.9]

    def test_a_failed_request_is_an_answer_with_an_error(self, tmp_path: Path) -> None:
        document = load(self.NAME)
        document["ttfts"][1], document["itls"][1], document["output_lens"][1] = 0.0, [], 0
        document["errors"][1] = "Traceback"
        cell = only_cell(read_results(save(tmp_path / "failed.json", document)))
        assert [answer.error for answer in cell.answers] == [None, "Traceback", None, None]

    def test_appended_results_are_cells_or_passes(self, tmp_path: Path) -> None:
        document = load(self.NAME)
        path = save(tmp_path / "sweep.json", document, document | {"max_concurrency": 8}, document)
        two, eight = read_results(path).cells
        assert (two.condition, eight.condition) == ("c=2", "c=8")
        assert sorted({answer.repeat for answer in two.answers}) == [1, 2]
        assert two.num_requests == 8

    def test_a_sweep_is_a_list_of_results(self, tmp_path: Path) -> None:
        document = load(self.NAME)
        path = save(tmp_path / "summary.json", [document, document | {"max_concurrency": 8}])
        assert [cell.condition for cell in read_results(path).cells] == ["c=2", "c=8"]


@pytest.mark.parametrize("version", ["0.3.1", "0.5.4", "0.8.1"])
class TestGuidellm:
    def test_its_latencies_of_every_request_come_out_again(self, version: str) -> None:
        (benchmark,) = load(f"guidellm-{version}.json")["benchmarks"]
        cell = only_cell(read_results(SAMPLES / f"guidellm-{version}.json"))
        rows = sorted(benchmark["requests"]["successful"], key=_start)
        assert len(rows) == len(cell.answers) == 4
        for row, answer in zip(rows, cell.answers, strict=True):
            assert answer.timing.tpot_s == pytest.approx(row["inter_token_latency_ms"] / 1e3)
            from_sending = row["time_to_first_token_ms"] / 1e3
            assert answer.timing.ttft_s == pytest.approx(from_sending + answer.timing.send_lag_s)
            assert answer.timing.num_tokens == row["output_tokens"]
        assert "itl" not in cell.readings

    def test_its_own_tpot_is_never_taken_for_ours(self, version: str) -> None:
        (benchmark,) = load(f"guidellm-{version}.json")["benchmarks"]
        cell = only_cell(read_results(SAMPLES / f"guidellm-{version}.json"))
        theirs = {round(row["time_per_output_token_ms"], 6) for row in benchmark["requests"]["successful"]}
        assert theirs.isdisjoint({round(1e3 * value, 6) for value in values(cell, "tpot")})

    def test_a_sampled_report_gives_marked_aggregates(self, version: str, tmp_path: Path) -> None:
        document = load(f"guidellm-{version}.json")
        requests = document["benchmarks"][0]["requests"]
        requests["successful"] = requests["successful"][:2]
        results = read_results(save(tmp_path / "sampled.json", document))
        cell = only_cell(results)
        assert cell.answers == ()
        assert "weighed by tokens" in cell.aggregates["tpot"].definition
        assert any("a sample of the requests" in note for note in results.notes)

    def test_yaml_is_the_same(self, version: str, tmp_path: Path) -> None:
        (tmp_path / "report.yaml").write_text(yaml.safe_dump(load(f"guidellm-{version}.json")))
        assert read_results(tmp_path / "report.yaml").cells == read_results(SAMPLES / f"guidellm-{version}.json").cells


def _start(row: dict[str, Any]) -> float:
    return float(row["start_time"] if "start_time" in row else row["info"]["timings"]["request_start"])


def test_a_constant_rate_counts_from_the_intended_time() -> None:
    cell = only_cell(read_results(SAMPLES / "guidellm-0.8.1.json"))
    assert cell.condition.startswith("20/s constant")
    assert all(answer.timing.intended is not None for answer in cell.answers)


def test_offsets_that_guidellm_took_for_times_are_not_used() -> None:
    cell = only_cell(read_results(SAMPLES / "guidellm-0.5.4.json"))
    assert max(answer.timing.send_lag_s for answer in cell.answers) < 60


class TestAiperf:
    FOLDER = SAMPLES / "aiperf-0.13.0"

    def test_its_statistics_follow_from_the_records(self) -> None:
        summary, cell = load("aiperf-0.13.0/profile_export_aiperf.json"), only_cell(read_results(self.FOLDER))
        theirs = {
            "ttft": "time_to_first_token",
            "tpot": "inter_token_latency",
            "itl": "inter_chunk_latency",
            "e2e": "request_latency",
        }
        for ours, name in theirs.items():
            milliseconds = [1e3 * value for value in values(cell, ours)]
            assert np.mean(milliseconds) == pytest.approx(summary[name]["avg"])
            assert np.percentile(milliseconds, 90) == pytest.approx(summary[name]["p90"])
        assert (cell.condition, cell.num_requests, len(cell.answers)) == ("c=2", 3, 3)

    def test_the_summary_alone_gives_aggregates(self) -> None:
        cell = only_cell(read_results(self.FOLDER / "profile_export_aiperf.json"))
        records = only_cell(read_results(self.FOLDER))
        assert cell.aggregates["tpot"].mean == pytest.approx(np.mean(values(records, "tpot")))
        assert cell.num_requests == 3

    def test_genai_perf_writes_the_same_shape(self, tmp_path: Path) -> None:
        summary = load("aiperf-0.13.0/profile_export_aiperf.json")
        older = {k: summary[k] for k in ("request_latency", "time_to_first_token", "inter_token_latency")}
        settings = {"model_names": ["m"], "perf_analyzer": {"stimulus": {"concurrency": 4}}}
        results = read_results(save(tmp_path / "profile_export_genai_perf.json", older | {"input_config": settings}))
        assert only_cell(results).condition == "c=4"
        assert results.context["model"] == "m"

    def test_acceptance_of_every_request_is_pooled(self, tmp_path: Path) -> None:
        told = {
            "acceptance_histogram": {"0": 3, "1": 4, "2": 1},
            "num_spec_steps": 8,
            "num_draft_tokens": 16,
            "num_accepted_draft_tokens": 6,
        }
        lines = [json.loads(line) for line in (self.FOLDER / "profile_export.jsonl").read_text().splitlines()]
        path = save(tmp_path / "profile_export.jsonl", *(line | {"spec_decode_acceptance": told} for line in lines))
        assert only_cell(read_results(path)).spec == SpecStats(
            num_drafts=24, num_draft_tokens=48, num_accepted_tokens=18, accepted_per_pos=(15, 3)
        )


BAD: dict[str, Callable[[Path], Path]] = {
    "nothing there": lambda folder: folder / "none.json",
    "an empty folder": lambda folder: folder,
    "no JSON": lambda folder: _written(folder / "a.json", "{"),
    "JSON of something else": lambda folder: _written(folder / "a.json", '{"a": 1}'),
    "nothing in it": lambda folder: _written(folder / "a.json", ""),
    "no text": lambda folder: _written(folder / "a.json", b"\xff\xfe\x00"),
    "a raw record of genai-perf": lambda folder: save(folder / "a.json", {"experiments": [], "version": "1"}),
    "a field of another type": lambda folder: save(folder / "a.json", load("vllm-bench-0.32.json") | {"itls": 3}),
    "a number that no clock shows": lambda folder: save(folder / "a.json", _with_first_gap(10**400)),
    "a gap that is no number": lambda folder: save(folder / "a.json", _with_first_gap(math.nan)),
    "a gap before the last chunk": lambda folder: save(folder / "a.json", _with_first_gap(-1.0)),
    "requests that all failed": lambda folder: save(folder / "a.json", _without_answers()),
}


def _with_first_gap(seconds: float) -> dict[str, Any]:
    document = load("vllm-bench-0.32.json")
    document["itls"][0][0] = seconds
    return document


def _without_answers() -> dict[str, Any]:
    document = load("vllm-bench-0.32.json")
    count = len(document["ttfts"])
    none = {"completed": 0, "failed": count, "ttfts": [0.0] * count, "itls": [[]] * count, "output_lens": [0] * count}
    return document | none | {"errors": ["refused"] * count}


def _written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_result_is_refused_in_words(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSetup) as caught:
        read_results(BAD[name](tmp_path))
    assert "not a result" in str(caught.value)
    assert "vllm bench serve" in str(caught.value)


JUNK = [None, True, -1, 10**400, 1e308, math.nan, -math.inf, "x", [], {}, [None]]


def _places(value: Any) -> Iterable[tuple[Any, Any]]:
    """Yield each container in a document with each of its keys."""
    if isinstance(value, list | dict):
        for key in list(range(len(value)) if isinstance(value, list) else value):
            yield value, key
            yield from _places(value[key])


@pytest.mark.parametrize("name", sorted(each.name for each in SAMPLES.rglob("*.json")))
def test_a_result_with_a_wrong_field_is_compared_or_refused_and_shows_no_nan(name: str, tmp_path: Path) -> None:
    (sample,) = SAMPLES.rglob(name)
    chance, refused = random.Random(name), 0
    for _ in range(60):
        document = json.loads(sample.read_text())
        kind = chance.choice(JUNK)
        container, key = chance.choice(list(_places(document)))
        container[key] = kind
        try:
            compared = compare_sides(
                read_side(sample), read_side(save(tmp_path / "after.json", document)), ("version",)
            )
        except InvalidSetup:
            refused += 1
            continue
        readings = [change for cell in compared.cells for change in cell.changes]
        shown = [value for each in readings for side in (each.before, each.after) for value in side.values()]
        assert all(0 <= value < math.inf for value in shown), (kind, key)
        assert all(each.ratio is None or 0 < each.ratio.value < math.inf for each in readings), (kind, key)
        to_markdown(compared)
    assert 0 < refused < 60


def shares(num_tokens: int | None, gaps: Iterable[float]) -> list[int]:
    return [n for _, n in make_timing(sent=0, ttft_s=1, gaps_s=tuple(gaps), num_tokens=num_tokens).chunks]


def test_tokens_are_spread_over_chunks_and_none_is_lost() -> None:
    assert shares(4, [1, 1, 1]) == [1, 1, 1, 1]
    assert sum(shares(10, [1, 1, 1])) == 10
    assert max(shares(10, [1, 1, 1])) - min(shares(10, [1, 1, 1])) <= 1
    assert shares(None, [1, 1]) == [1, 1, 1]


def test_chunks_beyond_the_tokens_are_those_that_follow_at_once() -> None:
    timing = make_timing(sent=0, ttft_s=1.0, gaps_s=(1e-5, 0.5, 0.4, 1e-6), num_tokens=3)
    assert [round(time, 3) for time, _ in timing.chunks] == [1.0, 1.5, 1.9]
    assert timing.tpot_s == pytest.approx(0.45, rel=1e-3)


@pytest.mark.parametrize(
    ("told", "label"),
    [
        ({"concurrency": 8, "rate_per_s": None}, "c=8"),
        ({"concurrency": None, "rate_per_s": 2.0}, "2/s"),
        ({"concurrency": 64, "rate_per_s": 2.0}, "2/s at most 64"),
        ({"concurrency": None, "rate_per_s": 2.5, "poisson": False}, "2.5/s constant"),
        ({"concurrency": None, "rate_per_s": None}, "all at once"),
    ],
)
def test_loads_are_called_as_in_draftwise(told: dict[str, Any], label: str) -> None:
    assert make_load_label(**told) == label
