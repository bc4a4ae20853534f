"""Gathers windows of any length into the five-minute rows that drift is judged on, and follows drift along them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from draftwise.core import Window
from draftwise.guarding.state import State
from draftwise.watching.drift import ROW_S, Rows, WindowRow, fit_model

__all__ = ["Gatherer", "follow"]


class Gatherer:
    """Adds windows up to rows."""

    def __init__(self) -> None:
        self._row: WindowRow | None = None

    def add(self, windows: Sequence[Window], *, now_s: float, usable: bool) -> WindowRow | None:
        """Take in the windows that end now, and return the row before if a new one has begun.

        Args:
            windows: of all replicas that speculate.
            now_s: since the epoch.
            usable: whether all of them were in the traffic, and ran throughout.
        """
        began_s = int(now_s // ROW_S) * ROW_S
        done = self._row if self._row is not None and self._row.began_s != began_s else None
        row = self._row if self._row is not None and done is None else WindowRow(began_s=began_s, drafts=0, accepted=0)
        stats = [window.counters.spec for window in windows]
        self._row = WindowRow(
            began_s=began_s,
            drafts=row.drafts + sum(each.num_drafts for each in stats),
            accepted=row.accepted + sum(each.num_accepted_tokens for each in stats),
            usable=row.usable and usable,
        )
        return done


def follow(state: State, row: WindowRow, past: Sequence[WindowRow], *, learns: bool) -> State:
    """Return the state after one more row: a model that is there follows it, else one is learned if that is possible.

    Args:
        state: before.
        row: the newest.
        past: all rows that are kept, the newest among them.
        learns: whether a model may be learned now, which takes a second.
    """
    if state.drift_model is not None:
        return replace(state, drift=state.drift_model.follow(Rows.of([row]), state.drift))
    model = fit_model(Rows.of([each for each in past if each.began_s >= state.learn_from_s])) if learns else None
    if model is None:
        return state
    missed = [each for each in past if each.began_s >= model.until_s]
    return replace(state, drift_model=model, drift=model.follow(Rows.of(missed)))
