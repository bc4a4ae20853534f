"""Laws of what stands around the lines of logs: however a line is wrapped, the same requests are read."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.combinations import tries
from tests.support.loaded import load_workload
from tests.workloads.test_log_shapes import ASKED, BODY, MESSAGES, SAID, engine_log, otlp

from draftwise.core import InvalidSetup, Workload

TIMES = [f"2026-02-13T11:33:{second:02d}.5Z" for second in range(60)]
SECONDS = 1770982380
PIECE = 16384
Wrap = Callable[[str], list[str]]


def pieces(line: str) -> list[str]:
    return [line[at : at + PIECE] for at in range(0, len(line), PIECE)] or [""]


def each_line(around: Callable[[str, str, int], str]) -> Wrap:
    return lambda text: [around(line, TIMES[n % 60], SECONDS + n) for n, line in enumerate(text.splitlines())]


def to_json(**row: Any) -> str:
    return json.dumps(row)


def docker(text: str) -> list[str]:
    return [
        to_json(log=piece, stream="stderr", time=TIMES[n % 60])
        for n, line in enumerate(text.splitlines())
        for piece in pieces(line + "\n")
    ]


def cri(text: str) -> list[str]:
    lines = []
    for n, line in enumerate(text.splitlines()):
        *begun, last = pieces(line)
        lines += [f"{TIMES[n % 60]} stdout P {each}" for each in begun]
        lines += [f"{TIMES[n % 60]} stderr F between", f"{TIMES[n % 60]} stdout F {last}"]
    return lines


def record(line: str, _: str, at: int) -> dict[str, Any]:
    return {"timeUnixNano": f"{at}000000000", "severityText": "INFO", "body": {"stringValue": line},
            "attributes": [{"key": "log.file.name", "value": {"stringValue": "0.log"}}]}  # fmt: skip


def otlp_batches(text: str) -> list[str]:
    records = [record(line, "", SECONDS + n) for n, line in enumerate(text.splitlines())]
    return [to_json(resourceLogs=[{"resource": {}, "scopeLogs": [{"scope": {}, "logRecords": records}]}])]


WRAPS: dict[str, Wrap] = {
    "docker": docker,
    "cri": cri,
    "journald": each_line(lambda line, _, n: f"Feb 13 11:33:{n % 60:02d} node-1 vllm[77]: {line}"),
    "journald short-iso": each_line(lambda line, time, _: f"{time[:19]}+0000 node-1 vllm[77]: {line}"),
    "journald as json": each_line(
        lambda line, _, n: to_json(MESSAGE=line, __REALTIME_TIMESTAMP=f"{n}000000", _PID="7", PRIORITY="6")
    ),
    "syslog": each_line(lambda line, time, _: f"<14>1 {time} node-1 vllm 77 - - {line}"),
    "compose": each_line(lambda line, *_: f"vllm-1  | {line}"),
    "kubectl --prefix": each_line(lambda line, *_: f"[pod/vllm-0/server] {line}"),
    "kubectl --timestamps": each_line(lambda line, time, _: f"{time} {line}"),
    "otlp": otlp_batches,
    "otlp records": each_line(lambda *each: json.dumps(record(*each))),
    "fluent bit": each_line(
        lambda line, time, _: to_json(log=line, stream="stdout", time=time, kubernetes={"pod_name": "vllm-0"})
    ),
    "vector": each_line(lambda line, time, _: to_json(message=line, source_type="file", timestamp=time)),
    "cloud logging": each_line(
        lambda line, time, _: to_json(textPayload=line, logName="projects/p/logs/stdout", timestamp=time)
    ),
    "loki": each_line(lambda line, time, _: to_json(labels={"app": "vllm"}, line=line, timestamp=time)),
    "python-json-logger": each_line(lambda line, time, _: to_json(asctime=time, levelname="INFO", message=line)),
    "structlog": each_line(lambda line, time, _: to_json(event=line, level="info", timestamp=time)),
    "zap": each_line(lambda line, _, n: to_json(level="info", ts=n, msg=line)),
}
COMMON = ("docker", "cri", "journald", "otlp records", "fluent bit", "cloud logging", "zap")
PAIRS = [[name] for name in WRAPS] + [[one, other] for one in COMMON for other in COMMON if one != other]


def wrap(text: str, names: list[str]) -> str:
    for name in names:
        text = "\n".join(WRAPS[name](text))
    return text + "\n"


def load(text: str | bytes, name: str = "any.log") -> Workload:
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return load_workload(f"log:{path}")


GATEWAY = "\n".join(
    [
        "Listening on 0.0.0.0:8000",
        to_json(level="info", msg="started", time="2026-02-13T11:33:30Z"),
        to_json(request=BODY, response=SAID),
        "GET /health 200",
        to_json(request={**BODY, "messages": MESSAGES[1:]}, response=SAID),
    ]
)


@pytest.mark.parametrize("names", PAIRS, ids="-in-".join)
def test_the_log_of_an_engine_or_a_gateway_is_read_in_every_wrapper(names: list[str]) -> None:
    begun = "INFO 02-13 11:33:30 [api_server.py:1] vLLM API server version 0.33.0\n"
    (prompt,) = load(wrap(begun + engine_log("0.33", ASKED, SAID), names)).prompts
    assert (prompt.text, prompt.recorded.answer, prompt.recorded.token_ids) == (ASKED, SAID, (8, 9))
    first, second = load(wrap(GATEWAY, names)).prompts
    assert [message["content"] for message in first.messages] == ["Be short.", ASKED]
    assert (len(second.messages), second.recorded.answer, second.max_tokens) == (1, SAID, 50)


@settings(max_examples=tries(40))
@given(
    said=st.text(st.characters(codec="utf-8"), min_size=1, max_size=30),
    size=st.integers(0, 3 * PIECE),
    release=st.sampled_from(["0.11", "0.33"]),
    name=st.sampled_from(["docker", "cri"]),
    packed=st.booleans(),
)
def test_lines_that_were_cut_into_pieces_are_whole_again(
    said: str, size: int, release: str, name: str, packed: bool
) -> None:
    asked = "a" * size + ASKED
    text = wrap(engine_log(release, asked, said), [name]).encode()
    (prompt,) = load(gzip.compress(text) if packed else text).prompts
    assert (prompt.text, prompt.recorded.answer) == (asked, said)


@settings(max_examples=tries(150))
@given(name=st.sampled_from(list(WRAPS)), data=st.data())
def test_no_damage_to_a_wrapped_line_is_a_traceback(name: str, data: st.DataObject) -> None:
    lines = wrap(GATEWAY + "\n" + engine_log("0.33", ASKED, SAID), [name]).splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        number = data.draw(st.integers(0, len(lines) - 1))
        at = data.draw(st.integers(0, len(lines[number])))
        lines[number] = data.draw(st.sampled_from([lines[number][:at], lines[number][at:], "{}", "[", "null", ""]))
    try:
        workload = load("\n".join(lines))
    except InvalidSetup:
        return  # said, as it should be
    assert all(prompt.text or prompt.messages for prompt in workload.prompts)


@pytest.mark.parametrize("odd", ["null", "7", "[]"])
def test_what_is_no_line_in_an_array_of_lines_is_left_out(odd: str) -> None:
    lines = wrap(json.dumps({"request": BODY, "response": SAID}), ["docker"]).splitlines()
    workload = load(f"[{', '.join([*lines, odd, *lines])}]")
    assert len(workload.prompts) == 2
    assert workload.left_out == "1 of 3 rows of another kind: line 1#2"


def test_the_times_around_lines_are_arrivals() -> None:
    rows = "\n".join(json.dumps({"request": BODY, "response": SAID}) for _ in range(3))
    for name in ("docker", "cri", "otlp", "zap", "journald as json", "cloud logging"):
        assert [prompt.arrival_s for prompt in load(wrap(rows, [name])).prompts] == [0.0, 1.0, 2.0], name
    own = wrap(engine_log("0.33", ASKED, SAID) + engine_log("0.33", "b", SAID).replace("mpl-a", "mpl-b"), ["docker"])
    assert [prompt.arrival_s for prompt in load(own).prompts] == [0.0, 4.0]


@pytest.mark.parametrize("form", ["otlp", "console"])
def test_messages_that_are_a_log_record_each_become_one_request(form: str) -> None:
    events: list[tuple[str, dict[str, Any]]] = [
        ("gen_ai.system.message", {"content": "Be short."}),
        ("gen_ai.user.message", {"content": ASKED}),
        ("gen_ai.choice", {"index": 0, "finish_reason": "stop", "message": {"content": SAID}}),
    ]

    def any_value(value: Any) -> Any:
        if isinstance(value, dict):
            return {"kvlistValue": {"values": [{"key": key, "value": any_value(value[key])} for key in value]}}
        return {"stringValue": str(value)}

    def write(number: int, name: str, body: dict[str, Any]) -> dict[str, Any]:
        if form == "console":
            return {"body": body, "attributes": {"gen_ai.system": "vllm", "event.name": name}, "span_id": f"0x{number}",
                    "trace_id": "0x1", "timestamp": TIMES[number]}  # fmt: skip
        return {"timeUnixNano": f"{SECONDS + number}000000000", "eventName": name, "spanId": str(number),
                "traceId": "1", "body": any_value(body), "attributes": []}  # fmt: skip

    records = [write(number, *event) for event in events for number in range(2)]
    text = "\n".join(map(json.dumps, records))
    if form == "otlp":
        text = to_json(resourceLogs=[{"scopeLogs": [{"logRecords": records}]}])
    first, second = load(text).prompts
    assert (first.messages, first.recorded.answer, first.arrival_s) == (second.messages, SAID, 0.0)
    assert [message["content"] for message in first.messages] == ["Be short.", ASKED]
    assert second.arrival_s == 1.0


def test_what_holds_no_request_is_refused_whatever_is_around_it() -> None:
    for name in WRAPS:
        with pytest.raises(InvalidSetup, match="holds no prompt"):
            load(wrap("started\nGET /health 200\n" + "INFO 02-13 11:33:30 [x.py:1] ready\n", [name]))
    with pytest.raises(InvalidSetup, match="vLLM's log, which holds no prompts"):
        load(wrap("INFO 02-13 11:33:30 [x] Received request a: params: SamplingParams(n=1)\n", ["docker"]))


def test_spans_and_prompts_that_look_wrapped_are_what_they_are() -> None:
    wrapped = wrap(engine_log("0.33", "x", "y"), ["docker"])
    assert [each.text for each in load(json.dumps({"prompt": wrapped, "level": "info"})).prompts] == [wrapped]
    with pytest.raises(InvalidSetup, match="without its messages"):
        load(json.dumps(otlp({"gen_ai.operation.name": "chat"})))
