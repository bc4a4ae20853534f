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
    member_B: Tensor,
    slots_N: Tensor,
    settings_N3: Tensor,
    in_prompt_TV: Tensor,
    num_output_TV: Tensor,
) -> Tensor:
    """Return the float32 logits after penalties, see `sampling.penalties`.

    Args:
        logits_BSV: any float type.
        draft_BK: int64.
        member_B: int64, which of the N a sequence is; -1: none. Sequences past its end have no penalties.
        slots_N: int64, where their tokens are counted.
        settings_N3: float32: repetition, frequency, presence.
        in_prompt_TV: bool.
        num_output_TV: int32.
    """
    num_seqs, num_rows, vocab_size = logits_BSV.shape
    changed_BSV = torch.empty(logits_BSV.shape, dtype=torch.float32, device=logits_BSV.device)
    _penalise[(num_seqs * num_rows, triton.cdiv(vocab_size, _BLOCK))](
        *(logits_BSV.contiguous(), changed_BSV, draft_BK, member_B, slots_N, settings_N3.contiguous()),
        *(in_prompt_TV.view(torch.uint8), num_output_TV, draft_BK.stride(0), draft_BK.stride(1)),
        *(len(member_B), num_rows, vocab_size),
        BLOCK=_BLOCK,
        PDL=pdl(),
        num_warps=4,
        launch_pdl=pdl(),
    )
    return changed_BSV


@triton.jit(do_not_specialize=["B"])
def _penalise(
    logits,
    changed,
    drafts,
    members,
    slots,
    settings,
    in_prompt,
    num_output,
    draft_stride,
    token_stride,
    B,
    S,
    V,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write one part of one row."""
    wait(PDL)
    launch_next(PDL)
    sequence, row = tl.program_id(0) // S, tl.program_id(0) % S
    index = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = index < V
    place = tl.program_id(0).to(tl.int64) * V + index
    value = tl.load(logits + place, mask=inside, other=0.0).to(tl.float32)
    member = tl.load(members + sequence, mask=sequence < B, other=-1)
    if member >= 0:
        slot = tl.load(slots + member)
        count = tl.load(num_output + slot * V + index, mask=inside, other=0)
        for before in range(row):
            count += (tl.load(drafts + sequence * draft_stride + before * token_stride) == index).to(tl.int32)
        seen = (tl.load(in_prompt + slot * V + index, mask=inside, other=0) != 0) | (count > 0)
        repetition = tl.load(settings + member * 3)
        scaled = tl.where(value > 0, value / repetition, value * repetition)
        value = tl.where(seen, scaled, value)
        value -= tl.load(settings + member * 3 + 1) * count.to(tl.float32)
        value -= tl.load(settings + member * 3 + 2) * (count > 0).to(tl.float32)
    tl.store(changed + place, value, mask=inside)
