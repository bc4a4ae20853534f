"""Moves numbers between host and device without waiting for the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

__all__ = ["Readback", "upload"]


def upload(values: Sequence[int] | ArrayLike, device: torch.device | str, dtype: type[np.generic] = np.int64) -> Tensor:
    """Return host numbers as a tensor on the device.

    By way of numpy because torch.tensor takes five times as long over a list, and of pinned memory because a copy from
    any other waits for the device. The pinned block is not used again before the copy is done (torch sees to that).
    """
    host = torch.from_numpy(np.array(values, dtype=dtype))
    if torch.device(device).type == "cpu":
        return host
    return host.pin_memory().to(device, non_blocking=True)


class Readback:
    """Tensors on their way to the host; `wait` returns them once they are there."""

    def __init__(self, *tensors: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._host = tensors
        if tensors[0].is_cuda:
            self._host = tuple(
                torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
                for tensor in tensors
            )
            self._event = torch.cuda.Event()
            self._event.record()

    def wait(self) -> tuple[Tensor, ...]:
        """Return the tensors on the host, as they were when the readback was made."""
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        return self._host
