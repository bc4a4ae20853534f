"""Recorded traffic without texts: arrivals and lengths as recorded, texts of that length, prefixes as shared."""

import json
from pathlib import Path

import pytest
from tests.support.loaded import load_workload

from draftwise.core import InvalidSetup
from draftwise.workloads import EstimatedTokens, profile_workload

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
AZURE = HEAD + "2023-11-16 18:17:04.9799600,48,10\n2023-11-16 18:17:03.4799600,374,44\n"
BURST = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,,1.5,ChatGPT,48,10,58,API log\n45,,2,GPT-4,100,0,100,API log\n65,,2,GPT-4,374,44,418,API log\n"
)


def write(folder: Path, text: str, name: str = "trace.csv") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("text", "arrivals", "outputs", "words"),
    [
        (AZURE, [0.0, 1.5], [44, 10], "Azure LLM inference trace"),
        (BURST, [0.0, 60.0], [10, 44], "BurstGPT"),
        ("arrival_s,prompt_tokens,output_tokens\n2.5,48,10\n3,374,44\n", [0.0, 0.5], [10, 44], "trace"),
    ],
)
def test_published_traces_give_arrivals_lengths_and_natural_texts(
    tmp_path: Path, text: str, arrivals: list[float], outputs: list[int], words: str
) -> None:
    workload = load_workload(write(tmp_path, text))
    assert [prompt.arrival_s for prompt in workload.prompts] == arrivals
    assert [prompt.max_tokens for prompt in workload.prompts] == outputs
    assert all(prompt.ignore_eos for prompt in workload.prompts)
    recorded = {44: 374, 10: 48}
    for prompt in workload.prompts:
        assert abs(EstimatedTokens().count(prompt.text or "") - recorded[prompt.max_tokens]) <= 2
    assert workload.description.startswith(words)
    assert "texts recombined from code; tokens estimated at 4 characters each" in workload.description
    assert not workload.random_tokens


def test_failed_requests_are_passed_over_and_said(tmp_path: Path) -> None:
    assert "rows without tokens (failed): line" in load_workload(write(tmp_path, BURST)).description


@pytest.mark.parametrize(
    ("options", "words"),
    [("", "forced to the recorded"), ("#force=no", "cut at the recorded"), ("#output=7", "output tokens 7")],
)
def test_how_long_answers_get_is_said(tmp_path: Path, options: str, words: str) -> None:
    description = load_workload(f"{write(tmp_path, BURST)}{options}").description
    assert words in description
    assert ("recorded lengths" in description) == ("recorded" in words)


def mooncake(folder: Path, *rows: tuple[int, int, list[int]]) -> str:
    lines = [
        json.dumps({"timestamp": time, "input_length": length, "output_length": 5, "hash_ids": blocks})
        for time, length, blocks in rows
    ]
    return write(folder, "\n".join(lines), "mooncake.jsonl")


def test_equal_hash_ids_are_equal_texts(tmp_path: Path) -> None:
    path = mooncake(tmp_path, (0, 1100, [0, 1, 2]), (500, 1500, [0, 1, 2]), (3000, 1024, [0, 9]))
    workload = load_workload(path)
    one, longer, other = (prompt.text or "" for prompt in workload.prompts)
    assert longer.startswith(one)
    shared = next(place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    assert EstimatedTokens().count(one[:shared]) == pytest.approx(512, abs=8)
    assert [prompt.arrival_s for prompt in workload.prompts] == [0.0, 0.5, 3.0]
    assert [EstimatedTokens().count(text) for text in (one, longer, other)] == pytest.approx([1100, 1500, 1024], abs=6)
    assert "equal hash_ids are equal texts" in workload.description


@pytest.mark.parametrize("unit", [1e3, 1e6, 1e9])
def test_epoch_times_are_told_by_their_size(tmp_path: Path, unit: float) -> None:
    rows = [{"created_time": int((1.7e9 + at) * unit), "input_tokens": 9, "output_tokens": 9} for at in (0, 2)]
    path = write(tmp_path, "\n".join(map(json.dumps, rows)), "mooncake.jsonl")
    assert [prompt.arrival_s for prompt in load_workload(path).prompts] == [0.0, 2.0]


def test_the_same_seed_gives_the_same_texts_and_another_one_others(tmp_path: Path) -> None:
    path = write(tmp_path, AZURE)
    assert load_workload(path).sha256 == load_workload(path).sha256 != load_workload(f"{path}#seed=1").sha256


def test_options_cut_a_trace_before_its_texts_are_made(tmp_path: Path) -> None:
    path = write(tmp_path, AZURE)
    (short,) = load_workload(f"trace:{path}#prompt=0-100,source=prose,form=chat").prompts
    assert (short.max_tokens, short.messages[0]["role"], short.arrival_s) == (10, "user", 0.0)
    # By the recorded lengths, whose texts may come out a token shorter or longer.
    assert len(load_workload(f"{path}#prompt=48-375").prompts) == 2
    with pytest.raises(InvalidSetup, match=r"holds no prompt \(2 of 2 rows with prompts of other lengths: lines"):
        load_workload(f"{path}#prompt=49-374")
    (first,) = load_workload(f"{path}#n=1").prompts
    assert first.max_tokens == 44


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD + "soon,1,1\n", "trace.csv:2 has 'soon' as TIMESTAMP, which is no time."),
        (HEAD + "2023-11-16 18:17:05,many,1\n", "trace.csv:2 has 'many' as ContextTokens, which must be a whole"),
        (HEAD + "2023-11-16 18:17:05,1\n", "trace.csv:2 has 2 cells where the header has 3."),
        (HEAD + "2023-11-16 18:17:05,-1,1\n", "has '-1' as ContextTokens, which must be a whole number"),
        ("a,b\n1,2\n", "trace.csv:2 is no row of a known trace. Columns of the traces that are known: Azure"),
        (HEAD, "trace.csv is no row of a known trace."),
    ],
)
def test_a_wrong_trace_is_explained(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidSetup) as caught:
        load_workload(f"trace:{write(tmp_path, text)}")
    assert words in str(caught.value)


@pytest.mark.parametrize("option", ["turns=all", "sample=3"])
def test_options_of_logs_are_refused_for_a_trace(tmp_path: Path, option: str) -> None:
    with pytest.raises(InvalidSetup, match="is no option of a trace workload"):
        load_workload(f"{write(tmp_path, AZURE)}#{option}")


def test_all_faults_of_a_trace_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetup) as caught:
        load_workload(write(tmp_path, HEAD + "soon,many,1\n2023-11-16 18:17:05,1,1.5\n"))
    assert [finding.where for finding in caught.value.findings] == ["trace.csv:2", "trace.csv:2", "trace.csv:3"]


def test_rows_of_a_trace_that_are_damaged_are_counted_and_stop_no_other(tmp_path: Path) -> None:
    workload = load_workload(write(tmp_path, AZURE + "soon,many,1\n1,2\n"))
    assert len(workload.prompts) == 2
    assert "1 of 4 rows without a time or lengths: line 4" in workload.left_out
    assert "1 of 4 rows with cells that do not match the header: line 5" in workload.left_out


def test_texts_of_a_huge_trace_are_cut_off_with_a_statement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwise.workloads.trace.MAX_CHARS", 3_000_000)
    rows = "".join(f"{second},100000,1\n" for second in range(100))
    workload = load_workload(write(tmp_path, f"arrival_s,prompt_tokens,output_tokens\n{rows}"))
    assert len(workload.prompts) == 7
    assert "cut after 7 requests, whose texts have 3 MB" in workload.description


def test_the_profile_tells_rate_and_burstiness(tmp_path: Path) -> None:
    rows = "".join(f"{2 * place},40,{place + 1}\n" for place in range(11))
    profile = profile_workload(load_workload(write(tmp_path, f"arrival_s,prompt_tokens,output_tokens\n{rows}")))
    assert (profile.rate_per_s, profile.span_s, profile.burstiness, profile.forced) == (0.5, 20.0, 0.0, 11)
    assert (profile.output_tokens.p50, profile.output_tokens.p90, profile.output_tokens.most) == (6.0, 10.0, 11)
    assert "0.5 arrivals/s over 20 s, burstiness 0.00" in str(profile)
