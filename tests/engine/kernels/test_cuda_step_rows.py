"""The table's kernels against its own torch operations: the same view of a step, and the same rows after it."""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from draftwise.engine.kernels.cuda.step_rows import advance_rows, look_up_rows, store_rows
from draftwise.engine.sampling.draft import Draft
from draftwise.engine.sampling.verify import AcceptedTokens
from draftwise.engine.step.launched import pack
from draftwise.engine.step.table import SequenceTable, _Column

DEVICE = torch.device(os.environ.get("DRAFTWISE_TEST_DEVICE", "cpu"))
SLOTS, FIRST = 5, len(_Column)


def make_table(width: int, generator: torch.Generator) -> SequenceTable:
    """Return a table on the CPU with five sequences somewhere in their lives."""
    table = SequenceTable(
        num_slots=SLOTS,
        max_model_len=60,
        block_size=4,
        scratch_page=99,
        width=width,
        num_features=0,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )

    def draw(low: int, high: int) -> torch.Tensor:
        return torch.randint(low, high, (SLOTS,), generator=generator)

    integers_SC = table._integers_SC
    integers_SC[:SLOTS, _Column.NUM_TOKENS] = draw(10, 50)
    integers_SC[:SLOTS, _Column.NUM_PROMPT] = draw(1, 10)
    integers_SC[:SLOTS, _Column.CAPACITY] = draw(10, 60)
    integers_SC[:SLOTS, _Column.MAX_TOKENS] = draw(40, 60)
    integers_SC[:SLOTS, _Column.MAX_DRAFT] = draw(0, 9)
    integers_SC[:SLOTS, _Column.NUM_NEW] = draw(1, width + 1)
    integers_SC[:SLOTS, _Column.SEED] = draw(0, 1000)
    integers_SC[:SLOTS, _Column.IS_REAL] = 1
    integers_SC[:SLOTS, FIRST:] = torch.randint(0, 100, (SLOTS, width), generator=generator)
    table._shares_SC.uniform_(generator=generator)
    table._pages_SP[:SLOTS, :9] = torch.randint(0, 99, (SLOTS, 9), generator=generator, dtype=torch.int32)
    return table


@settings(max_examples=25, deadline=None)
@given(width=st.integers(1, 9), k=st.integers(0, 8), seed=st.integers(0, 2**16))
def test_looking_up_and_advancing_equal_torch(width: int, k: int, seed: int) -> None:
    k = min(k, width - 1)
    generator = torch.Generator().manual_seed(seed)
    table = make_table(width, generator)
    slots_B = torch.cat((torch.randperm(SLOTS, generator=generator)[:3], torch.tensor([SLOTS])))
    integers_SC = table._integers_SC.to(DEVICE, copy=True)
    found = look_up_rows(
        integers_SC,
        table._shares_SC.to(DEVICE),
        table._pages_SP.to(DEVICE),
        slots_B.to(DEVICE),
        first_new=FIRST,
        k=k,
    )
    for ours, theirs in zip(found, table._look_up(slots_B, k), strict=True):
        assert ours.is_contiguous()
        assert torch.equal(ours.cpu(), theirs)

    tokens_BK = torch.randint(0, 100, (4, k), generator=generator)
    draft = Draft(tokens_BK=tokens_BK, lengths_B=torch.randint(0, k + 1, (4,), generator=generator))
    accepted_B = torch.minimum(torch.randint(0, k + 1, (4,), generator=generator), draft.lengths_B)
    tokens_BS = torch.randint(0, 100, (4, k + 1), generator=generator)
    tokens_BS = tokens_BS.masked_fill(torch.arange(k + 1) > accepted_B.unsqueeze(1), -1)
    accepted = AcceptedTokens(tokens_BS=tokens_BS, num_accepted_B=accepted_B)
    view = table.look_up(slots_B, k=k, all_greedy=True, truncates=False)
    expected = table.advance(view, draft, accepted, None)
    new_tokens = (each.to(DEVICE) for each in (slots_B, accepted_B, tokens_BS, draft.lengths_B, draft.tokens_BK))
    packed = advance_rows(integers_SC, *new_tokens, first_new=FIRST)
    assert torch.equal(packed.cpu(), expected)
    assert torch.equal(packed.cpu(), pack(draft, accepted))
    assert torch.equal(integers_SC.cpu(), table._integers_SC)


@pytest.mark.parametrize(("num_rows", "num_features"), [(1, 5), (3, 1500), (4, 2048)])
def test_rows_are_stored_as_the_first_of_their_slots(num_rows: int, num_features: int) -> None:
    generator = torch.Generator().manual_seed(0)
    rows_SWF = torch.randn(SLOTS + 1, 4, num_features, generator=generator)
    slots_B, new_BRF = torch.tensor([4, 0, SLOTS]), torch.randn(3, num_rows, num_features, generator=generator)
    expected_SWF = rows_SWF.clone()
    expected_SWF[:, :num_rows].index_copy_(0, slots_B, new_BRF)
    stored_SWF = rows_SWF.to(DEVICE)
    store_rows(stored_SWF, slots_B.to(DEVICE), new_BRF.to(DEVICE))
    assert torch.equal(stored_SWF.cpu(), expected_SWF)
