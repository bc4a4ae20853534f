"""Samples as flat arrays, and the endless, reproducible order in which they are learned.

Shape letters: N tokens of all samples, S samples, B rows of a batch, T tokens of a row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwise.core import InvalidSetup
from draftwise.training.frozen_target import TokenBatch
from draftwise.training.samples import TextSample

_FIRST_LEARNED = 2
"""A draft needs a known token and a state before it: no method can predict an earlier one."""
_NUM_BUCKETS = 3
_SHORTEST_ROW = 32
"""Long enough for the longest drafts."""


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """Sample i is tokens_N[offsets_S[i] : offsets_S[i + 1]]; what comes from starts_S[i] on is learned."""

    tokens_N: NDArray[np.int32]
    offsets_S: NDArray[np.int64]
    starts_S: NDArray[np.int64]

    @classmethod
    def from_samples(cls, samples: Iterable[TextSample]) -> Corpus:
        """Return the corpus of samples, without those that have nothing to learn."""
        kept = [each for each in samples if len(each.tokens) > max(each.num_prompt, _FIRST_LEARNED)]
        lengths = np.array([0, *(len(each.tokens) for each in kept)], np.int64)
        tokens_N = np.concatenate([each.tokens for each in kept]) if kept else np.zeros(0, np.int32)
        starts_S = np.array([max(each.num_prompt, _FIRST_LEARNED) for each in kept], np.int64)
        return cls(tokens_N, lengths.cumsum(), starts_S)

    def __len__(self) -> int:
        return len(self.starts_S)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each sample, [S]."""
        return np.diff(self.offsets_S)

    @property
    def num_tokens(self) -> int:
        """N."""
        return len(self.tokens_N)

    @property
    def digest(self) -> str:
        """A hash of the content: what identifies this corpus."""
        hashed = hashlib.sha256()
        for array in (self.tokens_N, self.offsets_S, self.starts_S):
            hashed.update(np.ascontiguousarray(array).tobytes())
        return hashed.hexdigest()[:16]

    def count_learned(self, vocab_size: int) -> NDArray[np.int64]:
        """Return how often each token occurs in what is learned, [V]."""
        places_N = np.arange(self.num_tokens) - np.repeat(self.offsets_S[:-1], self.lengths)
        learned_N = places_N >= np.repeat(self.starts_S, self.lengths)
        return np.bincount(self.tokens_N[learned_N], minlength=vocab_size)


def split(samples: list[TextSample], share: float, *, most_tokens: int) -> tuple[list[TextSample], list[TextSample]]:
    """Return the samples to learn and those held out: about `share` of them, at least one.

    A hash of the prompt decides (of the whole text without one), so a sample stays on its side when others
    come or go, and equal prompts go together. Held-out samples beyond `most_tokens` are left out.

    Raises:
        InvalidSetup: there are fewer than two different samples.
    """
    places = [_place(each) for each in samples]
    limit = max(share, min(places, default=0.0))
    learned = [each for each, place in zip(samples, places, strict=True) if place > limit]
    chosen = sorted((place, i) for i, place in enumerate(places) if place <= limit)
    ends = np.cumsum([len(samples[i].tokens) for _, i in chosen])
    held_out = [samples[i] for (_, i), end in zip(chosen, ends, strict=True) if end <= most_tokens or end == ends[0]]
    if not learned:
        raise InvalidSetup.because(
            "too-little-data",
            f"No sample is left to learn from (of {len(samples)}).",
            where="data",
            fix="Give more data, or a smaller --heldout.",
        )
    return learned, held_out


def _place(sample: TextSample) -> float:
    """Return a number in [0, 1) that depends on the prompt only."""
    content = sample.tokens[: sample.num_prompt or None]
    return int.from_bytes(hashlib.sha256(content.tobytes()).digest()[:8], "big") / 2**64


def bucket_lengths(lengths_S: NDArray[np.int64], count: int, multiple: int) -> list[int]:
    """Return at most `count` row lengths, multiples of `multiple`, that hold all samples with the least padding."""
    sizes, numbers = np.unique(-(-lengths_S // multiple) * multiple, return_counts=True)
    below = np.concatenate([np.zeros(1, np.int64), numbers.cumsum()])
    best: list[tuple[float, list[int]]] = [(0.0, []), *[(np.inf, [])] * len(sizes)]
    for _ in range(count):
        previous = best
        best = [previous[0]]
        for last in range(1, len(sizes) + 1):
            size = int(sizes[last - 1])
            options = [(previous[i][0] + size * (below[last] - below[i]), previous[i][1]) for i in range(last)]
            cost, chosen = min(options, key=lambda option: option[0])
            best.append(min(previous[last], (float(cost), [*chosen, size]), key=lambda option: option[0]))
    return best[-1][1]


@dataclass(frozen=True, slots=True, eq=False)
class BatchRows:
    """Which samples make up one batch."""

    samples_B: NDArray[np.int64]
    """-1: an empty row."""
    length: int
    """T."""
    num_learned: int
    num_tokens: int
    """Tokens without padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a run has come in its data."""

    step: int = 0
    taken: tuple[int, ...] = ()
    """Number of samples taken so far, by bucket."""


class SampleOrder:
    """The order in which samples are learned: a function of the seed and the position, and of nothing else.

    Samples of about the same length share batches of `batch_tokens` tokens. Each step takes its batches from one bucket
    of lengths; each bucket is shuffled anew whenever it has been used up.

    Args:
        corpus: what is learned.
        batch_tokens: tokens of one batch, padding included; at least one sample.
        accumulate: batches of one step.
        seed: of the shuffles.
        lengths: row lengths; None: those that fit the corpus best. Each costs a compilation. A longer one is added if
            the corpus needs it.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        batch_tokens: int,
        accumulate: int = 1,
        seed: int = 0,
        lengths: Sequence[int] | None = None,
    ) -> None:
        lengths_S = corpus.lengths
        multiple = 64 if lengths_S.max() >= 256 else 16
        best = bucket_lengths(lengths_S.clip(min=_SHORTEST_ROW), _NUM_BUCKETS, multiple)
        self.lengths = best if lengths is None else sorted({*lengths, max(*lengths, *best)})
        bucket_S = np.searchsorted(self.lengths, lengths_S)
        self._members = [np.flatnonzero(bucket_S == i) for i in range(len(self.lengths))]
        self._lengths_S, self._num_learned_S = lengths_S, lengths_S - corpus.starts_S
        self._seed, self._accumulate = seed, accumulate
        self._sizes = [max(batch_tokens // length, 1) * accumulate for length in self.lengths]
        if lengths is None:  # no sample twice in a batch
            self._sizes = [
                min(size, -(-len(members) // accumulate) * accumulate)
                for size, members in zip(self._sizes, self._members, strict=True)
            ]
        weights = np.array([len(members) / size for members, size in zip(self._members, self._sizes, strict=True)])
        self._shares = weights / weights.sum()

    def get_start(self) -> Position:
        """Return the position before the first step."""
        return Position(taken=(0,) * len(self.lengths))

    def take_step(self, position: Position) -> tuple[list[BatchRows], Position]:
        """Return the batches of the step at a position, and the position after it."""
        bucket = int(np.random.default_rng((self._seed, 0, position.step)).choice(len(self.lengths), p=self._shares))
        size, first = self._sizes[bucket], position.taken[bucket]
        samples = self._take(bucket, first, size)
        taken = (*position.taken[:bucket], first + size, *position.taken[bucket + 1 :])
        parts = np.split(samples, self._accumulate)
        return [self._rows(part, bucket) for part in parts], Position(step=position.step + 1, taken=taken)

    def iterate_once(self) -> Iterator[BatchRows]:
        """Yield batches that hold each sample once, padded with empty rows to the shapes of `take_step`."""
        for bucket, members in enumerate(self._members):
            size = self._sizes[bucket] // self._accumulate
            for first in range(0, len(members), size):
                part = members[first : first + size]
                yield self._rows(np.pad(part, (0, size - len(part)), constant_values=-1), bucket)

    def _take(self, bucket: int, first: int, size: int) -> NDArray[np.int64]:
        """Return the members number first .. first + size - 1 of a bucket's endless shuffled stream."""
        members, parts = self._members[bucket], []
        while size:
            epoch, offset = divmod(first, len(members))
            shuffled = np.random.default_rng((self._seed, 1, bucket, epoch)).permutation(members)
            parts.append(shuffled[offset : offset + size])
            first, size = first + len(parts[-1]), size - len(parts[-1])
        return np.concatenate(parts)

    def _rows(self, samples_B: NDArray[np.int64], bucket: int) -> BatchRows:
        used = samples_B[samples_B >= 0]
        num_learned, num_tokens = self._num_learned_S[used].sum(), self._lengths_S[used].sum()
        return BatchRows(samples_B, self.lengths[bucket], int(num_learned), int(num_tokens))


class Feed:
    """Makes batches on a device; the corpus is kept there too if it takes little of its memory.

    Args:
        corpus: the samples.
        device: of the batches.
    """

    def __init__(self, corpus: Corpus, device: torch.device) -> None:
        self.corpus, self._device = corpus, device
        home = device if _fits(corpus, device) else torch.device("cpu")
        self._tokens_N = torch.from_numpy(corpus.tokens_N).to(home)
        self._firsts_S = torch.from_numpy(corpus.offsets_S[:-1].copy()).to(home)
        self._lengths_S = torch.from_numpy(corpus.lengths).to(home)
        self._starts_S = torch.from_numpy(corpus.starts_S).to(home)

    def make_batch(self, rows: BatchRows) -> TokenBatch:
        """Return a batch."""
        chosen_B = _send(torch.from_numpy(rows.samples_B), self._tokens_N.device)
        places_T = torch.arange(rows.length, device=chosen_B.device)
        used_B, chosen_B = chosen_B >= 0, chosen_B.clamp(min=0)
        valid_BT = (places_T < self._lengths_S[chosen_B][:, None]) & used_B[:, None]
        places_BT = (self._firsts_S[chosen_B][:, None] + places_T).clamp(max=len(self._tokens_N) - 1)
        tokens_BT = torch.where(valid_BT, self._tokens_N[places_BT].long(), 0)
        learned_BT = valid_BT & (places_T >= self._starts_S[chosen_B][:, None])
        parts = (_send(part, self._device) for part in (tokens_BT, valid_BT, learned_BT))
        return TokenBatch(**dict(zip(("tokens_BT", "valid_BT", "learned_BT"), parts, strict=True)))


def _fits(corpus: Corpus, device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return corpus.tokens_N.nbytes < free // 8


def _send(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to a device without making the host wait."""
    if tensor.device == device or device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
