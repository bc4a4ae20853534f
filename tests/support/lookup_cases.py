"""What the tests of the lookup methods share: batches from lists, drafts to lists, and prompt lookup by brute force."""

from hypothesis import strategies as st

from draftwise.engine.proposers.proposer import Confirmed
from draftwise.engine.sampling.draft import Draft
from tests.support.confirming import confirm


class Confirming:
    """Confirms tokens slot by slot, as the engine does, and remembers how many each sequence has."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}

    def confirm(
        self,
        rows: dict[int, list[int]],
        num_prompt: dict[int, int],
        limit: int | dict[int, int] = 99,
        *,
        width: int | None = None,
    ) -> Confirmed:
        """Return what is new, by slot; drafts are wanted of sequences whose prompt is complete, `limit` at most."""
        starts = [self.sizes.get(slot, 0) for slot in rows]
        self.sizes |= {slot: start + len(row) for (slot, row), start in zip(rows.items(), starts, strict=True)}
        wanted = limit if isinstance(limit, dict) else dict.fromkeys(rows, limit)
        return confirm(
            list(rows.values()),
            starts=starts,
            limits=[wanted[slot] if self.sizes[slot] > num_prompt[slot] else 0 for slot in rows],
            slots=list(rows),
            num_prompt=[num_prompt[slot] for slot in rows],
            width=width,
        )

    def release(self, slot: int) -> None:
        """Let another sequence start in the slot."""
        self.sizes.pop(slot, None)


def drafts(draft: Draft) -> list[list[int]]:
    """Return the draft tokens without padding."""
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
