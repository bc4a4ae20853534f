"""Penalties on the GPU: one pass over the logits, for which torch needs a dozen over tensors of their size.

Shape letters: T slots, B sequences, N of them with penalties, S = K+1 rows of logits a sequence, K draft tokens,
V vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftwise.engine.kernels.cuda.launch import launch_next, pdl, wait

__all__ = ["penalise"]

_BLOCK = 1024
"""Columns that a program looks at."""


def penalise(
    logits_BSV: Tensor,
    draft_BK: Tensor,
    members_N: Tensor,
    slots_N: Tensor,
    settings_N3: Tensor,
    in_prompt_TV: Tensor,
    num_output_TV: Tensor,
) -> None:
    """Apply penalties in place, see `sampling.penalties`.

    Args:
        logits_BSV: float32, contiguous.
        draft_BK: int64.
        members_N: int64, which sequences.
        slots_N: int64, where their tokens are counted.
        settings_N3: float32: repetition, frequency, presence.
        in_prompt_TV: bool.
        num_output_TV: int32.
    """
    _, num_rows, vocab_size = logits_BSV.shape
    dependent = pdl()
    _penalise[(len(members_N) * num_rows, triton.cdiv(vocab_size, _BLOCK))](
        *(logits_BSV, draft_BK, members_N, slots_N, settings_N3.contiguous(), in_prompt_TV.view(torch.uint8)),
        *(num_output_TV, draft_BK.stride(0), draft_BK.stride(1), num_rows, vocab_size),
        BLOCK=_BLOCK,
        PDL=dependent,
        num_warps=4,
        launch_pdl=dependent,
    )


@triton.jit
def _penalise(
    logits,
    drafts,
    members,
    slots,
    settings,
    in_prompt,
    num_output,
    draft_stride,
    token_stride,
    S,
    V,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Change one part of one row."""
    wait(PDL)
    launch_next(PDL)
    member, row = tl.program_id(0) // S, tl.program_id(0) % S
    sequence, slot = tl.load(members + member), tl.load(slots + member)
    index = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = index < V
    count = tl.load(num_output + slot * V + index, mask=inside, other=0)
    for before in range(row):
        count += (tl.load(drafts + sequence * draft_stride + before * token_stride) == index).to(tl.int32)
    seen = (tl.load(in_prompt + slot * V + index, mask=inside, other=0) != 0) | (count > 0)
    place = logits + (sequence * S + row) * V + index
    value = tl.load(place, mask=inside, other=0.0)
    repetition = tl.load(settings + member * 3)
    scaled = tl.where(value > 0, value / repetition, value * repetition)
    value = tl.where(seen, scaled, value)
    value -= tl.load(settings + member * 3 + 1) * count.to(tl.float32)
    value -= tl.load(settings + member * 3 + 2) * (count > 0).to(tl.float32)
    tl.store(place, value, mask=inside)
