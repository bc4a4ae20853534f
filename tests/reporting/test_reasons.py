"""Reasons of verdicts in words: each code has its own, and says what it was given."""

import pytest

from draftwise.core import Reason, ReasonCode
from draftwise.reporting.sentences import describe_reason

GIVEN = {
    ReasonCode.FEW_PROMPTS: ({"count": 3, "fewest": 6}, "rests on 3 prompts; at least 6 are needed"),
    ReasonCode.DISTURBED: (
        {"count": 7, "of": 8, "why": "a busy core", "left": 0.5},
        "7 of 8 pairs of turns were disturbed and do not count (a busy core); at least 50% must remain",
    ),
    ReasonCode.LOST_BY_PACE: (
        {"verdict": "adopt", "count": 2, "prompt": "p7", "why": "a late first token"},
        "adopt so far, but not if the requests set aside for their pace count (2, the first for p7; a late",
    ),
    ReasonCode.UNSETTLED: ({"message": "it was cold", "code": "server-cold"}, "it was cold (server-cold)"),
    ReasonCode.SLOW_SERVER: (
        {"arm": "plain", "step": 2.5, "first": 2.4, "seen_s": 30.0, "wanted_s": 300.0},
        "measure it for 5 minutes instead of 30 seconds",
    ),
    ReasonCode.PACE_CHANGED: (
        {"arm": "plain", "ratio": 0.5, "share": 0.4},
        "a decoding step of plain took 0.50x as long after 40% of it, but the other server's did not",
    ),
    ReasonCode.ANCHORS_MOVED: ({"ratio": 0.7}, "prompts repeated at the end gained 0.70x as much as before"),
    ReasonCode.UNSEEN: ({"share": 0.39, "bar": 1.155}, "a kind of traffic with a share of up to 39%"),
    ReasonCode.NO_GAIN: (
        {"margin": 0.03, "ratio": 0.97, "slower": True},
        "slower: the interval rules out a gain of 3% or more",
    ),
    ReasonCode.BEHIND: ({"better": "eagle", "ratio": 1.22, "count": 8}, "eagle is 1.22x as fast on the same 8 prompts"),
    ReasonCode.MEASURES_DISAGREE: ({"better": ("a", "b"), "worse": ("c",)}, "a and b better, c worse"),
    ReasonCode.MAY_BE_CHANCE: ({"p": 0.204}, "among all comparisons of the run it may be chance (p 0.2);"),
    ReasonCode.NOT_TRUSTED: (
        {"gains": False, "promise": False, "code": "same-server"},
        "slower, but the measurement is in doubt: same-server",
    ),
    ReasonCode.GAIN: ({"promise": False, "margin": 0.03}, "faster, with the whole interval above 1.03"),
    ReasonCode.LOSS: ({"promise": True, "margin": 0.03}, "fewer requests within the SLO, with the whole interval"),
    ReasonCode.GAIN_WITH_DAMAGE: ({"promise": True}, "more requests within the SLO overall, but"),
    ReasonCode.MIXED_WORKLOAD: (
        {"half": 0.8, "share": 0.3},
        "0.80x the baseline's, but 30% of the requests are slower",
    ),
    ReasonCode.SLOW_TAIL: ({"share": 0.3}, "30% of the requests are slower than 1.1 times the baseline's P90"),
    ReasonCode.LATE_FIRST_TOKEN: ({"ratio": 3.0}, "the first token takes 3.00x as long"),
    ReasonCode.LATE_FIRST_TOKENS_TAIL: ({"ratio": 2.0}, "P99 of the time to the first token is 2.00x the baseline's"),
    ReasonCode.ANSWERS_NOT_FASTER: ({}, "the server outputs more, but the time per token"),
    ReasonCode.LONG_ANSWERS: ({"ratio": 0.78}, "whose tokens per second are 0.78x: long and short answers"),
    ReasonCode.EQUAL: ({"margin": 0.03}, "equal within 3%: no difference of practical size"),
    ReasonCode.OPEN: (
        {"margin": 0.03, "detectable": 1.2, "prompts": 0, "repetitions": 9, "done": 3, "can_repeat": True},
        "a gain of 1.20x would have been found 8 times in 10; 9 repetitions instead of 3 would settle it",
    ),
}


@pytest.mark.parametrize("code", ReasonCode)
def test_every_code_has_its_words(code: ReasonCode) -> None:
    values, words = GIVEN[code]
    assert words in describe_reason(Reason(code=code, values=values))


def test_damage_losers_and_prompts_follow_in_this_order() -> None:
    damage = Reason(code=ReasonCode.SLOW_TAIL, values={"share": 0.3})
    gain = Reason(
        code=ReasonCode.GAIN_WITH_DAMAGE, values={"promise": False}, detail=damage, losers="prose 0.8x", num_prompts=8
    )
    assert describe_reason(gain) == (
        "faster overall, but 30% of the requests are slower than 1.1 times the baseline's P90 (prose 0.8x) (8 prompts)"
    )


def test_a_server_slow_in_all_it_does_is_not_said_to_begin_late() -> None:
    values = {"arm": "plain", "step": None, "first": 1.5, "alike": True}
    words = describe_reason(Reason(code=ReasonCode.SLOW_SERVER, values=values))
    assert words.startswith("the first token of plain takes 1.5x as long as well")


def test_what_was_not_judged_has_no_reason() -> None:
    assert describe_reason(None) == ""
