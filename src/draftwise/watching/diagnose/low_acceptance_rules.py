"""Rules on low acceptance: overall, by position, by replica, and compared with a good time."""

from __future__ import annotations

from dataclasses import replace
from math import log
from statistics import median

from draftwise.core import Window
from draftwise.core.window import LONGEST
from draftwise.knowledge.findings import all_findings
from draftwise.knowledge.messages import text_of
from draftwise.knowledge.methods import all_methods, find_method
from draftwise.watching.diagnose.outliers import describe_outlier, find_outliers
from draftwise.watching.diagnose.pool_case import (
    COLD_S,
    MIN_DRAFTS,
    MIN_REQUESTS,
    MUCH_LONGER,
    NOISE,
    DiagnosisRule,
    PoolCase,
    RuleMatch,
    count_drafted,
    count_requests,
    count_verified,
    draft_error,
    find_losses,
    is_less,
    tell,
)

_FEW = 0.01
"""Share of draft tokens, for servers that do not count them by position."""
_SLIPS = 0.005
"""Accepted tokens of a draft that are as good as none, however few requests they are of."""
_SURELY_LOW = 0.5
"""Share of the least published acceptance, below which that of an unknown method is low."""
_PERFECT = 0.98
_FELL = 0.08
"""Smallest relevant change of the acceptance length, as a share."""
_OUTLIER = 0.25
_OUTLIER_DRAFTS = 1000
_SHORT = 0.8
"""Share of the other servers' draft tokens below which a server's drafts are cut."""
_DEAD = 0.25
"""Share of the other ranks' accepted tokens, by gauges of a few steps each."""
_OLDER = 5.0
"""Multiple of the other replicas' age."""
_AS_BEFORE = 0.07
_TAIL_FELL = 0.2


def _accepts_little(case: PoolCase) -> bool:
    """Return whether there are drafts enough to say that next to nothing of them is accepted."""
    stats = case.window.counters.spec
    drafts = stats.num_drafts or stats.num_draft_tokens // LONGEST
    return drafts >= MIN_DRAFTS and count_requests(case.window) >= MIN_REQUESTS


def _accepts_all(window: Window) -> bool:
    stats = window.counters.spec
    enough = stats.num_drafts >= MIN_DRAFTS and count_requests(window) >= MIN_REQUESTS
    return enough and stats.num_accepted_tokens > _PERFECT * stats.num_draft_tokens > 0


def _find_zero_acceptance(case: PoolCase) -> RuleMatch | None:
    stats, rates = case.window.counters.spec, case.window.rate_per_pos
    # Hundreds of drafts of which nothing is accepted are no accident, however few requests they are of.
    drafts = stats.num_drafts or stats.num_draft_tokens // LONGEST or count_verified(case.window)
    nothing = drafts >= MIN_DRAFTS and stats.num_accepted_tokens <= _SLIPS * drafts and case.window.tells_acceptance
    most = _FEW * stats.num_draft_tokens or NOISE * drafts  # what all positions accept, the first one included
    few = rates[0] < NOISE if rates else stats.num_accepted_tokens < most
    if not nothing and not (few and drafts >= MIN_DRAFTS and count_requests(case.window) >= MIN_REQUESTS):
        return None
    return RuleMatch(
        message=(
            text_of("zero-acceptance", num_drafts=stats.num_drafts, accepted=stats.num_accepted_tokens or "none")
            if stats.num_drafts
            else text_of(
                "zero-acceptance-tokens",
                num_tokens=stats.num_draft_tokens,
                accepted=stats.num_accepted_tokens or "none",
            )
            if stats.num_draft_tokens
            else text_of("zero-acceptance-steps", num_steps=drafts)
        ),
        evidence=(
            f"{stats.num_accepted_tokens} accepted of {stats.num_draft_tokens:,} draft tokens"
            if stats.num_draft_tokens
            else f"{stats.num_accepted_tokens} accepted in {drafts:,} steps",
        ),
        loss=find_losses(case).acceptance,
    )


def _find_woke_without_weights(case: PoolCase) -> RuleMatch | None:
    found = _find_zero_acceptance(case)
    if found is None:
        return None
    return RuleMatch(
        message="The target has accepted nothing since the server woke up.",
        evidence=("it slept", *found.evidence),
        loss=found.loss,
    )


def _find_context_gated(case: PoolCase) -> RuleMatch | None:
    """Take the setup's word that a long sequence can stop drafting, where drafts are as good as ever or worthless."""
    ruling, zero = _find_gate(case), _find_zero_acceptance(case)
    found = zero or _find_acceptance_fell(case)
    if ruling is None or found is None or not (zero or _is_scaled(case)) or _is_told_alone(case):
        return None
    return replace(
        found, message=f"{all_findings()['context-gated'].title}. {found.message}", evidence=(ruling, *found.evidence)
    )


def _find_gate(case: PoolCase) -> str | None:
    """Return what the setup says of sequences that its drafter is too short for."""
    row = all_findings()["context-gated"].diagnosis
    return None if row is None else case.asked.find_ruling(row.confirmed_by)


def _is_scaled(case: PoolCase) -> bool:
    """Return whether first draft tokens alone are accepted less: those behind an accepted one are as good as ever."""
    then = () if case.good is None else case.good.conditional_rate_per_pos
    pairs = [(a, b) for a, b in zip(case.window.conditional_rate_per_pos, then, strict=False) if a is not None and b]
    if len(pairs) < 2:
        return False
    (first, first_then), *later = pairs
    return first < first_then * (1 - _FELL) and all(a >= b * (1 - _AS_BEFORE) for a, b in later)


def _is_told_alone(case: PoolCase) -> bool:
    """Return whether drafter or engine have changed by a probe that no other request can have disturbed."""
    return case.asked.probe is not None and bool(case.asked.probe.differs and case.asked.probe.alone)


def _find_drafter_noise(case: PoolCase) -> RuleMatch | None:
    """Take the probe's word that it is the drafter, which a long sequence of the same batch cannot have been."""
    found, probe = _find_zero_acceptance(case), case.asked.probe
    cannot_be_gated = case.asked.rulings is not None and _find_gate(case) is None
    if found is None or probe is None or not (_is_told_alone(case) or (probe.differs and cannot_be_gated)):
        return None
    first = case.window.rate_per_pos[0] if case.window.rate_per_pos else 0.0
    return replace(
        found,
        message=(
            f"The target accepts only {first:.1%} of the first draft tokens, as with a drafter for another model."
        ),
        evidence=(*found.evidence, probe.summary),
    )


def _find_acceptance_low(case: PoolCase) -> RuleMatch | None:
    rate, method = case.window.counters.spec.acceptance_rate, find_method(case.method)
    methods = all_methods().values() if method is None else (method,)
    priors = [prior for each in methods if (prior := each.advice.find_prior()) is not None]
    if case.good is not None or not priors or rate is None or not _accepts_little(case):
        return None
    low, high = min(each.low for each in priors), max(each.high for each in priors)
    known = [each for each in case.window.conditional_rate_per_pos if each is not None]
    # Without counts by position, no more first tokens can have been accepted than tokens at all.
    first = known[0] if known else rate * (case.window.mean_k or LONGEST)
    if first >= low * (_SURELY_LOW if method is None else 1) or (method is None and _find_zero_acceptance(case)):
        return None
    most = "" if known else "at most "
    return RuleMatch(
        message=(
            f"The target accepts the first draft token in {most}{first:.0%} of the drafts. Published for "
            f"{case.method or 'all methods'}: {low:.0%} to {high:.0%}."
        ),
        evidence=(tell("accepted at position 0", first, low, of="published from"),),
    )


def _find_too_perfect(case: PoolCase) -> RuleMatch | None:
    perfect = {name: each for name, each in case.parts.items() if _accepts_all(each)}
    if not perfect:
        return None
    where, first = next(iter(perfect.items()))
    rate, is_part = first.counters.spec.acceptance_rate, len(perfect) < len(case.parts)
    on = f"On {where}, the" if is_part else "The"
    return RuleMatch(
        message=f"{on} target accepts {rate:.1%} of the draft tokens, which real text does not allow.",
        evidence=(tell("accepted per draft token", rate),),
        where=first.instance if is_part else "",
    )


def _find_synthetic(case: PoolCase) -> RuleMatch | None:
    if case.asked.spec is None or not case.asked.spec.has_synthetic_acceptance:
        return None
    return RuleMatch(message="The config accepts drafts at random (rejection_sample_method is synthetic).")


def _find_tail_fell(case: PoolCase) -> RuleMatch | None:
    now, good = case.window.conditional_rate_per_pos, case.good
    then = () if good is None else good.conditional_rate_per_pos
    pairs = [(a, b) for a, b in zip(now, then, strict=False) if a is not None and b]
    if len(pairs) < 2 or not _accepts_little(case) or _is_shortened(case):
        return None
    (first, first_then), *later = pairs
    earlier = case.expected.earlier
    error = draft_error(case.window, *([] if earlier is None else [earlier]))
    if first < first_then * (1 - _AS_BEFORE):
        return None
    fallen = [(a, b) for a, b in later if is_less(a, b, by=_TAIL_FELL, error=error)]
    if not fallen:
        return None
    return RuleMatch(
        message=text_of("tail-fell", now=fallen[0][0], then=fallen[0][1]),
        evidence=tuple(tell(f"conditional at position {index}", a, b) for index, (a, b) in enumerate(pairs)),
        loss=find_losses(case).acceptance,
    )


def _find_tail_dead(case: PoolCase) -> RuleMatch | None:
    rates, then = case.window.rate_per_pos, () if case.good is None else case.good.rate_per_pos
    several = len({len(each.rate_per_pos) for each in case.windows if each.counters.spec.num_drafts}) > 1
    if several or len(rates) < 2 or not _accepts_little(case) or _is_shortened(case):
        return None  # drafts of replicas with a smaller k have no last position
    error = (NOISE * case.window.counters.spec.num_drafts) ** -0.5  # of the accepted last tokens
    if rates[0] < 2 * NOISE or not is_less(rates[-1], NOISE, by=0.0, error=error):
        return None
    if len(then) == len(rates) and then[-1] < NOISE:  # it was adopted so
        return None
    return RuleMatch(
        message=f"The target accepts the last of {len(rates)} draft tokens in only {rates[-1]:.1%} of the drafts.",
        evidence=(tell(f"accepted at position {len(rates) - 1}", rates[-1]),),
    )


def _find_dead_rank(case: PoolCase) -> RuleMatch | None:
    """Find a rank that accepts next to nothing of what the other ranks of its server do, by the server's gauges."""
    for window in case.windows:
        lengths = window.load.lengths
        worst = min(lengths, key=lambda rank: lengths[rank], default="")
        usual = median([each for rank, each in lengths.items() if rank != worst] or [1.0])
        if usual > 1 + NOISE and lengths[worst] - 1 < _DEAD * (usual - 1):
            return RuleMatch(
                message=text_of("rank-accepts-less", where=window.instance, rank=worst, now=lengths[worst], then=usual),
                evidence=tuple(tell(f"dp_rank {rank}: acceptance length", each) for rank, each in lengths.items()),
                where=window.instance,
            )
    return None


def _find_replica_outlier(case: PoolCase) -> RuleMatch | None:
    if (dead := _find_dead_rank(case)) is not None:
        return dead
    low = _find_lowest(case)
    if low is None:
        return None
    window, rest = low
    ranks = [each for each in case.windows if each.instance == window.instance]
    if ill := find_outliers(ranks):
        found = describe_outlier(ill, [each for each in case.windows if each not in ill])
        return replace(found, loss=find_losses(case).acceptance)
    usual = median(each.mean_k or 0.0 for each in case.replicas.values())
    usual = min(usual, count_drafted(window) or usual)
    is_short = (window.mean_k or 0.0) < _SHORT * usual and _per_draft(window) > NOISE  # whatever the drafter is
    return RuleMatch(
        message=f"{window.instance} accepts {_per_draft(window):.2f} tokens per draft, the other servers {rest:.2f}.",
        evidence=tuple(tell(f"{each.instance}: a draft", _per_draft(each)) for each in case.replicas.values()),
        loss=find_losses(case).acceptance,
        where=window.instance,
        fix=all_findings()["drafts-shortened"].fix if is_short else "",
    )


def _find_fades_with_uptime(case: PoolCase) -> RuleMatch | None:
    low = _find_lowest(case)
    ages = {name: window.uptime_s for name, window in case.replicas.items()}
    if low is None or None in ages.values():
        return None
    window = low[0]
    others = [age for name, age in ages.items() if name != window.instance and age is not None]
    if window.uptime_s is None or window.uptime_s < _OLDER * max(others):
        return None
    return RuleMatch(
        message=f"{window.instance} is the oldest server and has the lowest acceptance.",
        evidence=tuple(
            f"{tell(f'{each.instance}: a draft', _per_draft(each))}, up {(each.uptime_s or 0) / 3600:.0f} h"
            for each in case.replicas.values()
        ),
        loss=find_losses(case).acceptance,
        where=window.instance,
    )


def _find_acceptance_fell(case: PoolCase) -> RuleMatch | None:
    """Hold the acceptance length against the good window's, where every server drafts in full."""
    good, window = case.good, case.window
    if good is None or count_verified(window) < MIN_DRAFTS:
        return None
    name, what, now, then = "acceptance length", "draft", window.acceptance_length, good.acceptance_length
    if now is None:  # of a server that does not count its drafts
        name, what, now, then = "tokens per step", "step", window.tokens_per_step, good.tokens_per_step
    if not is_less(now, then, by=_FELL, error=case.error):
        return None
    return RuleMatch(
        message=f"A {what} gives {now:.2f} tokens, but {then:.2f} in the measurement.",
        evidence=(tell(name, now, then),),
        loss=find_losses(case).acceptance,
    )


def _find_traffic_changed(case: PoolCase) -> RuleMatch | None:
    found, probe = _find_acceptance_fell(case), case.asked.probe
    if found is None or probe is None or probe.differs:
        return None
    return RuleMatch(
        message=f"The traffic has changed: {found.message[0].lower()}{found.message[1:-1]}, while the probe "
        "did not change.",
        evidence=(*found.evidence, probe.summary),
        loss=found.loss,
    )


def _find_context_grew(case: PoolCase) -> RuleMatch | None:
    found, earlier = _find_traffic_changed(case), case.expected.earlier
    now, then = case.window.mean_prompt_tokens, None if earlier is None else earlier.mean_prompt_tokens
    if found is None or now is None or then is None or now < MUCH_LONGER * then:
        return None
    return RuleMatch(
        message=f"Prompts have {now:,.0f} tokens on average instead of {then:,.0f}, and acceptance fell with it.",
        evidence=(*found.evidence, tell("prompt tokens", now, then)),
        loss=sum(max(each or 0.0, 0.0) for each in (found.loss, find_losses(case).machine)),
    )


def _find_kv_quantized(case: PoolCase) -> RuleMatch | None:
    found, earlier, now = _find_acceptance_fell(case), case.expected.earlier, case.window.cache_dtype
    then, row = None if earlier is None else earlier.cache_dtype, all_findings()["kv-quantized"].diagnosis
    said = None if row is None or case.asked.probe is None else case.asked.find_proof(row)
    if now and then and now != then:
        said = f"The KV cache is of {now} instead of {then}."
    if found is None or said is None:
        return None
    return replace(found, message=f"{said} {found.message}", evidence=(said, *found.evidence))


def _find_lora_changed(case: PoolCase) -> RuleMatch | None:
    found, earlier = _find_traffic_changed(case), case.expected.earlier
    new = case.window.adapters - (frozenset() if earlier is None else earlier.adapters)
    if found is None or earlier is None or not new:
        return None
    return RuleMatch(
        message=f"Requests use the adapter {', '.join(sorted(new))}, which is new, and acceptance fell.",
        evidence=(*found.evidence, f"adapters {', '.join(sorted(case.window.adapters))}"),
        loss=found.loss,
    )


def _find_drafter_changed(case: PoolCase) -> RuleMatch | None:
    probe = case.asked.probe
    if probe is None or not probe.differs:
        return None
    found = _find_acceptance_fell(case)
    return RuleMatch(
        message="The drafter or the engine differs from the baseline's: its probe takes different steps.",
        evidence=(probe.summary, *(found.evidence if found else ())),
        loss=max(found.loss or 0.0 if found else 0.0, -(probe.change or 0.0)),
    )


def _find_after_upgrade(case: PoolCase) -> RuleMatch | None:
    found, releases, probe = _find_drafter_changed(case), case.asked.releases, case.asked.probe
    if found is None or releases is None or probe is None:
        return None
    if (probe.change or 0.0) > log(1 - _FELL) and _find_acceptance_fell(case) is None:
        return None
    return RuleMatch(
        message=f"Acceptance of the same prompts fell when vLLM {releases[1]} replaced {releases[0]}. Nothing "
        "else in the setup changed.",
        evidence=(f"vLLM {releases[0]} -> {releases[1]}", *found.evidence),
        loss=found.loss,
    )


def _find_suffix_cold(case: PoolCase) -> RuleMatch | None:
    ages = [window.uptime_s for window in case.windows if window.uptime_s is not None]
    method = find_method(case.method)
    if method is None or method.remembers != "answers" or not ages or max(ages) > COLD_S:
        return None
    found = _find_acceptance_fell(case)
    if found is None:
        return None
    return RuleMatch(
        message=f"The servers are {max(ages) / 60:.0f} minutes old, so {method.name} has few answers to draft from.",
        evidence=found.evidence,
        loss=found.loss,
    )


def _find_lowest(case: PoolCase) -> tuple[Window, float] | None:
    """Return the server that accepts clearly less than the median of the others, and that median."""
    per_draft = {name: _per_draft(window) for name, window in case.replicas.items()}
    drafts = [window.counters.spec.num_drafts for window in case.replicas.values()]
    if len(per_draft) < 2 or min(drafts) < _OUTLIER_DRAFTS:
        return None
    lowest = min(per_draft, key=lambda name: per_draft[name])
    rest = median(value for name, value in per_draft.items() if name != lowest)
    window, others = case.replicas[lowest], [each for name, each in case.replicas.items() if name != lowest]
    error = draft_error(max(others, key=count_requests), window)
    is_low = rest > NOISE and is_less(per_draft[lowest], rest, by=_OUTLIER, error=error)
    return (window, rest) if is_low else None


def _per_draft(window: Window) -> float:
    """Return accepted tokens of a draft."""
    length = window.acceptance_length
    return 0.0 if length is None else length - 1


def _is_shortened(case: PoolCase) -> bool:
    """Return whether drafts end before the last position, so that profiles do not compare."""
    return bool(case.k and case.window.mean_k is not None and case.window.mean_k < 0.9 * case.k)


RULES = (
    DiagnosisRule("zero-acceptance", _find_zero_acceptance),
    DiagnosisRule("woke-without-weights", _find_woke_without_weights),
    DiagnosisRule("context-gated", _find_context_gated),
    DiagnosisRule("drafter-noise", _find_drafter_noise),
    DiagnosisRule("acceptance-low", _find_acceptance_low),
    DiagnosisRule("too-perfect", _find_too_perfect),
    DiagnosisRule("synthetic-left-on", _find_synthetic),
    DiagnosisRule("tail-fell", _find_tail_fell),
    DiagnosisRule("tail-dead", _find_tail_dead, certainty=0.6),
    DiagnosisRule("replica-outlier", _find_replica_outlier),
    DiagnosisRule("fades-with-uptime", _find_fades_with_uptime),
    DiagnosisRule("acceptance-fell", _find_acceptance_fell),
    DiagnosisRule("traffic-changed", _find_traffic_changed),
    DiagnosisRule("context-grew", _find_context_grew),
    DiagnosisRule("lora-changed", _find_lora_changed),
    DiagnosisRule("kv-quantized", _find_kv_quantized),
    DiagnosisRule("drafter-changed", _find_drafter_changed),
    DiagnosisRule("after-upgrade", _find_after_upgrade),
    DiagnosisRule("suffix-cold", _find_suffix_cold),
)
