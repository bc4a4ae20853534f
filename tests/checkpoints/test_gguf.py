"""GGUF files as checkpoints: header, config.json and names, without torch and without the gguf library."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.support.made_gguf import LLAMA, write_gguf

from draftwise.checkpoints.config_json import find_model_config
from draftwise.checkpoints.gguf_files import make_config, read_gguf
from draftwise.checkpoints.inspect import inspect_checkpoint
from draftwise.cli import main
from draftwise.core import InvalidSetup

EMBEDDING = {"token_embd.weight": ("Q8_0", (128, 32), bytes(128 * 34))}


def _file(folder: Path, metadata: dict[str, Any] | None = None, **tensors: Any) -> Path:
    return write_gguf(folder / "m.gguf", {**LLAMA, **(metadata or {})}, {**EMBEDDING, **tensors})


def test_the_header_says_what_is_there(tmp_path: Path) -> None:
    tokens = {"tokenizer.ggml.tokens": ["a", "b"], "tokenizer.ggml.scores": [0.5, -1.0]}
    header = read_gguf(_file(tmp_path, tokens, **{"blk.0.attn_q.weight": ("Q4_K", (2, 256), bytes(288))}))
    assert header.architecture == "llama"
    assert header.metadata["tokenizer.ggml.tokens"] == ["a", "b"]
    assert header.metadata["tokenizer.ggml.scores"] == [0.5, -1.0]
    q = header.tensors["blk.0.attn_q.weight"]
    assert (q.dtype, q.shape, q.num_bytes) == ("Q4_K", (2, 256), 288)
    assert header.file.read_bytes()[q.start : q.start + q.num_bytes] == bytes(288)


def test_the_config_is_the_models(tmp_path: Path) -> None:
    found = find_model_config(str(_file(tmp_path, {"llama.rope.freq_base": 5e5})))
    assert found is not None
    assert found.architectures == ("LlamaForCausalLM",)
    wanted = {"vocab_size": 128, "hidden_size": 32, "head_dim": 8, "num_key_value_heads": 2, "rope_theta": 5e5}
    assert wanted.items() <= found.config.items()
    assert (found.config["tie_word_embeddings"], found.config["torch_dtype"]) == (True, "bfloat16")


@pytest.mark.parametrize(("kind", "dtype"), [("F32", "float32"), ("F16", "float16"), ("BF16", "bfloat16")])
def test_what_is_not_quantized_keeps_its_type(tmp_path: Path, kind: str, dtype: str) -> None:
    size = {"F32": 4, "F16": 2, "BF16": 2}[kind]
    tensors = {"token_embd.weight": (kind, (128, 32), bytes(128 * 32 * size))}
    assert make_config(read_gguf(_file(tmp_path, **tensors)))["torch_dtype"] == dtype


def _divisors(factor: float, base: float, count: int) -> list[float]:
    """Llama 3's, as its own `apply_scaling` has them: by wavelength, smooth in between."""
    divisors = []
    for i in range(count):
        wavelength = 2 * math.pi * base ** (i / count)
        if wavelength < 8192 / 4:
            divisors.append(1.0)
        elif wavelength > 8192:
            divisors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / 3
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return divisors


def test_llama_3s_scaling_is_told_from_its_divisors(tmp_path: Path) -> None:
    divisors = _divisors(32.0, 5e5, 32)
    tensors = {"rope_freqs.weight": ("F32", (32,), struct.pack("<32f", *divisors))}
    config = make_config(read_gguf(_file(tmp_path, {"llama.rope.freq_base": 5e5}, **tensors)))
    assert config["rope_scaling"]["rope_type"] == "llama3"
    assert config["rope_scaling"]["factor"] == 32.0
    divisors[20] *= 1.1
    tensors = {"rope_freqs.weight": ("F32", (32,), struct.pack("<32f", *divisors))}
    with pytest.raises(InvalidSetup, match="not those of Llama 3"):
        make_config(read_gguf(_file(tmp_path, {"llama.rope.freq_base": 5e5}, **tensors)))


def test_inspect_and_size_count_what_is_stored(tmp_path: Path) -> None:
    named = {"tokenizer.ggml.tokens": ["a"] * 128, "tokenizer.ggml.eos_token_id": 3}
    file = _file(tmp_path, named, **{"blk.0.ffn_up.weight": ("Q4_1", (64, 32), bytes(64 * 20))})
    inspection = inspect_checkpoint(file)
    assert inspection.headers.bytes_by_dtype() == {"Q8_0": 128 * 34, "Q4_1": 64 * 20}
    assert inspection.num_parameters == 128 * 32 + 64 * 32
    assert "model.layers.0.mlp.up_proj.weight" in inspection.headers.tensors
    assert inspection.vocabulary is not None
    assert inspection.vocabulary.named == {"eos_token": (3,)}
    shown = CliRunner().invoke(main, ["size", str(file), "--gpu", "h100", "--json"])
    assert shown.exit_code == 0, shown.output
    rotations = 128 * 8 * 2  # positions, head size, bytes
    assert json.loads(shown.stdout)["with_drafter"]["target"] == 128 * 34 + 64 * 20 + rotations


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ({"general.architecture": "gemma3"}, "architecture gemma3, which is not supported"),
        ({"llama.expert_count": 8}, "with experts"),
        ({"split.count": 3}, "one of 3 parts"),
        ({"general.alignment": "x"}, "alignment"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(tmp_path: Path, metadata: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidSetup, match=text) as caught:
        make_config(read_gguf(_file(tmp_path, metadata)))
    assert caught.value.findings[0].fix


def test_a_value_that_is_missing_is_named(tmp_path: Path) -> None:
    metadata = {key: value for key, value in LLAMA.items() if key != "llama.block_count"}
    with pytest.raises(InvalidSetup, match=r"no value llama\.block_count"):
        make_config(read_gguf(write_gguf(tmp_path / "m.gguf", metadata, EMBEDDING)))


def test_an_unknown_quantization_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetup, match="GGML type 16, which is not supported"):
        read_gguf(_file(tmp_path, **{"blk.0.ffn_up.weight": ("IQ2_XXS", (1, 256), bytes(66))}))


def test_every_cut_of_the_file_is_an_error_with_a_fix(tmp_path: Path) -> None:
    whole = _file(tmp_path, {"tokenizer.ggml.tokens": ["a", "b"]}).read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in [*range(0, 400, 7), len(whole) // 2, len(whole) - 100]:
        cut.write_bytes(whole[:size])
        with pytest.raises(InvalidSetup) as caught:
            read_gguf(cut)
        assert caught.value.findings[0].fix


def test_flipped_bytes_never_end_in_a_traceback(tmp_path: Path) -> None:
    whole = bytearray(_file(tmp_path, {"tokenizer.ggml.tokens": ["a", "b"]}).read_bytes())
    flipped = tmp_path / "flipped.gguf"
    for at in range(500):
        changed = bytearray(whole)
        changed[at] ^= 0xFF
        flipped.write_bytes(changed)
        try:
            make_config(read_gguf(flipped))
        except InvalidSetup as error:
            assert error.findings[0].message  # noqa: PT017  (most flips are refused, some change a name only)


def test_a_pointer_and_another_version_are_told_apart(tmp_path: Path) -> None:
    pointer = tmp_path / "pointer.gguf"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(InvalidSetup, match="Git LFS pointer"):
        read_gguf(pointer)
    with pytest.raises(InvalidSetup, match="GGUF version 1"):
        read_gguf(write_gguf(tmp_path / "old.gguf", LLAMA, EMBEDDING, version=1))
