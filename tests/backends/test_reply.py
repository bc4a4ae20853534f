"""The grammar of an answer: what a body is does not depend on how the network cut it."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwise.backends.connection import Reply, ReplyError

EVENTS = [b'data: {"a": 1}\n\n', b"data: \xe2\x80\xa8\n\n", b"data: [DONE]\n\n"]
BODY = b"".join(EVENTS)
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in EVENTS)
    + b"0\r\n\r\n"
)
SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
ENDLESS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + BODY


def feed(raw: bytes, cuts: list[int]) -> Reply:
    """Return the reply to which the parts of `raw` were fed at the times 1, 2, ..."""
    reply = Reply([])
    places = [0, *sorted({cut % len(raw) for cut in cuts} - {0}), len(raw)]
    for time, (start, end) in enumerate(pairwise(places), start=1):
        reply.feed(float(time), raw[start:end])
    return reply


@given(raw=st.sampled_from([CHUNKED, SIZED, ENDLESS]), cuts=st.lists(st.integers(0, 500), max_size=12))
def test_a_body_is_the_same_however_it_was_cut(raw: bytes, cuts: list[int]) -> None:
    reply = feed(raw, cuts)
    assert b"".join(piece for _, piece in reply.pieces) == BODY
    times = [time for time, _ in reply.pieces]
    assert times == sorted(times)
    assert reply.complete is (raw is not ENDLESS)


def test_each_piece_has_the_time_of_the_bytes_it_came_in() -> None:
    head = CHUNKED.index(b"\r\n\r\n") + 4
    second = CHUNKED.index(EVENTS[1])
    reply = feed(CHUNKED, [head, second])
    assert reply.pieces == [(2.0, EVENTS[0]), (3.0, EVENTS[1]), (3.0, EVENTS[2])]
    assert (reply.status, reply.complete, reply.finished) == (200, True, 3.0)


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        (CHUNKED, True),
        (SIZED, True),
        (CHUNKED.replace(b"200 OK\r\n", b"200 OK\r\nConnection: close\r\n"), False),
        (SIZED.replace(b"1.1", b"1.0"), False),
    ],
)
def test_the_server_says_whether_the_connection_stays(raw: bytes, kept: bool) -> None:
    reply = feed(raw, [])
    assert (reply.complete, reply.keep_alive) == (True, kept)


def test_a_body_without_length_ends_with_the_connection() -> None:
    reply = feed(ENDLESS, [])
    reply.end(9.0)
    assert (reply.complete, reply.finished, reply.keep_alive) == (True, 9.0, False)


@pytest.mark.parametrize("raw", [SIZED[:-1], CHUNKED[:-1], b"HTTP/1.1 200 OK\r\nContent-"])
def test_a_body_that_says_where_it_ends_is_not_ended_by_the_connection(raw: bytes) -> None:
    reply = feed(raw, [])
    reply.end(9.0)
    assert not reply.complete


def test_heads_that_announce_the_real_one_are_passed_over() -> None:
    reply = feed(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + SIZED, [3, 30, 60])
    assert (reply.status, reply.complete) == (200, True)
    assert b"".join(piece for _, piece in reply.pieces) == BODY


@pytest.mark.parametrize("raw", [b"SSH-2.0-OpenSSH_9.2\r\n", SIZED + SIZED, b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n"])
def test_what_is_no_single_answer_is_refused(raw: bytes) -> None:
    with pytest.raises(ReplyError):
        feed(raw, [])
