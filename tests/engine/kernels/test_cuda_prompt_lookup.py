"""The fused prompt lookup writes and drafts what the torch version does."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from tests.support.confirming import confirm

from draftwise.engine.kernels.cuda.prompt_lookup import append_and_look_up
from draftwise.engine.proposers.ngram import NgramGpuProposer

NUM_SLOTS = 6


def grow(generator: torch.Generator, vocabulary: int, size: int) -> list[int]:
    """Return tokens that repeat themselves more often than chance would."""
    text = torch.randint(vocabulary, (max(size // 3, 1),), generator=generator).tolist()
    while len(text) < size:
        start = int(torch.randint(len(text), (), generator=generator))
        text += text[start : start + 1 + int(torch.randint(9, (), generator=generator))]
    return text[:size]


@pytest.mark.parametrize(
    ("shortest", "longest", "max_model_len", "vocabulary", "sizes"),
    [
        (1, 1, 40, 3, [1, 2, 39, 40]),
        (2, 5, 64, 2, [3, 30, 60, 64]),
        (3, 4, 300, 40, [4, 100, 200, 290]),
        (1, 3, 9000, 5, [4096, 4097, 8193, 8999]),
        (5, 9, 9000, 1, [4095, 9, 8192, 9000]),
        (2, 3, 20_000, 9, [8193, 16_385, 19_990, 20_000]),
    ],
)
def test_it_writes_and_drafts_as_torch_does(shortest, longest, max_model_len, vocabulary, sizes, device):
    generator, width, k = torch.Generator().manual_seed(0), 4, 5
    reference = NgramGpuProposer(
        prompt_lookup_min=shortest,
        prompt_lookup_max=longest,
        max_num_seqs=NUM_SLOTS,
        max_model_len=max_model_len,
    )
    texts = [grow(generator, vocabulary, size) for size in sizes]
    # The last tokens are new: one to four, of which a full sequence has some beyond its end; one sequence has none.
    lengths = [min(1 + b, len(text)) for b, text in enumerate(texts)]
    cuts = [len(text) - length for text, length in zip(texts, lengths, strict=True)]
    texts[-1] = texts[-1][: cuts[-1]] + [0] * (max_model_len - cuts[-1] + 2)
    lengths[-1] = min(4, len(texts[-1]) - cuts[-1])
    rows = [text[cut : cut + length] for text, cut, length in zip(texts, cuts, lengths, strict=True)]
    slots, limits = [4, 0, 5, 2], [5, 7, 2, 5]
    for slot, text, cut in zip(slots, texts, cuts, strict=True):
        if cut:
            reference.propose(confirm([text[:cut]], starts=[0], limits=[0], slots=[slot]), 0)
    new = confirm([*rows, []], starts=[*cuts, 3], limits=[*limits, 0], slots=[*slots, 1], width=width)
    tokens_SL = reference._tokens_SL.clone().to(device)
    tokens_BK, lengths_B = append_and_look_up(
        tokens_SL,
        new.slots_B.to(device),
        new.spans.starts_B.to(device),
        new.spans.lengths_B.to(device),
        new.tokens_N.to(device),
        new.limits_B.to(device),
        k=k,
        shortest=shortest,
        longest=longest,
    )
    expected = reference.propose(new, k)
    assert lengths_B.tolist() == expected.lengths_B.tolist()
    assert tokens_BK.tolist() == expected.tokens_BK.tolist()
    assert torch.equal(tokens_SL[:, :-1].cpu(), reference._tokens_SL[:, :-1])


def test_the_cases_above_find_something(device):
    """A sequence that repeats one token drafts it as often as there is room."""
    tokens_SL = torch.full((1, 22), -1, dtype=torch.int32)
    tokens_SL[0, 1:13] = 7
    one = torch.ones(1, dtype=torch.long, device=device)
    tokens_BK, lengths_B = append_and_look_up(
        tokens_SL.to(device), one * 0, one * 12, one, one * 7, one * 9, k=4, shortest=1, longest=1
    )
    assert (tokens_BK.tolist(), lengths_B.tolist()) == ([[7, 7, 7, 7]], [4])
