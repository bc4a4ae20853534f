"""The compiled CPU kernels against the same operations in plain torch."""

from __future__ import annotations

import pytest
import torch

from draftwise.core import ModelShape
from draftwise.engine.kernels import Kernels, cpu_code, make_kernels
from draftwise.engine.kernels import cpu as cpu_kernels
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.models.rope import Rope

DTYPES = [torch.bfloat16, torch.float32]
TOLERANCE = {torch.bfloat16: {"rtol": 0.02, "atol": 0.02}, torch.float32: {"rtol": 1e-5, "atol": 1e-5}}
SHAPE = ModelShape(
    hidden_size=96,
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_dim=20,
    intermediate_size=72,
    vocab_size=8,
    max_position_embeddings=64,
)
ROPE = Rope(frequencies_D=torch.logspace(0, -3, 10), attention_scale=1.0, context_limit=64)


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    torch.manual_seed(0)
    return request.param


@pytest.fixture(params=[False, True], ids=["alone", "threads"])
def fast(request, dtype, monkeypatch):
    """The compiled kernels, forced onto one thread or onto all."""
    monkeypatch.setattr(cpu_kernels, "_WIDE", 0 if request.param else 10**9)
    return make_kernels(SHAPE, ROPE, eps=1e-5, dtype=dtype, device=torch.device("cpu"))


@pytest.fixture
def exact():
    return Kernels(SHAPE, ROPE, 1e-5, torch.float64)


@pytest.mark.parametrize("num_rows", [1, 7, 50])
def test_add_norm(num_rows, fast, exact, dtype):
    x, delta, weight = (torch.randn(size, dtype=dtype) for size in ((num_rows, 96), (num_rows, 96), (96,)))
    for given in (None, delta):
        total, normed = fast.add_norm(x, given, weight)
        expected_total, expected = exact.add_norm(
            x.double(), None if given is None else given.double(), weight.double()
        )
        torch.testing.assert_close(total.double(), expected_total, **TOLERANCE[dtype])
        torch.testing.assert_close(normed.double(), expected, **TOLERANCE[dtype])


def test_norms_in_float32_also_over_what_is_added(fast, exact, dtype):
    x, delta = torch.randn(2, 7, 96, dtype=dtype)
    weight, of_delta = torch.randn(2, 96)
    total, normed = fast.add_norm(x, delta, weight, delta_weight_H=of_delta)
    added = exact.add_norm(delta.double(), None, of_delta.double())[1].to(dtype)
    torch.testing.assert_close(total.double(), x.double() + added.double(), **TOLERANCE[dtype])
    expected = exact.add_norm(total.double(), None, weight.double())[1]
    torch.testing.assert_close(normed.double(), expected, **TOLERANCE[dtype])


@pytest.mark.parametrize("num_rows", [1, 7, 50])
def test_silu_mul(num_rows, fast, exact, dtype):
    x = torch.randn(num_rows, 144, dtype=dtype) * 4
    x[0, :8] = torch.tensor([-300.0, -90, -88, -80, 80, 88, 90, 300])  # where the exponential must not overflow
    torch.testing.assert_close(fast.silu_mul(x).double(), exact.silu_mul(x.double()), **TOLERANCE[dtype])


@pytest.mark.parametrize("with_norms", [False, True])
@pytest.mark.parametrize("num_rows", [1, 7, 50])
def test_rotate_and_store(num_rows, with_norms, fast, exact, dtype):
    qkv = torch.randn(num_rows, 10, 20, dtype=dtype)
    norms = (torch.rand(20, dtype=dtype) + 0.5, torch.rand(20, dtype=dtype) + 0.5) if with_norms else None
    slots, positions = torch.randperm(64)[:num_rows], torch.randint(64, (num_rows,))
    ours, theirs = (PagedKV(SHAPE, num_pages=16, block_size=4, dtype=d, device="cpu") for d in (dtype, torch.float64))
    wide = None if norms is None else (norms[0].double(), norms[1].double())
    expected = exact.rotate_and_store(qkv.double(), wide, exact.rotations(positions), theirs, 1, slots)
    q = fast.rotate_and_store(qkv, norms, fast.rotations(positions), ours, 1, slots)
    torch.testing.assert_close(q.double(), expected, **TOLERANCE[dtype])
    torch.testing.assert_close(ours.layers[1].double(), theirs.layers[1], **TOLERANCE[dtype])
    assert not ours.layers[0].any()


def test_narrow_pages_saturate(fast, exact, dtype):
    qkv, slots, positions = torch.randn(7, 10, 20, dtype=dtype), torch.arange(7), torch.arange(7)
    qkv[2, 8:] = torch.tensor([1e4, -1e4], dtype=dtype).unsqueeze(1)
    kv = PagedKV(SHAPE, num_pages=16, block_size=4, dtype=torch.float8_e4m3fn, device="cpu")
    wide = PagedKV(SHAPE, num_pages=16, block_size=4, dtype=torch.float64, device="cpu")
    expected = exact.rotate_and_store(qkv.double(), None, exact.rotations(positions), wide, 0, slots)
    q = fast.rotate_and_store(qkv, None, fast.rotations(positions), kv, 0, slots)
    assert q.dtype == dtype
    torch.testing.assert_close(q.double(), expected, **TOLERANCE[dtype])
    torch.testing.assert_close(kv.layers[0].double(), wide.layers[0].clamp(-448, 448), rtol=0.07, atol=0.01)


def test_rows_that_lie_apart(fast, dtype):
    wide, delta, weight = torch.randn(7, 3 * 96).to(dtype), torch.randn(7, 96).to(dtype), torch.randn(96).to(dtype)
    x, place = wide[:, 96:192], wide.new_zeros(7, 3 * 96)
    total, normed = fast.add_norm(x, delta, weight, place[:, 96:192])
    expected_total, expected = fast.add_norm(x.contiguous(), delta, weight)
    assert torch.equal(total, expected_total)
    assert torch.equal(normed, expected)
    assert torch.equal(place, torch.nn.functional.pad(expected_total, (96, 96)))


def test_context_has_no_queries(fast, exact, dtype):
    keys_and_values, slots, positions = torch.randn(7, 3, 4, 20, dtype=dtype)[:, 1], torch.arange(7), torch.arange(7)
    ours, theirs = (PagedKV(SHAPE, num_pages=16, block_size=4, dtype=d, device="cpu") for d in (dtype, torch.float64))
    before = keys_and_values.clone()
    q = fast.rotate_and_store(keys_and_values, None, fast.rotations(positions), ours, 1, slots)
    exact.rotate_and_store(keys_and_values.double(), None, exact.rotations(positions), theirs, 1, slots)
    assert q.numel() == 0
    assert torch.equal(keys_and_values, before)
    torch.testing.assert_close(ours.layers[1].double(), theirs.layers[1], **TOLERANCE[dtype])


def test_a_row_has_the_same_bits_in_any_batch(fast, dtype):
    x, delta, weight = torch.randn(21, 96).to(dtype), torch.randn(21, 96).to(dtype), torch.randn(96).to(dtype)
    gate_up, qkv, positions = torch.randn(21, 144).to(dtype), torch.randn(21, 10, 20).to(dtype), torch.arange(21)

    def run(rows: slice) -> list[torch.Tensor]:
        kv = PagedKV(SHAPE, num_pages=6, block_size=4, dtype=dtype, device="cpu")
        slots = positions[rows]
        q = fast.rotate_and_store(qkv[rows].clone(), None, fast.rotations(slots), kv, 0, slots)
        stored = kv.layers[0].flatten(0, 1)[slots]
        return [*fast.add_norm(x[rows], delta[rows], weight), fast.silu_mul(gate_up[rows]), q, stored]

    together = run(slice(None))
    for i in range(21):
        assert all(torch.equal(a[i : i + 1], b) for a, b in zip(together, run(slice(i, i + 1)), strict=True))


def test_without_a_place_for_the_cache_kernels_are_compiled_all_the_same(monkeypatch):
    real = cpu_code.cfunc

    def cfunc(signature, cache=False):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return real(signature)

    monkeypatch.setattr(cpu_code, "cfunc", cfunc)
    assert cpu_code.compile_kernel(cpu_code.CODE["bfloat16"][1]).address


def test_other_types_take_the_reference():
    assert type(make_kernels(SHAPE, ROPE, eps=1e-5, dtype=torch.float64, device=torch.device("cpu"))) is Kernels
