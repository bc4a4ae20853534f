"""Rules on whether accepted drafts pay: break-even, crossover, the cost of a step, the plain pool."""

from __future__ import annotations

from dataclasses import replace
from math import log

from draftwise.core import Window
from draftwise.knowledge.findings import all_findings
from draftwise.knowledge.messages import text_of
from draftwise.watching.diagnose.pool_case import (
    MIN_DRAFTS,
    MIN_REQUESTS,
    SIGMAS,
    DiagnosisRule,
    PoolCase,
    RuleMatch,
    count_verified,
    differ_in_prompts,
    find_losses,
    is_less,
    is_same_load,
    relative_error,
    sampling_error,
    tell,
)

_STEP_UP = 0.12
"""Relevant log difference, about a share: curves have errors of a few percent, and traffic differs from the run's."""
_ALIKE = 0.12
_OF_MACHINE = frozenset({"machine-slower", "cpu-starved", "prefill-crowds-steps"})
_OF_SPECULATION = frozenset(
    {"async-off", "beyond-graphs", "schedule-piecewise", "drafter-eager", "cpu-proposer", "runner-changed", "serial-tp"}
)
"""Causes of longer steps that a plain pool cannot have."""
_PAST_CROSSOVER = 1.05
_MOSTLY_RUNNING = 0.8
"""Share of the crossover that counts as above it: waiting requests cost no verification."""
_MORE_WORK = 1.5
"""Ratio of prompt tokens above which steps hold more of them, and of requests above which a router favors a server."""
_ALL_PREFILL = 0.95
"""Largest share of a server's time: prefills that wait for each other add up to more."""
_SLOWER = 0.04
_FEWEST_STEPS = 8
"""Minimum number of decoding steps of an answer for its last one not to matter."""


def _times_tell(window: Window) -> bool:
    return (window.sums.finished or 0.0) >= 2 * MIN_REQUESTS


def _find_below_break_even(case: PoolCase) -> RuleMatch | None:
    tokens = case.window.tokens_per_decode_step or case.window.tokens_per_step
    even = case.expected.yardstick.break_even
    if tokens is None or even is None or count_verified(case.window) < MIN_DRAFTS or case.gains:
        return None
    if not is_less(tokens, even, by=0.0, error=sampling_error(case.window)):
        return None
    return RuleMatch(
        message=f"A step gives {tokens:.2f} tokens. Below {even:.2f}, speculation is slower than plain decoding.",
        evidence=(tell("tokens per step", tokens, even, of="break-even"),),
        loss=log(even / tokens),
    )


def _find_above_crossover(case: PoolCase) -> RuleMatch | None:
    load, crossover = case.window.load, case.expected.yardstick.crossover
    if load.running is None or crossover is None:
        return None
    running, waiting = (each / len(case.replicas) for each in (load.running, load.waiting or 0.0))
    in_flight, where, fix = running + waiting, "", ""
    loads = {name: (each.load.running or 0.0, each.load.waiting or 0.0) for name, each in case.replicas.items()}
    if in_flight <= _PAST_CROSSOVER * crossover or running < _MOSTLY_RUNNING * crossover:
        where = max(loads, key=lambda name: loads[name])
        rates = {name: each.finished_per_s or 0.0 for name, each in case.replicas.items()}
        if rates.pop(where) <= _MORE_WORK * max(rates.values(), default=0.0):
            return None  # as many requests as elsewhere, which stay longer: its illness is another one
        running, in_flight = loads[where][0], sum(loads[where])
        fix = "Spread the requests evenly over the replicas: check the router's balance."
    if in_flight <= _PAST_CROSSOVER * crossover or running < _MOSTLY_RUNNING * crossover:
        return None
    over = [name for name, each in loads.items() if sum(each) > _PAST_CROSSOVER * crossover]
    if len(over) == 1 < len(loads):
        where, in_flight = over[0], sum(loads[over[0]])
    heaviest, batch = case.expected.yardstick.heaviest, case.window.batch
    beyond = []
    if heaviest is not None and batch is not None and batch > heaviest:
        beyond.append(
            f"only steps with up to {heaviest:g} running requests were measured, so it is unknown whether these "
            "are slower"
        )
    return RuleMatch(
        message=(
            f"{where or 'A server'} has {in_flight:.0f} requests in flight; speculation pays up to {crossover:.0f}."
        ),
        evidence=(tell("in flight", in_flight, crossover, of="crossover"), *beyond),
        loss=find_losses(case).load,
        where=where,
        fix=fix,
    )


def _find_step_cost_up(case: PoolCase) -> RuleMatch | None:
    ratio = _step_up(case.window, case)
    if ratio is None or not case.window.counters.spec.num_drafts:
        return None
    says = f"A step takes {ratio:.2f} times as long as "
    has_curve = case.expected.yardstick.heaviest is not None
    says += f"measured at {case.window.batch:.0f} running requests" if has_curve else "before, at a similar load"
    plain, evidence = case.comparable, [_tell_step(case.window, case)]
    in_plain = None if plain is None else case.expected.yardstick.step_ratio(plain, plain=True)
    if plain is None or in_plain is None or not _times_tell(plain):
        return RuleMatch(message=f"{says}.", evidence=tuple(evidence), loss=log(ratio))
    computed, in_plain_pool = _prefill_share(case.window), _prefill_share(plain)
    explained = log(ratio / in_plain) <= _explain_by_prefill(case.window, plain) + _STEP_UP
    if computed and in_plain_pool and computed >= _MORE_WORK * in_plain_pool and explained:
        return None  # the lost prefixes are the cause, and a finding of their own
    evidence.append(f"plain: {_tell_step(plain, case, plain=True)}")
    if abs(log(ratio / in_plain)) <= _ALIKE:
        return RuleMatch(
            message=f"{says}, and {in_plain:.2f} times in the plain pool. Both pools share the cause.",
            evidence=tuple(evidence),
            loss=log(ratio),
            fix=text_of("step-cost-machine"),
            excludes=_OF_SPECULATION,
        )
    return RuleMatch(
        message=f"{says}, but only {in_plain:.2f} times in the plain pool. The difference comes from speculation.",
        evidence=tuple(evidence),
        loss=log(ratio),
        fix=text_of("step-cost-config"),
        excludes=_OF_MACHINE,
    )


def _find_beyond_graphs(case: PoolCase) -> RuleMatch | None:
    found, row = _find_step_cost_up(case), all_findings()["beyond-graphs"].diagnosis
    if found is None or row is None:
        return None
    largest, batch = case.asked.largest_graph, case.window.batch
    if largest is None or batch is None or case.k is None:
        proof = case.asked.find_proof(row)
    elif (tokens := batch * (case.k + 1)) > largest:
        proof = f"a step of {batch:.0f} requests has {tokens:.0f} tokens, and the largest graph {largest:.0f}"
    else:
        proof = case.asked.find_ruling(("graph-holes",))
    if proof is None:
        return None
    title = all_findings()["beyond-graphs"].title
    return replace(found, message=f"{title}. {found.message}", evidence=(proof, *found.evidence))


def _find_machine_slower(case: PoolCase) -> RuleMatch | None:
    if case.plain is None or case.comparable is None:
        return None
    mine, theirs = _step_up(case.window, case), _step_up(case.plain, case, plain=True)
    if mine is None or theirs is None or abs(log(mine / theirs)) > _ALIKE or not _is_same_work(case):
        return None
    return RuleMatch(
        message=text_of("machine-slower", mine=mine, theirs=theirs),
        evidence=(_tell_step(case.window, case), f"plain: {_tell_step(case.plain, case, plain=True)}"),
        loss=log(min(mine, theirs)),
    )


def _find_prefill_crowds(case: PoolCase) -> RuleMatch | None:
    ratio, now = _step_up(case.window, case), _prefill_share(case.window)
    then = None if case.expected.earlier is None else _prefill_share(case.expected.earlier)
    if ratio is None or now is None or then is None or now < _MORE_WORK * then:
        return None
    in_plain = None if case.comparable is None else _step_up(case.comparable, case, plain=True)
    if (
        in_plain is None
        and log(ratio) > _explain_by_prefill(case.window, case.expected.earlier or case.window) + _STEP_UP
    ):
        return None
    return RuleMatch(
        message=text_of("prefill-crowds", ratio=ratio, now=now, then=then),
        evidence=(_tell_step(case.window, case), tell("computed prompt tokens per output token", now, then)),
        loss=log(ratio),
    )


def _find_plain_slower(case: PoolCase) -> RuleMatch | None:
    plain = case.comparable
    theirs = None if plain is None else _step_up(plain, case, plain=True)
    mine = case.expected.yardstick.step_ratio(case.window)
    if plain is None or theirs is None or mine is None or log(theirs / mine) <= _ALIKE or not _times_tell(case.window):
        return None
    return RuleMatch(
        message=text_of("plain-slower", theirs=theirs, mine=mine),
        evidence=(_tell_step(plain, case, plain=True),),
        loss=0.0,
    )


def _find_slower_than_plain(case: PoolCase) -> RuleMatch | None:
    window, plain = case.window, case.comparable
    if plain is None or not _times_tell(window) or not _times_tell(plain) or not is_same_load(window, plain):
        return None
    error = relative_error(window, plain)
    if not is_less(plain.seconds_per_token, window.seconds_per_token, by=_SLOWER, error=error):
        return None
    mine, theirs = window.seconds_per_token, plain.seconds_per_token
    assert mine is not None
    assert theirs is not None
    return RuleMatch(
        message=f"A token takes {1000 * mine:.3g} ms, but {1000 * theirs:.3g} ms in the plain pool.",
        evidence=(tell("ms per token", 1000 * mine, 1000 * theirs, of="plain"),),
        loss=log(mine / theirs),
    )


def _step_up(window: Window, case: PoolCase, *, plain: bool = False) -> float | None:
    """Return how much longer a step takes than measured; None where it does not, or too little is known."""
    ratio, earlier = case.expected.yardstick.step_ratio(window, plain=plain), case.expected.earlier
    if window is case.window and ratio is not None:  # a mean of unlike loads is no load
        by_engine = _hold_engines(case)
        ratio = None if by_engine is None else min(ratio, by_engine)
    if earlier is not None and not plain and case.expected.yardstick.heaviest is None:
        ratio = _hold_against(window, earlier)
    if ratio is None or not _times_tell(window) or _stops_early(window) or window.burst is not None:
        return None
    if earlier is not None and not plain and _times_tell(earlier):
        ratio /= max(1.0, case.expected.yardstick.step_ratio(earlier) or 1.0)  # traffic that no curve was measured with
    return ratio if log(ratio) > max(_STEP_UP, SIGMAS * relative_error(window) / 2) else None


def _hold_engines(case: PoolCase) -> float | None:
    """Return the same for engines that each have a load of their own, weighted by their tokens."""
    known = [(each.output_tokens or 0, case.expected.yardstick.step_s(each.batch)) for each in case.windows]
    total = sum(tokens * step_s for tokens, step_s in known if step_s is not None)
    told = all(step_s is not None for tokens, step_s in known if tokens)
    step_s = case.window.step_s
    return step_s * sum(tokens for tokens, _ in known) / total if total and told and step_s is not None else None


def _hold_against(window: Window, earlier: Window) -> float | None:
    """Return how much longer a step takes than under the same load and requests before; None where these differ."""
    now, then = window.step_s, earlier.step_s
    alike = is_same_load(window, earlier) and not differ_in_prompts(window, earlier, computed=True)
    drafted = [None if each.mean_k is None else round(each.mean_k) for each in (window, earlier)]
    return now / then if now and then and alike and drafted[0] == drafted[1] and _times_tell(earlier) else None


def _stops_early(window: Window) -> bool:
    """Return whether answers have so few steps that the end of the last draft, accepted and cut off, counts."""
    steps, first = window.sequence_steps, window.sums.first_tokens
    return bool(steps and first and steps < (1 + _FEWEST_STEPS) * first)


def _is_same_work(case: PoolCase) -> bool:
    """Return whether requests are as they were, so that their contexts and prefill do not explain longer steps."""
    now, earlier = case.window, case.expected.earlier
    if earlier is None:
        return False
    pairs = ((now.mean_prompt_tokens, earlier.mean_prompt_tokens), (_prefill_share(now), _prefill_share(earlier)))
    return all(here is not None and there is not None and here < _MORE_WORK * there for here, there in pairs)


def _prefill_share(window: Window) -> float | None:
    """Return the prompt tokens that are computed for each output token."""
    prompt, output, hits = window.mean_prompt_tokens, window.mean_output_tokens, window.prefix_hit_rate
    return prompt * (1 - hits) / output if prompt and output and hits is not None else None


def _explain_by_prefill(now: Window, then: Window) -> float:
    """Return the most by which prefill can have lengthened decoding steps, as a logarithm, given the time it takes."""
    left = [
        1 - min(_ALL_PREFILL, (each.sums.prefill_s or 0.0) / (each.duration_s * each.engines))
        for each in (now, then)
        if each.duration_s
    ]
    return log(left[-1] / left[0]) if left else 0.0


def _tell_step(window: Window, case: PoolCase, *, plain: bool = False) -> str:
    expected = case.expected.yardstick.step_s(window.batch, plain=plain)
    now = window.step_s
    return tell("ms per step", now and 1000 * now, expected and 1000 * expected, of="measured")


RULES = (
    DiagnosisRule("fell-below-break-even", _find_below_break_even, certainty=0.9),
    DiagnosisRule("above-crossover", _find_above_crossover),
    DiagnosisRule("step-cost-up", _find_step_cost_up),
    DiagnosisRule("beyond-graphs", _find_beyond_graphs),
    DiagnosisRule("machine-slower", _find_machine_slower),
    DiagnosisRule("prefill-crowds-steps", _find_prefill_crowds),
    DiagnosisRule("plain-slower", _find_plain_slower),
    DiagnosisRule("slower-than-plain", _find_slower_than_plain, certainty=0.9),
)
