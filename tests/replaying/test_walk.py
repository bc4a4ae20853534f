"""The walk over anchors: equal to stepping through each answer by hand, for any k, limit and kind of draft."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwise.core import InvalidSetup, SpecConfig
from draftwise.replaying import Anchors, Drafts, read_anchors, walk, write_anchors
from draftwise.replaying.acceptance_profile import tokens_per_step
from draftwise.replaying.anchors import UNLIMITED

KMAX = 4


def make_anchors(lengths: list[int], drafts: Drafts, limits: list[int] | None = None) -> Anchors:
    num = len(lengths)
    return Anchors(
        candidate=SpecConfig(method="ngram", num_speculative_tokens=KMAX),
        temperature=0.0,
        requests=tuple(f"r{number}" for number in range(num)),
        groups=(None,) * num,
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        limits=np.array(limits or [UNLIMITED] * num, np.int64),
        drafts={KMAX: drafts},
    )


@st.composite
def accepted_drafts(draw: st.DrawFn) -> Anchors:
    lengths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    rows = st.lists(st.integers(0, KMAX), min_size=sum(lengths), max_size=sum(lengths))
    drafted = np.array(draw(rows), np.uint16)
    accepted = np.minimum(np.array(draw(rows), np.uint16), drafted)
    limits = [length + draw(st.integers(0, 3)) for length in lengths]
    return make_anchors(lengths, Drafts(drafted_N=drafted, accepted_N=accepted), limits)


@given(accepted_drafts(), st.integers(1, KMAX), st.booleans())
def test_equals_stepping_by_hand(anchors: Anchors, k: int, limited: bool) -> None:
    drafts = anchors.drafts[KMAX]
    assert drafts.accepted_N is not None
    expected = []
    for request, (begin, end) in enumerate(zip(anchors.offsets, anchors.offsets[1:], strict=False)):
        token = 1
        while token < end - begin:
            budget = min(k, int(anchors.limits[request]) - token - 1) if limited else k
            drafted = min(int(drafts.drafted_N[begin + token]), budget)
            accepted = min(int(drafts.accepted_N[begin + token]), drafted, int(end - begin) - token)
            expected.append((request, token, drafted, accepted))
            token += accepted + 1
    found = walk(anchors, k, limited=limited)
    accepted_S = found.survive_SK.sum(1).astype(int)
    columns = (found.request_S, found.token_S, found.drafted_S, accepted_S)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected
    assert set(found.weight_S) <= {1.0}


@given(accepted_drafts(), st.integers(1, KMAX))
def test_certain_chances_are_accepted_tokens(anchors: Anchors, k: int) -> None:
    drafts = anchors.drafts[KMAX]
    assert drafts.accepted_N is not None
    chances = (np.arange(KMAX) < drafts.accepted_N[:, None]).astype(np.float32)
    sampled = make_anchors(
        anchors.lengths.tolist(), Drafts(drafted_N=drafts.drafted_N, chances_NK=chances), anchors.limits.tolist()
    )
    found, expected = walk(sampled, k), walk(anchors, k)
    assert found.token_S.tolist() == expected.token_S.tolist()
    assert np.array_equal(found.survive_SK, expected.survive_SK)
    assert found.weight_S == pytest.approx(expected.weight_S)


def test_expectation_equals_drawing() -> None:
    rng = np.random.default_rng(0)
    length = 9
    chances = rng.random((length, KMAX)).astype(np.float32)
    anchors = make_anchors([length], Drafts(drafted_N=np.full(length, KMAX, np.uint16), chances_NK=chances))
    visits = np.zeros(length)
    rounds = 20_000
    for _ in range(rounds):
        token = 1
        while token < length:
            visits[token] += 1
            standing = np.cumprod(rng.random(KMAX) < chances[token])
            token += int(standing.sum()) + 1
    found = walk(anchors, KMAX)
    expected = dict(zip(found.token_S.tolist(), found.weight_S.tolist(), strict=True))
    assert expected[1] == 1.0
    for token in range(2, length):
        assert expected[token] == pytest.approx(visits[token] / rounds, abs=0.02)


def test_all_positions_are_not_averaged() -> None:
    """One match of eight tokens: entered at its start it is two steps, where a mean over positions sees eight."""
    accepted = np.array([0, 4, 4, 4, 4, 4, 3, 2, 1], np.uint16)
    drafts = Drafts(drafted_N=np.full(9, KMAX, np.uint16), accepted_N=accepted)
    assert walk(make_anchors([9], drafts), KMAX).token_S.tolist() == [1, 6]


def test_each_request_that_decodes_has_its_own_tokens_a_step() -> None:
    """A single token comes out of the prefill; two take one step; the third request's one step emits four."""
    accepted = np.array([0, 0, 0, 0, 3, 0, 0, 0], np.uint16)
    drafts = Drafts(drafted_N=np.full(8, KMAX, np.uint16), accepted_N=accepted)
    assert tokens_per_step(make_anchors([1, 2, 5], drafts), KMAX).tolist() == [1.0, 4.0]


def test_only_given_ks_answer_where_there_are_several() -> None:
    one = Drafts(drafted_N=np.ones(3, np.uint16), accepted_N=np.zeros(3, np.uint16))
    anchors = make_anchors([3], one)
    assert anchors.ks == (1, 2, 3, 4)
    several = Anchors(
        **{name: getattr(anchors, name) for name in Anchors.__slots__ if name != "drafts"}, drafts={1: one, 3: one}
    )
    assert several.ks == (1, 3)
    with pytest.raises(KeyError):
        walk(several, 2)


def test_written_anchors_are_read_back(tmp_path: Path) -> None:
    chances = np.array([[0.5, 0.25, 0, 0]] * 3, np.float32)
    drafts = Drafts(drafted_N=np.full(3, 2, np.uint16), chances_NK=chances)
    write_anchors(tmp_path, [make_anchors([3], drafts), make_anchors([1, 2], drafts)])
    first, second = read_anchors(tmp_path)
    assert first.candidate == SpecConfig(method="ngram", num_speculative_tokens=KMAX)
    assert second.lengths.tolist() == [1, 2]
    found = second.drafts[KMAX].chances_NK
    assert found is not None
    assert np.array_equal(found, chances)


def test_damaged_anchors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetup) as caught:
        read_anchors(tmp_path)
    assert caught.value.findings[0].code == "not-a-profile"
    (tmp_path / "anchors.npz").write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(InvalidSetup) as caught:
        read_anchors(tmp_path)
    assert caught.value.findings[0].code == "damaged-profile"
