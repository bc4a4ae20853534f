"""Reshapes prompts: length buckets, common prefixes, chat or completion, lengths of answers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from draftwise.core import Prompt
from draftwise.workloads.conversation import as_chat, as_completion, plain_text
from draftwise.workloads.text_lengths import Length, TextSource, Tokens
from draftwise.workloads.workload_spec import RequestForm

Prompts = tuple[Prompt, ...]


def prompt_length(prompt: Prompt, tokens: Tokens) -> int:
    """Return the tokens of a prompt's texts, without those that a chat template adds."""
    if prompt.text is not None:
        return tokens.count(prompt.text)
    if not prompt.messages:
        return len(prompt.recorded.prompt_token_ids)
    return sum(tokens.count(plain_text(message.get("content"))) for message in prompt.messages)


def in_bucket(prompts: Prompts, bucket: tuple[int, int | None], tokens: Tokens) -> Prompts:
    """Return the prompts with a length in [low, high) tokens."""
    low, high = bucket
    lengths = [prompt_length(prompt, tokens) for prompt in prompts]
    return tuple(
        prompt
        for prompt, length in zip(prompts, lengths, strict=True)
        if low <= length and (high is None or length < high)
    )


def split_by_length(prompts: Prompts, edges: Sequence[int], tokens: Tokens) -> dict[str, Prompts]:
    """Return the prompts by length bucket `low-high` (end excluded), empty buckets included."""
    ends = [0, *edges, None]
    buckets = [(low, high) for low, high in pairwise(ends) if low is not None]
    return {f"{low}-{'' if high is None else high}": in_bucket(prompts, (low, high), tokens) for low, high in buckets}


def set_form(prompts: Prompts, form: RequestForm) -> Prompts:
    """Return the prompts for the chat or the completion endpoint."""
    return tuple(_formed(prompt, form) for prompt in prompts)


def _formed(prompt: Prompt, form: RequestForm) -> Prompt:
    if form is RequestForm.CHAT and prompt.text is not None:
        return replace(prompt, text=None, messages=as_chat(prompt.text))
    if form is RequestForm.COMPLETION and prompt.text is None:
        return replace(prompt, text=as_completion(prompt.messages), messages=())
    return prompt


def set_outputs(prompts: Prompts, *, length: Length | None, force: bool | None, seed: int) -> Prompts:
    """Return the prompts with drawn answer lengths, forced or not; None leaves either unchanged."""
    rng = random.Random(f"{seed}-outputs")
    return tuple(
        replace(
            prompt,
            max_tokens=prompt.max_tokens if length is None else length.draw(rng),
            ignore_eos=prompt.ignore_eos if force is None else force,
        )
        for prompt in prompts
    )


def share_prefixes(prompts: Prompts, *, length: int, groups: int, source: TextSource, seed: int) -> Prompts:
    """Return the prompts with common prefixes of `length` tokens: the i-th has that of group i modulo `groups`.

    In a chat, the prefix is a system message before any other; a text begins with it.
    """
    common = [source.text(length, group, random.Random(f"{seed}-prefix-{group}")) for group in range(groups)]
    return tuple(_prefixed(prompt, common[place % groups]) for place, prompt in enumerate(prompts))


def _prefixed(prompt: Prompt, common: str) -> Prompt:
    if prompt.text is not None:
        return replace(prompt, text=f"{common}\n\n{prompt.text}")
    first, rest = prompt.messages[0], prompt.messages[1:]
    if first["role"] == "system":
        # One system message: several chat templates refuse a second one.
        merged: dict[str, Any] = {**first, "content": f"{common}\n\n{plain_text(first['content'])}"}
        return replace(prompt, messages=(merged, *rest))
    return replace(prompt, messages=({"role": "system", "content": common}, *prompt.messages))
