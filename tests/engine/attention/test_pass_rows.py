"""Rows of a pass: ragged and uniform ones say the same of every run."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwise.engine.attention.pass_rows import Spans

runs = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 6)), min_size=1, max_size=5)


@given(runs=runs)
def test_ragged_rows_are_the_uniform_ones_without_padding(runs: list[tuple[int, int]]) -> None:
    starts, lengths = (list(column) for column in zip(*runs, strict=True))
    ragged = Spans.of(starts, lengths, "cpu")
    uniform = Spans(starts_B=ragged.starts_B, lengths_B=ragged.lengths_B, width=ragged.width, host=None)
    assert ragged.num_rows == sum(lengths)
    assert uniform.num_rows == len(runs) * max(lengths)
    assert ragged.positions_N.tolist() == [start + i for start, length in runs for i in range(length)]
    ragged_BW, uniform_BW = ragged.unpack(ragged.positions_N), uniform.unpack(uniform.positions_N)
    for b, (start, length) in enumerate(runs):
        own = list(range(start, start + length))
        assert ragged_BW[b, :length].tolist() == uniform_BW[b, :length].tolist() == own
        assert ragged.positions_N[ragged.last_row_B[b]] == uniform.positions_N[uniform.last_row_B[b]] == own[-1]
        assert ragged.positions_N[ragged.first_row_B[b]] == uniform.positions_N[uniform.first_row_B[b]] == start


@given(runs=runs, by=st.integers(0, 3))
def test_packing_undoes_unpacking_and_shifting_moves_positions(runs: list[tuple[int, int]], by: int) -> None:
    spans = Spans.of(*(list(column) for column in zip(*runs, strict=True)), "cpu")
    values_N2 = torch.randn(spans.num_rows, 2)
    assert torch.equal(spans.pack(spans.unpack(values_N2)), values_N2)
    assert torch.equal(spans.shift(by).positions_N, spans.positions_N + by)


def test_empty_runs_have_no_rows() -> None:
    spans = Spans.on(torch.tensor([3, 5, 9]), torch.tensor([1, 0, 2]), 4, uniform=False)
    assert spans.positions_N.tolist() == [3, 9, 10]
    assert spans.last_row_B[[0, 2]].tolist() == [0, 2]
