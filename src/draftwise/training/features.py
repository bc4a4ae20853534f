"""Where the target's hidden states come from: computed for each batch, or computed once and read from disk.

`served_states` has a third way: a server that runs computes them.

Shape letters: B rows of a batch, T tokens of a row, N tokens of a shard, F features of a token, H hidden size.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from draftwise.core import InvalidSetup
from draftwise.machine.files import replacing
from draftwise.training.batch import Batch, States
from draftwise.training.data import Corpus, Feed, Rows
from draftwise.training.progress import Reporter
from draftwise.training.ranks import Ranks
from draftwise.training.target import Target

__all__ = ["DiskStates", "GatheredStates", "OnlineStates", "StateSource", "write_states"]

_SHARD_BYTES = 2**28


class StateSource(Protocol):
    """Provides the hidden states of batches."""

    def prefetch(self, rows: Sequence[Rows]) -> None:
        """Prepare the batches that are used next."""

    def get_states(self, rows: Rows, batch: Batch) -> States:
        """Return the states of a batch, on its device."""


class OnlineStates:
    """Runs the target on each batch."""

    def __init__(self, target: Target, aux_layers: Sequence[int]) -> None:
        self._target, self._aux_layers = target, tuple(aux_layers)

    def prefetch(self, rows: Sequence[Rows]) -> None:
        """Do nothing: the target runs when a batch is used."""

    def get_states(self, rows: Rows, batch: Batch) -> States:  # noqa: ARG002 - the batch is enough
        """Run the target."""
        return self._target.compute_states(batch, self._aux_layers)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Which samples lie in which shard."""

    folder: Path
    firsts: tuple[int, ...]
    """First sample of each shard, then the number of samples."""

    @classmethod
    def of(cls, folder: Path, corpus: Corpus, bytes_per_token: int) -> _Layout:
        shard_of_sample = (corpus.offsets_S[:-1] * bytes_per_token) // _SHARD_BYTES
        _, firsts = np.unique(shard_of_sample, return_index=True)
        return cls(folder, (*firsts.tolist(), len(corpus)))

    def file(self, shard: int) -> Path:
        return self.folder / f"states-{shard:05}.safetensors"


def write_states(
    corpus: Corpus, target: Target, aux_layers: Sequence[int], folder: Path, reporter: Reporter, ranks: Ranks
) -> None:
    """Compute the states of all samples, shard by shard, each rank its share; existing shards are kept.

    A token takes (auxiliary states + 1) * H values of the target's type.

    Raises:
        InvalidSetup: the disk has too little free space.
    """
    folder.mkdir(parents=True, exist_ok=True)
    layout = _Layout.of(folder, corpus, _bytes_per_token(target, aux_layers))
    shards = range(len(layout.firsts) - 1)
    missing = [shard for shard in shards if not layout.file(shard).exists()]
    ends = corpus.offsets_S[list(layout.firsts)]
    needed = sum(int(ends[shard + 1] - ends[shard]) for shard in missing) * _bytes_per_token(target, aux_layers)
    _check_room(folder, needed, reporter)
    ranks.wait()  # until all know what is missing
    missing = ranks.share(missing)
    feed = Feed(corpus, target.device)
    with reporter.show_bar("states", total=len(shards), done=len(shards) - len(missing)) as bar:
        for shard in missing:
            parts = [
                _compute(index, corpus, feed, target, aux_layers)
                for index in range(layout.firsts[shard], layout.firsts[shard + 1])
            ]
            with replacing(layout.file(shard)) as partial:
                save_file({"states": torch.cat(parts)}, partial)
            bar.advance(ranks.size)
    ranks.wait()


def _bytes_per_token(target: Target, aux_layers: Sequence[int]) -> int:
    return (len(aux_layers) + 1) * target.hidden_size * target.embedding_VH.element_size()


def _check_room(folder: Path, needed: int, reporter: Reporter) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise InvalidSetup.because(
            "disk-full",
            f"The hidden states of all tokens take {needed / 1e9:.1f} GB, but only {free / 1e9:.1f} GB are free.",
            where=str(folder),
            fix="Use --hidden-states online, less data, or --cache on a larger disk.",
        )
    if needed:
        reporter.print_line(f"writing {needed / 1e9:.2f} GB of hidden states to {folder} ({free / 1e9:.0f} GB free)")


def _compute(index: int, corpus: Corpus, feed: Feed, target: Target, aux_layers: Sequence[int]) -> Tensor:
    """Return the states of one sample, [T, F]."""
    length = int(corpus.lengths[index])
    rows = Rows(np.array([index]), length, 0, length)
    states = target.compute_states(feed.make_batch(rows), aux_layers)
    return torch.cat((*states.aux_BTH, states.final_BTH), dim=-1)[0].cpu()


class GatheredStates(ABC):
    """Puts batches together from the states of samples, the next batches while the current ones are learnt.

    Args:
        corpus: the samples.
        target: whose states they are.
        aux_layers: which states, before the final one.
    """

    def __init__(self, corpus: Corpus, target: Target, aux_layers: Sequence[int]) -> None:
        self._corpus, self._device, self._num_aux_layers = corpus, target.device, len(aux_layers)
        self._width, self._dtype = target.hidden_size, target.embedding_VH.dtype
        self._gatherer = ThreadPoolExecutor(1)
        self._gathered: dict[bytes, Future[Tensor]] = {}

    def prefetch(self, rows: Sequence[Rows]) -> None:
        """Start to gather them."""
        new = {each.samples_B.tobytes(): self._gatherer.submit(self._gather, each) for each in rows}
        self._gathered = new | self._gathered

    def get_states(self, rows: Rows, batch: Batch) -> States:  # noqa: ARG002 - the rows say what to gather
        """Return the states of these rows."""
        future = self._gathered.pop(rows.samples_B.tobytes(), None)
        states_BTF = (future.result() if future else self._gather(rows)).to(self._device, non_blocking=True)
        *aux, final = states_BTF.split(self._width, dim=-1)
        return States(aux_BTH=tuple(aux), final_BTH=final)

    def _gather(self, rows: Rows) -> Tensor:
        shape = (len(rows.samples_B), rows.length, (self._num_aux_layers + 1) * self._width)
        states_BTF = torch.zeros(shape, dtype=self._dtype, pin_memory=self._device.type == "cuda")
        used = [row for row, sample in enumerate(rows.samples_B.tolist()) if sample >= 0]
        for row, part_TF in zip(used, self._read(rows.samples_B[used].tolist()), strict=True):
            states_BTF[row, : len(part_TF)] = part_TF
        return states_BTF

    @abstractmethod
    def _read(self, samples: Sequence[int]) -> Iterator[Any]:
        """Yield the states of each sample, [T, F], or what is assigned like them."""


class DiskStates(GatheredStates):
    """Reads what `write_states` wrote.

    Args:
        corpus: as given to `write_states`.
        target: likewise.
        aux_layers: likewise.
        folder: likewise.
    """

    def __init__(self, corpus: Corpus, target: Target, aux_layers: Sequence[int], folder: Path) -> None:
        super().__init__(corpus, target, aux_layers)
        self._layout = _Layout.of(folder, corpus, _bytes_per_token(target, aux_layers))
        self._slices: dict[int, Any] = {}

    def _read(self, samples: Sequence[int]) -> Iterator[Any]:
        offsets, firsts = self._corpus.offsets_S, self._layout.firsts
        for sample in samples:
            shard = int(np.searchsorted(firsts, sample, side="right")) - 1
            base = offsets[firsts[shard]]
            yield self._shard(shard)[int(offsets[sample] - base) : int(offsets[sample + 1] - base)]

    def _shard(self, shard: int) -> Any:
        """Return the rows of a shard, memory-mapped."""
        if shard not in self._slices:
            file = self._layout.file(shard)
            self._slices[shard] = safe_open(file, framework="pt").get_slice("states")
        return self._slices[shard]
