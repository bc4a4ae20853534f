"""Undoes all that a guard has done and that still holds, by what did it: the operator's one way back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from draftwise.core.action import Action, Step
from draftwise.guarding.executors import find_executor, parse_executor
from draftwise.guarding.guard_state import Latch, Store

__all__ = ["undo"]


def undo(store: Store, *, now_s: float) -> Iterator[str]:
    """Put every replica back that a guard took out, and yield what was done, a sentence each.

    A guard that runs goes on, and leaves these replicas alone until the change is acknowledged.

    Raises:
        BackendError: an executor fails; what was undone before stays undone, and the command can be repeated.
    """
    with store.alone():
        state = store.read()
        for replica, latch in state.latches.items():
            action = Action(
                step=Step.RELEASE,
                replicas=(replica,),
                cause=latch.cause,
                reason="The operator undid it.",
                executes=True,
            )
            means = _put_back(action, latch, store)
            state = state.without((replica,))
            state = replace(state, hands_off=state.hands_off | {replica}, last_step_s=now_s)
            store.write(state)
            store.record(action, at_s=now_s, outcome="undone", by=means)
            yield f"{replica} is in the traffic again ({means})."
        if store.patch.exists():
            store.patch.unlink()
            yield f"{store.patch} is removed; if it was committed, revert the commit."


def _put_back(action: Action, latch: Latch, store: Store) -> str:
    """Return the executor that put a replica back: the one that took it out."""
    executor = find_executor([parse_executor(latch.means, patch_file=store.patch)], Step.RELEASE)
    assert executor is not None, "what takes out can put back"
    executor.carry_out(action)
    return executor.name
