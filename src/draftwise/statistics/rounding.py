"""Estimates the reach of rounding: the scale of gaps between tokens that one model swaps in other batch shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence

_PRIOR_WEIGHT = 4.0
"""Differences that the prior counts for."""
_FAR = 5.0
"""Scales, beyond which a gap is not rounding."""
_FROM_MEAN_SQUARE = 1.5
"""Two runs' logits differ by a normal value of scale sigma, and gaps are flat near 0: the gap where tokens first swap
is a uniform share of a Rayleigh value, of mean square 2/3 sigma^2."""


def find_rounding_scale(gaps: Sequence[float], prior: float, step: float) -> float:
    """Return sigma in nats, from the gaps at which plain decoding leaves itself in other batch shapes.

    Args:
        gaps: one of each difference that was examined, in nats.
        prior: sigma to expect of this precision.
        step: the distance of logits in this precision; no scale is below it.
    """
    weight = _PRIOR_WEIGHT + len(gaps)
    squares = _PRIOR_WEIGHT * prior**2 + _FROM_MEAN_SQUARE * sum(gap**2 for gap in gaps)
    return max(step, math.sqrt(squares / weight))


def is_beyond_rounding(gap: float, scale: float) -> bool:
    """Return whether two tokens this many nats apart are safe from a swap by rounding."""
    return gap > _FAR * scale
