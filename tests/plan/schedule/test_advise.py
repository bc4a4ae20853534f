"""What to draft, and whether a release makes a schedule worth it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.support.made_calibrations import NGRAM, make_calibration, make_profile

from draftwise.core import InvalidSetup, SpecConfig
from draftwise.plan.schedule.draft_lengths import KEY
from draftwise.plan.schedule.length_advice import FORMATS, LengthAdvice, advise_lengths, emit

BATCHES = (1, 4, 16, 64, 128)


def advise(name: str, version: str, length: float = 2.2) -> LengthAdvice:
    found = advise_lengths(make_profile(length=length), make_calibration(), batches=BATCHES, version=version)
    return next(each for each in found if each.setting.name == name)


def test_the_best_fixed_k_comes_first_and_is_the_same_on_every_release() -> None:
    advice = [advise("eagle3", version) for version in ("0.26.0", "0.32.0")]
    assert len({each.choice.fixed_k for each in advice}) == 1
    assert advice[0].fixed.num_speculative_tokens == advice[0].choice.fixed_k
    assert advice[0].choice.fixed_speedup > 1.3


def test_the_longest_draft_that_was_calibrated_can_be_the_best_and_none_beyond_it() -> None:
    """Nearly everything is accepted, so that longer is better; steps of more than 5 tokens were not calibrated."""
    profile = make_profile(replace(NGRAM, num_speculative_tokens=8), length=3.9)
    (advice,) = advise_lengths(profile, make_calibration(), batches=(1,), version="0.32.0")
    assert advice.choice.fixed_k == NGRAM.num_speculative_tokens == 5


def test_a_schedule_that_a_release_would_not_start_with_is_not_written() -> None:
    """0.26.0 fails to capture the graphs of a chained drafter that a schedule lets draft less (measured on an H200)."""
    advice = advise("eagle3", "0.26.0", length=1.7)
    assert advice.ideal_gain > 1
    assert advice.judged is not None
    assert not advice.judged.is_honoured
    assert advice.scheduled is None


def test_the_v1_runner_gets_no_schedule_as_it_loses_its_graphs() -> None:
    advice = advise("ngram", "0.26.0")
    assert advice.choice.is_schedule_worth_it
    assert advice.judged is not None
    assert not advice.judged.acts_as_written
    assert advice.scheduled is None


def test_a_release_that_follows_it_gets_a_schedule_that_pays() -> None:
    advice = advise("ngram", "0.32.0")
    assert advice.scheduled is not None
    ranges = advice.scheduled.options[KEY]
    assert ranges[0][0] == 1
    assert ranges[-1][1] == BATCHES[-1]
    assert advice.choice.schedule_gain >= 1.02
    assert advice.scheduled.num_speculative_tokens == ranges[0][2]


def test_nothing_in_common_is_said() -> None:
    other = SpecConfig(method="suffix", num_speculative_tokens=8)
    with pytest.raises(InvalidSetup, match="No candidate is both"):
        advise_lengths(make_profile(other), make_calibration(), batches=BATCHES)


RANGES = ((1, 8, 4), (9, 32, 2), (33, 64, 0))


def test_vllm_and_our_engine_read_ranges_in_their_config() -> None:
    written = json.loads(emit("vllm", NGRAM, RANGES))
    assert written[KEY] == [[1, 8, 4], [9, 32, 2], [33, 64, 0]]
    assert written["num_speculative_tokens"] == 4
    assert written["method"] == "ngram"


def test_sglang_reads_tiers_by_their_first_batch_size_and_always_drafts() -> None:
    written = json.loads(emit("sglang", NGRAM, RANGES))
    assert written == {
        "1": {"candidate_steps": [4]},
        "9": {"candidate_steps": [2]},
        "33": {"candidate_steps": [1]},
    }


def test_both_meanings_of_tensorrt_llm_describe_the_same_schedule() -> None:
    assert json.loads(emit("trtllm-up-to", NGRAM, RANGES)) == {"8": 4, "32": 2, "64": 0}
    assert json.loads(emit("trtllm-from", NGRAM, RANGES)) == {"1": 4, "9": 2, "33": 0}


@pytest.mark.parametrize("form", FORMATS)
def test_every_form_is_json(form: str) -> None:
    assert json.loads(emit(form, NGRAM, RANGES))
