"""Refusals of vLLM: each is read, ruled, waited for or out of reach; where vLLM refused a line, none is accepted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from catalogue.oracle.compare import predict, read_lines
from catalogue.oracle.models import write_models

from draftwise.core import CheckOutcome
from draftwise.knowledge.validators import Coverage, find_refusal, list_conditions, list_refusals
from draftwise.knowledge.vllm import get_release, releases
from draftwise.plan.check import judge
from draftwise.plan.check.cli.condition_values import names_in, reads_in
from draftwise.setups.read import read_words
from draftwise.verbs.facts import KnownValidators, facts

LINES = list(read_lines(Path(__file__).with_name("oracle_outcomes") / "refusal_lines.jsonl"))
NAMES = {
    "flags", "objects", "env", "envs", "packages", "spec", "speculates", "drafter", "target", "connectors",
    "target_name", "runner", "gpu", "captures_graphs", "caches_prefixes", "mamba_mode", "current_platform",
    "reasoning_parsers",
    "any", "len", "max", "int", "str", "bool", "list", "set", "sorted", "isinstance", "matches", "is_pattern",
    "item", "bound", "part",
}  # fmt: skip
"""What `find_refusals` knows; a condition with another name can hold, and nobody can see whether it does."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


def test_no_refusal_of_a_shipped_release_is_unread() -> None:
    answer = facts(validators=True).answer
    assert isinstance(answer, KnownValidators)
    assert [row.unread for row in answer.validators] == [()] * len(releases("validators"))
    assert min(row.read + row.by_rules for row in answer.validators) > 60


def test_each_condition_is_of_a_refusal_that_nothing_else_reads() -> None:
    for row in list_conditions():
        found = {key: each for each in releases() if row.refusal for key in find_refusal(each, row)}
        assert found, row.refusal
    newest = get_release("0.33.0")
    assert {*list_refusals(newest)[1].values()} == {*Coverage} - {Coverage.NOT}


def test_a_condition_with_a_name_that_nobody_knows_says_what_it_needs() -> None:
    for row in list_conditions():
        asks_server = not names_in(row.when) <= NAMES or bool({"packages", "gpu"} & names_in(row.when))
        assert asks_server is bool(row.needs), row.refusal


def test_each_condition_asks_for_something_that_a_line_gives() -> None:
    given = {"flags", "objects", "env", "spec", "connectors", "mamba_mode", "target"}
    assert [row.refusal for row in list_conditions() if not given & {read[0] for read in reads_in(row.when)}] == []


@pytest.mark.parametrize("row", LINES, ids=lambda each: each["id"])
def test_a_line_ends_as_vllm_ended_it_or_waits(row: dict[str, Any], models: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(models)
    case = {"spec": None, "target": row["line"][0], "env": {}, **row}
    found = predict(case, row["release"], "cuda")
    assert not found.crash
    if row.get("waits"):
        assert found.unjudged
        assert found.accepted
    else:
        assert (found.accepted, found.unjudged) == (row["accepted"], False)


def test_the_lines_meet_both_sides() -> None:
    accepted = [row["accepted"] for row in LINES]
    assert min(accepted.count(True), accepted.count(False)) > 150


@pytest.mark.parametrize("version", ["0.33.0", "0.32.0"])
@pytest.mark.parametrize(
    "line",
    [
        "--mm-encoder-attn-dtype fp8 --mm-encoder-fp8-scale-path /scales.json",
        "--mm-encoder-attn-dtype fp8 --mm-encoder-fp8-scale-save-path /scales.json",
        "--video-pruning-rate 0.5 --video-pruning-method vidcom2",
    ],
)
def test_what_only_the_server_shows_is_not_accepted(
    line: str, version: str, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(models)
    report = judge(read_words(["vllm", "serve", "gemma3-vision", *line.split()], engine_version=version))
    assert report.outcome is CheckOutcome.NOT_JUDGED
    assert report.unchecked["server"] == 1
    other = judge(read_words(["vllm", "serve", "llama", *line.split()], engine_version=version))
    assert other.outcome is CheckOutcome.ACCEPTED


def test_what_was_said_of_the_server_decides(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(models)
    words = ["mixtral", "--enable-elastic-ep", "--enable-eplb", "--enable-expert-parallel", "--data-parallel-size", "2"]
    reading = read_words(["vllm", "serve", *words, "--data-parallel-backend", "ray"], engine_version="0.33.0")
    assert judge(reading).outcome is CheckOutcome.NOT_JUDGED
    assert judge(reading, installed=frozenset({"vllm"})).outcome is CheckOutcome.REJECTED
    assert judge(reading, installed=frozenset({"vllm", "nixl"})).outcome is CheckOutcome.ACCEPTED
    ours = replace(reading, setup=replace(reading.setup, args={}))
    assert judge(ours).outcome is CheckOutcome.ACCEPTED


OLD = [
    ("0.12.0", "llama --reasoning-parser foo", "llama --reasoning-parser qwen3", {}),
    ("0.18.1", "llama --async-scheduling --distributed-executor-backend ray", "llama --async-scheduling", {}),
    ("0.14.0", "mixtral --enable-dbo", "mixtral --enable-dbo --all2all-backend deepep_low_latency", {}),
    ("0.19.1", "llama --max-num-partial-prefills 2 --long-prefill-token-threshold 100000",
     "llama --long-prefill-token-threshold 100000", {}),
    ("0.10.2", "llama --kv-sharing-fast-prefill", "llama", {"VLLM_USE_V1": "0"}),
    ("0.10.0", "llama --prefix-caching-hash-algo sha256", "llama", {"VLLM_USE_V1": "0"}),
]  # fmt: skip


@pytest.mark.parametrize(("version", "meets", "misses", "env"), OLD)
def test_refusals_of_older_releases_are_judged(
    version: str, meets: str, misses: str, env: dict[str, str], models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(models)
    for line, is_refused in ((meets, True), (misses, False)):
        reading = read_words(["vllm", "serve", *line.split()], engine_version=version)
        found = judge(replace(reading, setup=replace(reading.setup, env=env))).findings
        assert ("settings-refused" in {each.code for each in found}) is is_refused
