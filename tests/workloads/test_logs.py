"""Logs of gateways and observers: the request, its answer's length and its time are found in each."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from tests.support.loaded import load_workload

from draftwise.core import InvalidSetup, Workload
from draftwise.workloads.engine_log import EngineLog

ASK = {"messages": [{"role": "user", "content": "Why?"}], "max_tokens": 50, "model": "m"}
ANSWER = {
    "choices": [{"message": {"role": "assistant", "content": "Because it is."}}],
    "usage": {"completion_tokens": 17},
}

SHAPES: dict[str, dict[str, Any]] = {
    "bare": {**ASK, "timestamp": 1700000000.0, "output_tokens": 17},
    "batch": {"custom_id": "r1", "method": "POST", "url": "/v1/chat/completions", "body": ASK, "time": 1700000000,
              "response": {"status_code": 200, "body": ANSWER}},
    "pair": {"request": ASK, "response": ANSWER, "timestamp": "2023-11-14T22:13:20Z"},
    "pair as texts": {"request": {"body": json.dumps(ASK)}, "response": {"body": json.dumps(ANSWER)}, "ts": 1.7e12},
    "helicone": {"request_body": ASK, "response_body": ANSWER, "request_created_at": "2023-11-14 22:13:20+00:00",
                 "response_status": 200, "completion_tokens": 17},
    "litellm": {"id": "x", "call_type": "acompletion", "messages": ASK["messages"], "response": ANSWER,
                "model_parameters": {"max_tokens": 50}, "startTime": 1700000000.0, "completion_tokens": 17,
                "status": "success"},
    "langfuse api": {"id": "x", "traceId": "t", "type": "GENERATION", "input": ASK["messages"], "output": "Because",
                     "modelParameters": {"max_tokens": 50}, "startTime": "2023-11-14T22:13:20.000Z",
                     "usageDetails": {"input": 9, "output": 17}},
    "langfuse export": {"id": "x", "trace_id": "t", "type": "GENERATION", "input": json.dumps(ASK["messages"]),
                        "output": json.dumps(ANSWER), "model_parameters": '{"max_tokens": 50}',
                        "start_time": "2023-11-14 22:13:20.000000", "usage_details": {"output": 17}},
}  # fmt: skip


TIMES = ("timestamp", "time", "ts", "request_created_at", "startTime", "start_time")


def load(folder: Path, rows: list[Any], options: str = "", name: str = "log.jsonl") -> Workload:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_workload(f"log:{path}{options}")


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_gives_the_same_request(tmp_path: Path, shape: str) -> None:
    row = SHAPES[shape]
    key = next(key for key in TIMES if key in row)
    time = row[key]
    later = {**row, key: time.replace(":20", ":22") if isinstance(time, str) else time + (2000 if time > 1e10 else 2)}
    workload = load(tmp_path, [row, later])
    assert [prompt.messages for prompt in workload.prompts] == [({"role": "user", "content": "Why?"},)] * 2
    assert [prompt.max_tokens for prompt in workload.prompts] == [50, 50]
    assert [prompt.arrival_s for prompt in workload.prompts] == [0.0, 2.0]
    assert len({prompt.id for prompt in workload.prompts}) == 2
    assert load(tmp_path, [row], "#output=logged,force").prompts[0].max_tokens == 17


WITH_ANSWERS = {**SHAPES, "bare": {**SHAPES["bare"], "answer": "Because it is."}}


@pytest.mark.parametrize("shape", WITH_ANSWERS)
def test_every_shape_that_has_the_answer_gives_it(tmp_path: Path, shape: str) -> None:
    (prompt,) = load(tmp_path, [WITH_ANSWERS[shape]]).prompts
    assert prompt.recorded.answer == ("Because" if shape == "langfuse api" else "Because it is.")
    assert "Because" not in json.dumps(prompt.to_dict())
    (bare,) = load(tmp_path, [SHAPES["bare"]], name="bare.jsonl").prompts
    assert bare.recorded.answer is None
    assert load(tmp_path, [{**SHAPES["bare"], "answer": "x"}]).sha256 == load(tmp_path, [SHAPES["bare"]]).sha256


def test_answers_of_text_completions_responses_and_conversations(tmp_path: Path) -> None:
    said = [{"type": "reasoning"}, {"type": "message", "content": [{"type": "output_text", "text": "b"}]}]
    rows = [
        {"request": {"prompt": "p"}, "response": {"choices": [{"text": "a", "token_ids": [5, 7]}]}},
        {"request": {"input": "p"}, "response": {"output": said}},
        {"request": ASK, "response": {"choices": [{"message": {"content": None, "tool_calls": [{}]}}]}},
    ]
    text, spoken, called = load(tmp_path, rows).prompts
    assert (text.recorded.answer, text.recorded.token_ids) == ("a", (5, 7))
    assert (spoken.recorded.answer, spoken.recorded.token_ids) == ("b", ())
    assert spoken.recorded.reasoned
    assert called.recorded.answer is None
    assert called.recorded.called_tools
    turns = load(tmp_path, [CONVERSATION], "#turns=all", name="said.jsonl").prompts
    assert [prompt.recorded.answer for prompt in turns] == ["a1", "a2 is longer", None]


def test_an_answer_of_unknown_length_is_counted_and_a_missing_one_said(tmp_path: Path) -> None:
    counted = {"request": ASK, "response": {"choices": [{"message": {"content": "x" * 400}}]}}
    workload = load(tmp_path, [counted, {"request": ASK}], "#output=logged")
    assert [prompt.max_tokens for prompt in workload.prompts] == [100, 50]
    assert "1 row without a logged answer, whose own max_tokens stands" in workload.description


def test_what_failed_or_was_no_completion_is_passed_over_and_said(tmp_path: Path) -> None:
    rows = [
        SHAPES["litellm"],
        {**SHAPES["litellm"], "status": "failure"},
        {**SHAPES["helicone"], "response_status": 429},
        {**SHAPES["batch"], "url": "/v1/embeddings"},
        {**SHAPES["langfuse api"], "type": "SPAN"},
        {"request": ASK, "response": {"status_code": 500}},
        {"request": ASK, "response": {"error": {"message": "too long"}}},
    ]
    workload = load(tmp_path, rows)
    assert len(workload.prompts) == 1
    assert "4 of 7 rows failed: lines 2, 3, 6, 7; 2 of 7 rows no completion: lines 4, 5" in workload.description
    with pytest.raises(InvalidSetup, match=r"holds no prompt \(1 of 1 rows failed: line 1\)"):
        load(tmp_path, rows[1:2])


def test_a_log_with_a_time_missing_has_no_arrivals_and_says_so(tmp_path: Path) -> None:
    rows = [SHAPES["pair"], {"request": ASK}]
    workload = load(tmp_path, rows)
    assert [prompt.arrival_s for prompt in workload.prompts] == [None, None]
    assert "1 row without a time, so that no arrival times are kept" in workload.description


def test_rows_out_of_order_are_sorted_by_arrival(tmp_path: Path) -> None:
    rows = [{"id": str(time), "prompt": "p", "timestamp": time} for time in (30, 10, 20)]
    workload = load(tmp_path, rows)
    assert [(prompt.id, prompt.arrival_s) for prompt in workload.prompts] == [("10", 0), ("20", 10), ("30", 20)]


def test_a_text_completion_and_the_responses_api(tmp_path: Path) -> None:
    parts = [{"role": "user", "content": [{"type": "input_text", "text": "b"}]}]
    rows = [
        {"body": {"prompt": "a", "max_tokens": 3}},
        {"body": {"input": "b", "instructions": "be short", "max_output_tokens": 4}},
        {"body": {"input": parts}},
    ]
    text, spoken, in_parts = load(tmp_path, rows).prompts
    assert (text.text, text.max_tokens) == ("a", 3)
    assert spoken.messages == ({"role": "system", "content": "be short"}, {"role": "user", "content": "b"})
    assert in_parts.messages[0]["content"] == [{"type": "text", "text": "b"}]


def test_retries_under_one_id_get_ids_of_their_own(tmp_path: Path) -> None:
    row = {"custom_id": "same", "body": ASK}
    assert [prompt.id for prompt in load(tmp_path, [row, row, row]).prompts] == ["same", "same@2", "same@3"]


SAID = [("human", "q1"), ("gpt", "a1"), ("human", "q2"), ("gpt", "a2 is longer"), ("human", "q3")]
CONVERSATION = {"id": "c", "conversations": [{"from": who, "value": what} for who, what in SAID]}


@pytest.mark.parametrize(
    ("options", "lasts", "ids"),
    [("", ["q1"], ["c"]), ("#turns=last", ["q3"], ["c"]), ("#turns=all", ["q1", "q2", "q3"], ["c", "c/1", "c/2"])],
)
def test_a_conversation_gives_the_turns_asked_for(
    tmp_path: Path, options: str, lasts: list[str], ids: list[str]
) -> None:
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps([CONVERSATION], indent=1))
    workload = load_workload(f"{path}{options}")
    assert [prompt.messages[-1] for prompt in workload.prompts] == [{"role": "user", "content": each} for each in lasts]
    assert [prompt.id for prompt in workload.prompts] == ids
    assert workload.name.startswith("sharegpt")


def test_conversations_in_which_nobody_asks_are_passed_over(tmp_path: Path) -> None:
    orphan = {"id": "o", "conversations": [{"from": "gpt", "value": "an answer"}]}
    workload = load(tmp_path, [orphan, CONVERSATION, {"id": "e", "conversations": []}])
    assert len(workload.prompts) == 1
    assert "2 of 3 rows without a question: lines 1, 3" in workload.description


def test_later_turns_carry_what_was_said_before_and_the_answers_lengths(tmp_path: Path) -> None:
    workload = load(tmp_path, [CONVERSATION], "#turns=all,output=logged")
    roles = [[message["role"] for message in prompt.messages] for prompt in workload.prompts]
    assert roles == [["user"], ["user", "assistant", "user"], ["user", "assistant", "user", "assistant", "user"]]
    assert [prompt.max_tokens for prompt in workload.prompts] == [1, 3, 128]


def test_a_chat_that_ends_with_the_answer_is_asked_without_it(tmp_path: Path) -> None:
    row = {"messages": [*ASK["messages"], {"role": "assistant", "content": "x" * 40}]}
    (prompt,) = load(tmp_path, [row], "#output=logged").prompts
    assert (prompt.messages, prompt.max_tokens) == (({"role": "user", "content": "Why?"},), 10)


def test_helicones_csv_is_read_as_its_json(tmp_path: Path) -> None:
    path = tmp_path / "export.csv"
    long = {**ASK, "messages": [{"role": "user", "content": "x" * 200_000}]}
    body = json.dumps(long).replace('"', '""')
    path.write_text(
        "response_id,response_status,request_created_at,request_body,completion_tokens\n"
        f'r1,200,2023-11-14 22:13:20,"{body}",17\nr2,500,2023-11-14 22:13:21,"{body}",\n'
    )
    workload = load_workload(f"{path}#output=logged")
    assert [(prompt.id, prompt.max_tokens) for prompt in workload.prompts] == [("r1", 17)]


@pytest.mark.parametrize("unit", ["a ", r"a\n"])
@pytest.mark.parametrize("mark", ["'", '"'])
def test_a_long_prompt_in_an_engines_log_takes_memory_by_its_length_and_no_more(unit: str, mark: str) -> None:
    """5 MB of text took 800 MB, for places to go back to that a quoted text has not."""
    quoted = 200_000 * unit
    line = f"INFO 01-01 00:00:00 [x] Received request a: prompt: {mark}{quoted}{mark}, params: P(max_tokens=16)"
    log = EngineLog()
    tracemalloc.start()
    try:
        log.add(1, line)
        ((_, row),) = log.rows()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert row["body"]["prompt"] == quoted.replace(r"\n", "\n")
    assert peak < 20 * len(line)
