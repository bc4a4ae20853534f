"""Arms that differ in more than the speculative config are told from what speculation brings along."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.support.made_runs import with_context
from tests.support.validity import codes, findings, graded, run_of

from draftwise.core import Run, Severity
from draftwise.core.documents import to_json
from draftwise.deciding.conclusions import find_missing

SERVE = "vllm serve /models/target --max-num-seqs 64 --dtype bfloat16"
SPECULATE = """ --speculative-config '{"method": "ngram", "num_speculative_tokens": 3}'"""


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of(tmp_path_factory.mktemp("runs") / "good", repeats=1)


def with_servers(run: Run, plain: Mapping[str, Any], candidate: Mapping[str, Any]) -> Run:
    servers = to_json(run.context)["servers"]
    changed = {
        name: {**servers[name], **change, "version": {**servers[name]["version"], **change.get("version", {})}}
        for name, change in (("plain", plain), ("candidate 1", candidate))
    }
    return with_context(run, servers=changed)


def test_servers_that_are_alike(good: Run) -> None:
    plain = {"command": f"CUDA_VISIBLE_DEVICES=0 {SERVE} --port 8000"}
    candidate = {"command": f"{SERVE}{SPECULATE} --port=8001 --per-request-spec-decode-metrics summary"}
    assert codes(with_servers(good, plain, candidate)) == set()


@pytest.mark.parametrize(
    ("name", "values"),
    [("version", ("0.26.0", "0.27.1")), ("dtype", ("bfloat16", "float16")), ("device", ("cuda", "cpu"))],
)
def test_servers_of_another_kind(good: Run, name: str, values: tuple[str, str]) -> None:
    run = with_servers(good, {"version": {name: values[0]}}, {"version": {name: values[1]}})
    assert graded(run) == {"arms-differ": Severity.ERROR}
    assert f"its {name} is {values[1]!r}, but the baseline's is {values[0]!r}" in findings(run)["arms-differ"].message


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (" --max-num-seqs 128", "--max-num-seqs (128, baseline 64)"),
        (" --enforce-eager", "--enforce-eager (set, baseline not given)"),
        (" --kv_cache_dtype=fp8", "--kv-cache-dtype (fp8, baseline not given)"),
    ],
)
def test_commands_that_differ_beside_the_config(good: Run, more: str, told: str) -> None:
    run = with_servers(good, {"command": SERVE}, {"command": SERVE + SPECULATE + more})
    assert graded(run) == {"commands-differ": Severity.WARNING}
    assert told in findings(run)["commands-differ"].message


def test_what_an_engine_chooses_because_it_speculates(good: Run) -> None:
    run = with_servers(
        good,
        {"version": {"async_scheduling": "enabled"}, "started": {"kv_cache_tokens": 100_000}},
        {"version": {"async_scheduling": "disabled"}, "started": {"kv_cache_tokens": 80_000}},
    )
    assert graded(run) == {"engine-chose-otherwise": Severity.INFO, "less-kv-cache": Severity.INFO}
    assert (
        "asynchronous scheduling: disabled, with the baseline enabled"
        in findings(run)["engine-chose-otherwise"].message
    )


def test_a_shorter_model_length(good: Run) -> None:
    run = with_servers(good, {"max_model_len": 4096}, {"max_model_len": 2048})
    assert graded(run) == {"arms-differ": Severity.WARNING}


def missing(run: Run, **changes: Any) -> tuple[str, ...]:
    return find_missing(run.plan, with_context(run, **changes).context)


def test_a_gpu_is_named_with_its_driver(good: Run) -> None:
    device = {"version": {"device": "cuda:0"}}
    run = with_servers(good, device, device)
    assert missing(good) == ()
    assert missing(run) == ("GPU and its driver",)
    assert missing(run, hardware={"gpus": ["NVIDIA H200, 143771 MiB, 580.159.04"]}) == ()
    assert missing(run, hardware={"as told": "8 x H200"}) == ()


def test_a_precision_that_all_servers_tell_is_one(good: Run) -> None:
    told = {"version": {"dtype": "bfloat16"}}
    assert missing(good, model={"name": "m", "dtype": "auto"}) == ("precision",)
    assert missing(with_servers(good, told, told), model={"name": "m", "dtype": "auto"}) == ()
    assert missing(with_servers(good, told, {}), model={"name": "m"}) == ("precision",)
