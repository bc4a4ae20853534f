"""What follows the logits can be captured: settings are tensors, shapes are static, nothing comes from the host."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from draftwise.engine.kernels.sampling_constants import Lane
from draftwise.engine.proposers.proposer import choose
from draftwise.engine.sampling import tempering as sampling
from draftwise.engine.sampling.acceptance_rules import Rule, Standard, Synthetic, Typical, place
from draftwise.engine.sampling.draft import Draft
from draftwise.engine.sampling.params import SamplingParams
from draftwise.engine.sampling.random import gumbel
from draftwise.engine.sampling.tempering import Tempering, argmax, draw, find_floors, temper_and_truncate
from draftwise.engine.sampling.verify import verify

DEVICE = torch.device(os.environ.get("DRAFTWISE_TEST_DEVICE", "cpu"))
NUM_SEQS, NUM_DRAFTED, VOCAB = 4, 3, 40
GREEDY = SamplingParams(temperature=0, top_k=3)
PARAMS = [GREEDY, SamplingParams(temperature=0.7), SamplingParams(top_p=0.8, min_p=0.01), SamplingParams(top_k=5)]
RULES: tuple[Any, ...] = (Standard(), Typical(), Synthetic(rates=(0.9, 0.5, 0.1)))
Step = Callable[[], tuple[Tensor, ...]]


class NothingFromTheHost(TorchDispatchMode):
    """Refuses what a captured step may not do: to make a tensor from the host's numbers, or to read one's values."""

    refused = frozenset(
        {
            torch.ops.aten.lift_fresh.default,  # torch.tensor(...) and new_tensor(...)
            torch.ops.aten.scalar_tensor.default,  # torch.where(..., number): copied to a GPU like any other tensor
            torch.ops.aten._local_scalar_dense.default,  # item() and tolist()
        }
    )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in self.refused, func
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "mistake",
    [
        lambda x: x * torch.tensor([1.0, 2.0]),
        lambda x: x + x.new_tensor([1.0, 2.0]),
        lambda x: torch.where(x > 0, x, 0.0),
        lambda x: x.sum().item(),
    ],
)
def test_the_guard_sees_host_work(mistake: Callable[[Tensor], Any]) -> None:
    with pytest.raises(AssertionError), NothingFromTheHost():
        mistake(torch.ones(2))


def inputs(device: torch.device | str, *, probabilistic: bool, seed: int = 0) -> dict[str, Any]:
    """Logits, a draft with some likely tokens in it, and the counters of a batch."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(NUM_SEQS, NUM_DRAFTED + 1, VOCAB, generator=generator).bfloat16() * 3
    tokens = torch.where(torch.rand(NUM_SEQS, NUM_DRAFTED, generator=generator) < 0.7, logits[:, :-1].argmax(-1), 1)
    probs = torch.rand(NUM_SEQS, NUM_DRAFTED, VOCAB, generator=generator).softmax(-1)
    lengths = torch.randint(1, NUM_DRAFTED + 1, (NUM_SEQS,), generator=generator)
    return {
        "logits_BSV": logits.to(device),
        "draft": Draft(
            tokens_BK=tokens.to(device),
            lengths_B=lengths.to(device),
            probs_BKV=probs.to(device) if probabilistic else None,
        ),
        "seeds_B": torch.randint(0, 2**62, (NUM_SEQS,), generator=generator).to(device),
        "positions_B": torch.randint(0, 999, (NUM_SEQS,), generator=generator).to(device),
    }


def tempering(device: torch.device | str, *, all_greedy: bool, truncates: bool) -> Tempering:
    params = [GREEDY] * NUM_SEQS if all_greedy else PARAMS if truncates else [*PARAMS[:2], PARAMS[1], GREEDY]
    made = Tempering.of(params, "cpu")
    assert (made.all_greedy, made.truncates) == (all_greedy, truncates)
    columns = {name: getattr(made, name).to(device) for name in ("temperature_B", "top_k_B", "top_p_B", "min_p_B")}
    return replace(made, **columns)


FLAGS = ({"all_greedy": True, "truncates": False}, *({"all_greedy": False, "truncates": t} for t in (False, True)))


def verdict(settings: Tempering, rule: Rule, given: dict[str, Any]) -> tuple[Tensor, ...]:
    made = verify(tempering=settings, acceptance=rule, **given)
    return made.tokens_BS, made.num_accepted_B


def choose_token(settings: Tempering, given: dict[str, Any], **options: Any) -> tuple[Tensor, ...]:
    counters = {name: given[name] for name in ("seeds_B", "positions_B")}
    made = choose(given["logits_BSV"][:, 0], temperature_B=settings.temperature_B, **counters, **options)
    return tuple(part for part in made if part is not None)


def steps(device: torch.device | str, given: dict[str, Any]) -> Iterator[tuple[str, Step]]:
    """Yield all that a captured step may do with logits."""
    for flags, rule in product(FLAGS, RULES):
        settings, placed = tempering(device, **flags), place(rule, device)
        yield f"verify {flags} {rule}", lambda s=settings, r=placed: verdict(s, r, given)
        yield f"temper {flags}", lambda s=settings: (temper_and_truncate(given["logits_BSV"], s),)
    ids = torch.arange(VOCAB).mul(2).to(device)
    settings = tempering(device, all_greedy=False, truncates=False)
    for probabilistic, target_ids in product((False, True), (None, ids)):
        options = {"probabilistic": probabilistic, "target_ids_U": target_ids}
        size = VOCAB if target_ids is None else 2 * VOCAB
        yield f"choose {probabilistic}", lambda o=options, v=size: choose_token(settings, given, vocab_size=v, **o)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("probabilistic", [False, True])
def test_nothing_comes_from_the_host(device: str, probabilistic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Meta tensors have no values, so that shapes which depend on them raise."""
    monkeypatch.setattr(sampling, "_sort_descending", lambda x: x.sort(2, descending=True).values)  # not numpy's
    monkeypatch.setattr(sampling, "_partition", sampling._sort)
    monkeypatch.setattr(sampling, "_is_known_to_be_none", lambda _: False)  # on the CPU it looks
    for name, step in steps(device, inputs(device, probabilistic=probabilistic)):
        with NothingFromTheHost():
            result = step()
        assert result, name


@pytest.mark.skipif(DEVICE.type != "cuda", reason="on a CPU argmax is faster over float32")
def test_greedy_verification_does_not_widen_the_logits() -> None:
    given, seen = inputs(DEVICE, probabilistic=True), []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            seen.extend(x.dtype for x in tree_leaves(result) if isinstance(x, Tensor) and VOCAB in x.shape)
            return result

    with Watch():
        verdict(tempering(DEVICE, all_greedy=True, truncates=False), Standard(), given)
    assert set(seen) <= {torch.bfloat16}


@pytest.mark.skipif(DEVICE.type != "cuda", reason="captures CUDA graphs")
@pytest.mark.parametrize("probabilistic", [False, True])
def test_captured_steps_equal_eager_ones(probabilistic: bool) -> None:
    """A graph made with some inputs gives the right results for others that are copied over them."""
    first, second = (inputs(DEVICE, probabilistic=probabilistic, seed=seed) for seed in (1, 2))

    def overwrite(values: dict[str, Any]) -> None:
        for name in ("logits_BSV", "seeds_B", "positions_B"):
            first[name].copy_(values[name])
        for name in ("tokens_BK", "lengths_B", "probs_BKV"):
            if getattr(first["draft"], name) is not None:
                getattr(first["draft"], name).copy_(getattr(values["draft"], name))

    before = inputs(DEVICE, probabilistic=probabilistic, seed=1)
    for (name, step), (_, eager) in zip(steps(DEVICE, first), steps(DEVICE, second), strict=True):
        overwrite(before)
        step()  # compiles
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()
        overwrite(second)
        graph.replay()
        for got, expected in zip(captured, eager(), strict=True):
            assert torch.equal(got, expected), name


# The settings.


def test_flags_may_promise_less_than_is_true() -> None:
    """A graph for sampled or truncated batches serves greedy ones too, with the same tokens."""
    given = inputs(DEVICE, probabilistic=False)
    made = Tempering.of([GREEDY, PARAMS[1], GREEDY, PARAMS[1]], DEVICE)
    greedy = Tempering.of([GREEDY] * NUM_SEQS, DEVICE)

    def tokens(settings: Tempering, **flags: bool) -> Tensor:
        fields = {name: getattr(settings, name) for name in ("temperature_B", "top_k_B", "top_p_B", "min_p_B")}
        return verdict(Tempering(**fields, **flags), Standard(), given)[0]

    exact, wider = tokens(made, all_greedy=False, truncates=False), tokens(made, all_greedy=False, truncates=True)
    assert torch.equal(exact, wider)
    for truncates in (False, True):
        drawn = tokens(greedy, all_greedy=False, truncates=truncates)
        assert torch.equal(drawn, tokens(greedy, all_greedy=True, truncates=False))


def test_flags_of_requests() -> None:
    def flags(*params: SamplingParams) -> tuple[bool, bool]:
        made = Tempering.of(params, "cpu")
        return made.all_greedy, made.truncates

    assert flags(GREEDY, GREEDY) == (True, False)
    assert flags(GREEDY, SamplingParams()) == (False, False)
    assert not SamplingParams(temperature=0, top_k=2).truncates
    for given in ({"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.1}):
        assert flags(SamplingParams(**given), SamplingParams()) == (False, True)
    made = Tempering.of([GREEDY, SamplingParams(top_k=-1, top_p=0.5, min_p=0.2)], "cpu")
    assert made.temperature_B.tolist() == [0, 1]
    assert made.top_k_B.tolist() == [3, 0]
    assert torch.equal(made.top_p_B, torch.tensor([1, 0.5]))
    assert torch.equal(made.min_p_B, torch.tensor([0, 0.2]))


# Tokens.


def test_argmax_translates() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0], [5.0, -1.0, 4.0]], device=DEVICE)
    assert argmax(logits).tolist() == [1, 0]
    assert argmax(logits, torch.tensor([7, 2, 9], device=DEVICE)).tolist() == [2, 7]


def test_a_draw_is_the_argmax_of_tempered_logits_and_noise() -> None:
    given = inputs(DEVICE, probabilistic=False)
    seeds, positions, logits = given["seeds_B"], given["positions_B"], given["logits_BSV"]
    temperature = torch.tensor([0.0, 0.5, 1.0, 2.0], device=DEVICE)
    got = draw(logits, temperature, seeds_B=seeds, positions_B=positions, lane=Lane.DRAFT)
    for b, s in product(range(NUM_SEQS), range(NUM_DRAFTED + 1)):
        noise = gumbel(seeds[b : b + 1], positions[b : b + 1] + s, torch.arange(VOCAB, device=DEVICE), Lane.DRAFT)[0]
        row = logits[b, s].float()
        score = row if b == 0 else row / temperature[b] + noise
        assert got[b, s] == score.argmax()


def test_draws_from_groups_follow_the_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four groups: one whose tokens have no probability, and one that is cut short by the end of the vocabulary."""
    monkeypatch.setattr(sampling, "GROUP", 3)
    row = torch.tensor([1.0, -2.0, 0.3, *[-torch.inf] * 3, 0.9, -torch.inf, 0.1, 1.7, -0.4], device=DEVICE)
    num_draws, temperature = 100_000, 0.8
    counters = {"seeds_B": torch.arange(num_draws, device=DEVICE), "positions_B": torch.tensor(5, device=DEVICE)}
    counters["positions_B"] = counters["positions_B"].expand(num_draws)
    warm = torch.full((num_draws,), temperature, device=DEVICE)
    tokens = draw(row.expand(num_draws, 1, -1), warm, lane=Lane.TOKEN, **counters)
    distribution = (row.double() / temperature).softmax(0).cpu()
    counts = torch.bincount(tokens.flatten().cpu(), minlength=len(row))
    allowed = distribution > 0
    assert counts[~allowed].sum() == 0
    # Chi-square with 6 degrees of freedom: 22.5 is passed once in a thousand.
    expected = num_draws * distribution[allowed]
    assert ((counts[allowed] - expected) ** 2 / expected).sum() < 22.5
    cold = draw(row.expand(num_draws, 1, -1), warm * 0, lane=Lane.TOKEN, **counters)
    assert (cold == row.argmax()).all()


@pytest.mark.parametrize("top_p", [0.3, 0.75, 0.97])
def test_draws_from_a_nucleus_follow_its_distribution(top_p: float) -> None:
    """Few attempts are in the smallest one, so that many rows find its least token after all."""
    row = torch.tensor([1.0, -2.0, 0.3, 0.9, -torch.inf, 0.1, 1.7, 1.7, -0.4], device=DEVICE)
    num_draws = 60_000
    counters = {name: torch.arange(num_draws, device=DEVICE) for name in ("seeds_B", "positions_B")}
    tempering = Tempering.of([SamplingParams(temperature=0.8, top_p=top_p)] * num_draws, DEVICE)
    tokens = sampling.sample(row.expand(num_draws, 1, -1), tempering, lane=Lane.TOKEN, **counters)
    likely = (row.double() / 0.8).softmax(0).cpu()
    ordered = likely.sort(descending=True).values
    least = ordered[((ordered.cumsum(0) - ordered) < top_p).sum() - 1]
    expected = num_draws * likely.where(likely >= least, 0) / likely[likely >= least].sum()
    counts = torch.bincount(tokens.flatten().cpu(), minlength=len(row))
    allowed = expected > 0
    assert counts[~allowed].sum() == 0
    # Chi-square with 1 to 6 degrees of freedom: 22.5 is passed at most once in a thousand.
    assert ((counts[allowed] - expected[allowed]) ** 2 / expected[allowed]).sum() < 22.5


def test_draws_keep_to_the_floor() -> None:
    given = inputs(DEVICE, probabilistic=False)
    settings = Tempering.of([SamplingParams(temperature=50, top_k=2)] * NUM_SEQS, DEVICE)
    floor = find_floors(given["logits_BSV"], settings)
    allowed = temper_and_truncate(given["logits_BSV"], settings).isfinite()
    assert (allowed.sum(-1) >= 2).all()
    for position in range(30):
        positions = torch.full((NUM_SEQS,), position * 10, device=DEVICE)
        tokens = draw(
            given["logits_BSV"],
            settings.temperature_B,
            seeds_B=given["seeds_B"],
            positions_B=positions,
            lane=Lane.TOKEN,
            floor_BS=floor,
        )
        assert allowed.gather(2, tokens.unsqueeze(2)).all()


def test_numpy_sorts_as_torch_does() -> None:
    raw = torch.randn(3, 2, 40).masked_fill(torch.rand(3, 2, 40) < 0.2, -torch.inf)
    assert torch.equal(sampling._sort_descending(raw), raw.sort(2, descending=True).values)
    k_B = torch.tensor([5, 0, 40])
    assert torch.equal(sampling._partition(raw, k_B), sampling._sort(raw, k_B))
