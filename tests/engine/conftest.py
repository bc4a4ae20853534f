from __future__ import annotations

import json

import pytest
import torch
import transformers
from tests.support.confirming import plan

from draftwise.engine.memory.kv import PagedKV

_TINY = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}


@pytest.fixture
def save_tiny(tmp_path):
    """Save a tiny random float32 checkpoint of a family; returns (directory, the transformers model)."""

    def save(family: str, *, shard_size: str = "5GB", **settings):
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(family, **_TINY | settings)
        model = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation="eager", experts_implementation="eager"
        ).eval()
        with torch.no_grad():
            for parameter in model.parameters():  # the default init is so small that nothing would matter
                spread = 0.1 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5
                parameter.add_(torch.randn_like(parameter) * spread)
        path = tmp_path / family
        model.save_pretrained(path, max_shard_size=shard_size)
        return path, model

    return save


@pytest.fixture
def run_paged():
    """Run sequences through a model in chunks; returns per sequence (hidden, auxiliary) states of all its tokens."""

    def run(model, sequences: list[list[int]], chunks: list[list[int]], *, aux_layers=(), block_size: int = 4):
        pages_each = max(-(-len(tokens) // block_size) for tokens in sequences)
        kv = PagedKV(
            model.shape,
            num_pages=pages_each * len(sequences),
            block_size=block_size,
            dtype=model.dtype,
            device=model.device,
        )
        order = torch.randperm(kv.num_pages, generator=torch.Generator().manual_seed(1)).tolist()
        tables = [order[i * pages_each : (i + 1) * pages_each] for i in range(len(sequences))]
        done = [0] * len(sequences)
        outputs = [[] for _ in sequences]
        for step in range(max(map(len, chunks))):
            active = [i for i, sizes in enumerate(chunks) if step < len(sizes)]
            sizes = [chunks[i][step] for i in active]
            rows = plan(
                [done[i] for i in active],
                sizes,
                [tables[i] for i in active],
                block_size=block_size,
                scratch=kv.num_pages,
            )
            tokens = []
            for i, size in zip(active, sizes, strict=True):
                tokens += sequences[i][done[i] : done[i] + size]
                done[i] += size
            with torch.inference_mode():
                hidden, aux = model(torch.tensor(tokens), rows.positions_N, kv, rows, aux_layers)
            stacked = torch.stack([hidden, *aux], dim=1)
            for i, computed in zip(active, stacked.split(sizes), strict=True):
                outputs[i].append(computed)
        return [torch.cat(rows).unbind(1) for rows in outputs]

    return run


@pytest.fixture
def edit_config():
    """Change keys of a saved config.json; None removes one."""

    def edit(path, **changes):
        file = path / "config.json"
        config = json.loads(file.read_text()) | changes
        file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))

    return edit
