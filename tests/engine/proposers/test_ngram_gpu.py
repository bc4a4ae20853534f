import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.confirming import confirm
from tests.support.lookup_cases import Confirming, drafts, repetitive_texts
from tests.support.uniform_rows import NoHostRead
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from draftwise.engine.proposers.ngram import NgramGpuProposer, NgramProposer
from draftwise.engine.proposers.proposer import Proposer


def pair(shortest: int, longest: int, max_model_len: int, num_slots: int = 3) -> tuple[Proposer, Proposer]:
    options = {
        "prompt_lookup_min": shortest,
        "prompt_lookup_max": longest,
        "max_num_seqs": num_slots,
        "max_model_len": max_model_len,
    }
    return NgramProposer(**options), NgramGpuProposer(**options)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), shortest=st.integers(1, 4), extra=st.integers(0, 3), max_model_len=st.integers(8, 80))
def test_it_drafts_what_ngram_drafts(data, shortest, extra, max_model_len):
    host, device = pair(shortest, shortest + extra, max_model_len)
    confirming, confirming_uniform = Confirming(), Confirming()
    room = dict.fromkeys(range(3), max_model_len + 4)  # the last step may overrun by what it emits
    num_prompt: dict[int, int] = {}
    for _ in range(data.draw(st.integers(1, 6))):
        rows, limits = {}, {}
        for slot in data.draw(st.lists(st.sampled_from(range(3)), min_size=1, unique=True)):
            if room[slot] <= 1 or data.draw(st.integers(0, 5)) == 0:
                for each in (host, device, confirming, confirming_uniform):
                    each.release(slot)
                room[slot] = max_model_len + 4
                num_prompt.pop(slot, None)
            rows[slot] = data.draw(repetitive_texts(max_size=20))[: room[slot]]
            room[slot] -= len(rows[slot])
            num_prompt.setdefault(slot, data.draw(st.integers(0, len(rows[slot]) + 1)))
            limits[slot] = data.draw(st.integers(0, 6))
        k, width = data.draw(st.integers(0, 5)), data.draw(st.sampled_from([None, 20]))
        expected = drafts(host.propose(confirming.confirm(rows, num_prompt, limits), k))
        assert drafts(device.propose(confirming_uniform.confirm(rows, num_prompt, limits, width=width), k)) == expected


def test_a_step_reads_nothing_from_the_device():
    host, device = pair(2, 4, 64)
    rows, num_prompt = {2: [1, 2, 3, 1, 2], 0: [4, 4, 4]}, {2: 3, 0: 1}
    new = Confirming().confirm(rows, num_prompt, width=6)
    with NoHostRead():
        draft = device.propose(new, 4)
        device.release(0)
    assert drafts(draft) == drafts(host.propose(Confirming().confirm(rows, num_prompt), 4)) == [[3, 1, 2], [4]]


def test_rows_that_stand_for_no_sequence_leave_the_others_alone():
    """They have a length of 0, or the slot behind the last one."""
    host, device = pair(1, 1, 32)
    rows, num_prompt = {0: [1, 2, 3, 1], 1: [4, 4, 5]}, {0: 1, 1: 1}
    confirming = Confirming()
    for each in (host, device):
        each.propose(Confirming().confirm(rows, num_prompt), 0)
    confirming.confirm(rows, num_prompt)
    for slot in (0, 3):
        nothing = confirm([[], [9]], starts=[2, 0], limits=[0, 0], slots=[slot, 3], width=3)
        assert drafts(device.propose(nothing, 2)) == [[], []]
    new = {0: [2], 1: [4]}
    assert drafts(device.propose(confirming.confirm(new, num_prompt, width=3), 2)) == [[3, 1], [4, 5]]


def test_shapes_do_not_depend_on_data():
    with FakeTensorMode():
        _, device = pair(2, 4, 64)
        draft = device.propose(Confirming().confirm({2: [1, 2, 3, 1, 2], 0: [4, 4, 4]}, {2: 3, 0: 1}, width=6), 4)
        device.release(0)
        assert draft.tokens_BK.shape == (2, 4)
        assert draft.lengths_B.shape == (2,)


def test_the_two_guards_catch_a_method_that_reads_the_device():
    values = torch.tensor([1, 2])
    for read in (
        lambda: values[0].item(),
        lambda: int(values.sum()),
        lambda: values[values > 1],
        values.nonzero,
        lambda: torch.tensor([3]),
    ):
        with NoHostRead(), pytest.raises(AssertionError):
            read()
    with FakeTensorMode():
        host, _ = pair(2, 4, 64)
        new = Confirming().confirm({0: [1, 2, 3]}, {0: 1})
        with pytest.raises(DataDependentOutputException):
            host.propose(new, 4)


def test_the_device_may_be_left_out():
    device = NgramGpuProposer(prompt_lookup_min=5, prompt_lookup_max=5, max_num_seqs=1, max_model_len=32)
    new = Confirming().confirm({0: [1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 5]}, {0: 10})
    assert drafts(device.propose(new, 3)) == [[9, 1, 2]]
