"""Two arms on an imaginary machine with the troubles of a real one; its truth is known, so intervals can be checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftwise.statistics import Design

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What differs between readings of a request's seconds, as standard deviations of logarithms.

    Defaults are what a shared machine shows: prompts of very different length, a few percent from turn to turn, a few
    percent of noise, a slow drift over the run, and a stall of 30 % in one turn of thirty.
    """

    prompts: int = 30
    passes: int = 5
    per_turn: int = 1
    """Prompts of a turn: one for a single stream."""
    length: float = 0.5
    """Prompts among each other, on both arms."""
    gain: float = 0.12
    """Prompts in what the candidate does for them; 0 where candidate and plain are the same."""
    heavy: bool = False
    """Whether a few prompts gain or lose far more than the rest (Student's t with 3 degrees of freedom)."""
    turn: float = 0.02
    """Luck of a turn, shared by its requests; a single stream has it as noise."""
    noise: float = 0.03
    drift: float = 0.1
    """From the first pair of turns to the last, a random walk that both arms share."""
    stalls: float = 0.03
    """Share of the turns in which the machine stalls."""
    stall: float = 0.3

    def design(self) -> Design:
        """Return the design of all passes, pass by pass."""
        return Design.of([(p, (r, p // self.per_turn)) for r in range(self.passes) for p in range(self.prompts)])

    def gains(self, rng: np.random.Generator) -> Array:
        """Return [P] logarithms of what prompts gain beyond the typical one."""
        drawn_P = rng.standard_t(3, self.prompts) / math.sqrt(3) if self.heavy else rng.standard_normal(self.prompts)
        return np.asarray(self.gain * drawn_P)

    def measure(
        self, rng: np.random.Generator, speedup: float = 1.0, gains_P: Array | None = None
    ) -> tuple[Array, Array]:
        """Return [N] seconds of candidate and plain, in the order of the design."""
        plain_N, candidate_N = self.arms(rng, [self.gains(rng) if gains_P is None else gains_P], [speedup])
        return candidate_N, plain_N

    def arms(self, rng: np.random.Generator, gains: Sequence[Array], speedups: Sequence[float]) -> list[Array]:
        """Return [N] seconds of the plain arm and of candidates, all in turn over the same prompts."""
        pair_P = np.arange(self.prompts) // self.per_turn
        pairs_RT = (self.passes, int(pair_P[-1]) + 1)
        walk = np.cumsum(rng.standard_normal(math.prod(pairs_RT)))
        shared_RT = (self.drift * walk / math.sqrt(len(walk))).reshape(pairs_RT)
        length_P = self.length * rng.standard_normal(self.prompts)

        def seconds(gain_P: Array) -> Array:
            turns_RT = self.turn * rng.standard_normal(pairs_RT)
            turns_RT += np.log1p(self.stall) * (rng.random(pairs_RT) < self.stalls)
            noise_RP = self.noise * rng.standard_normal((self.passes, self.prompts))
            return np.exp(length_P - gain_P + (shared_RT + turns_RT)[:, pair_P] + noise_RP).ravel()

        candidates = (gain_P + math.log(speedup) for gain_P, speedup in zip(gains, speedups, strict=True))
        return [seconds(gain_P) for gain_P in (np.zeros(self.prompts), *candidates)]


def binomial_bounds(probability: float, trials: int, *, deviations: float = 4.0) -> tuple[float, float]:
    """Return the shares between which a count of so many trials falls unless the probability is another one."""
    reach = deviations * math.sqrt(probability * (1 - probability) / trials)
    return probability - reach, probability + reach
