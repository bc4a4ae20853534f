"""Which step a diagnosis asks for; what is to be done about tokens per step below break-even is judged by the guard."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from draftwise.core import Diagnosis, Finding
from draftwise.core.action import Step
from draftwise.guarding.reading import Request

__all__ = ["find_requests"]

_STEPS: Mapping[str, Step] = {
    "acceptance-fell": Step.PROBE,
    "tail-fell": Step.PROBE,
    "above-crossover": Step.LOWER_K,
    "tail-dead": Step.LOWER_K,
    "drafter-changed": Step.RESTART,
    "fades-with-uptime": Step.RESTART,
    "replica-outlier": Step.RESTART,
    "traffic-changed": Step.RETRAIN,
}


def find_requests(findings: Iterable[Finding], replicas: Collection[str]) -> Iterator[Request]:
    """Yield the steps that diagnoses ask for, of those that do not follow from another.

    Args:
        findings: diagnoses among them.
        replicas: URLs; a diagnosis of anything else is about the whole service, and a restart is of one replica.
    """
    for finding in findings:
        step = _STEPS.get(finding.code)
        if not isinstance(finding, Diagnosis) or finding.follows_from or step is None:
            continue
        named = (finding.where,) if finding.where in replicas else ()
        if named or step is not Step.RESTART:
            yield Request(step=step, replicas=named, cause=finding.code, reason=finding.message)
