"""What diagnoses ask for: known steps, of known replicas, and not of what follows from something else."""

from __future__ import annotations

from draftwise.core import Diagnosis, Finding, Severity
from draftwise.core.action import Step
from draftwise.guarding.service_reading import _STEPS, find_requests
from draftwise.knowledge.findings import all_findings

A = "http://a:8000"


def diagnosis(code: str, where: str = "spec", **given: str) -> Diagnosis:
    return Diagnosis(code=code, severity=Severity.WARNING, message=f"{code} is so.", where=where, **given)


def test_every_step_is_for_a_known_diagnosis() -> None:
    assert all(all_findings()[code].diagnosis is not None for code in _STEPS)


def test_a_diagnosis_of_the_pool_asks_for_a_step_on_the_service() -> None:
    (request,) = find_requests([diagnosis("tail-dead")], [A])
    assert (request.step, request.replicas, request.cause) == (Step.LOWER_K, (), "tail-dead")
    assert request.reason == "tail-dead is so."


def test_a_restart_is_of_a_replica_that_is_named() -> None:
    (request,) = find_requests([diagnosis("replica-outlier", A), diagnosis("replica-outlier")], [A])
    assert (request.step, request.replicas) == (Step.RESTART, (A,))


def test_what_follows_from_another_and_what_is_no_diagnosis_asks_for_nothing() -> None:
    other = Finding(code="tail-dead", severity=Severity.INFO, message="It is so.")
    explained = diagnosis("acceptance-fell", follows_from="spec-off")
    assert not list(find_requests([other, explained, diagnosis("spec-off")], [A]))
