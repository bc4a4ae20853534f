"""Moves numbers to the device without waiting for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

_ROW_BYTES = 32
"""Bytes that a step uploads at once for each row of its pass, at most: three integers, and some for its sequences."""
_SMALL_BYTES = 4096
_NUM_SMALL, _NUM_LARGE = 64, 16
"""Blocks of up to `_SMALL_BYTES`, and beyond, that two steps under way use of one size at most."""


def upload(values: Sequence[int] | ArrayLike, device: torch.device | str, dtype: type[np.generic] = np.int64) -> Tensor:
    """Return host numbers as a tensor on the device.

    By way of numpy because torch.tensor takes five times as long over a list, and of pinned memory because a copy from
    any other waits for the device. The pinned block is not used again before the copy is done (torch sees to that).
    """
    host = torch.from_numpy(np.array(values, dtype=dtype))
    if torch.device(device).type == "cpu":
        return host
    return host.pin_memory().to(device, non_blocking=True)


def reserve_pinned(num_rows: int) -> None:
    """Make the pinned blocks that steps of up to `num_rows` rows use; torch keeps them, one size for each power of two.

    To make one may wait for all that is under way, and with it the tokens of the step before.
    """
    sizes = [1 << power for power in range(3, (_ROW_BYTES * num_rows - 1).bit_length() + 1)]
    counts = [_NUM_SMALL if size <= _SMALL_BYTES else _NUM_LARGE for size in sizes]
    for size, count in zip(sizes, counts, strict=True):
        _ = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(count)]
