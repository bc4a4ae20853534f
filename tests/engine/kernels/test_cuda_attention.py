"""Paged attention on the GPU against dense attention in float64, whatever lies in pages and rows that are not read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.support.combinations import EVERY_CASE, covering
from torch import Tensor

pytest.importorskip("triton")

from draftwise.core import ModelShape
from draftwise.engine.attention import attend_by_kernel, attend_by_torch
from draftwise.engine.attention.pass_rows import plan_attention
from draftwise.engine.kernels.cuda.kernel_launch import interpreted
from draftwise.engine.kernels.cuda.matmul import has_copy_engine
from draftwise.engine.kernels.cuda.matmul_configs import MatmulDevice
from draftwise.engine.kernels.cuda.paged_attention import Tiling, choose_tiling, decode_attention
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.sampling.draft import Draft
from draftwise.engine.step.prompt_passes import MixedDraft, PromptBatch, PromptSize
from draftwise.engine.step.scheduler import Chunk

NAN = float("nan")
H200 = MatmulDevice(num_sms=132, shared_bytes=232_448, hopper=True)
TILING = Tiling(rows=16, keys=16, warps=4, stages=2, splits=1)
TILINGS = [
    TILING,
    replace(TILING, splits=3),
    replace(TILING, keys=32, splits=5, stages=3),
    replace(TILING, splits=40 if EVERY_CASE else 12),  # more than there are blocks of keys
    replace(TILING, rows=64, keys=32, splits=7),
    replace(TILING, rows=64),
    None,
]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Sequences of (start, length), and what they look at."""

    spans: list[tuple[int, int]]
    width: int
    ragged: bool = False
    causal: bool = True
    window: int | None = None
    heads: int = 4
    groups: int = 2
    dim: int = 32
    page: int = 4
    dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype = torch.float32
    seed: int = 0


@dataclass(kw_only=True)
class Arguments:
    """A case's tensors."""

    q_NAD: Tensor
    pages: Tensor
    table_BP: Tensor
    first_row_B: Tensor
    starts_B: Tensor
    lengths_B: Tensor


def lay_out(case: Case, device: torch.device) -> Arguments:
    """Return tensors in which everything that must not be read is no number."""
    generator = torch.Generator().manual_seed(case.seed)
    num_seqs = len(case.spans)
    per_seq = max(-(-(start + case.width) // case.page) for start, _ in case.spans) + 1
    pages = torch.full((num_seqs * per_seq + 1, case.page, 2, case.groups, case.dim), NAN)
    table_BP = torch.randperm(num_seqs * per_seq, generator=generator).view(num_seqs, per_seq)
    rows, first = [], []
    for b, (start, length) in enumerate(case.spans):
        positions = torch.arange(start + length)
        new = torch.randn(start + length, 2, case.groups, case.dim, generator=generator)
        pages[table_BP[b, positions // case.page], positions % case.page] = new
        first.append(sum(map(len, rows)))
        rows.append(torch.randn(length, case.heads, case.dim, generator=generator))
        if not case.ragged:
            rows.append(torch.full((case.width - length, case.heads, case.dim), NAN))
    starts_B, lengths_B = torch.tensor(case.spans).T.contiguous()
    return Arguments(
        q_NAD=torch.cat(rows).to(device, case.dtype),
        pages=pages.to(device, case.kv_dtype),
        table_BP=table_BP.to(device, torch.int32),
        first_row_B=torch.tensor(first, device=device),
        starts_B=starts_B.to(device),
        lengths_B=lengths_B.to(device),
    )


def run(case: Case, arguments: Arguments, tiling: Tiling | None, uniform: bool | None = None) -> Tensor:
    """Return the output, into a tensor that held no numbers."""
    a = arguments
    out = torch.full((a.q_NAD.shape[0], case.heads * case.dim), NAN, dtype=case.dtype, device=a.q_NAD.device)
    decode_attention(
        a.q_NAD,
        a.pages,
        a.table_BP,
        a.first_row_B,
        a.starts_B,
        a.lengths_B,
        width=case.width,
        causal=case.causal,
        scale=case.dim**-0.5,
        window=case.window,
        uniform=uniform,
        out=out,
        tiling=tiling,
    )
    return out


def dense(case: Case, arguments: Arguments, seq: int) -> Tensor:
    """Return the output [length, A * D] of one sequence in float64, one head at a time."""
    start, length = case.spans[seq]
    first = int(arguments.first_row_B[seq])
    q_QAD = arguments.q_NAD[first : first + length].double()
    tokens = arguments.pages[arguments.table_BP[seq].long()].flatten(0, 1)[: start + length].double()
    own = torch.arange(start, start + length).unsqueeze(1)
    hidden = torch.arange(start + length) > own
    if case.window is not None:
        hidden |= torch.arange(start + length) <= own - case.window
    outs = []
    for head in range(case.heads):
        k_TD, v_TD = tokens[:, :, head * case.groups // case.heads].unbind(1)
        scores_QT = q_QAD[:, head] @ k_TD.T * case.dim**-0.5
        if case.causal:
            scores_QT = scores_QT.masked_fill(hidden.to(scores_QT.device), float("-inf"))
        outs.append(scores_QT.softmax(-1) @ v_TD)
    return torch.cat(outs, dim=1)


def verify(case: Case, device: torch.device, tiling: Tiling | None) -> None:
    """Compare each sequence's rows with dense attention; padding must be finite."""
    arguments = lay_out(case, device)
    out = run(case, arguments, tiling)
    assert out.isfinite().all()
    limit = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[case.dtype]
    for seq, (_, length) in enumerate(case.spans):
        if length:
            first = int(arguments.first_row_B[seq])
            got, want = out[first : first + length].double(), dense(case, arguments, seq)
            assert (got - want).norm() <= limit * want.norm()


@st.composite
def cases(draw: st.DrawFn) -> Case:
    width = draw(st.integers(1, 9))
    span = st.tuples(st.integers(0, 50), st.integers(0, width))
    spans = draw(st.lists(span, min_size=1, max_size=4))
    ragged = draw(st.booleans())
    if not any(length for _, length in spans):
        spans[0] = (spans[0][0], 1)
    causal = draw(st.booleans())
    groups, share = draw(st.sampled_from([(1, 1), (2, 1), (2, 2), (1, 4), (2, 3), (1, 8)]))
    return Case(
        spans=spans,
        width=width,
        ragged=ragged,
        causal=causal,
        window=draw(st.sampled_from([None, 1, 5, 16, 40])) if causal else None,
        heads=groups * share,
        groups=groups,
        dim=draw(st.sampled_from([16, 24, 32])),
        page=draw(st.sampled_from([1, 4, 16])),
        seed=draw(st.integers(0, 2**31)),
    )


@settings(
    max_examples=30 if EVERY_CASE else 2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(case=cases(), tiling=st.sampled_from(TILINGS))
@example(Case(spans=[(0, 1)], width=1), TILINGS[2])
@example(Case(spans=[(0, 0), (15, 1), (16, 4), (63, 2), (64, 0)], width=4), TILINGS[2])
@example(Case(spans=[(0, 0), (15, 1), (16, 4), (63, 2), (64, 0)], width=4, ragged=True, causal=False), TILINGS[3])
@example(Case(spans=[(31, 9), (0, 12)], width=12), TILINGS[3])
@example(Case(spans=[(16 * 16, 1)], width=1, heads=1, groups=1), replace(TILING, splits=17))  # joined in two turns
@example(Case(spans=[(31, 9), (0, 40)], width=40, ragged=True), TILINGS[4])
@example(Case(spans=[(31, 9), (0, 12)], width=12, ragged=True), TILINGS[1])
@example(Case(spans=[(31, 9), (0, 12), (47, 1), (15, 2)], width=12, ragged=True, window=7), TILINGS[2])
@example(Case(spans=[(31, 9), (0, 40), (100, 3)], width=40, ragged=True, window=16), TILINGS[4])
@example(Case(spans=[(90, 1)], width=1, window=33), None)
def test_it_is_dense_attention(device: torch.device, case: Case, tiling: Tiling | None):
    verify(case, device, tiling)


TYPES = [torch.float16, torch.float8_e4m3fn, torch.bfloat16]
SMALL = Tiling(rows=32, keys=32, warps=2, stages=3, splits=1)


@pytest.mark.parametrize(
    ("dim", "kv_dtype", "tiling"),
    covering([64, 80, 96, 128, 256], TYPES, [TILINGS[1], None, SMALL, replace(SMALL, rows=16, warps=8)]),
)
def test_types_and_head_sizes(dim: int, kv_dtype: torch.dtype, tiling: Tiling | None, device: torch.device):
    if kv_dtype == torch.bfloat16 and interpreted():
        pytest.skip("the interpreter multiplies the bits of bfloat16, not its values")
    case = Case(spans=[(40, 4), (0, 2)], width=4, heads=8, page=16, dim=dim)
    dtype = torch.float16 if kv_dtype == torch.float8_e4m3fn else kv_dtype
    verify(replace(case, dtype=dtype, kv_dtype=kv_dtype), device, tiling)


@pytest.mark.skipif(not has_copy_engine(), reason="needs a GPU of Hopper's kind")
@pytest.mark.parametrize(
    ("heads", "dim", "page", "dtype", "splits", "causal"),
    covering([8, 10, 2, 16], [128, 64], [16, 8, 128], TYPES[::2], [1, 3, 40], [True, False]),
)
def test_prompts_by_the_copy_engine(
    heads: int, dim: int, page: int, dtype: torch.dtype, splits: int, causal: bool, device: torch.device
):
    spans = [(0, 300), (1000, 37), (40, 1), (129, 128), (700, 0), (3000, 160)]
    case = Case(spans=spans, width=300, ragged=True, causal=causal, heads=heads, dim=dim, page=page)
    tiling = Tiling(rows=128, keys=128, warps=4, stages=2, splits=splits, copies=True)
    verify(replace(case, dtype=dtype, kv_dtype=dtype), device, tiling)


@pytest.mark.parametrize(("tiling", "ragged"), covering(TILINGS, [False, True], together=1))
def test_neighbours_do_not_matter(tiling: Tiling | None, ragged: bool, device: torch.device):
    tiling = tiling or choose_tiling(
        num_seqs=3, num_groups=2, share=2, width=4, head_dim=32, itemsize=4, gpu=H200
    )  # fmt: skip
    case = Case(spans=[(20, 2), (35, 4), (11, 1)], width=4, ragged=ragged)
    arguments = lay_out(case, device)
    before = run(case, arguments, tiling)
    changed = replace_neighbours(case, arguments)
    after = run(case, changed, tiling)
    first = int(arguments.first_row_B[1])
    assert torch.equal(before[first : first + 4], after[first : first + 4])
    assert not torch.equal(before[:2], after[:2]), "the neighbours did change"


def replace_neighbours(case: Case, arguments: Arguments) -> Arguments:
    """Return the arguments with other queries, keys, positions and lengths of all sequences but the second."""
    mine = int(arguments.first_row_B[1])
    q_NAD = arguments.q_NAD.clone()
    q_NAD[:mine] = q_NAD[:mine].flip(1)
    pages = torch.where(arguments.pages.isnan(), 0.5, -arguments.pages)
    own = arguments.table_BP[1].long()
    pages[own] = arguments.pages[own]
    others = torch.tensor([1, 0, 1], device=q_NAD.device)
    return replace(
        arguments,
        q_NAD=q_NAD,
        pages=pages,
        starts_B=arguments.starts_B - 3 * others,
        lengths_B=arguments.lengths_B - others * (0 if case.ragged else 1),
    )


def test_rows_of_q_may_lie_apart(device: torch.device):
    case = Case(spans=[(20, 3), (7, 3)], width=3)
    arguments = lay_out(case, device)
    wide = torch.full((6, case.heads + 5, case.dim), NAN, device=device)
    wide[:, : case.heads] = arguments.q_NAD
    apart = replace(arguments, q_NAD=wide[:, : case.heads])
    assert torch.equal(run(case, apart, TILINGS[1]), run(case, arguments, TILINGS[1]))


@pytest.mark.parametrize("tiling", [TILINGS[0], TILINGS[1]])
def test_some_sequences_of_a_batch(tiling: Tiling, device: torch.device):
    case = Case(spans=[(20, 2), (7, 1), (33, 1)], width=2, ragged=True)
    whole = lay_out(case, device)
    some = replace(
        whole,
        table_BP=whole.table_BP[1:],
        first_row_B=whole.first_row_B[1:],
        starts_B=whole.starts_B[1:],
        lengths_B=whole.lengths_B[1:],
    )
    out = run(case, some, tiling, uniform=False)  # there are 2 * 2 rows, but not two for each of the two
    assert torch.equal(out[2:], run(case, whole, tiling)[2:])
    assert out[:2].isnan().all()


@pytest.mark.parametrize("tiling", [TILINGS[1], TILINGS[3]])
def test_the_table_may_end_before_the_sequence(tiling: Tiling, device: torch.device):
    case = Case(spans=[(30, 4), (37, 4)], width=4)
    arguments = lay_out(case, device)
    short = replace(arguments, table_BP=arguments.table_BP[:, :8].contiguous())  # 32 positions
    out = run(case, short, tiling)
    assert out.isfinite().all()
    want = dense(case, arguments, 0)[:2]
    assert (out[:2].double() - want).norm() <= 1e-6 * want.norm()


def tiling_of(num_seqs: int, width: int, *, gpu: MatmulDevice = H200, head_dim: int = 128, share: int = 4) -> Tiling:
    return choose_tiling(
        num_seqs=num_seqs, num_groups=8, share=share, width=width, head_dim=head_dim, itemsize=2, gpu=gpu
    )


def test_few_tiles_are_split_and_many_are_not():
    def splits(num_seqs: int, width: int) -> int:
        tiling = tiling_of(num_seqs, width)
        assert tiling.rows * num_seqs * -(-4 * width // tiling.rows) >= 4 * width * num_seqs
        return tiling.splits

    assert 132 - 8 < splits(1, 1) * 8 <= 132
    assert splits(64, 4) == 1
    assert splits(16, 512) == 1
    assert [splits(b, 4) for b in (1, 4, 16, 64)] == sorted((splits(b, 4) for b in (1, 4, 16, 64)), reverse=True)


def test_one_token_each_finds_work_for_all_multiprocessors():
    """One program alone on each, or as many as find room together: never a second round."""
    for num_seqs in range(1, 17):
        tiling = tiling_of(num_seqs, 1)
        programs, places = num_seqs * 8 * tiling.splits, 132 * (1 if tiling.keys == 128 else 3)
        assert 0.75 * places <= programs <= places


@pytest.mark.parametrize(("width", "head_dim", "small"), [(1, 128, (2, 4)), (8, 128, (2, 3)), (1, 256, (8, 3))])
def test_many_tiles_have_small_programs(width: int, head_dim: int, small: tuple[int, int]):
    many, few = (tiling_of(n, width, head_dim=head_dim) for n in (64, 8))
    assert (many.keys, many.warps, many.stages, many.splits) == (32, *small, 1)
    assert (few.keys, few.warps, few.splits > 1) == (64 if head_dim == 128 else 32, 4, True)


def test_programs_are_large_where_small_ones_would_leave_many_multiprocessors_less_to_do():
    """Of 768 small programs, 528 find room at once."""
    assert [(t.rows, t.keys, t.stages) for t in (tiling_of(n, 4) for n in (32, 96, 128))] == [
        (16, 64, 4),
        (16, 64, 4),
        (16, 32, 4),
    ]


def test_large_blocks_need_the_shared_memory_of_a_hopper_gpu():
    """Two blocks of 128 keys and values of 128 dimensions take 128 KiB."""
    smaller = replace(H200, num_sms=108, shared_bytes=166_912)
    assert tiling_of(1, 1).keys == 128
    assert tiling_of(1, 1, gpu=smaller).keys == 64
    assert tiling_of(8, 1, gpu=smaller).splits < tiling_of(8, 1).splits
    assert tiling_of(1, 1, gpu=smaller, head_dim=64).keys == 128


@pytest.mark.parametrize("counts_in_graph", [True, False])
@pytest.mark.parametrize(("num_decodes", "width"), [(3, 4), (4, 1), (1, 2)])
def test_prompts_beside_decoding_sequences(counts_in_graph, num_decodes, width, device):
    """All rows of a pass, and those that its last layer computes: as torch does, sequence by sequence."""
    torch.manual_seed(0)
    sizes = {"num_layers": 1, "num_heads": 4, "num_kv_heads": 2, "head_dim": 32}
    shape = ModelShape(hidden_size=64, intermediate_size=8, vocab_size=8, max_position_embeddings=256, **sizes)
    kv = PagedKV(shape, num_pages=64, block_size=4, dtype=torch.float32, device=device)
    kv.layers[0].normal_()
    pages_SP = torch.randperm(60).view(6, 10).to(device, torch.int32)
    lengths = [9, 20]
    rows = sum(lengths) + num_decodes * width
    size = PromptSize(rows + 3, 2, 4, width) if counts_in_graph else PromptSize(rows, 2, 4, width)
    batch = PromptBatch(size, padding_slot=5, device=device, longest=None if counts_in_graph else max(lengths))
    sequences = [SimpleNamespace(tokens=[1] * 40, row=4 - i) for i in range(2)]
    chunks = [
        Chunk(sequence, 5 * i, length) for i, (sequence, length) in enumerate(zip(sequences, lengths, strict=True))
    ]
    position_B = torch.tensor([7, 2, 11, 30], device=device)
    draft = Draft.empty(4, width - 1, device=device)
    slots = list(range(num_decodes)) if num_decodes < 4 else [0, 1, 2, 0]
    mixed = MixedDraft(torch.arange(4, device=device), width - 1)
    mixed.set(SimpleNamespace(last_B=torch.ones_like(position_B), position_B=position_B), draft)
    batch.set(chunks, slots, mixed)
    host = [(start, width) for start in position_B[:num_decodes].tolist()] + [(0, 0)] * (4 - num_decodes)
    more = 3 if counts_in_graph else 0
    spans = replace(batch.spans, host=(*host, (0, 9), (5, 20 + more)))
    plan = plan_attention(batch.spans, pages_SP[batch.slots_B], block_size=4)
    q_NAD = torch.randn(size.num_rows, 4, 32, device=device)
    expected_NE = attend_by_torch(q_NAD, kv, 0, replace(plan, spans=replace(spans, parts=())))
    torch.testing.assert_close(attend_by_kernel(q_NAD, kv, 0, plan), expected_NE, rtol=1e-5, atol=1e-5)

    rows_R, ends = batch.wanted
    wanted = replace(plan, spans=ends, positions_N=plan.positions_N[rows_R], slots_N=plan.slots_N[rows_R])
    found_RE = attend_by_kernel(q_NAD[rows_R], kv, 0, wanted)
    for row in (*range(num_decodes * width), 4 * width, 4 * width + 1):
        torch.testing.assert_close(found_RE[row], expected_NE[rows_R[row]], rtol=1e-5, atol=1e-5)
    assert found_RE.isfinite().all()
