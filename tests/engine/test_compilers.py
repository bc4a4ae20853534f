"""Compilers take jobs one by one, and say of each that failed why."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("triton")

from draftwise.engine.compilers import CompileJob, Compilers

NOWHERE = CompileJob("draftwise.nowhere", "kernel", "{}", ("cuda", 90, 32))


def test_what_cannot_be_compiled_is_told_with_the_reason():
    with Compilers(2) as compilers:
        for name in ("first", "second"):
            compilers.begin(NOWHERE._replace(name=name))
        failed = compilers.finish()
    reason = "ModuleNotFoundError: No module named 'draftwise.nowhere'"
    assert sorted(failed) == [f"first: {reason}", f"second: {reason}"]
    assert compilers.num_jobs == 2


def test_nothing_to_compile_is_no_failure():
    with Compilers(2) as compilers:
        assert compilers.finish() == []


def test_a_process_that_has_ended_is_told_and_holds_nobody_up():
    with Compilers(2) as compilers:
        compilers.begin(CompileJob("module", "name", "form", ()))  # without a target
        for _ in range(2000):
            compilers.begin(NOWHERE)
        (failed,) = compilers.finish()
    assert failed == "the compilers' process ended with status 1"


def test_one_that_is_given_up_leaves_nothing_behind():
    before = threading.enumerate()
    with Compilers(2) as compilers:
        for _ in range(2000):
            compilers.begin(NOWHERE)
    assert threading.enumerate() == before
