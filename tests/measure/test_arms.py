"""What is measured: one setup, of which the arms differ in the speculative config only."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from draftwise.backends import VllmBackend
from draftwise.core import ClosedLoop, Condition, InvalidSetup, LaunchOptions, RunContext, Setup, Severity, SpecConfig
from draftwise.measure.measurement import build_backends, judge_backends
from draftwise.measure.measurement_spec import Candidate, MeasurementSpec
from draftwise.measure.planning import make_arms
from draftwise.runs import RunDirectory
from draftwise.setups.write import write_words
from draftwise.version import __version__

NGRAM = SpecConfig(method="ngram", num_speculative_tokens=9)
VLLM = LaunchOptions(vllm=f"{sys.executable} docker-image/vllm:v0.26.0", gpus=())


def spec_of(*serve_args: str, **settings) -> MeasurementSpec:
    given = {"target": "m", "candidates": (Candidate(spec=NGRAM),), **settings}
    return MeasurementSpec(serve_args=serve_args, **given)


def vllm_spec(*serve_args: str, **settings) -> MeasurementSpec:
    return spec_of(*serve_args, engine="vllm", launch=VLLM, **settings)


def test_candidates_are_tried_with_each_draft_length() -> None:
    spec = spec_of(candidates=(Candidate(name="mine", spec=NGRAM), Candidate(spec=NGRAM)), draft_lengths=(1, 4))
    assert [(arm.name, arm.spec and arm.spec.num_speculative_tokens) for arm in make_arms(spec)] == [
        ("plain", None), ("mine k=1", 1), ("mine k=4", 4), ("ngram k=1", 1), ("ngram k=4", 4),
    ]  # fmt: skip


def test_two_of_a_kind_are_numbered() -> None:
    names = [arm.name for arm in make_arms(spec_of(candidates=(Candidate(spec=NGRAM),) * 2))]
    assert names == ["plain", "ngram k=9", "ngram k=9 #2"]


def test_the_setups_differ_in_the_speculative_config_only() -> None:
    plain, candidate = make_arms(vllm_spec("-tp", "2", "--max_model_len=8k"))
    assert plain.setup == Setup(
        target="m", engine="vllm", engine_version="0.26.0", args={"tensor_parallel_size": 2, "max_model_len": 8000}
    )
    assert candidate.setup == replace(plain.setup, spec=NGRAM)


def test_what_a_known_release_refuses_stops_before_anything_starts() -> None:
    with pytest.raises(InvalidSetup, match="no-such-flag"):
        make_arms(vllm_spec("--no-such-flag", "1"))


@pytest.mark.parametrize("launch", [LaunchOptions(vllm="nothing-like-it"), LaunchOptions(vllm="x/vllm:v0.99.0")])
def test_for_another_release_every_word_is_kept(launch: LaunchOptions) -> None:
    plain, _ = make_arms(spec_of("--no-such-flag", "1", "-tp", "2", "--dtype", "new", engine="vllm", launch=launch))
    assert plain.setup.args == {"tensor_parallel_size": 2}
    assert write_words(plain.setup)[3:] == [
        "--tensor-parallel-size", "2", "--no-such-flag", "1", "--dtype", "new",
    ]  # fmt: skip


def test_the_embedded_engine_keeps_the_flags_that_only_it_has() -> None:
    plain, _ = make_arms(spec_of("--device", "cpu", "--dtype", "float32", "--cudagraph-capture-sizes", "1,2"))
    assert plain.setup.engine_version == __version__
    assert plain.setup.args == {"dtype": "float32"}
    assert set(plain.setup.extra_args) == {"--device", "cpu", "--cudagraph-capture-sizes", "1,2"}
    for words in (("--cudagraph-capture-sizes", "1", "--cudagraph-capture-sizes", "2"), ("--max-waiting", "3")):
        assert make_arms(spec_of(*words))[0].setup.extra_args == words
    abbreviated = ("--tensor-parallel", "1")
    assert make_arms(spec_of(*abbreviated))[0].setup.extra_args == abbreviated


@pytest.mark.parametrize("words", [("--port", "1"), ("-sc", "{}"), ("--hf-token", "x")])
def test_what_draftwise_decides_cannot_be_given(words: tuple[str, ...]) -> None:
    with pytest.raises(InvalidSetup, match="cannot be given"):
        make_arms(vllm_spec(*words))


def test_of_a_running_server_is_known_what_the_operator_tells() -> None:
    spec = MeasurementSpec(
        url="http://127.0.0.1:1",
        candidate_urls=("http://127.0.0.1:2",),
        notes={"command.plain": "vllm serve some/model --seed 1", "model": "a model"},
    )
    plain, candidate = make_arms(spec)
    assert (plain.setup.target, plain.setup.args) == ("some/model", {"seed": 1})
    assert candidate.setup == Setup(target="a model", engine="")


def backends_of(spec: MeasurementSpec, folder: Path) -> list[VllmBackend]:
    context = RunContext(launch=replace(spec.launch, gpus=("0",)))
    found = build_backends(make_arms(spec), context, RunDirectory(folder), on_wait=lambda _: None)
    assert all(isinstance(each, VllmBackend) for each in found)
    return found  # type: ignore[return-value]


def test_what_is_judged_is_what_runs(tmp_path: Path) -> None:
    plain, candidate = backends_of(vllm_spec(), tmp_path)
    assert plain.setup.args["gpu_memory_utilization"] == 0.45
    assert "--gpu-memory-utilization 0.45" in str(candidate.command)
    assert {finding.severity for finding in judge_backends([plain, candidate])} == {Severity.WARNING}


def test_embedded_servers_share_a_gpu_as_well(tmp_path: Path) -> None:
    spec = spec_of(candidates=(Candidate(spec=SpecConfig(method="ngram", num_speculative_tokens=3)),))
    context = RunContext(launch=LaunchOptions(gpus=("1",)))
    backends = build_backends(make_arms(spec), context, RunDirectory(tmp_path), on_wait=lambda _: None)
    assert all("--gpu-memory-utilization 0.45" in str(each.command) for each in backends)
    without = RunContext(launch=LaunchOptions(gpus=()))
    backends = build_backends(make_arms(spec), without, RunDirectory(tmp_path), on_wait=lambda _: None)
    assert not any("--gpu" in str(each.command) for each in backends)


def test_a_config_that_its_release_rejects_stops_with_the_findings_of_check(tmp_path: Path) -> None:
    wrong = Candidate(spec=SpecConfig(method="ngram", num_speculative_tokens=3, options={"no_such_key": 1}))
    with pytest.raises(InvalidSetup, match=r"ngram k=3 .*no_such_key"):
        judge_backends(backends_of(vllm_spec(candidates=(wrong,)), tmp_path))


def test_a_release_that_is_not_known_is_said_and_ends_no_measurement(tmp_path: Path) -> None:
    wrong = Candidate(spec=SpecConfig(method="ngram", num_speculative_tokens=3, options={"no_such_key": 1}))
    unknown = LaunchOptions(vllm=f"{sys.executable} x/vllm:v0.99.0")
    spec = spec_of(engine="vllm", launch=unknown, candidates=(wrong,))
    (finding,) = judge_backends(backends_of(spec, tmp_path))
    assert (finding.code, finding.severity) == ("setup-unjudged", Severity.WARNING)
    assert "0.99.0" in finding.message


def test_a_server_that_runs_already_is_neither_placed_nor_judged(tmp_path: Path) -> None:
    told = {f"command.{name}": "vllm serve m -tp 8" for name in ("plain", "candidate 1")}
    spec = MeasurementSpec(url="http://127.0.0.1:1", candidate_urls=("http://127.0.0.1:2",), notes=told)
    context = RunContext(notes=told, launch=LaunchOptions(gpus=("0",)))
    found = build_backends(make_arms(spec), context, RunDirectory(tmp_path), on_wait=lambda _: None)
    assert [(each.name, each.command) for each in found] == [
        (name, "vllm serve m -tp 8") for name in ("plain", "candidate 1")
    ]
    assert judge_backends(found) == []


@pytest.mark.parametrize(
    ("loads", "words", "places"),
    [
        ((1, 96), (), 96),
        ((1, 8), (), None),
        ((1, 96), ("--max-num-seqs", "32"), 32),
        ((1, 96), ("--max_num_seqs=32",), 32),
        ((1, 96), ("--device", "cpu"), 96),
    ],
)
def test_a_server_that_is_started_has_a_place_for_each_request(loads, words, places):
    conditions = tuple(Condition(load=ClosedLoop(concurrency=each)) for each in loads)
    for arm in make_arms(spec_of(*words, conditions=conditions)):
        assert arm.setup.args.get("max_num_seqs") == places
    assert "max_num_seqs" not in make_arms(vllm_spec(conditions=conditions))[0].setup.args
