"""The verb `deploy` from Python and in a terminal: what was written, and what nobody measured."""

from __future__ import annotations

from pathlib import Path

import draftwise

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
NGRAM = {"method": "ngram", "num_speculative_tokens": 5}


def test_what_nobody_measured_is_listed(tmp_path: Path) -> None:
    made = draftwise.deploy(
        LLAMA, speculative_config=NGRAM, vllm="0.33.0", to="kubernetes", out=tmp_path / "deploy", observe=False
    )
    fit, start = made.to_dict()["not_measured"]
    assert "fits into GPU memory" in fit
    assert "cold start" in start
    assert f"not measured: {start}" in str(made)
