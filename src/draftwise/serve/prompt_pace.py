"""Limits the prompt tokens of a step while other sequences decode, to keep them from stalling.

A step ends for all its sequences at once: on a CPU, a prompt of a thousand tokens stalls all others for a second. So
prompts are split into pieces that take about `GAP_S`, according to the time of earlier pieces.
"""

from __future__ import annotations

GAP_S = 0.02
"""Seconds that prompts may add to a step with decoding sequences."""
_SHARE = 0.25
"""Share of a step's own time that they may add if that is longer, to make progress on a slow machine."""
_FIRST_ROWS, _FIRST_RANKED = 64, 16
"""Rows of the first piece, before any measurement: plain, or with log-probabilities."""
_MEMORY = 0.8
"""Weight of the past in the moving average over steps without prompts."""


class PromptPace:
    """Measures steps and decides how many prompt rows the next one may have.

    Args:
        least: minimum rows of a piece, which keeps prompts going on any machine.
        most: maximum rows of a piece.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._row_s, self._ranked_s = GAP_S / _FIRST_ROWS, GAP_S / _FIRST_RANKED
        self._step_s = 0.0

    @property
    def rows(self) -> int:
        """Number of plain rows that fit into the allowed time."""
        return max(self._least, min(self._most, int(max(GAP_S, _SHARE * self._step_s) / self._row_s)))

    @property
    def ranked_row(self) -> float:
        """Plain rows that take as long as one with log-probabilities, limited to let a piece keep `least` rows."""
        return min(max(self._ranked_s / self._row_s, 1.0), self.rows / self._least)

    def note(self, rows: int, seconds: float, *, decodes: bool, ranked: int = 0) -> None:
        """Record a step with `rows` prompt rows, `ranked` of them with log-probabilities.

        Slower steps count fully, faster ones half: a stalled stream is worse than a slightly slower prompt.
        """
        if rows == 0:
            self._step_s = _MEMORY * self._step_s + (1 - _MEMORY) * seconds if self._step_s else seconds
            return
        expected_s = (rows - ranked) * self._row_s + ranked * self._ranked_s
        factor = max(seconds - self._step_s * decodes, 0.1 * seconds) / expected_s
        factor = factor if factor > 1 else (factor + 1) / 2
        self._row_s *= factor if rows > ranked else 1
        self._ranked_s *= factor if ranked else 1
