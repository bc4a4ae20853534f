"""What the tests of the lookup methods share: batches from lists, drafts to lists, and prompt lookup by brute force."""

import torch
from hypothesis import strategies as st

from draftwise.engine.proposers.base import Confirmed, Draft


def confirmed(rows: dict[int, list[int]], num_prompt: dict[int, int]) -> Confirmed:
    """Return what is new, by slot, padded with a token that would spoil a draft if it were read."""
    width = max(map(len, rows.values()))
    return Confirmed(
        slots=tuple(rows),
        tokens_BN=torch.tensor([row + [1] * (width - len(row)) for row in rows.values()]),
        lengths_B=torch.tensor([len(row) for row in rows.values()]),
        num_prompt=tuple(num_prompt[slot] for slot in rows),
    )


def drafts(draft: Draft) -> list[list[int]]:
    """Return the guesses without padding."""
    assert draft.probs_BKV is None
    rows = zip(draft.tokens_BK.tolist(), draft.lengths_B.tolist(), strict=True)
    return [row[:length] for row, length in rows]


def look_up(text: list[int], shortest: int, longest: int, k: int, max_model_len: int) -> list[int]:
    """Prompt lookup as defined: longest n-gram first, earliest occurrence first."""
    budget = min(k, max_model_len - len(text))
    for n in range(min(longest, len(text) - 1), shortest - 1, -1):
        for start in range(len(text) - n):
            if text[start : start + n] == text[-n:]:
                return text[start + n : start + n + max(budget, 0)]
    return []


@st.composite
def repetitive_texts(draw: st.DrawFn, max_size: int = 60) -> list[int]:
    """Texts made of few tokens and of repeats of themselves."""
    text = draw(st.lists(st.integers(0, 3), min_size=1, max_size=12))
    while draw(st.booleans()) and len(text) < max_size:
        start = draw(st.integers(0, len(text) - 1))
        text += [*text[start : start + draw(st.integers(1, 12))], draw(st.integers(0, 3))]
    return text[:max_size]
