"""Rules on work around decoding: queue, KV cache, prefix cache, prefill, short answers, restarts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf, log, sqrt

from draftwise.core import Window
from draftwise.knowledge.messages import text_of
from draftwise.watching.diagnose.pool_case import (
    COLD_S,
    MIN_REQUESTS,
    SIGMAS,
    DiagnosisRule,
    PoolCase,
    RuleMatch,
    count_requests,
    differ_in_prompts,
    find_only,
    find_request_loss,
    is_less,
    is_same_load,
    relative_error,
    tell,
)
from draftwise.watching.stalls import HUNG_S, describe_stall, stands_still

_ALL = 5.0
"""Loss if a request gets nothing: larger than any other, but finite."""
_PREEMPTIONS_PER_S = 0.05
_MANY_PREEMPTED = 0.01
"""Share of the requests from which on a preempted one is their 99th percentile: it waits and is computed again."""
_NEARLY_ALL = 0.9
"""Share of a pool's preemptions, or of its waiting requests, above which the shortage is one replica's."""
_FULL, _NEARLY_FULL = 0.9, 0.85
_QUEUED_SHARE = 0.1
"""Share of a request's time above which a queue is a finding."""
_QUEUE_GREW = 3.0
_LONG_QUEUE = 0.5
"""Multiple of the running requests."""
_HITS_LOST = 0.05
_COLD = 0.5
"""Share of the other replicas' hit rate."""
_HIT_SPREAD = 0.35
"""Standard deviation of the prefix hit rate over requests: most requests hit almost all or nothing."""
_PREFILL_UP = 0.23
"""1 - 1/1.3: a prompt token takes 1.3 times as long as before."""
_BOTH_QUEUE = 0.5
"""Share of the wait above which the other pool queues, too."""
_LITTLE_DECODING = 0.3
_SHORT = 3.0
"""Full drafts."""


def _has_requests(*windows: Window | None) -> bool:
    return all(window is not None and (window.sums.finished or 0.0) >= 2 * MIN_REQUESTS for window in windows)


def _waiting(window: Window) -> float:
    """Return requests that wait for one engine."""
    return (window.load.waiting or 0.0) / window.engines


def _find_counter_reset(case: PoolCase) -> RuleMatch | None:
    new = [window for window in case.windows if window.restarted]
    if not new:
        return None
    return RuleMatch(message=f"{new[0].instance} restarted within the window.", loss=0.0, where=new[0].instance)


def _find_engine_hung(case: PoolCase) -> RuleMatch | None:
    """Find an engine with requests in flight that makes neither tokens nor steps."""
    hung = [each for each in case.windows if each.duration_s >= HUNG_S and stands_still(each)]
    if not hung:
        return None
    return RuleMatch(
        message=describe_stall(hung[0], hung[0].duration_s),
        evidence=(tell("running", hung[0].load.running), tell("waiting", hung[0].load.waiting)),
        loss=_ALL,
        where=hung[0].instance,
    )


def _find_alone(case: PoolCase, read: Callable[[Window], float | None]) -> str:
    """Return the replica of several, or the engine of one, that has nearly all of something; empty for none."""
    counts = {name: read(window) or 0.0 for name, window in case.parts.items()}
    most = max(counts, key=lambda name: counts[name])
    return most if len(counts) > 1 and counts[most] > _NEARLY_ALL * sum(counts.values()) else ""


def _find_kv_squeeze(case: PoolCase) -> RuleMatch | None:
    where = _find_alone(case, lambda each: each.sums.preemptions)
    window = case.parts.get(where, case.window)
    rate, usage = window.preemptions_per_s, window.load.kv_usage
    preempted = window.sums.preemptions or 0.0
    # The gauge may have been read between two peaks: vLLM preempts only where no block is free.
    is_full = (rate or 0.0) > _PREEMPTIONS_PER_S and (usage or 0.0) > _FULL
    is_often = preempted >= _MANY_PREEMPTED * (window.sums.finished or inf)
    if rate is None or preempted < MIN_REQUESTS or not (is_full or is_often):
        return None
    on = f"On {where}, the" if where else "The"
    full = "at times" if usage is None else f"{usage:.0%}"
    return RuleMatch(
        message=f"{on} KV cache is {full} full and {60 * rate:.0f} requests a minute are preempted.",
        evidence=(tell("preemptions per s", rate), tell("KV use", usage)),
        loss=_lose_queue(case, case.window),
        where=window.instance if where else "",
    )


def _find_queue(case: PoolCase) -> RuleMatch | None:
    window, good = case.window, case.good
    where = _find_alone(case, lambda each: each.load.waiting)
    ill = case.parts.get(where, window)
    queued, then = ill.mean_queue_s, None if good is None else good.mean_queue_s
    share, loss = _lose_queue(case, ill), _lose_queue(case, window)
    if queued is None or share is None:
        return _find_waiting(case)
    if not _has_requests(ill) or _waiting(ill) < 1:
        return None
    if share < _QUEUED_SHARE or (then is not None and queued < _QUEUE_GREW * then):
        return None
    at = ill.instance if where else ""
    says = f"On {where}, a" if where else "A"
    says += f" request waits {ill.mean_queue_s or 0.0:.2g} s before it runs, and {_waiting(ill):.0f} wait for an engine"
    idle = [name for name, each in case.parts.items() if not (each.load.running or each.load.waiting)]
    fix = ""
    if where or idle:
        others = " and ".join(idle) or "the others"
        says += f", but none for {others}"
        fix = f"Send requests to {others}: check the router's balance, and the limits (max_num_seqs) of each server."
    evidence, plain = [tell("queue", queued, then, unit=" s"), tell("waiting", _waiting(ill))], case.plain
    in_plain = None if plain is None else plain.mean_queue_s
    if plain is None or in_plain is None or not _has_requests(plain):
        return RuleMatch(message=f"{says}.", evidence=tuple(evidence), loss=loss, where=at, fix=fix)
    evidence.append(tell("queue in the plain pool", in_plain, unit=" s"))
    if _waiting(plain) >= 1 and in_plain >= _BOTH_QUEUE * queued:
        return RuleMatch(
            message=f"{says}. The plain pool queues too ({in_plain:.2g} s), so the load is the cause.",
            evidence=tuple(evidence),
            loss=loss,
            fix="Add replicas, or admit less traffic. Speculation does not use the memory.",
            excludes=frozenset({"admission-squeezed"}),
            where=at,
        )
    same = "at a similar load" if is_same_load(window, plain) else "under another load"
    return RuleMatch(
        message=f"{says}. In the plain pool, {same} it waits {in_plain:.2g} s.",
        evidence=tuple(evidence),
        loss=loss,
        fix=fix
        or (
            "Check how much the drafter takes with `draftwise size`, and lower k or max_num_seqs if the cache is full."
            if is_same_load(window, plain)
            else "Before you compare them, spread the load evenly over both pools, or add replicas to this one."
        ),
        where=at,
    )


def _find_waiting(case: PoolCase) -> RuleMatch | None:
    """Find a queue by its length alone: logs and some servers tell no times of requests."""
    window, where = case.window, _find_alone(case, lambda each: each.load.waiting)
    waiting, running = _waiting(window), window.batch or 0.0
    if waiting < MIN_REQUESTS or waiting < _LONG_QUEUE * running:
        return None
    full = "" if window.load.kv_usage is None else f" The KV cache is {window.load.kv_usage:.0%} full."
    return RuleMatch(
        message=f"{waiting:.0f} requests wait for an engine that runs {running:.0f}, on average.{full}",
        evidence=(tell("waiting", waiting), tell("running", running)),
        loss=log(1 + waiting / max(running, 1.0)),
        where=case.parts[where].instance if where else "",
    )


def _find_admission_squeezed(case: PoolCase) -> RuleMatch | None:
    window, plain, usage = case.window, case.plain, case.window.load.kv_usage
    if plain is None or usage is None or usage <= _NEARLY_FULL or _waiting(window) < 1:
        return None
    if not plain.batch or not window.batch or plain.batch < 0.75 * window.batch:
        return None
    if _waiting(plain) > 0.5 * _waiting(window):
        return None
    return RuleMatch(
        message=text_of("admission-squeezed", waiting=_waiting(window), usage=usage, plain=_waiting(plain)),
        evidence=(tell("waiting", _waiting(window), _waiting(plain), of="plain"), tell("KV use", usage)),
        loss=_lose_queue(case, window),
    )


def _find_prefix_lost(case: PoolCase) -> RuleMatch | None:
    cold = _find_cold(case)  # one server's illness is not the pool's
    rest = Window.pooled(each for each in case.windows if cold is None or each.instance != cold.where)
    if case.comparable is None or rest is None:
        return None
    return _compare_hits(rest, case.comparable, "plain", "in the plain pool")


def _find_prefix_hits_fell(case: PoolCase) -> RuleMatch | None:
    if (alone := _find_cold(case)) is not None:
        return alone
    found = None
    if case.good is not None and case.good.prefix_hit_rate is not None:
        filled = Window.pooled(filter(_has_filled, case.windows)) if len(case.windows) > 1 else case.window
        found = None if filled is None else _compare_hits(filled, case.good, "expected", "before")
    hits = None if case.comparable is None else case.comparable.prefix_hit_rate
    if found is None or hits is None or _find_prefix_lost(case) is not None:
        return found
    return replace(
        found,
        message=f"{found.message[:-1]}; in the plain pool {hits:.0%}. The traffic is the cause.",
        fix="Check what changed in the prompts, such as a system prompt or the order of their parts, and "
        "which requests the router sends to the same replica.",
    )


def _find_cold(case: PoolCase) -> RuleMatch | None:
    """Find one replica that hits at most half as often as the others; a new one has had no time to fill its cache."""
    known = {name: _read_hits(each) or 0.0 for name, each in case.parts.items() if _has_filled(each)}
    where = min(known, key=lambda name: known[name], default="")
    if not where or known[where] > _COLD * max(known.values()):
        return None
    rest = Window.pooled(each for name, each in case.parts.items() if name in known and name != where)
    if rest is None or known[where] > _COLD * (_read_hits(rest) or 0.0):
        return None
    found = _compare_hits(case.parts[where], rest, "the others", "on the others")
    if found is None:
        return None
    fix = "Check which requests the router sends to this server, and compare its flags and its cache with the others'."
    return replace(found, message=f"On {where}, {found.message}", where=case.parts[where].instance, fix=fix)


def _has_filled(window: Window) -> bool:
    is_new = window.uptime_s is not None and window.uptime_s < COLD_S
    return _read_hits(window) is not None and not window.restarted and not is_new


def _read_hits(window: Window) -> float | None:
    """Return the prefix hit rate: 0 where requests came and no token was looked up, because the cache is off."""
    is_off = window.counters.prefix_queries == 0 and _has_requests(window)
    return 0.0 if is_off else window.prefix_hit_rate


def _compare_hits(window: Window, other: Window, name: str, where: str) -> RuleMatch | None:
    now, then = _read_hits(window), _read_hits(other)
    if now is None or then is None or not _has_requests(window):
        return None
    error = _HIT_SPREAD * sqrt(sum(1 / count for each in (window, other) if (count := count_requests(each))))
    if then - now <= max(_HITS_LOST, SIGMAS * error):
        return None
    excess = None if window.sums.prefill_s is None else window.sums.prefill_s * (1 - (1 - then) / (1 - now))
    return RuleMatch(
        message=f"{now:.0%} of the prompt tokens come from the prefix cache, {then:.0%} {where}.",
        evidence=(tell("prefix hits", now, then, of=name),),
        loss=find_request_loss(window, excess),
    )


def _find_ttft_worse(case: PoolCase) -> RuleMatch | None:
    window, earlier = case.window, case.expected.earlier
    before = earlier if earlier is not None and is_same_load(window, earlier) else None
    if window.burst is not None:  # prompts that come at once wait for each other
        return None
    for other, of, whose in ((case.plain, "plain", "of the plain pool"), (before, "earlier", "that it took before")):
        if other is None or not _has_requests(window, other):
            continue
        if differ_in_prompts(window, other):
            continue
        where = find_only(case, partial(_prefills_longer, other=other))
        ill = case.parts.get(where, window)
        now, then = ill.prefill_s_per_token, other.prefill_s_per_token
        if now is None or then is None or not _prefills_longer(ill, other):
            continue
        on = f"On {where}, a" if where else "A"
        excess = None if ill.sums.prefill_s is None else ill.sums.prefill_s * (1 - then / now)
        return RuleMatch(
            message=f"{on} prompt token that misses the cache takes {now / then:.2f} times the prefill time {whose}.",
            evidence=(tell("ms of prefill per uncached token", 1000 * now, 1000 * then, of=of),),
            loss=find_request_loss(window, excess),
            where=ill.instance if where else "",
        )
    return None


def _prefills_longer(window: Window, other: Window) -> bool:
    if not _has_requests(window) or differ_in_prompts(window, other, computed=True):
        return False
    now, then = window.prefill_s_per_token, other.prefill_s_per_token
    error = relative_error(window, other) / 2  # prefill varies less over requests than acceptance does
    return then is not None and is_less(_compare_steps(window, other) * then, now, by=_PREFILL_UP, error=error)


def _compare_steps(window: Window, plain: Window) -> float:
    """Return how much longer a step is than a plain one, at least 1: a prompt is prefilled in steps."""
    return max(1.0, window.step_s / plain.step_s) if window.step_s and plain.step_s else 1.0


def _find_decode_is_little(case: PoolCase) -> RuleMatch | None:
    share = case.window.decode_share
    if share is None or share >= _LITTLE_DECODING or not _has_requests(case.window):
        return None
    return RuleMatch(
        message=f"Decoding is only {share:.0%} of a request's time, and speculation shortens nothing else.",
        evidence=(tell("share of decoding", share),),
    )


def _find_outputs_short(case: PoolCase) -> RuleMatch | None:
    tokens, k = case.window.mean_output_tokens, case.k
    if tokens is None or k is None or not _has_requests(case.window) or tokens >= _SHORT * (k + 1) or case.gains:
        return None
    told = case.comparable is not None and is_same_load(case.window, case.comparable)
    return RuleMatch(
        message=f"An answer has {tokens:.0f} tokens on average, fewer than {_SHORT:.0f} full drafts produce"
        + (", and a token takes no less time than in the plain pool." if told else "."),
        evidence=(tell("output tokens", tokens),),
        fix="Leave speculation off for this route." if told else "",
    )


def _lose_queue(case: PoolCase, window: Window) -> float | None:
    """Return what waiting costs the requests of a window, beyond what it did in the good time."""
    good = case.good
    then = (good.mean_queue_s if good is not None else None) or 0.0
    if window.sums.queue_s is None or window.sums.finished is None:
        return None
    return find_request_loss(window, max(window.sums.queue_s - then * window.sums.finished, 0.0))


RULES = (
    DiagnosisRule("engine-hung", _find_engine_hung),
    DiagnosisRule("counter-reset", _find_counter_reset),
    DiagnosisRule("kv-squeeze", _find_kv_squeeze),
    DiagnosisRule("queue-grew", _find_queue),
    DiagnosisRule("admission-squeezed", _find_admission_squeezed),
    DiagnosisRule("prefix-lost", _find_prefix_lost),
    DiagnosisRule("prefix-hits-fell", _find_prefix_hits_fell),
    DiagnosisRule("ttft-worse", _find_ttft_worse),
    DiagnosisRule("decode-is-little", _find_decode_is_little, certainty=0.5),
    DiagnosisRule("outputs-short", _find_outputs_short, certainty=0.5),
)
