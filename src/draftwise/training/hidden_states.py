"""Provides the target's hidden states: computed per batch, from disk, or from a vLLM server.

vLLM's method `extract_hidden_states` writes the files read here.

Shape letters: B rows of a batch, T tokens of a row or a sample, N states of a token, F = N * H features of a token,
H hidden size.
"""

from __future__ import annotations

import fcntl
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftwise.backends.asking import Asker
from draftwise.core import BackendError, cause_of
from draftwise.core.progress import Progress
from draftwise.knowledge.messages import refusal, text_of
from draftwise.machine.whole_files import replacing
from draftwise.training.data import BatchRows, Corpus, Feed
from draftwise.training.frozen_target import FrozenTarget, States, TokenBatch
from draftwise.training.ranks import Ranks
from draftwise.training.training_progress import show_bar

_SHARD_BYTES = 2**28
_AT_ONCE = 16
"""Number of samples to request at a time."""
_MOST_DIFFERENCE = 0.05
"""Largest allowed relative difference between the server's states and ours; bfloat16 rounding stays below."""
_CHECKED_TOKENS = 64


class StateSource(ABC):
    """Provides the hidden states of batches."""

    def prefetch(self, rows: Sequence[BatchRows]) -> None:  # noqa: B027 - not all have something to prepare
        """Prepare the next batches."""

    @abstractmethod
    def get_states(self, rows: BatchRows, batch: TokenBatch) -> States:
        """Return the states of a batch, on its device."""


class OnlineStates(StateSource):
    """Runs the target on each batch."""

    def __init__(self, target: FrozenTarget, aux_layers: Sequence[int]) -> None:
        self._target, self._aux_layers = target, tuple(aux_layers)

    def get_states(self, rows: BatchRows, batch: TokenBatch) -> States:  # noqa: ARG002 - the batch is enough
        """Run the target."""
        return self._target.compute_states(batch, self._aux_layers)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Which samples lie in which shard."""

    folder: Path
    firsts: tuple[int, ...]
    """First sample of each shard, followed by the number of samples."""

    @classmethod
    def of(cls, folder: Path, corpus: Corpus, bytes_per_token: int) -> _Layout:
        shard_of_sample = (corpus.offsets_S[:-1] * bytes_per_token) // _SHARD_BYTES
        _, firsts = np.unique(shard_of_sample, return_index=True)
        return cls(folder, (*firsts.tolist(), len(corpus)))

    def file(self, shard: int) -> Path:
        return self.folder / f"states-{shard:05}.safetensors"


def write_states(
    corpus: Corpus, target: FrozenTarget, aux_layers: Sequence[int], folder: Path, progress: Progress, ranks: Ranks
) -> None:
    """Compute the states of all samples in shards; each rank does its share. Existing shards are kept.

    Takes (auxiliary states + 1) * H values of the target's type per token.

    Raises:
        InvalidSetup: the disk space is insufficient.
    """
    folder.mkdir(parents=True, exist_ok=True)
    layout = _Layout.of(folder, corpus, _bytes_per_token(target, aux_layers))
    shards = range(len(layout.firsts) - 1)
    missing = [shard for shard in shards if not layout.file(shard).exists()]
    ends = corpus.offsets_S[list(layout.firsts)]
    needed = sum(int(ends[shard + 1] - ends[shard]) for shard in missing) * _bytes_per_token(target, aux_layers)
    _check_room(folder, needed, progress)
    ranks.wait()  # until all know what is missing
    missing = ranks.share(missing)
    feed = Feed(corpus, target.device)
    with show_bar(progress, "states", total=len(shards), done=len(shards) - len(missing)) as bar:
        for shard in missing:
            parts = [
                _compute(index, corpus, feed, target, aux_layers)
                for index in range(layout.firsts[shard], layout.firsts[shard + 1])
            ]
            with replacing(layout.file(shard)) as partial:
                save_file({"states": torch.cat(parts)}, partial)
            bar.advance(ranks.size)
    ranks.wait()


def _bytes_per_token(target: FrozenTarget, aux_layers: Sequence[int]) -> int:
    return (len(aux_layers) + 1) * target.hidden_size * target.embedding_VH.element_size()


def _check_room(folder: Path, needed: int, progress: Progress) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise refusal("disk-full", needed=needed / 1e9, free=free / 1e9, folder=folder)
    if needed:
        progress.status(f"writing {needed / 1e9:.2f} GB of hidden states to {folder} ({free / 1e9:.0f} GB free)")


def _compute(index: int, corpus: Corpus, feed: Feed, target: FrozenTarget, aux_layers: Sequence[int]) -> Tensor:
    """Return the states of one sample, [T, F]."""
    length = int(corpus.lengths[index])
    rows = BatchRows(np.array([index]), length, 0, length)
    states = target.compute_states(feed.make_batch(rows), aux_layers)
    return torch.cat((*states.aux_BTH, states.final_BTH), dim=-1)[0].cpu()


class GatheredStates(StateSource):
    """Assembles batches from samples' states; prepares the next batches while the current ones train.

    Args:
        aux_layers: auxiliary states, before the final one.
    """

    def __init__(self, corpus: Corpus, target: FrozenTarget, aux_layers: Sequence[int]) -> None:
        self._corpus, self._device, self._num_aux_layers = corpus, target.device, len(aux_layers)
        self._width, self._dtype = target.hidden_size, target.embedding_VH.dtype
        self._gatherer = ThreadPoolExecutor(1)
        self._gathered: dict[bytes, Future[Tensor]] = {}

    def prefetch(self, rows: Sequence[BatchRows]) -> None:
        """Start gathering the batches."""
        new = {each.samples_B.tobytes(): self._gatherer.submit(self._gather, each) for each in rows}
        self._gathered = new | self._gathered

    def get_states(self, rows: BatchRows, batch: TokenBatch) -> States:  # noqa: ARG002 - the rows say what to gather
        """Return the states of these rows."""
        future = self._gathered.pop(rows.samples_B.tobytes(), None)
        states_BTF = (future.result() if future else self._gather(rows)).to(self._device, non_blocking=True)
        *aux, final = states_BTF.split(self._width, dim=-1)
        return States(aux_BTH=tuple(aux), final_BTH=final)

    def _gather(self, rows: BatchRows) -> Tensor:
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
    """Reads the files of `write_states`."""

    def __init__(self, corpus: Corpus, target: FrozenTarget, aux_layers: Sequence[int], folder: Path) -> None:
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


class ServedStates(GatheredStates):
    """Requests each sample's states from a server when its batch is due. Deletes the server's files after reading.

    Args:
        target: the served target; uses only its embedding, norm and head.
        aux_layers: states that the drafter reads. The server writes these and the last layer's output.
        url: URL of the server, with or without /v1.

    Raises:
        BackendError: the server does not answer.
    """

    def __init__(self, corpus: Corpus, target: FrozenTarget, aux_layers: Sequence[int], url: str) -> None:
        super().__init__(corpus, target, aux_layers)
        layers = _served_layers(aux_layers, target)
        self._num_states, self._places = len(layers), [layers.index(layer) for layer in aux_layers]
        self._norm: Callable[[Tensor], Tensor] = target.model.model.norm
        self._server, self._pool = Asker(url), ThreadPoolExecutor(_AT_ONCE)

    def _read(self, samples: Sequence[int]) -> Iterator[Tensor]:
        texts = [self._corpus.tokens_N[slice(*self._corpus.offsets_S[i : i + 2])].tolist() for i in samples]
        yield from self._pool.map(self._get, texts)

    def _get(self, tokens: list[int]) -> Tensor:
        """Return a sample's states, the last of them normed, [T, F] in the target's dtype."""
        states_TNH = _ask(self._server, tokens, self._num_states).to(self._device, self._dtype)
        with torch.no_grad():
            final_TH = self._norm(states_TNH[:, -1])
        return torch.cat((states_TNH[:, self._places].flatten(1), final_TH), dim=-1).cpu()


def check_served(url: str, corpus: Corpus, target: FrozenTarget, aux_layers: Sequence[int]) -> None:
    """Check a server's states by computing those of a short text here.

    Args:
        target: complete target on any device.

    Raises:
        InvalidSetup: the server has other weights, or writes other layers' states.
        BackendError: the server does not answer, or its files are not readable here.
    """
    tokens = corpus.tokens_N[: min(int(corpus.lengths[0]), _CHECKED_TOKENS)].tolist()
    tokens_BT = torch.tensor([tokens], device=target.device)
    given_BT = torch.ones_like(tokens_BT, dtype=torch.bool)
    wanted = _served_layers(aux_layers, target)
    batch = TokenBatch(tokens_BT=tokens_BT, valid_BT=given_BT, learned_BT=given_BT)
    expected_TNH = torch.stack(target.compute_states(batch, wanted).aux_BTH, dim=2)[0].float().cpu()
    served_TNH = _ask(Asker(url), tokens, len(wanted)).float()
    sizes_N = expected_TNH.norm(dim=-1).median(0).values
    differences_N = (served_TNH - expected_TNH).norm(dim=-1).median(0).values / sizes_N
    wrong = [layer for layer, each in zip(wanted, differences_N.tolist(), strict=True) if not each < _MOST_DIFFERENCE]
    if not wrong:
        return
    raise refusal("wrong-states", url=url, wanted=_join(wanted), wrong=_join(wrong), path=target.path)


def _served_layers(aux_layers: Sequence[int], target: FrozenTarget) -> list[int]:
    """Return the layers whose states a server must write, in vLLM's order: ascending, once each."""
    return sorted({*aux_layers, target.num_layers})


def _ask(server: Asker, tokens: list[int], num_states: int) -> Tensor:
    """Return the states of a text, [T, N, H].

    Raises:
        BackendError: they are missing, or not for these tokens.
    """
    told = server.complete(tokens).get("kv_transfer_params") or {}
    path = told.get("hidden_states_path")
    if not isinstance(path, str):
        raise BackendError(text_of("states-unnamed", url=server.url))
    tensors = _take(Path(path))
    states, ids = tensors.get("hidden_states"), tensors.get("token_ids")
    if states is None or ids is None or ids.tolist() != tokens or states.shape[:1] != ids.shape:
        raise BackendError(f"{path} does not hold the hidden states of the {len(tokens)} tokens that draftwise sent.")
    if states.shape[1] != num_states:
        raise BackendError(
            f"{path} holds {states.shape[1]} states per token, but {num_states} are needed, including the last layer's."
        )
    return states


def _take(path: Path) -> Mapping[str, Tensor]:
    """Read a file that a server writes, once its lock is free, and delete both.

    Raises:
        BackendError: it cannot be read.
    """
    lock = path.with_name(path.name + ".lock")
    try:
        with lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_SH)
            tensors = load_file(path)
        path.unlink()
        lock.unlink()
    except (OSError, SafetensorError) as error:
        raise BackendError(text_of("states-unreadable", path=path, cause=cause_of(error))) from None
    return tensors


def _join(layers: Sequence[int]) -> str:
    return ", ".join(map(str, layers))
