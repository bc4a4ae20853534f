"""Which readings share their luck: those of one prompt, and those of one pair of turns."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Design", "Integers"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """For each of N requests that both arms were sent: its prompt and its pair of turns.

    A pair of turns is the candidate's and plain's answering of the same block of a workload, right after one another:
    (pass, block). With one request in flight it holds a single prompt; under load it holds many, which all have the
    luck of that minute in common.
    """

    prompt_N: Integers
    """Prompts, numbered from 0 without gaps."""
    pair_N: Integers
    """Pairs of turns, likewise."""
    prompts: tuple[Hashable, ...] = ()
    """Names of the prompts, by which they are known again under another load."""

    @classmethod
    def of(cls, requests: Sequence[tuple[Hashable, Hashable]]) -> Design:
        """Return the design of requests given as (prompt, pair of turns), both by any names."""
        prompts = _number([prompt for prompt, _ in requests])
        pairs = _number([pair for _, pair in requests])
        return cls(
            prompt_N=np.array([prompts[prompt] for prompt, _ in requests], dtype=np.int64),
            pair_N=np.array([pairs[pair] for _, pair in requests], dtype=np.int64),
            prompts=tuple(prompts),
        )

    def only(self, kept_N: NDArray[np.bool_]) -> Design:
        """Return the design of some of the requests."""
        kept = np.unique(self.prompt_N[kept_N])
        return Design(
            prompt_N=_dense(self.prompt_N[kept_N]),
            pair_N=_dense(self.pair_N[kept_N]),
            prompts=tuple(self.prompts[number] for number in kept) if self.prompts else (),
        )

    @property
    def num_prompts(self) -> int:
        """Different prompts."""
        return _count(self.prompt_N)

    @property
    def num_pairs(self) -> int:
        """Pairs of turns."""
        return _count(self.pair_N)

    @property
    def cell_N(self) -> Integers:
        """Return [N] the prompt within its pair: sendings of one prompt in one turn are one cell."""
        return _dense(self.prompt_N * max(1, self.num_pairs) + self.pair_N)


def _number(names: Sequence[Hashable]) -> dict[Hashable, int]:
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _dense(labels_N: Integers) -> Integers:
    return np.asarray(np.unique(labels_N, return_inverse=True)[1], dtype=np.int64)


def _count(numbers_N: Integers) -> int:
    return int(numbers_N.max()) + 1 if len(numbers_N) else 0
