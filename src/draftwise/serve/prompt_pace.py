"""Limits the prompt tokens of a step while other sequences decode, so that these do not stall.

A step ends for all its sequences at once: on a CPU, a prompt of a thousand tokens costs everybody
else a second without a token. So prompts get pieces that take about as long as `GAP_S`, by how long pieces took before.
"""

from __future__ import annotations

GAP_S = 0.02
"""Seconds that prompts may add to a step that others decode in."""
_SHARE = 0.25
"""Share of a step's own time that they may add if that is more, so that they go on even on a slow machine."""
_FIRST_ROWS = 64
"""Rows of the first piece, before anything was measured."""
_MEMORY = 0.8
"""Weight of the past in the mean over steps without prompts."""


class PromptPace:
    """Measures steps and says how many rows of prompts the next one may have.

    Args:
        least: rows of a piece at least: prompts go on however slow the machine is.
        most: rows of a piece at most.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._row_s = GAP_S / _FIRST_ROWS
        self._step_s = 0.0

    @property
    def rows(self) -> int:
        """Rows that take as long as they may."""
        return max(self._least, min(self._most, int(max(GAP_S, _SHARE * self._step_s) / self._row_s)))

    def note(self, rows: int, seconds: float, *, decodes: bool) -> None:
        """Take note of a step with this many rows of prompts.

        What is slower than expected counts at once, what is faster counts half: a stalled stream is worse than a prompt
        that takes a little longer.
        """
        if rows == 0:
            self._step_s = _MEMORY * self._step_s + (1 - _MEMORY) * seconds if self._step_s else seconds
            return
        row_s = max(seconds - self._step_s * decodes, 0.1 * seconds) / rows
        self._row_s = row_s if row_s > self._row_s else (row_s + self._row_s) / 2
