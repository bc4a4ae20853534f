"""Endless batches on the device from a token stream or from ragged sequences."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from ragged import Ragged
from torch import Tensor

TEXT_LENGTH = 2048
BUCKETS = (256, 512)


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs [B, T], the token after each [B, T], and which of those are learnt [B, T]."""

    inputs: Tensor
    targets: Tensor
    learnt: Tensor


class TextBatches:
    """Windows of TEXT_LENGTH tokens from random places of a stream."""

    def __init__(self, path: Path, batch_tokens: int, device: str, seed: int) -> None:
        self.stream = torch.from_numpy(np.load(path).astype(np.int16)).to(device)
        self.rows = max(1, batch_tokens // TEXT_LENGTH)
        self.rng = np.random.default_rng(seed)

    def next(self) -> Batch:
        firsts = self.rng.integers(0, len(self.stream) - TEXT_LENGTH - 1, self.rows)
        steps = torch.arange(TEXT_LENGTH + 1, device=self.stream.device)
        tokens = self.stream[torch.from_numpy(firsts).to(steps.device)[:, None] + steps].long()
        return Batch(tokens[:, :-1], tokens[:, 1:], torch.ones_like(tokens[:, 1:], dtype=torch.bool))


class UnitBatches:
    """One sequence a row, padded to the shortest of BUCKETS that holds it; epochs are shuffled."""

    def __init__(self, units: Ragged, batch_tokens: int, device: str, seed: int) -> None:
        self.tokens = torch.from_numpy(units.tokens.astype(np.int16)).to(device)
        self.firsts = torch.from_numpy(units.offsets[:-1]).to(device)
        self.lengths = torch.from_numpy(np.diff(units.offsets)).to(device)
        self.starts = torch.from_numpy(units.starts).to(device)
        self.rng = np.random.default_rng(seed)
        self.batch_tokens = batch_tokens
        sizes = np.diff(units.offsets) - 1
        bucket = np.searchsorted(BUCKETS, sizes)
        self.members = [np.flatnonzero(bucket == i) for i in range(len(BUCKETS))]
        self.share = np.array([len(m) * length for m, length in zip(self.members, BUCKETS, strict=True)], float)
        self.queues = [np.zeros(0, np.int64) for _ in BUCKETS]

    def next(self) -> Batch:
        bucket = int(self.rng.choice(len(BUCKETS), p=self.share / self.share.sum()))
        rows = max(1, self.batch_tokens // BUCKETS[bucket])
        while len(self.queues[bucket]) < rows:
            epoch = self.rng.permutation(self.members[bucket])
            self.queues[bucket] = np.concatenate([self.queues[bucket], epoch])
        chosen, self.queues[bucket] = np.split(self.queues[bucket], [rows])
        return self.gather(torch.from_numpy(chosen).to(self.tokens.device), BUCKETS[bucket])

    def gather(self, chosen: Tensor, length: int) -> Batch:
        steps = torch.arange(length + 1, device=chosen.device)
        places = (self.firsts[chosen][:, None] + steps).clamp(max=len(self.tokens) - 1)
        inside = steps < self.lengths[chosen][:, None]
        tokens = torch.where(inside, self.tokens[places].long(), 1)
        learnt = inside & (steps >= self.starts[chosen][:, None])
        return Batch(tokens[:, :-1], tokens[:, 1:], learnt[:, 1:])
