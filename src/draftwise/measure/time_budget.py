"""Divides the minutes that a run may take."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

_START = 0.3
"""Share of the whole after which candidates that are not up yet are left out, where others can be measured."""
_WARM_UP = 0.2
"""Share of the whole that warm-ups may take; at most `_LONGEST_WARM_UP_S`."""
_LONGEST_WARM_UP_S = 300.0
_LENGTHS = 0.02
"""Share of the whole in which it is found out how long answers are; at most `_LONGEST_LENGTHS_S`."""
_LONGEST_LENGTHS_S = 30.0
_PACES = 0.04
"""Share of the whole in which it is found out how fast servers write them; at most `_LONGEST_PACES_S`."""
_LONGEST_PACES_S = 60.0
_SETTLE = 0.04
"""Share of the whole for which a machine that is still busy is waited for; at most `_LONGEST_SETTLE_S`."""
_LONGEST_SETTLE_S = 30.0
_FIRST_WORD = 0.3
"""Share of the whole after which a first result is shown."""
_PATIENCE = 0.05
"""Share of the whole after which it is tried again, where nothing counted yet."""
_RESERVE = 0.04
"""Share of the whole that is kept for what follows the last turn; at least `_LEAST_RESERVE_S`, but no more than
`_MOST_RESERVED` of it."""
_LEAST_RESERVE_S = 9.0
_MOST_RESERVED = 0.1
_LAST_S = 0.5
"""Seconds between the last look at outputs and the end."""
_ENDING = 0.25
"""Time that servers take to end, as a share of their start; at most `_LONGEST_ENDING_S`. What slows down the
one slows down the other."""
_LONGEST_ENDING_S = 15.0
_REPORT = 3.0
"""Times a look at the verdicts, for how long the report takes."""
_MOST_ENDING = 0.2
"""Share of the whole that is kept for the ending of servers and the report."""


@dataclass(slots=True, kw_only=True)
class TimeBudget:
    """How long a run may take, from the command to its report.

    Args:
        seconds: infinite where nothing was promised.
        began: on the clock of the event loop.

    Attributes:
        start_s: how long the servers that are up took to start, once that is known.
        look_s: how long a look at the verdicts takes, once that is known.
    """

    seconds: float = math.inf
    began: float = 0.0
    start_s: float = field(default=0.0, init=False)
    look_s: float = field(default=0.0, init=False)

    @property
    def is_bounded(self) -> bool:
        """Whether there is an end."""
        return math.isfinite(self.seconds)

    @property
    def turns_end(self) -> float:
        """No turn is begun that would not end by then: after it come divergences, the servers' end and the report."""
        return self.began + self.seconds - self._reserve_s / 2 - self._ending_s if self.is_bounded else math.inf

    @property
    def cut_at(self) -> float | None:
        """When whatever is under way is given up; None without an end."""
        return self.began + self.seconds - self._ending_s if self.is_bounded else None

    @property
    def examination_end(self) -> float | None:
        """When the look at outputs that differ is given up, just before all is; None without an end."""
        return None if (end := self.cut_at) is None else end - _LAST_S

    @property
    def first_word(self) -> float:
        """When the first result is due, be it from a part of the first repetition."""
        return self.began + _FIRST_WORD * self.seconds

    @property
    def patience_s(self) -> float:
        """Seconds after which to look again for a missing result."""
        return _PATIENCE * self.seconds

    def start_end(self, now: float) -> float:
        """Return until when the servers of candidates are waited for from now on."""
        return now + _START * self.seconds

    def warm_up_end(self, now: float, share: float = 1.0) -> float:
        """Return until when servers, a share of all, may be warmed up from now on."""
        return now + min(_WARM_UP * self.seconds, _LONGEST_WARM_UP_S) * share

    def lengths_end(self, now: float) -> float:
        """Return until when prompts may be asked from now on for the lengths of their answers."""
        return now + min(_LENGTHS * self.seconds, _LONGEST_LENGTHS_S)

    def paces_end(self, now: float, share: float = 1.0) -> float:
        """Return until when servers, a share of all, may be asked from now on for their pace."""
        return now + min(_PACES * self.seconds, _LONGEST_PACES_S) * share

    def settle_end(self, now: float, share: float = 1.0) -> float:
        """Return until when servers, a share of all, that are still busy are waited for from now on."""
        return now + min(_SETTLE * self.seconds, _LONGEST_SETTLE_S) * share

    @property
    def _ending_s(self) -> float:
        """Seconds for the servers' end and the report: half of the reserve, or more if known to take longer."""
        expected_s = min(_ENDING * self.start_s, _LONGEST_ENDING_S) + _REPORT * self.look_s
        return max(self._reserve_s / 2, min(expected_s, _MOST_ENDING * self.seconds))

    @property
    def _reserve_s(self) -> float:
        return min(max(_RESERVE * self.seconds, _LEAST_RESERVE_S), _MOST_RESERVED * self.seconds)
