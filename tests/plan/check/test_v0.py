"""The V0 engine of 0.9.2, which serves what V1 does not know: its batches, and what it does not combine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.made_checkpoints import LLAMA, judge, rejections, write

MISTRAL = {**LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 512}
SPEC = {"method": "draft_model", "num_speculative_tokens": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("v0")
    for name, config in {"llama": LLAMA, "mistral": MISTRAL}.items():
        write(folder, name, config)
    return folder


def refused(folder: Path, version: str = "0.9.2", target: str = "llama", **args: Any) -> list[str]:
    return rejections(judge(str(folder / target), {**SPEC, "model": str(folder / "llama")}, version, **args))


def test_prompts_are_not_split_by_default(folder: Path) -> None:
    assert refused(folder, max_num_batched_tokens=1024) == ["batch-below-context"]
    assert refused(folder, max_num_batched_tokens=1024, enable_chunked_prefill=True) == []
    assert refused(folder, max_num_batched_tokens=255, enable_chunked_prefill=True) == ["batch-below-requests"]


def test_no_prefixes_with_a_window(folder: Path) -> None:
    wanted = {"enable_prefix_caching": True, "target": "mistral"}
    assert refused(folder, **wanted) == ["v0-rejects-prefixes-with-window"]
    assert refused(folder, **wanted, disable_sliding_window=True) == []
    assert refused(folder, enable_prefix_caching=True) == []
    assert "v0-rejects-prefixes-with-window" not in refused(folder, "0.10.0", **wanted)


@pytest.mark.parametrize(("version", "codes"), [("0.11.0", []), ("0.11.1", ["batch-below-context"])])
def test_v1_splits_prompts_whatever_is_asked(folder: Path, version: str, codes: list[str]) -> None:
    flags = {"enable_chunked_prefill": False, "max_num_batched_tokens": 1024}
    assert rejections(judge(str(folder / "llama"), None, version, **flags)) == codes
