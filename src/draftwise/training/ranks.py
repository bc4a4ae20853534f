"""The processes that train one drafter together with torch.distributed, one per GPU of a host.

Each rank computes its share of the batches of a step with its own copy of the target; gradients are summed (DDP), or
summed and divided among the ranks together with parameters and optimizer (FSDP2).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard

from draftwise.knowledge.messages import refusal

_Item = TypeVar("_Item")
_TIMEOUT = timedelta(hours=2)
"""How long a rank waits for the others: one may answer longer prompts. The launcher detects dead ranks at once."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """A process's rank among those that train together."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def share(self, items: Sequence[_Item]) -> list[_Item]:
        """Return this rank's share of the items: every `size`-th one."""
        return list(islice(items, self.rank, None, self.size))

    def gather(self, value: _Item) -> list[_Item]:
        """Return every rank's value, in rank order. All ranks must call it."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        """Wait until all ranks have called this."""
        self.gather(None)

    def spread(self, module: nn.Module, *, shard: bool) -> nn.Module:
        """Return a module whose gradients are averaged over ranks. With `shard`, each rank keeps only a part of it."""
        if shard:
            # Kept whole between forward and backward pass: what is saved is gradients, optimizer and master weights.
            fully_shard(module, reshard_after_forward=False)
        if shard or self.size == 1:
            return module
        # Graphs are compiled for a drafter's parts, and torch would split them at the edges of DDP's buckets.
        torch._dynamo.config.optimize_ddp = False
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # torch 2.13 renames the first option
            return nn.parallel.DistributedDataParallel(module, broadcast_buffers=False, gradient_as_bucket_view=True)

    def summing(self, module: nn.Module, *, now: bool) -> AbstractContextManager[Any]:
        """Return a block that decides whether ranks share a pass's gradients right away, or after later passes."""
        if self.size == 1:
            return nullcontext()
        if isinstance(module, nn.parallel.DistributedDataParallel):
            return nullcontext() if now else module.no_sync()
        module.set_requires_gradient_sync(now)  # type: ignore[operator]  # of FSDP2
        return nullcontext()


ALONE = Ranks()
"""The single process of a run without a launcher."""


def is_launched() -> bool:
    """Return whether torchrun, or an equivalent, started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """Join the processes launched together. Without a launcher, this process is alone.

    Args:
        device: `cpu` or `cuda`; each rank gets the GPU of its number.

    Raises:
        InvalidSetup: there are more processes than GPUs.
    """
    if not is_launched():
        yield ALONE
        return
    local, size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if device == "cuda":
        if size > (there := torch.cuda.device_count()):
            raise refusal("too-many-processes", size=size, there=there)
        torch.cuda.set_device(local)
    distributed.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo", timeout=_TIMEOUT)
    yield Ranks(distributed.get_rank(), distributed.get_world_size())
    distributed.destroy_process_group()  # not after an error: the other ranks may never come to it
