"""Token sequences of unequal length in one flat array, each with the position where its loss starts."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Ragged:
    """Sequence i is tokens[offsets[i]:offsets[i + 1]]; its tokens from starts[i] on are learnt."""

    tokens: NDArray[np.uint16]
    offsets: NDArray[np.int64]
    starts: NDArray[np.int32]

    @classmethod
    def from_sequences(cls, sequences: Iterable[tuple[list[int], int]]) -> "Ragged":
        """Build from (token ids, loss start) pairs."""
        pairs = list(sequences)
        lengths = np.array([0, *(len(ids) for ids, _ in pairs)], dtype=np.int64)
        flat = [np.array(ids, dtype=np.uint16) for ids, _ in pairs]
        tokens = np.concatenate(flat) if flat else np.zeros(0, np.uint16)
        return cls(tokens, lengths.cumsum(), np.array([start for _, start in pairs], dtype=np.int32))

    @classmethod
    def load(cls, path: Path) -> "Ragged":
        with np.load(path) as arrays:
            return cls(arrays["tokens"], arrays["offsets"], arrays["starts"])

    @classmethod
    def join(cls, parts: "list[Ragged]") -> "Ragged":
        lengths = np.concatenate([np.zeros(1, np.int64), *(np.diff(part.offsets) for part in parts)])
        return cls(
            np.concatenate([part.tokens for part in parts]),
            lengths.cumsum(),
            np.concatenate([part.starts for part in parts]),
        )

    def save(self, path: Path) -> None:
        np.savez(path, tokens=self.tokens, offsets=self.offsets, starts=self.starts)

    def __len__(self) -> int:
        return len(self.starts)

    def prompt(self, index: int) -> list[int]:
        """Return the tokens of sequence `index` that come before its loss starts."""
        first = int(self.offsets[index])
        return self.tokens[first : first + int(self.starts[index])].tolist()
