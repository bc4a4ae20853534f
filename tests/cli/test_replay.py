"""`draftwise replay`: from a log to a profile, in the light installation too where the log holds token ids."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft7Validator

from draftwise.cli import main
from draftwise.core import Profile
from draftwise.core.documents import from_json
from draftwise.replaying import read_anchors, read_profile
from draftwise.workloads import draw, load_workloads

NGRAM = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}'


def replay(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["replay", *map(str, arguments)], catch_exceptions=False)


def write_log(path: Path, **changes: Any) -> Path:
    """Two requests of a route each, one of which repeats its prompt, and one that failed."""
    rows = [
        {
            "request": {"prompt": [1, 2, 3, 4, 5], "temperature": 0, "max_tokens": 50, "metadata": {"route": "edit"}},
            "response": {"choices": [{"text": "a", "token_ids": [9, 1, 2, 3, 4, 5]}]},
            "timestamp": "2026-11-22T10:00:01Z",
        },
        {
            "request": {"prompt": [1, 2, 3], "temperature": 0, "metadata": {"route": "chat"}},
            "response": {"choices": [{"text": "b", "token_ids": [7, 8, 9]}]},
            "timestamp": "2026-11-22T10:00:00Z",
        },
        {"request": {"prompt": [1]}, "response": {"error": "overloaded"}, "timestamp": "2026-11-22T10:00:02Z"},
    ]
    text = "".join(json.dumps(row | changes) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz"])
def test_a_log_of_token_ids_needs_no_tokenizer(tmp_path: Path, name: str) -> None:
    log, out = write_log(tmp_path / name), tmp_path / "profile"
    arguments = (log, "--target", tmp_path / "no-model", "--candidate", NGRAM, "--out", out, "--group-by", "route")
    result = replay(*arguments, "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    schema = json.loads(CliRunner().invoke(main, ["schema", "replay"]).stdout)
    assert [error.message for error in Draft7Validator(schema).iter_errors(printed)] == []
    profile = read_profile(out)
    assert from_json(Profile, printed) == profile
    assert (profile.log.used, profile.log.order, profile.log.groups) == (2, "time", {"chat": 1, "edit": 1})
    assert [(entry.group, entry.by_k[4].steps) for entry in profile.entries] == [(None, 4), ("chat", 2), ("edit", 2)]
    assert read_anchors(out)[0].limits.tolist() == [2**31 - 1, 50]


@pytest.mark.engine
def test_what_came_before_is_remembered_and_not_counted(tmp_path: Path) -> None:
    log, suffix = write_log(tmp_path / "log.jsonl"), '{"method": "suffix", "num_speculative_tokens": 4}'
    found = {}
    for warm in (0, 1):
        out = tmp_path / f"warm-{warm}"
        arguments = (log, "--target", "m", "--candidate", suffix, "--candidate", NGRAM, "--out", out, "--warm", warm)
        assert replay(*arguments).exit_code == 0
        found[warm] = read_anchors(out)
    before, after = found[0][0], found[1][0]
    assert after.requests == before.requests[1:]
    begin = before.offsets[1]
    assert before.drafts[4].drafted_N[begin:].tolist() == after.drafts[4].drafted_N.tolist()
    assert before.drafts[4].accepted_N is not None
    assert after.drafts[4].accepted_N is not None
    assert before.drafts[4].accepted_N[begin:].tolist() == after.drafts[4].accepted_N.tolist()
    assert found[1][1].requests == after.requests
    assert read_profile(tmp_path / "warm-1").log.skipped["warm-up"] == 1
    result = replay(log, "--target", "m", "--candidate", NGRAM, "--warm", 2)
    assert result.exit_code == 2
    assert "which leaves none to replay" in result.stderr


def test_the_table_shows_every_setting(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl")
    result = replay(log, "--target", tmp_path, "--candidate", NGRAM, "--out", tmp_path / "p", "--k", "1,4")
    lines = result.stdout.splitlines()
    assert lines[0] == "2 of 2 requests, 9 tokens, in time order"
    assert lines[1].split()[:2] == ["setting", "tokens/step"]
    assert lines[2].startswith("ngram T=0")
    assert set(read_profile(tmp_path / "p").entries[0].by_k) == {1, 4}


def test_a_method_that_does_not_exist_is_named(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl")
    result = replay(log, "--target", tmp_path, "--candidate", '{"method": "ngrams", "num_speculative_tokens": 2}')
    assert result.exit_code == 2
    assert "Did you mean ngram?" in result.stderr


def test_many_uncertain_rows_are_an_error(tmp_path: Path) -> None:
    log, out = tmp_path / "log.jsonl", tmp_path / "p"
    row = {"prompt": [1, 2], "answer_token_ids": [3, 4]}
    log.write_text(json.dumps(row) + "\n" + json.dumps({**row, "answer_token_ids": None}) + "\n")
    result = replay(log, "--target", tmp_path, "--candidate", NGRAM, "--out", out)
    assert result.exit_code == 1
    assert read_profile(out).log.skipped == {"no-answer": 1}


@pytest.mark.parametrize("ks", ["0", "x", "5"])
def test_draft_lengths_must_make_sense(tmp_path: Path, ks: str) -> None:
    log = write_log(tmp_path / "log.jsonl")
    result = replay(log, "--target", tmp_path, "--candidate", NGRAM, "--out", tmp_path / "p", "--k", ks)
    assert result.exit_code in (1, 2)
    assert not (tmp_path / "p").exists()


def test_requests_are_drawn_over_the_log_as_decide_draws_them_and_kept_in_its_order(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    rows = (
        {
            "request": {"prompt": [1, 2, 3, 4, number], "temperature": 0, "max_tokens": 50},
            "response": {"choices": [{"text": "a", "token_ids": [5] * (1 + number)}]},
        }
        for number in range(60)
    )
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = (log, "--target", tmp_path / "no-model", "--candidate", NGRAM)
    tokens = []
    for seed in (0, 0, 7):
        out = tmp_path / f"profile{len(tokens)}"
        result = replay(*common, "--out", out, "--prompts", 12, "--seed", seed)
        assert result.exit_code == 0, result.output
        found = read_profile(out).log
        assert (found.rows, found.used, found.skipped) == (60, 12, {"not-drawn": 48})
        tokens.append(found.tokens_out)
    assert tokens[0] == tokens[1]
    assert tokens[0] != tokens[2]
    assert all(0.5 < each / (12 * 30.5) < 1.6 for each in tokens), "no part of the log stands for all of it"
    (workload,) = load_workloads(str(log), takes_ids=True, keeps_times=False, seed=0)
    drawn = draw(workload.prompts, 0, workload.name)[:12]
    assert tokens[0] == sum(1 + int(each.recorded.prompt_token_ids[-1]) for each in drawn)
