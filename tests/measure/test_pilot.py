"""A look at outputs before the run: the baseline tells how long they are, each server how fast it writes other ones."""

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import replace

from tests.support import virtual_time
from tests.support.fake_server import FakeBackend, FakeScript
from tests.support.measuring import FASTER, PLAIN, make_plan, make_workload

from draftwise.core import RunPlan, Silent
from draftwise.measure.pilot import Pilot, look_at_lengths, look_at_paces
from draftwise.measure.readiness import make_greeting
from draftwise.measure.roster import Roster

PLAN = make_plan(workloads=(make_workload("code", 20), make_workload("prose", 3)))


async def gather(plan: RunPlan, *scripts: FakeScript) -> Roster:
    backends = [FakeBackend(arm.name, script) for arm, script in zip(plan.arms, scripts, strict=True)]
    roster = Roster(backends=backends, progress=Silent())
    await roster.start(backends, ends_at=math.inf)
    await roster.greet(backends, make_greeting(plan), salt="a")
    return roster


def find_lengths(plan: RunPlan, seconds: float = math.inf) -> dict[tuple[str, str], int]:
    async def look() -> dict[tuple[str, str], int]:
        roster = await gather(plan, PLAIN, FASTER)
        ends_at = asyncio.get_running_loop().time() + seconds
        return await look_at_lengths(roster, plan, ends_at=ends_at, progress=Silent())

    return virtual_time.run(look())


def test_the_first_prompts_of_all_workloads_are_asked_at_once_while_there_is_time() -> None:
    """Answers of the fake are as long as they may be."""
    whole = {(each.name, prompt.id): prompt.max_tokens for each in PLAN.workloads for prompt in each.prompts}
    assert find_lengths(PLAN) == whole
    first = [*(("code", f"code-{i}") for i in range(13)), *(("prose", f"prose-{i}") for i in range(3))]
    assert sorted(find_lengths(PLAN, 0.1)) == sorted(first)
    assert find_lengths(PLAN, 0.0) == {}


def test_a_cache_of_answers_cannot_know_a_prompt_from_the_look() -> None:
    async def look() -> set[str]:
        roster = await gather(PLAN, PLAIN, FASTER)
        await look_at_lengths(roster, PLAN, ends_at=math.inf, progress=Silent())
        return set(roster.backends[0].engine._seen)

    seen = virtual_time.run(look())
    assert len(seen) > 20
    assert not seen & {json.dumps(prompt.text) for each in PLAN.workloads for prompt in each.prompts}


def test_answers_that_are_as_long_as_was_recorded_need_no_look() -> None:
    code, prose = PLAN.workloads
    forced = replace(code, prompts=tuple(replace(each, ignore_eos=True) for each in code.prompts))
    assert {name for name, _ in find_lengths(replace(PLAN, workloads=(forced, prose)))} == {"prose"}


def test_every_server_is_asked_other_prompts_and_none_that_it_could_remember() -> None:
    plan = replace(PLAN, remembering={"candidate 1": "it could"})
    spared = {"code": make_workload("spare", 2).prompts}

    async def look() -> tuple[Roster, Mapping[tuple[str, str], Pilot]]:
        roster = await gather(plan, PLAIN, FASTER)
        for backend in roster.backends:
            backend.engine._seen.clear()
        return roster, await look_at_paces(roster, roster.backends, plan, spared, ends_at=math.inf, progress=Silent())

    roster, found = virtual_time.run(look())
    assert {place: len(pilot.firsts_s) for place, pilot in found.items()} == {
        ("plain", "code"): 2,
        ("plain", "prose"): 2,
        ("candidate 1", "code"): 2,
    }
    plain, candidate = (list(backend.engine._seen) for backend in roster.backends)
    assert len(plain) == 4
    assert all("spare" in prompt for prompt in candidate)
    assert not any("spare" in prompt for prompt in plain)
