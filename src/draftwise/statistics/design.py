"""Which readings vary together: those of one prompt, and those of one paired block."""

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
    """For each of N requests that both arms were sent: its prompt and its paired block.

    A paired block is a part of a workload that candidate and baseline answer one right after the other: (repetition,
    block). With one request in flight it holds a single prompt; under load it holds many, and whatever the machine
    does in that minute is common to all of them (shared variance).
    """

    prompt_N: Integers
    """Prompts, numbered from 0 without gaps."""
    block_N: Integers
    """Paired blocks, likewise."""
    prompts: tuple[Hashable, ...] = ()
    """Names of the prompts, by which they are known again under another load."""

    @classmethod
    def of(cls, requests: Sequence[tuple[Hashable, Hashable]]) -> Design:
        """Return the design of requests given as (prompt, paired block), both by any names."""
        prompts = _number([prompt for prompt, _ in requests])
        blocks = _number([block for _, block in requests])
        return cls(
            prompt_N=np.array([prompts[prompt] for prompt, _ in requests], dtype=np.int64),
            block_N=np.array([blocks[block] for _, block in requests], dtype=np.int64),
            prompts=tuple(prompts),
        )

    def only(self, kept_N: NDArray[np.bool_]) -> Design:
        """Return the design of some of the requests."""
        kept = np.unique(self.prompt_N[kept_N])
        return Design(
            prompt_N=_dense(self.prompt_N[kept_N]),
            block_N=_dense(self.block_N[kept_N]),
            prompts=tuple(self.prompts[number] for number in kept) if self.prompts else (),
        )

    @property
    def num_prompts(self) -> int:
        """Different prompts."""
        return _count(self.prompt_N)

    @property
    def num_blocks(self) -> int:
        """Paired blocks."""
        return _count(self.block_N)

    @property
    def cell_N(self) -> Integers:
        """Return [N] the prompt within its block: attempts at one prompt in one turn are one cell."""
        return _dense(self.prompt_N * max(1, self.num_blocks) + self.block_N)


def _number(names: Sequence[Hashable]) -> dict[Hashable, int]:
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _dense(labels_N: Integers) -> Integers:
    return np.asarray(np.unique(labels_N, return_inverse=True)[1], dtype=np.int64)


def _count(numbers_N: Integers) -> int:
    return int(numbers_N.max()) + 1 if len(numbers_N) else 0
