"""Whatever a run lost (turns, answers, whole arms), a decision comes out of it, and JSON that any script reads."""

import json
import random
from dataclasses import replace

import pytest
from tests.support.made_runs import CONTEXT, Truth, arm, closed, gains, make_run, workload

from draftwise.core import Answer, Arm, Condition, OpenLoop, Run
from draftwise.core.documents import to_json
from draftwise.deciding.conclusions import conclude_run
from draftwise.reporting.sentences import describe_decision
from draftwise.reporting.summary import summarise

LOADS = [*closed(1, 2, 4), *closed(1, 4, temperature=0.7), Condition(load=OpenLoop.steady(2.0))]
PROMISES = [{}, {"slo_ttft_s": 0.05}, {"slo_e2e_s": 0.2, "slo_tpot_s": 0.01}]


def damaged_run(seed: int) -> Run:
    """Return a run of random size that lost a random part of its turns and of its answers."""
    chance = random.Random(seed)
    kept, failed = chance.choice([1.0, 0.8, 0.3]), chance.choice([0.0, 0.1, 0.6, 1.0])
    noise = chance.choice([0.0, 0.02])
    truths = {
        "plain": Truth(noise=noise),
        "ngram k=3": replace(gains(chance.choice([0.5, 1, 1.5])), noise=noise),
        "ngram k=5": replace(gains(1.3, accepted=2, k=5), noise=noise),
    }
    run = make_run(
        truths,
        arms=[Arm(name="plain"), arm(3), arm(5)][: chance.randint(2, 3)],
        workloads=[workload(name, chance.choice([1, 2, 9]), chance.choice([1, 2, 20])) for name in ("code", "chat")],
        conditions=chance.sample(LOADS, 2),
        repeats=chance.randint(1, 3),
        seed=seed,
        keep=lambda turn: chance.random() < kept,
        context={**CONTEXT, "thresholds": chance.choice(PROMISES)},
    )

    def damage(answer: Answer) -> Answer:
        if chance.random() < failed:
            return replace(answer, error="broke", timing=replace(answer.timing, chunks=()))
        return replace(answer, measured=chance.random() > 0.05, counts_exact=chance.random() > 0.02)

    answers = tuple(map(damage, run.answers))
    return replace(run, answers=answers, plan=replace(run.plan, adaptive=chance.random() < 0.5))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", range(16))
def test_a_decision_comes_out_of_every_damaged_run(seed: int) -> None:
    found = conclude_run(damaged_run(seed))
    assert json.loads(json.dumps(to_json(summarise(found)), allow_nan=False))["decision"] == describe_decision(
        found.decision
    )
    adopted = [each for each in found.decision.comparisons if each.verdict == "adopt"]
    assert all(each.num_prompts >= 6 and each.speedup.value > 1 for each in adopted)
