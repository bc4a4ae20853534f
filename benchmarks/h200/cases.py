"""What is compared: the ways of decoding, how hard each is tried, and what is to be reached."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from shapes import Folders, Scale

__all__ = [
    "CASES",
    "PER_TOKEN_ACCEPTANCE",
    "Case",
    "nominal_acceptance_length",
    "prompts",
    "settings_for",
    "spec_config",
]

PER_TOKEN_ACCEPTANCE = 0.6914
"""Share of draft tokens accepted once all before them are; k = 3 then gives 2.50 tokens a step."""

MAX_BATCHED_TOKENS = 16384
"""What vLLM 0.26 chooses on this card for offline use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A way of decoding.

    Attributes:
        spec: speculative config without folders and acceptance; None decodes plainly.
        drafter: name of the drafter's folder in `Folders`.
        repeats_prompt: whether prompts repeat themselves, so that a lookup finds something.
        goals: batch size -> tokens/s over vLLM's.
        break_even_goal: at batch 1, the step's time over a plain step's.
        to_large_batches: whether it is followed beyond 64 sequences.
        wave: cases of one number have their vLLM engines started side by side.
    """

    spec: dict[str, Any] | None = None
    drafter: str | None = None
    repeats_prompt: bool = False
    goals: dict[int, float] = field(default_factory=dict)
    break_even_goal: float | None = None
    to_large_batches: bool = False
    wave: int

    @property
    def k(self) -> int:
        """Draft tokens a step."""
        return self.spec["num_speculative_tokens"] if self.spec else 0


_LOOKUP = {"prompt_lookup_min": 1, "prompt_lookup_max": 5, "num_speculative_tokens": 5}

CASES = {
    "plain": Case(goals={1: 1.08, 8: 1.05, 32: 1.0, 64: 1.0}, to_large_batches=True, wave=1),
    "eagle3-k3": Case(
        spec={"method": "eagle3", "num_speculative_tokens": 3},
        drafter="eagle3",
        goals={1: 1.25, 8: 1.2, 32: 1.1, 64: 1.0},
        break_even_goal=1.20,
        to_large_batches=True,
        wave=1,
    ),
    "dflash-k7": Case(
        spec={"method": "dflash", "num_speculative_tokens": 7},
        drafter="dflash",
        goals={1: 1.2, 8: 1.15, 32: 1.1, 64: 1.05},
        break_even_goal=1.18,
        wave=2,
    ),
    "draft1b-k4": Case(
        spec={"method": "draft_model", "num_speculative_tokens": 4},
        drafter="draft_model",
        goals={1: 1.7, 8: 1.5, 32: 1.4, 64: 1.3},
        break_even_goal=1.80,
        wave=2,
    ),
    "ngram-k5": Case(
        spec={"method": "ngram"} | _LOOKUP,
        repeats_prompt=True,
        goals={1: 1.4, 8: 1.3, 32: 1.2, 64: 1.1},
        break_even_goal=1.08,
        to_large_batches=True,
        wave=2,
    ),
    "ngram_gpu-k5": Case(spec={"method": "ngram_gpu"} | _LOOKUP, repeats_prompt=True, wave=2),
}
"""The order of the waves and within them is the order of measuring."""


def nominal_acceptance_length(k: int) -> float:
    """Return the tokens a step gives on average at the simulated acceptance."""
    return sum(PER_TOKEN_ACCEPTANCE**i for i in range(k + 1))


def spec_config(
    case: Case, folders: Folders, *, synthetic: bool = True, acceptance: float = PER_TOKEN_ACCEPTANCE
) -> dict[str, Any] | None:
    """Return the speculative config, which both engines take as it is."""
    if case.spec is None:
        return None
    config = dict(case.spec)
    if case.drafter:
        config["model"] = str(getattr(folders, case.drafter))
    if synthetic:
        rates = [round(acceptance ** (i + 1), 6) for i in range(case.k)]
        config |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}
    return config


def prompts(case: Case, scale: Scale, count: int, rng: random.Random) -> list[list[int]]:
    """Return prompts of token ids: random ones, or a random block of 32 over and over."""
    vocab, length = scale.target["vocab_size"], scale.length_of_prompts(count)

    def one() -> list[int]:
        block = [rng.randrange(3, vocab - 3) for _ in range(32 if case.repeats_prompt else length)]
        return (block * (length // len(block) + 1))[:length]

    return [one() for _ in range(count)]


def settings_for(scale: Scale, folders: Folders, device: str, **other: Any) -> dict[str, Any]:
    """Return our engine's settings, the same as vLLM's."""
    return {
        "model": str(folders.target),
        "device": device,
        "dtype": "bfloat16",
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "max_model_len": scale.max_model_len,
        "max_num_batched_tokens": MAX_BATCHED_TOKENS,
        "enable_prefix_caching": False,
        **scale.engine,
    } | other
