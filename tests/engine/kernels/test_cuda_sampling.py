"""The Triton kernels that pick tokens compute what the plain torch code does, the random bits to the last one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.combinations import covering
from torch import Tensor

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

from draftwise.engine.kernels.cuda import device_functions as kernel_noise  # noqa: E402
from draftwise.engine.kernels.cuda import floors  # noqa: E402
from draftwise.engine.kernels.cuda import sampling as kernels  # noqa: E402
from draftwise.engine.kernels.sampling_constants import GROUP, Lane  # noqa: E402
from draftwise.engine.proposers.proposer import Draft  # noqa: E402
from draftwise.engine.sampling import logits as counting  # noqa: E402
from draftwise.engine.sampling import random as noise  # noqa: E402
from draftwise.engine.sampling import tempering as sampling  # noqa: E402
from draftwise.engine.sampling import verify  # noqa: E402
from draftwise.engine.sampling.acceptance_rules import Acceptance, Standard, Synthetic, Typical, place  # noqa: E402
from draftwise.engine.sampling.logits import Penalties, TokenCounts  # noqa: E402
from draftwise.engine.sampling.logprobs import rank_tokens  # noqa: E402
from draftwise.engine.sampling.params import SamplingParams  # noqa: E402
from draftwise.engine.sampling.tempering import Tempering  # noqa: E402

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
SEEDS = (0, 1, 2**62 + 12345, 2**63 - 1)
MIXED = (
    SamplingParams(temperature=0, top_k=2),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=1, top_p=0.7),
    SamplingParams(temperature=1e-5),
    SamplingParams(temperature=1.8, top_k=4, top_p=0.9, min_p=0.01),
    SamplingParams(min_p=0.2),
)


def random_logits(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3


def counters(count: int, device: torch.device) -> dict[str, Tensor]:
    seeds = torch.tensor([SEEDS[i % len(SEEDS)] for i in range(count)], device=device)
    return {"seeds_B": seeds, "positions_B": torch.arange(count, device=device) * 1001}


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the engine's functions run plain torch, also on a GPU."""
    use(None, monkeypatch)


def use(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for caller in (sampling, verify):
        monkeypatch.setattr(caller, "kernels_for", lambda _: module)


# Penalties.


@pytest.mark.parametrize("num_drafted", [0, 1, 3])
@pytest.mark.parametrize("vocab_size", [7, 2500])
def test_penalties_are_those_of_torch(
    num_drafted: int, vocab_size: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = [SamplingParams(), SamplingParams(repetition_penalty=1.3), SamplingParams(presence_penalty=0.7)]
    params.append(SamplingParams(repetition_penalty=0.8, frequency_penalty=-0.4, presence_penalty=-0.2))
    generator = torch.Generator().manual_seed(num_drafted)
    histories = torch.randint(vocab_size, (2, 4, 40), generator=generator).tolist()
    drafts = torch.randint(min(vocab_size, 5), (4, num_drafted + 1), generator=generator).to(device)
    counts, slots = TokenCounts(6, vocab_size, device), [5, 0, 3, 1]
    counts.enter(slots, histories[0], histories[1])
    penalties = Penalties.of(params, slots, counts, device)
    assert penalties is not None
    logits = random_logits(4, num_drafted + 1, vocab_size).to(device)
    both = []
    for module in (kernels, None):
        monkeypatch.setattr(counting, "kernels_for", lambda _, module=module: module)
        both.append(penalties.apply(logits, drafts[:, 1:]))
    torch.testing.assert_close(*both)
    assert torch.equal(both[0][0], logits[0])
    assert not torch.equal(both[0][1:], logits[1:])


# The likeliest token.


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab_size", [1, 37, 1024, 5000])
def test_argmax_takes_the_lowest_of_equals(dtype: torch.dtype, vocab_size: int, device: torch.device) -> None:
    logits = torch.randint(-3, 3, (2, 3, vocab_size), generator=torch.Generator().manual_seed(1)).to(device, dtype)
    logits[0, 0] = 0.0
    logits[0, 0, : vocab_size // 2] = -0.0
    logits[0, 1] = -torch.inf
    logits[0, 2] = -torch.inf
    logits[0, 2, -1] = torch.finfo(dtype).min
    best = logits == logits.amax(-1, keepdim=True)
    expected = torch.where(best, torch.arange(vocab_size, device=device), vocab_size).amin(-1)
    assert torch.equal(kernels.argmax_rows(logits), expected)


def test_argmax_of_rows_that_lie_apart(device: torch.device) -> None:
    logits = random_logits(4, 3000).to(device)[:, 17:2500]
    assert torch.equal(kernels.argmax_rows(logits), logits.argmax(-1))


def test_argmax_is_translated(device: torch.device) -> None:
    logits, ids = random_logits(3, 1500).to(device), torch.randperm(9000)[:1500].to(device)
    assert torch.equal(kernels.argmax_rows(logits, ids), ids[logits.argmax(-1)])


def test_a_row_does_not_depend_on_how_many_there_are(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows mean fewer parts of each."""
    monkeypatch.setattr(kernels, "_PROGRAMS", 9)
    logits = random_logits(9, 1, GROUP + 100).to(device)
    temperature = torch.full((9,), 0.9, device=device)
    together = kernels.draw_rows(logits, temperature, lane=Lane.TOKEN, **counters(9, device))
    for b in (0, 7):
        alone = {name: value[b : b + 1] for name, value in counters(9, device).items()}
        got = kernels.draw_rows(logits[b : b + 1], temperature[b : b + 1], lane=Lane.TOKEN, **alone)
        assert torch.equal(got, together[b : b + 1])
    assert torch.equal(kernels.argmax_rows(logits)[8:], kernels.argmax_rows(logits[8:]))


# The noise.


@triton.jit
def _write_bits(seeds, positions, bits, LANE: tl.constexpr, V: tl.constexpr):
    row, token = tl.program_id(0), tl.arange(0, V)
    row_bits = kernel_noise.row_bits(tl.load(seeds + row), tl.load(positions + row), LANE)
    tl.store(bits + row * V + token, kernel_noise.token_bits(row_bits, token).to(tl.int64, bitcast=True))


@pytest.mark.parametrize("lane", list(Lane))
def test_random_bits_are_the_same_to_the_last_one(lane: Lane, device: torch.device) -> None:
    seeds = torch.tensor([*SEEDS, 2**40, 77], device=device)
    positions = torch.tensor([0, 2**31, 5, 1, 123456789, 2**40], device=device)
    got = torch.empty(6, 64, dtype=torch.long, device=device)
    _write_bits[(6,)](seeds, positions, got, LANE=int(lane), V=64)
    tokens = torch.arange(1, 65, device=device) * noise._int64(noise.GOLDEN)
    expected = noise._mix(noise._row_bits(seeds, positions, lane).unsqueeze(1) + tokens)
    assert torch.equal(got, expected)


@triton.jit
def _write_noise(bits, result, N: tl.constexpr, EXACT: tl.constexpr):
    index = tl.arange(0, N)
    tl.store(result + index, kernel_noise.to_gumbel(tl.load(bits + index).to(tl.uint64, bitcast=True), EXACT))


def test_noise_is_accurate_down_to_both_ends(device: torch.device) -> None:
    top = torch.tensor([*range(16), 2**30, 2**31 - 1, 2**31 - 64, 2**31 - 129, *(2**i for i in range(12))])
    got = torch.empty(32, device=device)
    _write_noise[(1,)]((top << 33).to(device), got, N=32, EXACT=device.type == "cuda")
    u = ((top.float() + 0.5) * 2.0**-31).clamp(max=1 - 2.0**-24).double()
    torch.testing.assert_close(got.cpu().double(), -(-torch.log1p(-u)).log(), rtol=1e-6, atol=1e-6)


# Draws.


def assert_same_draws(got: Tensor, expected: Tensor, score: Tensor) -> None:
    """Equal tokens, or such as noise that was rounded otherwise may swap."""
    assert got.shape == expected.shape
    lost = score.gather(-1, expected.unsqueeze(-1)) - score.gather(-1, got.unsqueeze(-1))
    assert lost.abs().max() <= 1e-5
    assert (got != expected).double().mean() <= 0.05


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize(("dtype", "lane", "cuts"), covering(DTYPES, [Lane.TOKEN, Lane.DRAFT], [False, True]))
def test_draws_equal_torch(dtype: torch.dtype, lane: Lane, cuts: bool, device: torch.device) -> None:
    logits = random_logits(len(MIXED), 3, 1300).to(device, dtype)
    tempering = Tempering.of(MIXED, device)
    floor = sampling.find_floors(logits, tempering) if cuts else None
    arguments = counters(len(MIXED), device) | {"lane": lane, "floor_BS": floor}
    got = kernels.draw_rows(logits, tempering.temperature_B, **arguments)
    expected = sampling.draw(logits, tempering.temperature_B, **arguments)
    row = torch.arange(3, device=device)
    seeds, positions = arguments["seeds_B"].unsqueeze(1), arguments["positions_B"].unsqueeze(1) + row
    tempered = sampling.temper(logits, tempering.temperature_B)
    score = tempered + noise.gumbel(seeds, positions, torch.arange(1300, device=device), lane)
    greedy = torch.tensor([p.greedy for p in MIXED])
    assert_same_draws(got[~greedy], expected[~greedy], score[~greedy])
    assert torch.equal(got[greedy], logits[greedy].argmax(-1))
    if floor is not None:
        assert (tempered.gather(2, got.unsqueeze(2)).squeeze(2) >= floor).all()


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("cuts", [False, True])
def test_draws_from_groups_equal_torch(cuts: bool, device: torch.device) -> None:
    """Three groups, the last one cut short; the second is the likeliest and beyond some rows' floors."""
    logits = random_logits(len(MIXED), 2, 2 * GROUP + 300).to(device, torch.bfloat16)
    logits[:, 1, GROUP : 2 * GROUP] = -torch.inf
    tempering = Tempering.of(MIXED, device)
    floor = sampling.find_floors(logits, tempering) if cuts else None
    arguments = counters(len(MIXED), device) | {"lane": Lane.TOKEN, "floor_BS": floor}
    got = kernels.draw_rows(logits, tempering.temperature_B, **arguments)
    assert torch.equal(got, sampling.draw(logits, tempering.temperature_B, **arguments))
    assert len(set((got // GROUP).flatten().tolist())) > 1


@pytest.mark.usefixtures("no_kernels")
def test_draws_from_logits_as_they_are(device: torch.device) -> None:
    logits = random_logits(4, 2, 700).to(device).masked_fill(torch.rand(4, 2, 700, device=device) < 0.5, -torch.inf)
    arguments = counters(4, device) | {"lane": Lane.TOKEN}
    assert torch.equal(kernels.draw_rows(logits, None, **arguments), sampling.draw(logits, None, **arguments))


NUCLEI = (
    SamplingParams(temperature=0.9, top_p=0.6),
    SamplingParams(temperature=0.7, top_p=0.1),  # few attempts are in it
    SamplingParams(temperature=0, top_p=0.5),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=1.8, top_k=40, top_p=0.8, min_p=0.01),
    SamplingParams(temperature=0.8, top_p=1e-6),  # one token
    SamplingParams(temperature=0.8, min_p=0.2),
)


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("vocab_size", [900, 2 * GROUP + 300])
def test_draws_from_nuclei_equal_torch(vocab_size: int, device: torch.device) -> None:
    logits = random_logits(len(NUCLEI), 3, vocab_size).to(device, torch.bfloat16)
    t, arguments = Tempering.of(NUCLEI, device), counters(len(NUCLEI), device) | {"lane": Lane.TOKEN}
    got = kernels.sample_rows(logits, *settings_of(t), **arguments)
    assert torch.equal(got, sampling.sample(logits, t, **arguments))
    tempered = sampling.temper(logits, t.temperature_B)
    assert (tempered.gather(2, got.unsqueeze(2)).squeeze(2) >= sampling.find_floors(logits, t)).all()
    assert torch.equal(got[5], logits[5].argmax(-1))
    # The same tokens as without any other row that has a nucleus.
    assert torch.equal(got[2:4], kernels.draw_rows(logits, t.temperature_B, **arguments)[2:4])


# Truncation.


SHAPES = ((torch.bfloat16, 37), (torch.bfloat16, 5000), (torch.float16, 300), (torch.float32, 300))


CUTS: tuple[dict[str, Any], ...] = (
    {"top_k": 1},
    {"top_k": 20},
    {"top_k": 10**6},
    {"top_p": 0.5},
    {"top_p": 0.99},
    {"top_p": 1e-6},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"top_k": 30, "top_p": 0.8, "min_p": 0.01},
    {"temperature": 0, "top_k": 3, "top_p": 0.1},
    {},
)


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize(("shape", "settings"), covering(SHAPES, CUTS, together=1), ids=repr)
def test_floors_equal_torch(shape: tuple[torch.dtype, int], settings: dict[str, Any], device: torch.device) -> None:
    dtype, vocab_size = shape
    params = [SamplingParams(**{"temperature": temperature} | settings) for temperature in (0.4, 1.0, 1.7, 0.8)]
    logits = random_logits(4, 1, vocab_size, seed=vocab_size).to(device, dtype)
    logits[1, :, 1:] = logits[1, :, 1:].round()  # many ties
    logits[2, :, 2::3] = -torch.inf
    logits[3, :, 2:] = -torch.inf  # a grammar leaves few
    t = Tempering.of(params, device)
    tempered = sampling.temper(logits, t.temperature_B)
    found = kernels.find_floors(logits, *settings_of(t)), sampling.find_floors(logits, t)
    kept = [tempered >= floor.unsqueeze(2) for floor in found]
    if "top_p" not in settings:
        assert torch.equal(*kept)
    # Sums are rounded otherwise, so tokens at the edge of a nucleus may differ, but only such as weigh nothing.
    probs = tempered.double().softmax(-1)
    torch.testing.assert_close(*[(probs * each).sum(2) for each in kept], rtol=0, atol=1e-5)


LANES: dict[str, tuple[dict[str, Any], Any]] = {
    "one lane has the likeliest": (
        {"top_k": 6},
        lambda logits: logits + 20 * (torch.arange(2000, device=logits.device) % 64 == 3),
    ),
    "one lane has the four likeliest": (
        {"top_k": 3},
        lambda logits: logits + 20 * (torch.arange(2000, device=logits.device) % 512 == 3),
    ),
    "ties": ({"top_k": 50, "top_p": 0.9}, lambda logits: logits.round()),
    "a nucleus among them": ({"top_k": 12, "top_p": 0.6, "min_p": 0.02}, lambda logits: logits),
    "nothing but one": ({"top_k": 50}, lambda logits: logits.where(logits == logits.amax(2, keepdim=True), -torch.inf)),
}
"""Rows whose lanes have many logits: some are searched among copies, some as a whole."""


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("case", LANES)
def test_floors_of_lanes_with_more_logits_than_slots(
    case: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(floors, "_BLOCK", 64)
    settings, change = LANES[case]
    logits = change(random_logits(1, 2, 2000, seed=3).to(device, torch.bfloat16))
    t = Tempering.of([SamplingParams(temperature=0.8, **settings)], device)
    tempered = sampling.temper(logits, t.temperature_B)
    found = [kernels.find_floors(logits, *settings_of(t)), sampling.find_floors(logits, t)]
    probs = tempered.double().softmax(-1)
    kept = [(probs * (tempered >= floor.unsqueeze(2))).sum(2) for floor in found]
    torch.testing.assert_close(*kept, rtol=0, atol=1e-5)


@pytest.mark.usefixtures("no_kernels")
def test_a_rows_floor_does_not_depend_on_the_others(device: torch.device) -> None:
    logits, t = random_logits(len(MIXED), 1, 900).to(device), Tempering.of(MIXED, device)
    together = kernels.find_floors(logits, *settings_of(t))
    alone = kernels.find_floors(logits[4:5], *(each[4:5] for each in settings_of(t)))
    assert torch.equal(together[4:5], alone)


def settings_of(t: Tempering) -> tuple[Tensor, ...]:
    return t.temperature_B, t.top_k_B, t.top_p_B, t.min_p_B


# Rejection sampling.


def rejection_case(kind: str, device: torch.device) -> tuple[Tensor, Draft, dict[str, Any]]:
    """Logits of 4 sequences with drafts sampled from distributions near the target's, or from it itself."""
    generator = torch.Generator().manual_seed(5)
    params = (MIXED[0], MIXED[1], SamplingParams(), MIXED[4])
    logits = torch.randn(4, 4, 2500, generator=generator).to(device)
    tempering = Tempering.of(params, device)
    near = logits[:, :-1] + (0 if kind == "equal" else torch.randn(4, 3, 2500, generator=generator).to(device))
    probs = sampling.sharpen(sampling.temper_and_truncate(near, tempering), tempering.temperature_B == 0).softmax(-1)
    tokens = sampling.draw(probs.log(), None, lane=Lane.DRAFT, **counters(4, device))
    lengths = torch.tensor([3, 3, 2, 3], device=device)
    draft = Draft(tokens_BK=tokens, lengths_B=lengths, probs_BKV=probs)
    return logits, draft, counters(4, device) | {"tempering": tempering}


@pytest.mark.parametrize("kind", ["near", "equal"])
def test_rejection_equals_torch(kind: str, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    use(None, monkeypatch)
    logits, draft, arguments = rejection_case(kind, device)
    expected = verify.verify(logits, draft, acceptance=Standard(), **arguments)
    use(kernels, monkeypatch)
    got = verify.verify(logits, draft, acceptance=Standard(), **arguments)
    assert torch.equal(got.tokens_BS, expected.tokens_BS)
    accepted = got.num_accepted_B.tolist()
    assert accepted == expected.num_accepted_B.tolist()
    assert accepted == [3, 3, 2, 3] if kind == "equal" else 0 < sum(accepted) < 11


def test_rejection_draws_from_p_where_nothing_is_left(device: torch.device) -> None:
    """With q above p everywhere, tokens often fall, and their replacement follows p."""
    logits = torch.tensor([0.2, 0.3, 0.5]).log().expand(30, 2, 3).to(device)
    probs = (1.5 * logits[:, :1].exp()).contiguous()
    tokens, ones = torch.ones(30, 1, dtype=torch.long, device=device), torch.ones(30, device=device)
    inputs = {"lengths_B": ones.long(), "seeds_B": torch.arange(30, device=device), "positions_B": ones.long()}
    stands, following = kernels.reject(logits, ones, None, tokens, probs, **inputs)
    plain = kernels.draw_rows(
        logits, None, seeds_B=inputs["seeds_B"], positions_B=inputs["positions_B"], lane=Lane.TOKEN
    )
    assert torch.equal(following, plain)
    assert 5 < stands.sum() < 28


@pytest.mark.parametrize("probabilistic", [False, True])
def test_output_has_the_targets_distribution(
    probabilistic: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device.type == "cpu":
        pytest.skip("too many programs for the interpreter")
    use(kernels, monkeypatch)
    count, row = 200_000, torch.tensor([0.3, -0.4, 1.0, 0.2, -1.5], device=device)
    q = torch.tensor([-0.2, 0.5, 0.1, 0.9, -0.3], device=device).softmax(0).expand(count, 1, 5)
    inputs = {"seeds_B": torch.arange(count, device=device), "positions_B": torch.full((count,), 3, device=device)}
    tokens = kernels.draw_rows(q.log(), None, lane=Lane.DRAFT, **inputs)
    lengths = torch.ones(count, dtype=torch.long, device=device)
    accepted = verify.verify(
        row.expand(count, 2, 5).contiguous(),
        Draft(tokens_BK=tokens, lengths_B=lengths, probs_BKV=q.contiguous() if probabilistic else None),
        tempering=Tempering.of([SamplingParams(temperature=0.8)] * count, device),
        acceptance=Standard(),
        **inputs,
    )
    # Chi-square with 4 degrees of freedom: 18.5 is passed once in a thousand when the distribution is the one claimed.
    for column, distribution in ((0, (row / 0.8).softmax(0)), (1, (row / 0.8).softmax(0))):
        emitted = accepted.tokens_BS[:, column]
        counts = torch.bincount(emitted[emitted >= 0], minlength=5).double()
        expected = counts.sum() * distribution.double()
        assert ((counts - expected) ** 2 / expected).sum() < 18.5
        assert counts.sum() > count / 10


# What a step makes final.

SETTINGS = {
    "greedy": (SamplingParams(temperature=0),) * 4,
    "sampled": tuple(SamplingParams(temperature=t) for t in (0, 0.2, 1, 1.5)),
    "truncated": (*MIXED[:3], MIXED[4]),
}
COINS = Synthetic(rates=(0.9, 0.7, 0.5, 0.3, 0.3, 0.2, 0.0))
VERDICTS = [
    *covering((0, 4), (Standard(), Typical(), COINS), (False, True), ("greedy", "sampled")),
    *covering((2,), (Standard(),), (False, True), ("truncated",)),
]


@pytest.mark.parametrize(("num_drafted", "acceptance", "probabilistic", "settings"), VERDICTS)
def test_whole_verdicts_equal_torch(
    num_drafted: int,
    acceptance: Acceptance,
    probabilistic: bool,
    settings: str,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(num_drafted)
    logits = random_logits(4, num_drafted + 1, 50).to(device, torch.bfloat16)
    # Drafts that often stand: the likeliest tokens, with some others among them.
    likeliest = logits[:, :-1].argmax(-1).cpu()
    tokens = torch.where(torch.rand(likeliest.shape, generator=generator) < 0.8, likeliest, 3)
    probs = torch.rand(4, num_drafted, 50, generator=generator).softmax(-1).to(device) if probabilistic else None
    lengths = torch.tensor([num_drafted, num_drafted // 2, num_drafted, 0])
    # As drafts from the host come: beside their lengths, so neither is contiguous.
    lengths_B1, tokens_BK = torch.cat([lengths.unsqueeze(1), tokens], dim=1).to(device).split((1, num_drafted), dim=1)
    draft = Draft(tokens_BK=tokens_BK, lengths_B=lengths_B1.squeeze(1), probs_BKV=probs)
    arguments: dict[str, Any] = counters(4, device) | {"tempering": Tempering.of(SETTINGS[settings], device)}
    verdicts = []
    for module in (None, kernels):
        use(module, monkeypatch)
        verdicts.append(verify.verify(logits, draft, acceptance=place(acceptance, device), **arguments))
    assert torch.equal(verdicts[0].tokens_BS, verdicts[1].tokens_BS)
    assert torch.equal(verdicts[0].num_accepted_B, verdicts[1].num_accepted_B)


# Log-probabilities.


@pytest.mark.parametrize(
    ("vocab_size", "k", "dtype"),
    [(9, 9, torch.float32), (9000, 5, torch.bfloat16), (4097, 20, torch.float16), (300, 0, torch.float32)],
)
def test_tokens_are_ranked_as_by_torch(vocab_size: int, k: int, dtype: torch.dtype, device: torch.device) -> None:
    """Also where fewer tokens are possible than are asked for, and where many are alike."""
    logits = random_logits(4, vocab_size).to(dtype)
    logits[1, 3:] = float("-inf")
    logits[2] = logits[2].round()
    chosen = torch.tensor([0, 1, 2, 3])
    expected, got = rank_tokens(logits, chosen, k), kernels.rank(logits.to(device), chosen.to(device), k)
    ids, logprobs, ranks = (each.cpu() for each in got)
    torch.testing.assert_close(logprobs, expected.logprobs_RT, atol=2e-5, rtol=0)
    assert torch.equal(ranks, expected.ranks_R)
    assert torch.equal(ids[:, 0], chosen)
    assert all(len(set(row)) == k for row in ids[:, 1:].tolist())
    assert torch.equal(logits.gather(1, ids[:, 1:]), logits.gather(1, expected.ids_RT[:, 1:]))
