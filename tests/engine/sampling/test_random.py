"""The noise is a pure function of its counters, rightly distributed, without structure between neighbours."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from draftwise.engine.kernels.sampling_constants import Lane
from draftwise.engine.sampling import random as noise
from draftwise.engine.sampling.random import completion_seed, gumbel, request_seed, uniform


def splitmix64(state: int, count: int) -> list[int]:
    """Textbook SplitMix64 on Python's unbounded integers."""
    out = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        out.append(z ^ (z >> 31))
    return out


def rows(n: int) -> torch.Tensor:
    return torch.arange(n)


def test_reference_generator_is_splitmix64() -> None:
    # Published vector: Vigna's splitmix64.c seeded with 1234567.
    assert splitmix64(1234567, 3) == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=8))
def test_mix_equals_the_reference_on_all_64_bits(values: list[int]) -> None:
    given_bits = torch.tensor([noise._int64(v + 0x9E3779B97F4A7C15) for v in values])
    got = [bits % 2**64 for bits in noise._mix(given_bits).tolist()]
    assert got == [splitmix64(v, 1)[0] for v in values]


@given(seed=st.integers(0, 2**63 - 1), position=st.integers(0, 2**31), lane=st.sampled_from(Lane))
def test_a_row_does_not_depend_on_the_batch(seed: int, position: int, lane: Lane) -> None:
    alone = gumbel(torch.tensor([seed]), torch.tensor([position]), rows(33), lane)
    seeds, positions = torch.tensor([7, seed, 2**63 - 1]), torch.tensor([0, position, 5])
    assert torch.equal(gumbel(seeds, positions, rows(33), lane)[1], alone[0])
    # A longer vocabulary only adds tokens.
    assert torch.equal(gumbel(seeds, positions, rows(50), lane)[1, :33], alone[0])
    assert uniform(seeds, positions, lane)[1] == uniform(torch.tensor([seed]), torch.tensor([position]), lane)[0]


def test_inputs_are_left_alone() -> None:
    seeds, positions = rows(4), rows(4)
    gumbel(seeds, positions, rows(8))
    uniform(seeds, positions, Lane.ACCEPT)
    assert seeds.tolist() == positions.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("vary", ["seed", "position", "token"])
@pytest.mark.parametrize("lane", list(Lane))
def test_gumbel_distribution(vary: str, lane: Lane) -> None:
    n, zeros = 200_000, torch.zeros(200_000, dtype=torch.long)
    sample = {
        "seed": lambda: gumbel(rows(n), zeros, rows(1), lane)[:, 0],
        "position": lambda: gumbel(zeros, rows(n), rows(1), lane)[:, 0],
        "token": lambda: gumbel(zeros[:1], zeros[:1], rows(n), lane)[0],
    }[vary]()
    assert stats.kstest(sample.double().numpy(), stats.gumbel_r.cdf).pvalue > 1e-3


@pytest.mark.parametrize("vary", ["seed", "position"])
def test_uniform_distribution_and_open_interval(vary: str) -> None:
    n, zeros = 200_000, torch.zeros(200_000, dtype=torch.long)
    u = uniform(rows(n), zeros, Lane.ACCEPT) if vary == "seed" else uniform(zeros, rows(n), Lane.ACCEPT)
    assert stats.kstest(u.numpy(), "uniform").pvalue > 1e-3
    assert u.min() > 0
    assert u.max() < 1


def test_extreme_bits_stay_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    extremes = torch.tensor([0, -1, 2**63 - 1, -(2**63)])
    monkeypatch.setattr(noise, "_mix", lambda bits: extremes.clone())
    u = uniform(rows(4), rows(4), Lane.ACCEPT)
    assert u.min() > 0
    assert u.max() < 1
    monkeypatch.setattr(noise, "_mix", lambda bits: extremes.clone().view(1, 4) if bits.dim() == 2 else bits)
    g = gumbel(rows(1), rows(1), rows(4))
    assert g.isfinite().all()
    assert g.max() > 22  # the winning tail reaches probability 2^-32


def pairs(kind: str, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    zeros = torch.zeros(n, dtype=torch.long)
    if kind == "neighbouring seeds":
        return uniform(rows(n) * 2, zeros, 0), uniform(rows(n) * 2 + 1, zeros, 0)
    if kind == "neighbouring positions":
        return uniform(zeros, rows(n) * 2, 0), uniform(zeros, rows(n) * 2 + 1, 0)
    if kind == "seed against position":
        return uniform(rows(n), zeros + 3, 0), uniform(zeros + 3, rows(n), 0)
    if kind == "lanes":
        return uniform(rows(n), zeros, Lane.TOKEN), uniform(rows(n), zeros, Lane.ACCEPT)
    if kind == "coin against draft":
        return uniform(rows(n), zeros, Lane.ACCEPT), gumbel(rows(n), zeros, rows(1), Lane.DRAFT)[:, 0]
    if kind == "neighbouring tokens":
        both = gumbel(rows(n), zeros, rows(2))
        return both[:, 0], both[:, 1]
    raise AssertionError(kind)


KINDS = (
    "neighbouring seeds",
    "neighbouring positions",
    "seed against position",
    "lanes",
    "coin against draft",
    "neighbouring tokens",
)


def dependence_pvalue(a: torch.Tensor, b: torch.Tensor, bins: int = 16) -> float:
    """Chi-square of independence on a grid of quantiles: sees any dependence that is coarse enough to matter."""
    n = len(a)
    cells = (a.argsort().argsort() * bins // n) * bins + b.argsort().argsort() * bins // n
    return float(stats.chisquare(torch.bincount(cells, minlength=bins * bins).numpy()).pvalue)


@pytest.mark.parametrize("kind", KINDS)
def test_streams_are_independent(kind: str) -> None:
    assert dependence_pvalue(*pairs(kind, 160_000)) > 1e-4


def test_the_independence_test_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    # Mutant: no mixing, so neighbouring counters give neighbouring bits.
    monkeypatch.setattr(noise, "_mix", lambda bits: bits * 1)
    assert dependence_pvalue(*pairs("neighbouring seeds", 160_000)) < 1e-6


def test_no_seed_is_another_one_shifted_in_position() -> None:
    seed, positions = 5 * 10**18, rows(1000)
    a = uniform(torch.tensor(noise._int64(seed + noise.POSITION)), positions, Lane.TOKEN)
    b = uniform(torch.tensor(seed), positions + 1, Lane.TOKEN)
    assert (a != b).all()


@pytest.mark.parametrize("argument", [0, 1])
def test_avalanche(argument: int) -> None:
    """Flipping any one bit of seed or position flips every output bit with probability one half."""
    n = 4096
    generator = torch.Generator().manual_seed(5)
    inputs = [torch.randint(0, 2**62, (n,), generator=generator) for _ in range(2)]
    before = noise._row_bits(*inputs, Lane.TOKEN)
    for bit in range(0, 62, 3):
        flipped = list(inputs)
        flipped[argument] = inputs[argument] ^ (1 << bit)
        changed = before ^ noise._row_bits(*flipped, Lane.TOKEN)
        share = ((changed.unsqueeze(-1) >> torch.arange(64)) & 1).double().mean(0)
        assert (share - 0.5).abs().max() < 5 * 0.5 / n**0.5


def test_argmax_of_noisy_logits_samples_the_softmax() -> None:
    logits = torch.tensor([2.0, 0.0, -1.0, 1.5, -torch.inf])
    n = 200_000
    chosen = (logits + gumbel(rows(n), torch.full((n,), 11), rows(5))).argmax(-1)
    counts = torch.bincount(chosen, minlength=5)
    assert counts[4] == 0
    assert stats.chisquare(counts[:4].numpy(), n * logits.double().softmax(-1)[:4].numpy()).pvalue > 1e-3


def test_seeds_differ_by_request_completion_and_engine() -> None:
    seeds = {request_seed(engine, f"r{r}", i) for engine in range(3) for r in range(5) for i in range(4)}
    assert len(seeds) == 60
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert request_seed(0, "r1", 0) == request_seed(0, "r1", 0)


def test_completions_of_a_seeded_request() -> None:
    assert completion_seed(42, 0) == 42
    children = [completion_seed(42, i) for i in range(4)]
    assert len(set(children)) == 4
    # vLLM uses seed + index, which makes completion 1 of seed 42 the same stream as completion 0 of seed 43.
    assert completion_seed(43, 0) not in children
