"""Checks that only drafts made the difference between a comparison's two servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log
from typing import Any

from draftwise.core import Answer, Comparison, Condition, Counters, Finding, Interval, Run, Severity
from draftwise.deciding.comparison.cell import Cell
from draftwise.deciding.thresholds import Thresholds
from draftwise.knowledge.messages import fault, text_of, warning
from draftwise.knowledge.metrics import counts_drafts

UNPROVEN = "speculation-unproven"
"""Code of the finding for a candidate whose speculation no counter proves."""
_MORE_TEXT = 1.05
"""Ratio of text per stream event above which one server drafts and the other does not."""
_SEVERAL, _AS_COUNTED = 1.3, 0.1
"""Tokens per stream event above which a server without draft counters may still draft, and the allowed difference
between events and counted steps."""
_MOSTLY, _FEWEST_SILENT = 0.8, 5
"""Turns without drafts are not chance if this share of a candidate's turns has drafts and this many have none."""
_NAME_COUNTERS = "Pass its metrics page: --metrics-url ARM=http://HOST:PORT/metrics."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evidence:
    """What shows whether the two servers drafted."""

    baseline: Counters
    candidate: Counters
    elsewhere: Counters
    """The candidate's counters over all loads."""
    resolved: Mapping[str, Any] | None
    """The candidate's speculative config as its server resolved it; None if not reported."""
    num_requests: tuple[int, int]
    """Number of requests answered by the baseline and by the candidate."""
    is_counted: bool
    """Whether the candidate's /metrics would show its drafts: it is readable, and its engine counts drafts."""
    is_baseline_counted: bool
    """The same for the baseline."""
    baseline_per_event: float
    """Tokens per event of the baseline's stream."""
    candidate_per_event: float
    """Tokens per event of the candidate's stream."""
    text_per_event: float | None
    """Text per event of the candidate's stream over the baseline's; None without text. An engine sends the result of a
    decoding step as one event, so a drafting server's events hold more."""
    outputs_compared: bool
    """Whether outputs at temperature 0 were compared, which would reveal another model."""

    @property
    def is_swapped(self) -> bool:
        """Whether the baseline drafted and the candidate answered without a single draft."""
        silent = self.candidate.generation_tokens and not self.elsewhere.spec.num_drafts
        if self.baseline.spec.num_drafts and self.is_counted and silent:
            return True
        # Without counters streams tell: what a decoding step brought comes as one event.
        drafts = self.elsewhere.spec.num_drafts or (self.is_baseline_counted and not self.baseline.spec.num_drafts)
        return not drafts and self.text_per_event is not None and self.text_per_event < 1 / _MORE_TEXT

    @property
    def is_role_known(self) -> bool:
        """Whether anything shows which of the two servers speculates."""
        if self.elsewhere.spec.num_drafts or (self.is_baseline_counted and not self.baseline.spec.num_drafts):
            return True
        return self.text_per_event is not None and self.text_per_event > _MORE_TEXT

    @property
    def has_silent_baseline(self) -> bool:
        """Whether the baseline may draft uncounted: its events hold several tokens, and the candidate's events show
        that nothing on the way joins steps."""
        steps = self.candidate.tokens_per_step
        joins = not steps or abs(self.candidate_per_event / steps - 1) > _AS_COUNTED
        return self.baseline_per_event > _SEVERAL and not (self.is_baseline_counted and joins)

    @property
    def tokens_per_step(self) -> float | None:
        """The candidate's tokens per step, from counters or else its stream; None without drafts."""
        if self.is_counted:
            return self.candidate.tokens_per_step if self.candidate.spec.num_drafts else None
        return self.text_per_event


def check_drafting(run: Run, cell: Cell, comparison: Comparison, thresholds: Thresholds) -> list[Finding]:
    """Return findings on other causes than speculation for the difference."""
    evidence = _gather_evidence(run, cell)
    return [
        *_speculation(evidence, comparison.speedup, cell.condition, thresholds),
        *_find_end_of_drafts([turn.counters for turn in cell.turns if turn.arm == cell.candidate]),
        *_prefix_cache(evidence, comparison.ttft, thresholds, alone=cell.condition.concurrency == 1),
    ]


def _gather_evidence(run: Run, cell: Cell) -> _Evidence:
    arm = cell.candidate
    counters = [turn.counters for turn in run.turns if turn.arm == arm]
    seen, usual = (_measure_events(cell.requests[each]) for each in (arm, cell.baseline))
    measured = {turn.condition for turn in run.turns if turn.arm == arm}
    greedy = any(each.temperature == 0 and each.label in measured for each in run.conditions)
    return _Evidence(
        baseline=cell.counters[cell.baseline],
        candidate=cell.counters[arm],
        num_requests=(len(cell.requests[cell.baseline]), len(cell.requests[arm])),
        elsewhere=Counters.total(counters),
        resolved=run.context.server(arm).speculative_config,
        is_counted=_is_counted(run, arm, counters),
        is_baseline_counted=_is_counted(
            run, cell.baseline, [turn.counters for turn in run.turns if turn.arm == cell.baseline]
        ),
        baseline_per_event=_count_per_event(cell.requests[cell.baseline]),
        candidate_per_event=_count_per_event(cell.requests[arm]),
        text_per_event=seen / usual if usual else None,
        outputs_compared=greedy and arm not in run.plan.synthetic,
    )


def _is_counted(run: Run, arm: str, counters: Sequence[Counters]) -> bool:
    """Return whether an arm's drafts would be counted; a server that was read once is held to what it counts."""
    engine = run.context.server(arm).metric_names
    readable = any(each.generation_tokens is not None for each in counters)
    return readable and (engine is None or counts_drafts(engine))


def _measure_events(answers: Sequence[Answer]) -> float:
    """Return the mean characters of an event that brought tokens, 0 without any."""
    whole = [answer for answer in answers if answer.error is None]
    events = sum(len(answer.timing.chunks) for answer in whole)
    return sum(len(answer.text) for answer in whole) / events if events else 0.0


def _find_end_of_drafts(counters: Sequence[Counters]) -> Iterator[Finding]:
    """Yield that a candidate stopped drafting in the course of the run, as after a restart without its config."""
    drafted = [each.spec.num_drafts > 0 for each in counters if each.generation_tokens]
    last = max((place for place, drafts in enumerate(drafted, 1) if drafts), default=0)
    silent = len(drafted) - last
    if last and sum(drafted) > _MOSTLY * last and silent >= max(_FEWEST_SILENT, len(drafted) / 10):
        yield fault("not-speculating", silent=silent, turns=len(drafted))


def _count_per_event(answers: Sequence[Answer]) -> float:
    """Return the mean tokens of an event after the first, 0 without any."""
    whole = [answer.timing for answer in answers if answer.error is None]
    events = sum(len(timing.chunks) - 1 for timing in whole)
    return sum(timing.num_tokens - timing.chunks[0][1] for timing in whole) / events if events > 0 else 0.0


def _speculation(
    evidence: _Evidence, speedup: Interval, condition: Condition, thresholds: Thresholds
) -> Iterator[Finding]:
    """Whether drafts made the difference."""
    faster = speedup.low > 1 + thresholds.margin
    if evidence.is_swapped:
        text = "the baseline's server speculates and the candidate's does not, so the URLs are swapped."
        yield Finding.error("swapped-servers", text, fix="Swap --url and --candidate-url.")
        return
    if not evidence.is_role_known:
        text = (
            "nothing shows which of the two servers speculates: they have no draft counters, and their stream events "
            "hold similar amounts of text"
        )
        yield Finding.error("roles-unknown", f"{text}.", fix=_NAME_COUNTERS)
    if not evidence.is_counted:
        yield _judge_stream(evidence, thresholds)
    elif not evidence.candidate.spec.num_drafts:
        yield _find_no_drafts(evidence, condition, faster=faster)
    if drafted := evidence.baseline.spec.num_draft_tokens:
        yield Finding.error("plain-speculates", f"the baseline's server drafted {drafted} tokens.")
    elif evidence.has_silent_baseline:
        text = (
            f"an event of the baseline's stream holds {evidence.baseline_per_event:.1f} tokens, as if its server "
            "speculated, and no counter of drafts explains it."
        )
        yield Finding.error("plain-speculates", text, fix=_NAME_COUNTERS)
    most = evidence.tokens_per_step
    # With arrivals that do not wait, a server just below its limit can be any number of times slower.
    closed = condition.concurrency is not None
    if closed and most and speedup.low > 1 and speedup.value > most * (1 + thresholds.margin):
        text = f"{speedup.value:.2f}x ({speedup.span}) is more than its {most:.2f} tokens per step allow"
        why = "Check what else differs between the servers, and stop other work on the machine."
        if speedup.low > most:
            yield Finding.error("unexplained-speedup", f"{text}.", fix=why)
        else:
            text = f"{text}, which may be chance, because there are too few prompts."
            yield Finding.warning("unexplained-speedup", text, fix=f"{why} More prompts would settle it.")


def _judge_stream(evidence: _Evidence, thresholds: Thresholds) -> Finding:
    """Judge a candidate whose counters cannot be read: another model and exchanged URLs must not pass."""
    text, seen = "nothing proves that it speculated: its counters are not readable", evidence.text_per_event
    if evidence.resolved is not None and not evidence.resolved:
        return Finding.error("not-speculating", f"{text}, and the server says that its speculative config is empty.")
    if seen is None or seen <= 1 + thresholds.margin:
        return fault("not-speculating", case="event", text=text, and_counters=_NAME_COUNTERS)
    if not evidence.outputs_compared:
        return fault("not-speculating", case="outputs", text=text, and_counters=_NAME_COUNTERS)
    why = f"an event of its stream holds {seen:.2f}x the text of one of the baseline's, as with speculation"
    return Finding.warning(UNPROVEN, f"{text}; {why}.", fix=_NAME_COUNTERS)


def _find_no_drafts(evidence: _Evidence, condition: Condition, *, faster: bool) -> Finding:
    """Tell a server that never speculates from one that stops under this load."""
    candidate, elsewhere, resolved = evidence.candidate, evidence.elsewhere, evidence.resolved
    if elsewhere.spec.num_drafts and candidate.generation_tokens:
        text = f"it drafted nothing at {condition.label}, and {elsewhere.spec.num_drafts} times under other loads."
        return Finding(
            code="not-speculating-under-load",
            severity=Severity.ERROR if faster else Severity.INFO,
            message=text,
            fix="A schedule by batch size can cause this. See the other findings.",
        )
    if not candidate.generation_tokens:
        text = "nothing proves that it speculated: its counters did not move while it answered"
        return Finding.error("not-speculating", f"{text}, so they belong to another server.", fix=_NAME_COUNTERS)
    text = f"nothing proves that it speculated: /metrics counted no draft in {candidate.generation_tokens} tokens"
    if resolved is not None:
        text += f" and the server says that its speculative config is {resolved or 'empty'}"
    return Finding.error("not-speculating", f"{text}.")


def _prefix_cache(
    evidence: _Evidence, ttft: Interval | None, thresholds: Thresholds, *, alone: bool
) -> Iterator[Finding]:
    """Findings on prefix caches and first tokens that lost or gained compared with the baseline."""
    before, after = evidence.baseline.prefix_hit_rate, evidence.candidate.prefix_hit_rate
    lost = 0.0 if before is None or after is None else before - after
    rates = ""
    if before is not None and after is not None:
        rates = f"served {after:.0%} of the prompt tokens, the baseline's {before:.0%}"
    if lost > thresholds.prefix_hit_loss:
        # What is computed again is in the times that were measured: it makes no number wrong.
        tokens = _hits_per_request(evidence)
        fix = "A drafter's weights and KV leave fewer blocks for the cache, and some methods drop its last block."
        less = "" if tokens is None else f": {tokens:.0f} tokens of a request less"
        yield warning("prefix-hits-lost", rates=rates, less=less, fix=fix)
    if -lost > thresholds.prefix_hit_loss:
        fix = "Speculation cannot raise the hit rate: its server has seen these prompts before. Restart both servers."
        yield fault("prefix-hits-gained", rates=rates, fix=fix)
    if ttft is not None and ttft.value >= 1 + thresholds.ttft_loss:
        yield _judge_first_token(ttft, _why_late(alone=alone, lost_hits=lost > thresholds.prefix_hit_loss))


def _hits_per_request(evidence: _Evidence) -> float | None:
    """Return how many more tokens of a request the baseline found in its cache."""
    if not all(evidence.num_requests):
        return None
    before, after = evidence.baseline.prefix_hits or 0, evidence.candidate.prefix_hits or 0
    return before / evidence.num_requests[0] - after / evidence.num_requests[1]


def _judge_first_token(ttft: Interval, why: str) -> Finding:
    """Tell first tokens that come late from those that only may: their interval holds that they do not."""
    times = f"{ttft.value:.2f}x as late as the baseline's ({ttft.span})"
    if ttft.low > 1:
        return Finding.warning("ttft-damaged", f"the first token comes {times}.", fix=why)
    text = f"the first token may come later: {times}. The interval does not rule out a loss."
    if not ttft.is_bounded:
        return Finding.info("ttft-damaged", text, fix="More prompts would settle it.")
    # An interval shrinks with the square root of the number of prompts.
    more = ceil((log(ttft.high / ttft.low) / 2 / log(ttft.value)) ** 2)
    return Finding.info("ttft-damaged", text, fix=f"About {max(2, more)} times as many prompts would settle it.")


def _why_late(*, alone: bool, lost_hits: bool) -> str:
    if lost_hits:
        return "Check the prefix cache finding above first."
    if alone:
        return text_of("late-alone")
    return text_of("late-under-load")
