"""What a probe's answers say: no cause, another drafter, other texts, or steps that cannot be counted."""

from dataclasses import replace
from hashlib import sha256
from math import exp

import numpy as np
import pytest
from tests.support.watched import make_baseline

from draftwise.backends import ServerInfo
from draftwise.backends.backend import ServerProbe
from draftwise.core import Answer, Counters, InvalidSetup, ProbeAnswer, SpecStats, Timing, Window
from draftwise.watching.fingerprint import (
    AS_SERVED,
    compare_probe,
    find_null,
    judge_probe,
    record_baseline,
    take_answers,
)

PROMPTS = 24


def draw(rng: np.random.Generator, acceptance: float, num_prompts: int = PROMPTS) -> list[ProbeAnswer]:
    """Return answers of 64 tokens in as many steps as a drafter of three tokens needs."""
    answers = []
    for index in range(num_prompts):
        steps, tokens = 1, 1
        while tokens < 64:
            accepted = next((i for i in range(3) if rng.random() > acceptance), 3)
            tokens, steps = tokens + 1 + accepted, steps + 1
        digest = sha256(str(index).encode()).hexdigest()
        answers.append(ProbeAnswer(prompt_id=f"code/{index}", num_tokens=64, num_steps=steps, text_sha256=digest))
    return answers


def disturb(answers: list[ProbeAnswer], count: int, by: int = 1) -> list[ProbeAnswer]:
    return [
        replace(answer, num_steps=answer.num_steps + by) if index < count else answer
        for index, answer in enumerate(answers)
    ]


GOOD = draw(np.random.default_rng(0), 0.6)
REPEATS = [GOOD, disturb(GOOD, 1), GOOD, GOOD]
BASELINE = [answer for each in REPEATS for answer in each]


def test_the_null_is_the_most_that_two_repeats_differ() -> None:
    assert find_null(REPEATS) == pytest.approx(1 / PROMPTS)
    assert find_null([GOOD]) is None


@pytest.mark.parametrize("changed", [0, 1, 2, 3])
def test_what_changes_without_a_cause_is_no_change(changed: int) -> None:
    found = compare_probe(disturb(GOOD, changed), BASELINE, find_null(REPEATS))
    assert found.differs is False
    assert found.num_comparable == PROMPTS


def test_a_drafter_that_is_hardly_worse_is_seen_by_its_steps() -> None:
    found = compare_probe(disturb(GOOD, 19), BASELINE, find_null(REPEATS))
    assert found.differs is True
    assert found.num_changed == 18  # the baseline saw the first prompt take a step more, too
    assert "18 of 24 prompts take other steps (1 without a cause)" in found.summary


def test_a_fall_by_a_tenth_is_told_with_its_size() -> None:
    worse = [replace(answer, num_steps=round(answer.num_steps * 1.1)) for answer in GOOD]
    found = compare_probe(worse, BASELINE, 0.5)
    assert found.differs is True
    assert found.change is not None
    assert exp(found.change) == pytest.approx(0.9, abs=0.02)


def test_answers_with_another_text_decide_nothing() -> None:
    other = [replace(answer, text_sha256="f" * 64, num_steps=64) for answer in GOOD]
    found = compare_probe(other, BASELINE, find_null(REPEATS))
    assert found.differs is None
    assert "24 have another text" in found.summary
    few = compare_probe([*other[:18], *disturb(GOOD[18:], 6)], BASELINE, find_null(REPEATS))
    assert few.differs is None


def test_of_one_repeat_the_null_is_not_known_and_steps_decide_nothing() -> None:
    assert compare_probe(disturb(GOOD, 24, by=0), GOOD, None).differs is False
    assert compare_probe(disturb(GOOD, 24, by=1), GOOD, None).null == 1.0


def test_only_prompts_that_both_were_asked_are_compared() -> None:
    assert compare_probe(GOOD[:10], BASELINE, 0.0).num_prompts == 10


def test_false_alarms_and_power_are_as_promised() -> None:
    """At a share of 2 % that changes by itself, and a drafter that fell by a tenth."""
    rng = np.random.default_rng(1)
    false = sum(compare_probe(disturb(GOOD, rng.binomial(PROMPTS, 0.02)), BASELINE, 0.02).differs is True
                for _ in range(400))  # fmt: skip
    assert false <= 4
    found = sum(compare_probe(draw(rng, 0.54), BASELINE, 0.02).differs is True for _ in range(100))
    assert found >= 95


def answer(chunks: int, tokens: int = 64, *, acceptance: tuple[int, ...] = (), exact: bool = True) -> Answer:
    sizes = [tokens // chunks + (index < tokens % chunks) for index in range(chunks)]
    timing = Timing(sent=0.0, chunks=tuple((0.1 * index, size) for index, size in enumerate(sizes)), finished=9.0)
    return Answer(turn=0, arm="a", workload="code", prompt_id="1", repeat=1, timing=timing, acceptance=acceptance,
                  text="hello", counts_exact=exact)  # fmt: skip


def probed(*answers: Answer, generated: int | None = None, accepted: int = 0) -> ServerProbe:
    growth = Counters(spec=SpecStats(num_accepted_tokens=accepted), generation_tokens=generated)
    return ServerProbe(info=ServerInfo(model="m"), answers=answers, growth=growth, counts_drafts=True)


def test_a_chunk_is_a_step_where_the_counters_agree() -> None:
    (taken,) = take_answers(probed(answer(30), generated=64, accepted=34))
    assert (taken.prompt_id, taken.num_tokens, taken.num_steps) == ("code/1", 64, 30)
    assert taken.text_sha256 == sha256(b"hello").hexdigest()


def test_chunks_of_several_steps_are_not_taken_for_one() -> None:
    # --stream-interval 10: 7 chunks, and 30 steps by the server's own count.
    assert take_answers(probed(answer(7), generated=64, accepted=34)) == ()
    # Beside other clients the counters cannot tell.
    assert take_answers(probed(answer(7), generated=500, accepted=34)) != ()


def test_the_steps_that_a_server_tells_of_a_request_come_first() -> None:
    (taken,) = take_answers(probed(answer(7, acceptance=(12, 6, 5, 6)), generated=500))
    assert taken.num_steps == 30  # 29 with a draft emit 63 tokens, and prefill the first one


def test_answers_whose_tokens_nobody_counted_have_no_steps() -> None:
    assert take_answers(probed(answer(30, exact=False))) == ()


def test_a_probe_becomes_a_finding() -> None:
    one = take_answers(probed(*[replace(answer(30), prompt_id=str(n)) for n in range(12)], generated=None))
    baseline = make_baseline(probe=one * 3, probe_null=0.0)
    for chunks, code in ((30, "probe-same"), (33, "probe-differs")):
        now = probed(*[replace(answer(chunks), prompt_id=str(n)) for n in range(12)], generated=None)
        finding, found = judge_probe(now, baseline, where="http://a")
        assert finding.code == code
        assert found is not None
        assert found.alone is None
    undecided, found = judge_probe(probed(answer(30, exact=False)), baseline, where="http://a")
    assert (undecided.code, found) == ("probe-undecided", None)
    for others in (0, 50):
        now = probed(*[replace(answer(30), prompt_id=str(n)) for n in range(12)], generated=12 * 64 + others,
                     accepted=12 * 34)  # fmt: skip
        finding, found = judge_probe(now, baseline, where="a")
        assert ("Other clients received 50 tokens meanwhile" in finding.message) == bool(others)
        assert found is not None
        assert found.alone is not bool(others)


def test_a_service_without_a_run_gets_a_baseline_of_what_is_seen() -> None:
    spec = SpecStats(num_drafts=2000, num_draft_tokens=6000, num_accepted_tokens=1800)
    window = Window(pool="spec", instance="a", start_s=0.0, duration_s=60.0,
                    counters=Counters(spec=spec, generation_tokens=3800))  # fmt: skip
    made = record_baseline(window, REPEATS)
    assert made.expected is not None
    assert made.expected.workload == AS_SERVED
    assert made.expected.counters.tokens_per_step == pytest.approx(1.9)
    assert made.probe_null == pytest.approx(1 / PROMPTS)
    assert len(made.probe) == 4 * PROMPTS
    assert made.rollback == ()
    assert made.seen == replace(window, instance="")
    assert type(made).from_json(made.to_json(), where="x") == made
    (told,) = made.missing
    assert "break-even" in told
    assert len(record_baseline(None, REPEATS).missing) == 2


def test_what_a_run_measured_stays_when_a_probe_is_recorded() -> None:
    known = make_baseline()
    made = record_baseline(None, REPEATS, known)
    assert (made.expected, made.rollback, made.missing) == (known.expected, known.rollback, known.missing)
    assert made.seen is None
    assert compare_probe(GOOD, made.probe, made.probe_null).differs is False


def test_steps_that_cannot_be_counted_are_not_recorded() -> None:
    with pytest.raises(InvalidSetup, match="cannot be counted"):
        record_baseline(None, [GOOD, ()])
