"""Answers of all kinds of servers, read after the fact."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwise.backends import Exchange
from draftwise.measure.load.response import ParsedResponse


def read(*pieces: bytes, status: int = 200) -> ParsedResponse:
    """Read an answer whose pieces arrived at the times 1, 2, ..."""
    received = tuple((float(time), piece) for time, piece in enumerate(pieces, start=1))
    response = ParsedResponse(Exchange(status=status, sent=0.0, received=received, finished=99.0))
    for _ in response.steps():
        pass
    return response


def event(**fields: Any) -> bytes:
    return f"data: {json.dumps(fields, ensure_ascii=False)}\n\n".encode()


def completion(text: str, **more: Any) -> bytes:
    return event(choices=[{"text": text, **more}])


def chat(usage: dict[str, int] | None = None, **delta: Any) -> bytes:
    return event(choices=[{"delta": delta}], usage=usage)


DONE = b"data: [DONE]\n\n"


def test_an_event_arrives_with_its_last_byte_and_several_may_arrive_at_once() -> None:
    one, two, three = (completion(text) for text in "abc")
    response = read(one + two[:20], two[20:], three[:-2], three[-2:], DONE)
    assert response.text == "abc"
    assert response.chunks == [(1.0, 1), (2.0, 1), (4.0, 1)]
    assert read(one + two + three).chunks == [(1.0, 1)] * 3


RAW = (
    completion("a\u2028b\x85c", token_ids=[1, 2], prompt_token_ids=[7, 8])
    + b": a comment\n\n"
    + b"event: message\nid: 3\n"
    + completion("d", token_ids=[3], finish_reason="stop").replace(b"\n", b"\r\n")
    + DONE
)


class _Joined(bytes):
    """A piece that tells how many bytes it was appended to."""

    total = 0

    def __radd__(self, other: bytes) -> bytes:
        _Joined.total += len(other)
        return bytes(other) + bytes(self)


def test_the_pieces_of_a_long_event_are_joined_once_however_many_there_are() -> None:
    """25 MB of prompt token ids in pieces of 16 KiB took minutes in which neither the deadline nor Ctrl-C was seen."""
    whole = completion("a", token_ids=[1], prompt_token_ids=list(range(20_000)))
    response = read(*(_Joined(whole[start : start + 64]) for start in range(0, len(whole), 64)), DONE)
    assert (response.text, len(response.prompt_token_ids)) == ("a", 20_000)
    assert _Joined.total <= 2 * len(whole)


@given(cuts=st.lists(st.integers(0, len(RAW)), max_size=8))
def test_events_cut_anywhere_and_line_separators_inside_text_survive(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(RAW)]
    response = read(*(RAW[start:end] for start, end in itertools.pairwise(places)))
    assert (response.text, response.token_ids) == ("a\u2028b\x85cd", [1, 2, 3])
    assert (response.prompt_token_ids, response.finish_reason, response.error) == ((7, 8), "stop", None)
    assert [count for _, count in response.chunks] == [2, 1]


def test_a_last_line_without_its_end_is_read() -> None:
    response = read(completion("a"), completion("b").rstrip(), b"")
    assert (response.text, response.chunks[-1]) == ("ab", (3.0, 1))


def test_running_usage_says_how_many_tokens_a_chunk_holds() -> None:
    counts = [{"prompt_tokens": 5, "completion_tokens": total} for total in (0, 1, 4, 4)]
    response = read(*(chat(usage, content=text) for usage, text in zip(counts, ["", "a", "bcd", ""], strict=True)))
    assert response.chunks == [(2.0, 1), (3.0, 3)]
    assert response.counts_exact
    assert response.usage["prompt_tokens"] == 5


def test_tokens_without_text_count() -> None:
    """A token of which the text is held back (half a character), and the end-of-sequence token."""
    response = read(completion("", token_ids=[1]), completion("é", token_ids=[2]), completion("", token_ids=[3]))
    assert [count for _, count in response.chunks] == [1, 1, 1]


def test_only_a_total_is_given_to_the_last_chunk() -> None:
    total = event(choices=[], usage={"prompt_tokens": 5, "completion_tokens": 9})
    response = read(completion("ab"), completion("cd"), total, DONE)
    assert response.chunks == [(1.0, 1), (2.0, 8)]
    assert not response.counts_exact


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thoughts_are_text(name: str) -> None:
    response = read(chat(role="assistant", content=""), chat(**{name: "hm"}), chat(content=" yes", **{name: None}))
    assert (response.text, response.chunks) == ("hm yes", [(2.0, 1), (3.0, 1)])


def test_calls_of_tools_are_tokens() -> None:
    call = [{"index": 0, "function": {"arguments": "{"}}]
    usages = [{"completion_tokens": 2}, {"completion_tokens": 5}]
    response = read(*(chat(usage, tool_calls=call) for usage in usages))
    assert (response.chunks, response.error, response.counts_exact) == ([(1.0, 2), (2.0, 3)], None, True)
    assert read(chat(tool_calls=call), event(choices=[], usage=usages[1])).chunks == [(1.0, 5)]


def test_the_acceptance_of_a_request_is_kept() -> None:
    metrics = {"speculative_decoding": {"acceptance_histogram": [3, 1, 2]}}
    assert read(completion("a"), event(choices=[], metrics=metrics)).acceptance == (3, 1, 2)
    assert read(completion("a"), event(choices=[], metrics={"speculative_decoding": None})).acceptance == ()


@pytest.mark.parametrize(
    ("pieces", "status", "error"),
    [
        ([completion("a"), event(error={"message": "out of pages"})], 200, "out of pages"),
        ([event(error="gone")], 200, "gone"),
        ([DONE], 200, "the answer contains no token"),
        (
            [b'{"choices": []}'],
            200,
            'the server answered without an event stream, although the request asked for one: {"choices": []}',
        ),
        ([b"data: not json\n\n"], 200, "not json"),
        ([b'data: {"choices": ["a"]}\n\n'], 200, 'an event that is not part of the API: {"choices": ["a"]}'),
        ([b'data: {"a": 1} and more\n\n'], 200, '{"a": 1} and more'),
        ([b'{"error": {"mes', b'sage": "no such field"}}'], 400, "no such field"),
        ([b'{"detail": "Not Found"}'], 404, "{'detail': 'Not Found'}"),
        ([b"<html>Bad Gateway</html>"], 502, "<html>Bad Gateway</html>"),
        ([], 503, "HTTP status 503"),
    ],
)
def test_what_is_no_answer_is_an_error(pieces: list[bytes], status: int, error: str) -> None:
    assert read(*pieces, status=status).error == error


def test_a_long_answer_is_read_in_parts() -> None:
    pieces = [completion("a")] * 100
    received = tuple((float(time), piece) for time, piece in enumerate(pieces))
    response = ParsedResponse(Exchange(status=200, sent=0.0, received=received, finished=99.0))
    lengths = [len(response.chunks) for _ in response.steps()]
    assert len(lengths) > 3
    assert max(b - a for a, b in itertools.pairwise(lengths)) < 40
    assert len(response.chunks) == 100


def test_a_stream_that_ends_without_a_reason_or_its_last_event_was_cut() -> None:
    part = completion("a", token_ids=[1])
    assert read(part).is_cut
    assert not read(part, DONE).is_cut
    assert not read(part, *(DONE[at : at + 1] for at in range(len(DONE)))).is_cut, "byte by byte"
    assert not read(part, completion("b", finish_reason="length")).is_cut
    assert not read(part, event(error={"message": "gone"})).is_cut, "that is said already"
