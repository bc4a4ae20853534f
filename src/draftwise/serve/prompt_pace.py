"""Limits the prompt tokens of a step while other sequences decode, so that these do not stall.

A step ends for all its sequences at once: on a CPU, a prompt of a thousand tokens costs everybody
else a second without a token. So prompts get pieces that take about as long as `GAP_S`, by how long pieces took before.
"""

from __future__ import annotations

GAP_S = 0.02
"""Seconds that prompts may add to a step that others decode in."""
_SHARE = 0.25
"""Share of a step's own time that they may add if that is more, so that they go on even on a slow machine."""
_FIRST_ROWS, _FIRST_RANKED = 64, 16
"""Rows of the first piece, before anything was measured: plain ones, or with log-probabilities."""
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
        self._row_s, self._ranked_s = GAP_S / _FIRST_ROWS, GAP_S / _FIRST_RANKED
        self._step_s = 0.0

    @property
    def rows(self) -> int:
        """Plain rows that take as long as they may."""
        return max(self._least, min(self._most, int(max(GAP_S, _SHARE * self._step_s) / self._row_s)))

    @property
    def ranked_row(self) -> float:
        """Plain rows that take as long as one with log-probabilities, as far as a piece still has `least`."""
        return min(max(self._ranked_s / self._row_s, 1.0), self.rows / self._least)

    def note(self, rows: int, seconds: float, *, decodes: bool, ranked: int = 0) -> None:
        """Take note of a step with this many rows of prompts, `ranked` of them with log-probabilities.

        What is slower than expected counts at once, what is faster counts half: a stalled stream is worse than a prompt
        that takes a little longer.
        """
        if rows == 0:
            self._step_s = _MEMORY * self._step_s + (1 - _MEMORY) * seconds if self._step_s else seconds
            return
        expected_s = (rows - ranked) * self._row_s + ranked * self._ranked_s
        factor = max(seconds - self._step_s * decodes, 0.1 * seconds) / expected_s
        factor = factor if factor > 1 else (factor + 1) / 2
        self._row_s *= factor if rows > ranked else 1
        self._ranked_s *= factor if ranked else 1
