"""Greedy continuation of many prompts at once."""

import torch
from models import END_ID, END_OF_TEXT_ID, PAD_ID
from transformers import LlamaForCausalLM


@torch.no_grad()
def generate(
    model: LlamaForCausalLM, prompts: list[list[int]], max_new_tokens: int, batch_size: int = 1024
) -> list[list[int]]:
    """Return the greedy continuation of each prompt, up to and with the token that ends it."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    outputs: list[list[int]] = [[] for _ in prompts]
    for first in range(0, len(order), batch_size):
        chosen = order[first : first + batch_size]
        width = max(len(prompts[i]) for i in chosen)
        tokens = torch.tensor([[PAD_ID] * (width - len(prompts[i])) + prompts[i] for i in chosen])
        mask = torch.tensor([[0] * (width - len(prompts[i])) + [1] * len(prompts[i]) for i in chosen])
        made = model.generate(
            tokens.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            eos_token_id=[END_OF_TEXT_ID, END_ID],
            pad_token_id=PAD_ID,
        )
        for index, row in zip(chosen, made[:, width:].tolist(), strict=True):
            outputs[index] = cut_at_end(row)
    return outputs


def cut_at_end(tokens: list[int]) -> list[int]:
    """Return `tokens` up to and with the first that ends a text."""
    ends = [i for i, token in enumerate(tokens) if token in (END_OF_TEXT_ID, END_ID)]
    return tokens[: ends[0] + 1] if ends else tokens


def ended(output: list[int]) -> bool:
    return bool(output) and output[-1] in (END_OF_TEXT_ID, END_ID)
