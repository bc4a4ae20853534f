"""The Triton kernels of a decoder layer against the same operations in plain torch."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch

pytest.importorskip("triton")

from draftwise.core import ModelShape
from draftwise.engine.kernels import Kernels
from draftwise.engine.kernels import make_kernels as choose_kernels
from draftwise.engine.kernels.cuda import CudaKernels
from draftwise.engine.kernels.cuda.kernel_launch import interpreted
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.models.rope import Rope

EPS, VOCAB, LIMIT = 1e-5, 50, 40
# The kernels compute in float32 and round once; Triton's interpreter cuts bfloat16 off instead.
STEP = 2**-7 if interpreted() else 2**-8
TOLERANCE = {
    torch.float32: {"rtol": 1e-5, "atol": 2e-6},
    torch.float16: {"rtol": 2**-11 * 1.01, "atol": 1e-5},
    torch.bfloat16: {"rtol": STEP * 1.01, "atol": 1e-5},
}


@pytest.fixture(params=[torch.bfloat16, torch.float16, torch.float32], ids=str)
def dtype(request):
    torch.manual_seed(0)
    return request.param


@pytest.fixture(autouse=True)
def _poison():
    """Memory that is new holds NaN, which nothing that is tested may leave behind."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@functools.cache
def rope(head_dim: int, device: torch.device) -> Rope:
    frequencies = torch.logspace(0, -2, head_dim // 2, device=device)
    return Rope(frequencies_D=frequencies, attention_scale=1.1, context_limit=LIMIT)


def make_shape(hidden: int = 64, heads: int = 4, groups: int = 2, head_dim: int = 16) -> ModelShape:
    return ModelShape(
        hidden_size=hidden,
        num_layers=2,
        num_heads=heads,
        num_kv_heads=groups,
        head_dim=head_dim,
        intermediate_size=96,
        vocab_size=VOCAB,
        max_position_embeddings=LIMIT,
    )


def make_kernels(shape: ModelShape, dtype: torch.dtype, device: torch.device) -> tuple[CudaKernels, Kernels]:
    turns = rope(shape.head_dim, device)
    return CudaKernels(shape, turns, EPS, dtype), Kernels(shape, turns, EPS, torch.float64)


def assert_rounded(ours: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> None:
    assert ours.dtype == dtype
    torch.testing.assert_close(ours.double(), exact, **TOLERANCE[dtype])


@pytest.mark.parametrize("has_delta", [True, False])
@pytest.mark.parametrize(("num_rows", "hidden"), [(1, 64), (5, 96), (2, 2880), (3, 4096)])
def test_add_norm(num_rows, hidden, has_delta, dtype, device):
    ours, exact = make_kernels(make_shape(hidden), dtype, device)
    x, delta = (torch.randn(num_rows, hidden, device=device).to(dtype) for _ in range(2))
    weight = torch.randn(hidden, device=device).to(dtype)
    total, normed = ours.add_norm(x, delta if has_delta else None, weight)
    assert_rounded(total, x.double() + delta.double() if has_delta else x.double(), dtype)
    assert_rounded(normed, exact.add_norm(total.double(), None, weight.double())[1], dtype)
    assert_rounded(ours.add(x, delta), x.double() + delta.double(), dtype)


def test_norms_in_float32_also_over_what_is_added(dtype, device):
    ours, exact = make_kernels(make_shape(96), dtype, device)
    x, delta = (torch.randn(3, 96, device=device).to(dtype) for _ in range(2))
    weight, of_delta = torch.randn(2, 96, device=device)
    total, normed = ours.add_norm(x, delta, weight, delta_weight_H=of_delta)
    added = ours.add_norm(delta, None, of_delta)[1]
    assert_rounded(added, exact.add_norm(delta.double(), None, of_delta.double())[1], dtype)
    if dtype != torch.float32:  # in float32 a GPU multiplies and adds at once, without rounding in between
        assert torch.equal(total, ours.add(x, added))
    assert_rounded(total, x.double() + added.double(), dtype)
    assert_rounded(normed, exact.add_norm(total.double(), None, weight.double())[1], dtype)


@pytest.mark.parametrize("has_weight", [False, True])
def test_what_is_added_may_come_in_parts(has_weight, dtype, device):
    """Their sum is rounded once, as a product is that comes whole."""
    ours, _ = make_kernels(make_shape(96), dtype, device)
    x, parts = torch.randn(3, 96, device=device).to(dtype), torch.randn(4, 3, 128, device=device)[..., :96]
    weight = torch.randn(96, device=device)
    whole = ours.add(torch.zeros_like(x), parts)
    assert_rounded(whole, parts.double().sum(0), dtype)
    of_delta = weight if has_weight else None
    for actual, expected in zip(
        ours.add_norm(x, parts, weight, delta_weight_H=of_delta),
        ours.add_norm(x, whole, weight, delta_weight_H=of_delta),
        strict=True,
    ):
        torch.testing.assert_close(actual, expected, **TOLERANCE[torch.float32])


@pytest.mark.parametrize("has_delta", [True, False])
def test_add_norm_of_rows_that_lie_apart(has_delta, dtype, device):
    ours, _ = make_kernels(make_shape(), dtype, device)
    wide, delta = torch.randn(5, 200, device=device).to(dtype), torch.randn(5, 64, device=device).to(dtype)
    x, weight = wide[:, 7:71], torch.randn(64, device=device).to(dtype)
    given = delta if has_delta else None
    place = torch.zeros(5, 192, device=device, dtype=dtype)
    total, normed = ours.add_norm(x, given, weight, place[:, 64:128])
    expected_total, expected = ours.add_norm(x.contiguous(), given, weight)
    assert total.data_ptr() == place[:, 64:].data_ptr()
    assert torch.equal(place, torch.nn.functional.pad(expected_total, (64, 64)))
    assert torch.equal(normed, expected)


@pytest.mark.parametrize(("hidden", "factor"), [(64, 1.0), (96, 1.0), (96, 12 / 0.22)])
def test_embed(hidden, factor, dtype, device):
    ours, _ = make_kernels(make_shape(hidden), dtype, device)
    table, weight = (torch.randn(*size, device=device).to(dtype) for size in ((VOCAB, hidden), (hidden,)))
    tokens = torch.tensor([3, VOCAB - 1, 0, 3], device=device)
    place = torch.zeros(4, 2 * hidden, device=device, dtype=dtype)
    for total_NH in (None, place[:, hidden:]):
        x, normed = ours.embed(tokens, table, weight, total_NH, factor=factor)
        torch.testing.assert_close(x, table[tokens] * factor)
        assert factor != 1.0 or torch.equal(x, table[tokens])
        assert torch.equal(normed, ours.add_norm(x, None, weight)[1])
    assert torch.equal(place, torch.nn.functional.pad(x, (hidden, 0)))


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("state_first", [True, False])
@pytest.mark.parametrize("by_position", [True, False])
def test_embed_beside(normed, state_first, by_position, dtype, device):
    hidden = 96
    ours, exact = make_kernels(make_shape(hidden), dtype, device)
    table, states = (torch.randn(*size, device=device).to(dtype) for size in ((VOCAB, hidden), (5, 3 * hidden)))
    weights = torch.randn(2, hidden, device=device).to(dtype)
    norms = (weights[0], weights[1]) if normed else None
    tokens, state = torch.tensor([3, VOCAB - 1, 0, 3, 8], device=device), states[:, hidden : 2 * hidden]
    positions = torch.tensor([4, 0, 1, 0, 9], device=device) if by_position else None
    both = ours.embed_beside(tokens, table, state, norms, state_first=state_first, positions_N=positions)
    expected = exact.embed_beside(
        tokens,
        table.double(),
        state.double(),
        (weights[0].double(), weights[1].double()) if normed else None,
        state_first=state_first,
        positions_N=positions,
    )
    assert_rounded(both, expected, dtype)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
@pytest.mark.parametrize(("num_rows", "width"), [(1, 72), (3, 1024), (2, 3000)])
def test_silu_mul(num_rows, width, dtype, device):
    ours, exact = make_kernels(make_shape(), dtype, device)
    x = (torch.randn(num_rows, 2 * width, device=device) * 4).to(dtype)
    x[0, :8] = torch.tensor([-300.0, -90, -88, -80, 80, 88, 90, 300])  # where the exponential must not overflow
    assert_rounded(ours.silu_mul(x), exact.silu_mul(x.double()), dtype)
    assert_rounded(ours.gelu_mul(x), exact.gelu_mul(x.double()), dtype)


def test_gated_is_left_to_a_product_that_can(dtype, device):
    class Product:
        def __call__(self, x):
            return torch.cat((x, 2 * x), dim=-1)

    class Fused(Product):
        def gated(self, x):
            return 5 * x

    ours, _ = make_kernels(make_shape(), dtype, device)
    x = torch.randn(3, 64, device=device).to(dtype)
    assert torch.equal(ours.gated(Product(), x), ours.silu_mul(torch.cat((x, 2 * x), dim=-1)))
    assert torch.equal(ours.gated(Fused(), x), 5 * x)


def poisoned_pages(shape: ModelShape, dtype: torch.dtype, device: torch.device) -> PagedKV:
    kv = PagedKV(shape, num_pages=12, block_size=4, dtype=dtype, device=device)
    for pages in kv.layers:
        pages.fill_(torch.nan)
    return kv


@pytest.mark.parametrize("with_norms", [True, False])
@pytest.mark.parametrize(
    ("heads", "groups", "head_dim"),
    [(4, 2, 16), (20, 4, 64), (3, 1, 80), (6, 2, 96), (14, 2, 128), (2, 2, 256), (0, 2, 64)],
)
def test_rotate_and_store(heads, groups, head_dim, with_norms, dtype, device):
    shape = make_shape(heads=max(heads, groups), groups=groups, head_dim=head_dim)
    ours, exact = make_kernels(shape, dtype, device)
    num_rows, num_heads = 5, heads + 2 * groups
    # Rows of one layer among three: those of a context's keys and values lie apart.
    qkv = torch.randn(num_rows, 3, num_heads, head_dim, device=device).to(dtype)
    given, middle = qkv.clone(), qkv[:, 1]
    weights = torch.rand(2, head_dim, device=device).to(dtype) + 0.5
    positions = torch.tensor([0, 7, LIMIT, 7, 31], device=device)
    slots = torch.tensor([5, 50, 0, 17, 47], device=device)
    kv = poisoned_pages(shape, dtype, device)
    norms = (weights[0], weights[1]) if with_norms else None
    q = ours.rotate_and_store(middle, norms, ours.rotations(positions), kv, 1, slots)

    wide = poisoned_pages(shape, torch.float64, device)
    wide_norms = (weights[0].double(), weights[1].double()) if with_norms else None
    wide_turns = tuple(turn.double() for turn in ours.rope.rotations(positions, torch.float32))
    expected = exact.rotate_and_store(given[:, 1].double(), wide_norms, wide_turns, wide, 1, slots)
    assert_rounded(q, expected, dtype)
    assert q.shape == (num_rows, heads, head_dim)
    untouched = wide.layers[1].isnan()
    assert torch.equal(kv.layers[1].isnan(), untouched)
    assert_rounded(kv.layers[1][~untouched], wide.layers[1][~untouched], dtype)
    assert torch.equal(qkv[:, ::2], given[:, ::2])
    assert torch.equal(middle[:, heads:], given[:, 1, heads:])
    assert kv.layers[0].isnan().all()


def test_narrow_pages_hold_what_they_can_and_saturate(dtype, device):
    """Of values that a byte holds, where nothing turns them: the interpreter rounds to bytes wrongly."""
    shape = make_shape(head_dim=32)
    ours, _ = make_kernels(shape, dtype, device)
    values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(dtype).nan_to_num()
    qkv = values[torch.randint(256, (7, 8, 32))].to(device)
    qkv[2, 6:] = torch.tensor([1e4, -1e4], dtype=dtype, device=device).unsqueeze(1)
    slots, zeros = torch.tensor([5, 50, 0, 17, 47, 1, 2], device=device), torch.zeros(7, dtype=torch.int64)
    given, (kv, expected) = qkv.clone(), (narrow_pages(shape, device) for _ in range(2))
    frozen = dataclasses.replace(ours.rope, attention_scale=1.0)
    rotations = CudaKernels(shape, frozen, EPS, dtype).rotations(zeros.to(device))
    q = ours.rotate_and_store(qkv, None, rotations, kv, 0, slots)
    expected.store(0, slots, given[:, 4:].unflatten(1, (2, 2)))
    assert torch.equal(q, given[:, :4])
    assert torch.equal(kv.layers[0].float(), expected.layers[0].float())


@pytest.mark.skipif(interpreted(), reason="the interpreter rounds to bytes wrongly")
def test_narrow_pages_round(dtype, device):
    shape = make_shape(head_dim=128)
    ours, exact = make_kernels(shape, dtype, device)
    qkv, slots = torch.randn(20, 8, 128, device=device).to(dtype), torch.arange(20, device=device)
    kv, wide = (
        narrow_pages(shape, device),
        PagedKV(shape, num_pages=12, block_size=4, dtype=torch.float64, device=device),
    )
    exact.rotate_and_store(qkv.double(), None, exact.rotations(slots), wide, 0, slots)
    ours.rotate_and_store(qkv, None, ours.rotations(slots), kv, 0, slots)
    # Three bits behind the leading one: half a step is 1/16.
    torch.testing.assert_close(kv.layers[0].double(), wide.layers[0], rtol=2**-4 * 1.1, atol=2**-9)


def narrow_pages(shape: ModelShape, device: torch.device) -> PagedKV:
    return PagedKV(shape, num_pages=12, block_size=4, dtype=torch.float8_e4m3fn, device=device)


def test_positions_beyond_the_table_read_its_end(dtype, device):
    shape = make_shape()
    ours, _ = make_kernels(shape, dtype, device)
    qkv, slots = torch.randn(1, 8, 16, device=device).to(dtype).expand(4, -1, -1), torch.arange(4, device=device)
    kv = PagedKV(shape, num_pages=12, block_size=4, dtype=dtype, device=device)
    positions = torch.tensor([LIMIT, LIMIT + 1, 10**9, 10**12], device=device)
    q = ours.rotate_and_store(qkv.contiguous(), None, ours.rotations(positions), kv, 0, slots)
    assert torch.equal(q, q[:1].expand_as(q))
    assert not torch.equal(q[0], qkv[0, :4])


def test_the_table_holds_the_rotations(device):
    turns = rope(64, device)
    cos, sin = turns.rotations(torch.arange(LIMIT + 1, device=device), torch.float32)
    assert torch.equal(turns.table(), torch.cat((cos, sin), dim=-1))


def test_a_row_has_the_same_bits_in_any_batch(dtype, device):
    shape = dataclasses.replace(make_shape(hidden=96, heads=6, groups=2, head_dim=20))
    ours, _ = make_kernels(shape, dtype, device)
    sizes = ((21, 96), (21, 96), (96,), (21, 144), (21, 10, 20))
    x, delta, weight, gate_up, qkv = (torch.randn(*size, device=device).to(dtype) for size in sizes)
    places = torch.arange(21, device=device)

    def compute(rows: slice) -> list[torch.Tensor]:
        kv = PagedKV(shape, num_pages=6, block_size=4, dtype=dtype, device=device)
        q = ours.rotate_and_store(qkv[rows].clone(), None, ours.rotations(places[rows]), kv, 0, places[rows])
        stored = kv.layers[0].flatten(0, 1)[places[rows]]
        return [*ours.add_norm(x[rows], delta[rows], weight), ours.silu_mul(gate_up[rows]), q, stored]

    together = compute(slice(None))
    for i in (0, 7, 20):
        assert all(torch.equal(a[i : i + 1], b) for a, b in zip(together, compute(slice(i, i + 1)), strict=True))


@pytest.mark.parametrize(
    ("dtype", "has_triton", "kind"),
    [
        (torch.bfloat16, True, CudaKernels),
        (torch.float16, True, CudaKernels),
        (torch.float32, True, CudaKernels),
        (torch.float64, True, Kernels),
        (torch.bfloat16, False, Kernels),
    ],
)
def test_a_gpu_gets_them_where_triton_is(dtype, has_triton, kind, device, monkeypatch):
    if not has_triton:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    chosen = choose_kernels(make_shape(), rope(16, device), eps=EPS, dtype=dtype, device="cuda")
    assert type(chosen) is kind
