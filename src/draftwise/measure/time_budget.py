"""Divides a run's time budget."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

_START = 0.3
"""Share of the budget after which candidates that are not up are left out, if others can be measured."""
_WARM_UP = 0.2
"""Share of the budget for warm-ups, at most `_LONGEST_WARM_UP_S`."""
_LONGEST_WARM_UP_S = 300.0
_LENGTHS = 0.02
"""Share of the budget for measuring answer lengths, at most `_LONGEST_LENGTHS_S`."""
_LONGEST_LENGTHS_S = 30.0
_PACES = 0.04
"""Share of the budget for measuring the servers' paces, at most `_LONGEST_PACES_S`."""
_LONGEST_PACES_S = 60.0
_SETTLE = 0.04
"""Share of the budget for waiting until a busy machine is idle, at most `_LONGEST_SETTLE_S`."""
_LONGEST_SETTLE_S = 30.0
_FIRST_WORD = 0.3
"""Share of the budget after which a first result is shown."""
_PATIENCE = 0.05
"""Share of the budget between attempts to show it, as long as no measurement counts."""
_RESERVE = 0.04
"""Share of the budget reserved for work after the last turn: at least `_LEAST_RESERVE_S`, at most `_MOST_RESERVED` of
the budget."""
_LEAST_RESERVE_S = 9.0
_MOST_RESERVED = 0.1
_LAST_S = 0.5
"""Seconds between the last examination of outputs and the end."""
_ENDING = 0.25
"""Time to stop servers, as a share of their start time, at most `_LONGEST_ENDING_S`. The same causes slow both."""
_LONGEST_ENDING_S = 15.0
_REPORT = 5.0
"""Time for the report, as a multiple of one evaluation of the verdicts."""
_MOST_ENDING = 0.2
"""Largest share of the budget reserved for stopping servers and for the report."""


@dataclass(slots=True, kw_only=True)
class TimeBudget:
    """How long a run may take, from the command to its report.

    Args:
        seconds: the budget; infinite without a limit.
        began: start of the run, on the event loop's clock.

    Attributes:
        start_s: seconds that the slowest server took to start, once known.
        look_s: seconds that one evaluation of the verdicts takes, once known.
    """

    seconds: float = math.inf
    began: float = 0.0
    start_s: float = field(default=0.0, init=False)
    look_s: float = field(default=0.0, init=False)

    @property
    def is_bounded(self) -> bool:
        """Whether the budget has a limit."""
        return math.isfinite(self.seconds)

    @property
    def turns_end(self) -> float:
        """Time by which the last turn must end. Divergences, stopping the servers and the report follow."""
        return self.began + self.seconds - self._reserve_s / 2 - self._ending_s if self.is_bounded else math.inf

    @property
    def cut_at(self) -> float | None:
        """Time at which to give up all work in progress; None without a limit."""
        return self.began + self.seconds - self._ending_s if self.is_bounded else None

    @property
    def examination_end(self) -> float | None:
        """Time at which to give up examining differing outputs, just before `cut_at`; None without a limit."""
        return None if (end := self.cut_at) is None else end - _LAST_S

    @property
    def first_word(self) -> float:
        """Time at which a first result is due, even from part of the first repetition."""
        return self.began + _FIRST_WORD * self.seconds

    @property
    def patience_s(self) -> float:
        """Seconds after which to try again if there is no result."""
        return _PATIENCE * self.seconds

    def start_end(self, now: float) -> float:
        """Return the time until which to wait for candidates' servers."""
        return now + _START * self.seconds

    def warm_up_end(self, now: float, share: float = 1.0) -> float:
        """Return the time by which the warm-up of a share of the servers must end."""
        return now + min(_WARM_UP * self.seconds, _LONGEST_WARM_UP_S) * share

    def lengths_end(self, now: float) -> float:
        """Return the time by which measuring answer lengths must end."""
        return now + min(_LENGTHS * self.seconds, _LONGEST_LENGTHS_S)

    def paces_end(self, now: float, share: float = 1.0) -> float:
        """Return the time by which measuring the pace of a share of the servers must end."""
        return now + min(_PACES * self.seconds, _LONGEST_PACES_S) * share

    def settle_end(self, now: float, share: float = 1.0) -> float:
        """Return the time until which to wait for a share of the servers to become idle."""
        return now + min(_SETTLE * self.seconds, _LONGEST_SETTLE_S) * share

    @property
    def _ending_s(self) -> float:
        """Seconds for the servers' end and the report: half of the reserve, or more if known to take longer."""
        expected_s = min(_ENDING * self.start_s, _LONGEST_ENDING_S) + _REPORT * self.look_s
        return max(self._reserve_s / 2, min(expected_s, _MOST_ENDING * self.seconds))

    @property
    def _reserve_s(self) -> float:
        return min(max(_RESERVE * self.seconds, _LEAST_RESERVE_S), _MOST_RESERVED * self.seconds)
