"""On a GPU a step has uniform rows and asks the host nothing: its drafts are those of ragged rows, padding or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.support.confirming import confirm
from tests.support.every_method import WITH_MODEL, make_config
from tests.support.uniform_rows import NoHostRead, use_uniform_rows

from draftwise.core import SpecConfig
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.models import CausalLM, load_model
from draftwise.engine.proposers import make_proposer
from draftwise.engine.proposers.proposer import Confirmed, Proposer
from draftwise.engine.resolved_spec import resolve_spec
from draftwise.engine.sampling.draft import Draft

BLOCK, MAX_MODEL_LEN, K, NUM_SEQS = 4, 40, 3, 4
PAGES_EACH = MAX_MODEL_LEN // BLOCK
NUM_PAGES = NUM_SEQS * PAGES_EACH
PROMPTS = (5, 30, 17, 9)
STEPS = (
    ({0: 1, 1: 1, 2: 1, 3: 1}, (3, 3, 3, 3)),
    ({0: 4, 1: 2, 2: 1, 3: 3}, (3, 3, 0, 2)),
    ({3: 1, 1: 4, 0: 2}, (1, 2, 3)),  # the second reaches the end of its context
    ({2: 2, 0: 4}, (0, 0)),
    ({0: 3, 2: 3, 3: 4}, (3, 1, 3)),
)
"""How many tokens become final of each sequence, and the draft tokens wanted."""


@pytest.fixture(scope="module")
def target(tiny_target: Path) -> CausalLM:
    return load_model(tiny_target, dtype="float64", device="cpu")


@dataclass
class Story:
    """Tokens, states and pages of all sequences, and how much of them is confirmed."""

    tokens: torch.Tensor
    states: torch.Tensor
    pages: list[list[int]]
    known: list[int]

    @classmethod
    def of(cls, proposer: Proposer, target: CausalLM) -> Story:
        generator = torch.Generator().manual_seed(0)
        features = max(len(proposer.aux_layers), 1) * target.shape.hidden_size
        states = torch.randn(NUM_SEQS, MAX_MODEL_LEN, features, generator=generator, dtype=torch.float64)
        tokens = torch.randint(target.shape.vocab_size, (NUM_SEQS, MAX_MODEL_LEN), generator=generator)
        pages = torch.randperm(NUM_PAGES, generator=generator).view(NUM_SEQS, PAGES_EACH).tolist()
        return cls(tokens, states, pages, [0 if not proposer.aux_layers else 1] * NUM_SEQS)

    def confirm(
        self, counts: dict[int, int], limits: tuple[int, ...], *, width: int | None, padding: int = 0
    ) -> Confirmed:
        """Tell `counts` more tokens; behind them come `padding` rows that stand for no sequence."""
        starts = [self.known[b] for b in counts]
        ends = [start + count for start, count in zip(starts, counts.values(), strict=True)]
        for b, end in zip(counts, ends, strict=True):
            self.known[b] = end
        runs = list(zip(counts, starts, ends, strict=True))
        return confirm(
            [*(self.tokens[b, start:end].tolist() for b, start, end in runs), *[[]] * padding],
            starts=[*starts, *[0] * padding],
            limits=[*limits, *[0] * padding],
            slots=[*counts, *[NUM_SEQS] * padding],
            pages=[*(self.pages[b] for b in counts), *[[]] * padding],
            scratch=NUM_PAGES,
            features_NF=torch.cat([self.states[b, start - 1 : end - 1] for b, start, end in runs if start])
            if all(starts)
            else None,
            temperature=1.5,
            width=width,
        )


def drafts(proposer: Proposer, target: CausalLM, *, uniform: bool) -> Iterator[tuple[int, Draft]]:
    """Yield how many sequences drafted, and the draft, of each step."""
    story = Story.of(proposer, target)
    proposer.allocate(num_pages=NUM_PAGES, block_size=BLOCK)
    prompts = {b: length - story.known[b] for b, length in enumerate(PROMPTS)}
    assert proposer.propose(story.confirm(prompts, (0,) * NUM_SEQS, width=None), 0).tokens_BK.shape == (NUM_SEQS, 0)
    for counts, limits in STEPS:
        if uniform:
            new = story.confirm(counts, limits, width=K + 1, padding=2)
            with NoHostRead():
                draft = proposer.propose(new, K)
        else:
            draft = proposer.propose(story.confirm(counts, limits, width=None), K)
        yield len(counts), draft


@pytest.mark.parametrize("chance", [False, True])
@pytest.mark.parametrize("name", WITH_MODEL)
def test_drafts_are_those_of_ragged_rows(
    name: str,
    chance: bool,
    target: CausalLM,
    tiny_target: Path,
    tiny_draft: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = make_config(name, tiny_target, tiny_draft, tmp_path / "drafter")
    settings |= {"draft_sample_method": "probabilistic"} if chance else {}
    config = EngineConfig(model=str(tiny_target), max_model_len=MAX_MODEL_LEN)
    proposer = make_proposer(resolve_spec(SpecConfig.parse(settings)), config, target)
    ragged = list(drafts(proposer, target, uniform=False))
    use_uniform_rows(monkeypatch)
    num_drafted = 0
    for (count, one), (_, other) in zip(ragged, drafts(proposer, target, uniform=True), strict=True):
        assert one.tokens_BK.shape == (count, K)
        assert other.tokens_BK.shape == (count + 2, K)
        assert other.lengths_B[count:].tolist() == [0, 0]
        assert torch.equal(one.lengths_B, other.lengths_B[:count])
        for b, length in enumerate(one.lengths_B.tolist()):
            num_drafted += length
            assert one.tokens_BK[b, :length].tolist() == other.tokens_BK[b, :length].tolist()
            if chance and length:
                torch.testing.assert_close(one.probs_BKV[b, :length], other.probs_BKV[b, :length])
        assert other.tokens_BK.min() >= 0
        assert other.tokens_BK.max() < target.shape.vocab_size
    assert num_drafted > 20
