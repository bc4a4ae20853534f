"""What the baseline's outputs are like: whether they end by themselves, and whether they loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from draftwise.core import Answer, Finding, Run
from draftwise.decide.thresholds import Thresholds
from draftwise.decide.validity.degeneration import distinct_ngram_ratio, find_loop
from draftwise.decide.validity.finding import info, warning
from draftwise.decide.validity.measures import list_baseline_answers

__all__ = ["TextQuality", "assess_text", "check_text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextQuality:
    """How far the baseline's outputs of a workload repeat themselves."""

    workload: str
    num_outputs: int
    loop_share: float
    distinct_4grams: float
    """Mean over outputs of distinct 4-grams over all 4-grams."""


def check_text(
    run: Run, of_baseline: Sequence[Answer], assessed: Iterable[TextQuality], thresholds: Thresholds
) -> Iterator[Finding]:
    """Yield what makes outputs unlike those of real traffic."""
    yield from _find_cut(run, of_baseline, thresholds)
    for quality in assessed:
        if quality.loop_share > thresholds.loop_share:
            text = (
                f"{quality.loop_share:.0%} of the {quality.workload} outputs end in a loop (over "
                f"{thresholds.loop_share:.0%}): lookup methods look better here than on text that does not repeat."
            )
            yield warning("outputs-loop", text)


def _find_cut(run: Run, of_baseline: Sequence[Answer], thresholds: Thresholds) -> Iterator[Finding]:
    forced = {(w.name, prompt.id) for w in run.plan.workloads for prompt in w.prompts if prompt.ignore_eos}
    free = [each for each in of_baseline if (each.workload, each.prompt_id) not in forced]
    for workload in run.plan.workloads:
        reasons = [each.finish_reason for each in free if each.workload == workload.name]
        cut = reasons.count("length")
        if reasons and cut > thresholds.cut_outputs * len(reasons):
            text = f"{cut} of {len(reasons)} {workload.name} outputs were cut off at max_tokens"
            why = "how long real answers are, and how well their endings are drafted, is not measured"
            yield info("outputs-cut", f"{text}: {why}.", "Raise max_tokens.")


def assess_text(run: Run) -> list[TextQuality]:
    """Return the text quality of the baseline's first answers, workload by workload."""
    rows, of_baseline = [], list_baseline_answers(run)
    for workload in run.plan.workloads:
        first: dict[str, Answer] = {}
        for answer in of_baseline:
            if answer.workload == workload.name:
                first.setdefault(answer.prompt_id, answer)
        outputs = [_list_tokens(answer) for answer in first.values()]
        if outputs:
            rows.append(
                TextQuality(
                    workload=workload.name,
                    num_outputs=len(outputs),
                    loop_share=sum(find_loop(tokens) is not None for tokens in outputs) / len(outputs),
                    distinct_4grams=sum(map(distinct_ngram_ratio, outputs)) / len(outputs),
                )
            )
    return rows


def _list_tokens(answer: Answer) -> list[int]:
    """Return an output without its end token; characters stand in where the server gives no ids."""
    if not answer.token_ids:
        return list(map(ord, answer.text))
    return list(answer.token_ids[: -1 if answer.finish_reason == "stop" else None])
