"""Prompts to generate from while training, none of them held out."""

from pathlib import Path

import numpy as np
from ragged import Ragged

MAX_PROMPT_TOKENS = 320
SHARES = {"policy_code": 0.2, "code": 0.3, "policy_prose": 0.15, "train_prose": 0.1, "prose": 0.15, "rewrites": 0.1}


class PromptPool:
    """Deals prompts of code, prose and rewrites in the proportions of SHARES."""

    def __init__(self, data: Path, seed: int, shares: dict[str, float]) -> None:
        self.sources = {name: Ragged.load(data / f"{name}.npz") for name in shares}
        self.shares = shares
        self.rng = np.random.default_rng(seed)

    def deal(self, count: int) -> tuple[list[str], list[list[int]]]:
        """Return the name of the source and the tokens of each of about `count` prompts."""
        names, prompts = [], []
        for name, share in self.shares.items():
            for index in self.rng.integers(0, len(self.sources[name]), round(count * share)):
                prompt = self.cut(name, int(index))
                if 0 < len(prompt) <= MAX_PROMPT_TOKENS:
                    names.append(name)
                    prompts.append(prompt)
        return names, prompts

    def cut(self, name: str, index: int) -> list[int]:
        """Return a stored prompt, or a unit up to 10 to 40 tokens past the start of its loss."""
        source = self.sources[name]
        if name not in ("code", "prose"):
            return source.prompt(index)
        first = int(source.offsets[index])
        size = int(source.starts[index]) + int(self.rng.integers(10, 41))
        return source.tokens[first : min(first + size, int(source.offsets[index + 1]) - 2)].tolist()
