"""KV blocks against what a real vLLM (CPU build 0.32.0) made of 64 MiB; record_kv.py records them again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftwise.core import ModelShape
from draftwise.plan.size.kv_layout import lay_out
from draftwise.plan.size.memory_budget import cached_layers, drafter_layers

ROWS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("vllm_kv_blocks.json").read_text())


@pytest.mark.parametrize("row", ROWS, ids=[row["case"] for row in ROWS])
def test_blocks_and_tokens_are_those_of_vllm(row: dict[str, Any]) -> None:
    target = ModelShape.from_hf_config(row["target"])
    layers = cached_layers(target.kv_layers(), 2, 1)
    if row["drafter"] is not None:
        layers += drafter_layers(ModelShape.from_hf_config(row["drafter"]), target, 2, 1)
    elif (row["spec"] or {}).get("method") == "mtp":
        layers += drafter_layers(replace(target, num_layers=1), target, 2, 1)
    cache = lay_out(layers, block_size=row["block_size"])
    blocks = row["kv_bytes"] // cache.bytes_per_block
    assert blocks == row["blocks"]
    assert sorted(group.num_layers for group in cache.groups) == sorted(group["layers"] for group in row["groups"])
    per_sequence = cache.blocks_per_sequence(row["max_model_len"], row["max_num_batched_tokens"])
    assert int(blocks / per_sequence * row["max_model_len"]) == row["tokens"]
    assert blocks / per_sequence == pytest.approx(row["concurrency"], abs=0.006)
