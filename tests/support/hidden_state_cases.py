"""A target and what it confirms, for proposers that read its last hidden state."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from draftwise.engine.proposers.proposer import Confirmed
from tests.support.confirming import confirm


def save_drafter(folder: Path, config: dict, tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def random_news(hidden: int, vocab: int, limits: list[int], *, seed: int = 0, **options) -> Confirmed:
    """Return random tokens and states of three to one new tokens for each sequence."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [3 - b % 3 for b in range(len(limits))]
    rows = [torch.randint(vocab, (length,), generator=generator).tolist() for length in lengths]
    features = [torch.randn(length, hidden, generator=generator) for length in lengths]
    count = len(rows)
    return confirm(
        rows,
        starts=[1] * count,
        limits=limits,
        features_NF=torch.cat(features),
        seeds=range(7, 7 + count),
        **options,
    )


def last_rows(new: Confirmed) -> list[tuple[torch.Tensor, int]]:
    """Return each sequence's last state and last token."""
    assert new.features_NF is not None
    states = new.features_NF.split(new.spans.lengths_B.tolist())
    return [(rows[-1], tokens[-1]) for rows, tokens in zip(states, new.to_lists(), strict=True)]
