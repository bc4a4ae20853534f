"""Random requests for the soak: prompts of all lengths, every sampling parameter, and some whose answer is known."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwise import SamplingParams
from draftwise.engine.core import EngineRequest
from draftwise.engine.text.tokenizer import Tokenizer

__all__ = ["Known", "Traffic", "read_texts"]


@dataclass(frozen=True, slots=True)
class Known:
    """A prompt and what plain greedy decoding answers."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def read_texts(folder: Path, tokenizer: Tokenizer, count: int) -> list[list[int]]:
    """Return the token ids of the first prompts of each workload."""
    lines = (line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()[:count])
    return [
        tokenizer.encode(each["prompt"])
        if "prompt" in each
        else tokenizer.encode(tokenizer.apply_chat_template(each["messages"]), False)
        for each in map(json.loads, lines)
    ]


class Traffic:
    """Makes requests; the same seed makes the same ones.

    Args:
        texts: token ids that prompts are cut from; many share a prefix.
        known: prompts with known answers.
        longest: longest prompt plus output.
    """

    def __init__(self, texts: list[list[int]], known: list[Known], *, longest: int, seed: int) -> None:
        self._texts, self._known, self._longest = texts, known, longest
        self.rng = random.Random(seed)
        self._count = 0

    def next(self) -> tuple[EngineRequest, tuple[int, ...] | None]:
        """Return a request, and the answer that it must get if that is known."""
        rng = self.rng
        self._count += 1
        if rng.random() < 0.4:
            known = rng.choice(self._known)
            limit = rng.randint(1, len(known.answer))
            # Asking for log-probabilities must not change the answer.
            logprobs = rng.choice((None, None, None, 0, 3))
            params = SamplingParams(temperature=0, max_tokens=limit, logprobs=logprobs, ignore_eos=True)
            return self._request(list(known.prompt), params), known.answer[:limit]
        prompt = self._prompt()
        return self._request(prompt, self._params(self._longest - len(prompt))), None

    def _request(self, prompt: list[int], params: SamplingParams) -> EngineRequest:
        return EngineRequest(request_id=f"r{self._count}", prompt_token_ids=prompt, params=params)

    def _prompt(self) -> list[int]:
        """Return a prompt of one token to nearly the context: texts after each other, cut somewhere."""
        rng = self.rng
        length = rng.choice((1, rng.randint(2, 40), rng.randint(40, 200), rng.randint(200, self._longest - 2)))
        tokens = list(rng.choice(self._texts))
        while len(tokens) < length:
            tokens += rng.choice(self._texts)
        return tokens[:length]

    def _params(self, room: int) -> SamplingParams:
        """Return random sampling parameters."""
        rng = self.rng
        chosen: dict[str, Any] = {
            "max_tokens": max(1, min(room, rng.choice((1, 8, 32, 96, 160)))),
            "temperature": rng.choice((0, 0, 0.3, 0.8, 1.0, 1.5)),
        }
        for name, make, share in self._extras():
            if rng.random() < share:
                chosen[name] = make()
        if chosen.get("min_tokens", 0) > chosen["max_tokens"]:
            del chosen["min_tokens"]
        return SamplingParams(**chosen)

    def _extras(self) -> tuple[tuple[str, Callable[[], Any], float], ...]:
        """Return what else a request may ask for, how to choose it, and how often it does."""
        rng = self.rng
        return (
            ("top_p", lambda: rng.choice((0.5, 0.9, 0.99)), 0.3),
            ("top_k", lambda: rng.choice((1, 5, 40)), 0.3),
            ("min_p", lambda: rng.choice((0.02, 0.2)), 0.15),
            ("repetition_penalty", lambda: rng.choice((0.9, 1.1, 1.3)), 0.15),
            ("presence_penalty", lambda: rng.choice((-0.5, 0.7)), 0.1),
            ("frequency_penalty", lambda: rng.choice((-0.5, 0.7)), 0.1),
            ("logit_bias", lambda: {rng.randrange(4096): rng.choice((-5.0, 3.0)) for _ in range(3)}, 0.1),
            ("bad_words", lambda: [" the", "return"], 0.08),
            ("stop", lambda: rng.choice((["\n\n"], ["def", "class"], ["."])), 0.2),
            ("include_stop_str_in_output", lambda: True, 0.1),
            ("stop_token_ids", lambda: [rng.randrange(4096) for _ in range(2)], 0.1),
            ("ignore_eos", lambda: True, 0.3),
            ("min_tokens", lambda: rng.choice((2, 10)), 0.1),
            ("seed", lambda: rng.randrange(2**31), 0.3),
            ("n", lambda: rng.choice((2, 3)), 0.12),
            ("logprobs", lambda: rng.choice((0, 1, 5)), 0.25),
            ("prompt_logprobs", lambda: rng.choice((0, 2)), 0.08),
            ("num_speculative_tokens", lambda: rng.choice((0, 1, 3)), 0.15),
        )
