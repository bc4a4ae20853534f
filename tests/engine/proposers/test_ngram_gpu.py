import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lookup_cases import confirmed, drafts, repetitive_texts
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from draftwise.engine.proposers.base import Proposer
from draftwise.engine.proposers.ngram import NgramProposer
from draftwise.engine.proposers.ngram_gpu import NgramGpuProposer

aten = torch.ops.aten
READS_THE_DEVICE = {aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten.is_nonzero, aten.item}


class NoHostRead(TorchDispatchMode):
    """Refuses every operator that would make the host wait for a value or a shape from the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.overloadpacket not in READS_THE_DEVICE, f"{func} reads the device"
        if func.overloadpacket is aten.index:
            assert all(index is None or index.dtype != torch.bool for index in args[1]), "a mask has a dynamic shape"
        return func(*args, **(kwargs or {}))


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
    room = dict.fromkeys(range(3), max_model_len + 4)  # the last step may overrun by what it emits
    num_prompt: dict[int, int] = {}
    for _ in range(data.draw(st.integers(1, 6))):
        rows = {}
        for slot in data.draw(st.lists(st.sampled_from(range(3)), min_size=1, unique=True)):
            if room[slot] <= 1 or data.draw(st.integers(0, 5)) == 0:
                host.release(slot)
                device.release(slot)
                room[slot] = max_model_len + 4
                num_prompt.pop(slot, None)
            rows[slot] = data.draw(repetitive_texts(max_size=20))[: room[slot]]
            room[slot] -= len(rows[slot])
            num_prompt.setdefault(slot, data.draw(st.integers(0, len(rows[slot]) + 1)))
        k = data.draw(st.integers(0, 5))
        new = confirmed(rows, num_prompt)
        assert drafts(device.propose(new, k)) == drafts(host.propose(new, k))


def test_a_step_reads_nothing_from_the_device():
    host, device = pair(2, 4, 64)
    new = confirmed({2: [1, 2, 3, 1, 2], 0: [4, 4, 4]}, {2: 3, 0: 1})
    with NoHostRead():
        draft = device.propose(new, 4)
        device.release(0)
    assert drafts(draft) == drafts(host.propose(new, 4)) == [[3, 1, 2], [4]]


def test_shapes_do_not_depend_on_data():
    with FakeTensorMode():
        _, device = pair(2, 4, 64)
        new = confirmed({2: [1, 2, 3, 1, 2], 0: [4, 4, 4]}, {2: 3, 0: 1})
        draft = device.propose(new, 4)
        device.release(0)
        assert draft.tokens_BK.shape == (2, 4)
        assert draft.lengths_B.shape == (2,)


def test_the_two_guards_catch_a_method_that_reads_the_device():
    values = torch.tensor([1, 2])
    for read in (lambda: values[0].item(), lambda: int(values.sum()), lambda: values[values > 1], values.nonzero):
        with NoHostRead(), pytest.raises(AssertionError):
            read()
    with FakeTensorMode():
        host, _ = pair(2, 4, 64)
        new = confirmed({0: [1, 2, 3]}, {0: 1})
        with pytest.raises(DataDependentOutputException):
            host.propose(new, 4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_agrees_and_does_not_synchronise():
    host, _ = pair(1, 3, 64)
    device = NgramGpuProposer(prompt_lookup_min=1, prompt_lookup_max=3, max_num_seqs=3, max_model_len=64, device="cuda")
    new = confirmed({1: [1, 2, 3, 1, 2]}, {1: 3})
    moved = type(new)(
        slots=new.slots, tokens_BN=new.tokens_BN.cuda(), lengths_B=new.lengths_B.cuda(), num_prompt=new.num_prompt
    )
    torch.cuda.set_sync_debug_mode("error")
    try:
        draft = device.propose(moved, 4)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert drafts(draft) == drafts(host.propose(new, 4))


def test_the_device_may_be_left_out():
    device = NgramGpuProposer(prompt_lookup_min=5, prompt_lookup_max=5, max_num_seqs=1, max_model_len=32)
    new = confirmed({0: [1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 5]}, {0: 10})
    assert drafts(device.propose(new, 3)) == [[9, 1, 2]]
