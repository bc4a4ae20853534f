"""GGUF files unpacked: the same weights, tokens and answers as the checkpoint that they were made from."""

from __future__ import annotations

import gc
import json
import random
import types
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from tests.support.crafted import damage
from tests.support.made_gguf import write_gguf
from tests.support.tiny_models import write_checkpoint
from tokenizers import Tokenizer as Backend

from draftwise import LLM, SamplingParams
from draftwise.cli import main
from draftwise.core import InvalidSetup
from draftwise.engine.kernels.cpu_vectors import find_mode
from draftwise.engine.models import load_model
from draftwise.engine.models.gguf_unpacking import checkpoint_of
from draftwise.engine.models.quantized import KINDS, num_bytes
from draftwise.engine.text.tokenizer import Tokenizer, load_tokenizer

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
    "self_attn.o_proj": "attn_output",
    **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
}
NUM_HEADS, NUM_KV_HEADS = 4, 2


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTWISE_CACHE_DIR", str(tmp_path / "cache"))


def _rename(name: str) -> str:
    layer, _, part = name.removeprefix("model.layers.").partition(".") if "layers." in name else ("", "", name)
    stem, _, kind = part.rpartition(".")
    return f"blk.{layer}.{NAMES[stem]}.{kind}" if layer else f"{NAMES[stem]}.{kind}"


def _pair_up(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder rows from halves to neighbours, as llama.cpp's converter does."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def _convert(checkpoint: Path, file: Path, quantization: str = "F32", **changed: Any) -> Path:
    """Write a tiny Llama as GGUF."""
    config = json.loads((checkpoint / "config.json").read_text())
    backend = Backend.from_file(str(checkpoint / "tokenizer.json"))
    tokens = [backend.id_to_token(i) for i in range(backend.get_vocab_size())]
    special = {token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special}
    settings = json.loads((checkpoint / "tokenizer_config.json").read_text())
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": NUM_HEADS,
        "llama.attention.head_count_kv": NUM_KV_HEADS,
        "llama.attention.key_length": config["head_dim"],
        "llama.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if i in special else 1 for i in range(len(tokens))],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        "tokenizer.chat_template": settings["chat_template"],
    } | changed
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "ab"]
    tensors = {}
    for name, weight in load_file(checkpoint / "model.safetensors").items():
        heads = {"q_proj": NUM_HEADS, "k_proj": NUM_KV_HEADS}.get(name.split(".")[-2])
        values = (weight if heads is None else _pair_up(weight, heads)).float().numpy()
        kind = "F32" if values.ndim == 1 else quantization
        data = gguf.quantize(values, gguf.GGMLQuantizationType[kind])
        tensors[_rename(name)] = (kind, values.shape, np.ascontiguousarray(data).tobytes())
    return write_gguf(file, metadata, tensors)


def test_answers_are_those_of_the_checkpoint(tiny_target: Path, tmp_path: Path) -> None:
    file = _convert(tiny_target, tmp_path / "m.gguf")
    params = SamplingParams(temperature=0, max_tokens=24)
    prompts = ["def f(", "A list of", "once upon"]
    outputs = {}
    for model in (str(tiny_target), str(file)):
        llm = LLM(model, dtype="float32", device="cpu", max_model_len=128)
        outputs[model] = [each.outputs[0].token_ids for each in llm.generate(prompts, params)]
    assert outputs[str(file)] == outputs[str(tiny_target)]


def test_a_damaged_file_is_refused_or_read(tiny_target: Path, tmp_path: Path) -> None:
    whole = _convert(tiny_target, tmp_path / "m.gguf", "Q8_0").read_bytes()
    for seed in range(60):
        file = tmp_path / f"{seed}.gguf"
        file.write_bytes(damage(whole, random.Random(seed)))
        try:
            folder = checkpoint_of(str(file))
            assert load_model(folder, device="cpu").weights.norm.isfinite().all()
            load_tokenizer(folder, skip=False).encode("hi")
        except InvalidSetup:
            pass


def test_it_serves_as_drafter_and_is_unpacked_once(tiny_target: Path, tmp_path: Path) -> None:
    file, told = _convert(tiny_target, tmp_path / "m.gguf"), list[str]()
    folder = checkpoint_of(str(file), told.append)
    assert checkpoint_of(str(file), told.append) == folder
    assert len(told) == 1
    spec = {"method": "draft_model", "model": str(file), "num_speculative_tokens": 3}
    llm = LLM(str(file), speculative_config=spec, dtype="float32", device="cpu", max_model_len=128)
    llm.generate("def f(", SamplingParams(temperature=0, max_tokens=24))
    stats = llm.engine.stats().spec
    assert stats.num_accepted_tokens == stats.num_draft_tokens > 0


@pytest.mark.parametrize("quantization", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantized_weights_are_what_the_library_makes_of_them(
    tiny_target: Path, tmp_path: Path, quantization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.made_gguf.TYPES", {each.name: each.value for each in gguf.GGMLQuantizationType})
    folder = Path(checkpoint_of(str(_convert(tiny_target, tmp_path / "m.gguf", quantization))))
    original = load_file(tiny_target / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    kind = gguf.GGMLQuantizationType[quantization]
    expected = gguf.dequantize(gguf.quantize(original[name].float().numpy(), kind), kind)
    unpacked = load_file(folder / "model-00001-of-00001.safetensors")
    dtype = torch.float16 if quantization == "F16" else torch.bfloat16
    assert torch.equal(unpacked[name], torch.from_numpy(expected).to(dtype))
    assert unpacked.keys() == original.keys()


def test_a_log_is_replayed_with_it(tiny_target: Path, tmp_path: Path) -> None:
    file, out = _convert(tiny_target, tmp_path / "m.gguf"), tmp_path / "profile"
    spec = {"method": "draft_model", "model": checkpoint_of(str(file)), "num_speculative_tokens": 2}
    answer = LLM(str(file), dtype="float32").generate("def f(", SamplingParams(temperature=0, max_tokens=12))[0]
    row = {"prompt": "def f(", "answer_token_ids": answer.outputs[0].token_ids, "temperature": 0, "max_tokens": 12}
    (tmp_path / "log.jsonl").write_text(json.dumps(row) + "\n")
    arguments = [tmp_path / "log.jsonl", "--target", file, "--candidate", json.dumps(spec), "--out", out, "--json"]
    result = CliRunner().invoke(main, ["replay", *map(str, arguments), "--dtype", "float32"])
    assert result.exit_code == 0, result.output
    profile = json.loads(result.stdout)
    assert profile["target"]["name"] == "m.gguf"
    assert profile["target"]["tokenizer_sha256"]
    assert profile["entries"][0]["by_k"]["2"]["tokens_per_step"][0] > 2  # its own drafter


def test_tokens_and_conversations_are_those_of_the_checkpoint(tiny_target: Path, tmp_path: Path) -> None:
    folder = checkpoint_of(str(_convert(tiny_target, tmp_path / "m.gguf")))
    ours, theirs = Tokenizer.from_pretrained(folder), Tokenizer.from_pretrained(tiny_target)
    text = ours.apply_chat_template([{"role": "user", "content": "Hé <|end|> 12"}])
    assert text == theirs.apply_chat_template([{"role": "user", "content": "Hé <|end|> 12"}])
    assert ours.encode(text) == theirs.encode(text)
    assert ours.end_ids == theirs.end_ids


@pytest.mark.parametrize(("pre", "parts"), [("smollm", 4), ("llama-bpe", 2), ("qwen2", 4)])
def test_digits_are_split_as_the_files_pre_tokenizer_says(
    tiny_target: Path, tmp_path: Path, pre: str, parts: int
) -> None:
    numbers = ["12", "34", "123"]
    backend = Backend.from_file(str(tiny_target / "tokenizer.json"))
    tokens = [backend.id_to_token(i) for i in range(backend.get_vocab_size())]
    changed = {
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*tokens, *numbers],
        "tokenizer.ggml.merges": ["1 2", "3 4", "12 3"],
    }
    folder = checkpoint_of(str(_convert(tiny_target, tmp_path / "m.gguf", **changed)))
    assert len(Tokenizer.from_pretrained(folder).encode("1234", False)) == parts


def test_sentencepiece_merges_follow_the_scores(tiny_target: Path, tmp_path: Path) -> None:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words = ["▁", "a", "b", "c", "ab", "bc", "▁a", "▁ab", "abc"]
    scores = [0.0] * len(pieces) + [-20.0, -21.0, -22.0, -23.0, -4.0, -3.0, -5.0, -2.0, -1.0]
    changed = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*pieces, *words],
        "tokenizer.ggml.scores": [*scores, -30.0],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(words)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    tokenizer = Tokenizer.from_pretrained(checkpoint_of(str(_convert(tiny_target, tmp_path / "m.gguf", **changed))))
    first = len(pieces)
    # "bc" has the better score than "ab" and "▁a", so that it is merged first.
    assert tokenizer.encode("abc") == [1, first, first + 8]
    assert tokenizer.decode(tokenizer.encode("abc é")) == "abc é"


def test_unknown_tokenizers_are_refused_and_nothing_is_left(tiny_target: Path, tmp_path: Path) -> None:
    for changed, text in (
        ({"tokenizer.ggml.pre": "new"}, "pre-tokenizer new"),
        ({"tokenizer.ggml.model": "x"}, "tokenizer x"),
    ):
        with pytest.raises(InvalidSetup, match=text):
            checkpoint_of(str(_convert(tiny_target, tmp_path / "m.gguf", **changed)))
    assert not list((tmp_path / "cache" / "gguf").glob("*"))


def test_a_full_disk_is_said_before_anything_is_written(
    tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _convert(tiny_target, tmp_path / "m.gguf")
    monkeypatch.setattr("shutil.disk_usage", lambda _path: type("Usage", (), {"free": 10}))
    with pytest.raises(Exception, match="Make room there"):
        checkpoint_of(str(file))
    assert not list((tmp_path / "cache" / "gguf").glob("*"))


@pytest.mark.skipif(find_mode() is None, reason="this processor multiplies no int8")
@pytest.mark.parametrize("quantization", ["Q4_0", "Q5_1", "Q8_0"])
def test_a_files_blocks_are_multiplied_as_they_are(
    tiny_target: Path, tmp_path: Path, run_paged, quantization: str
) -> None:
    """And `dtype float32` is the file's float32, not what bfloat16 leaves of it."""
    folder = checkpoint_of(str(_convert(tiny_target, tmp_path / "m.gguf", quantization)))
    model, exact = load_model(folder, device="cpu"), load_model(folder, device="cpu", dtype="float32")
    assert (model.is_quantized, exact.is_quantized) == (True, False)
    kind = gguf.GGMLQuantizationType[quantization]
    original = load_file(tiny_target / "model.safetensors")["model.embed_tokens.weight"].float().numpy()
    rows = torch.from_numpy(gguf.dequantize(gguf.quantize(original, kind), kind))
    assert torch.equal(exact.weights.embedding_VH, rows)
    assert torch.equal(model.weights.embedding_VH(torch.arange(len(rows))), rows)
    logits = []
    for each in (model, exact):
        ((hidden,),) = run_paged(each, [[1, 2, 3, 4, 5]], [[5]])
        logits.append(each.logits(hidden))
    assert 0 < (logits[0] - logits[1]).norm() / logits[1].norm() < 0.06


def held_bytes(model: Any) -> int:
    """Return the bytes of all tensors and arrays that a model holds, each memory once."""
    memory, seen, left = dict[int, int](), set[int](), [model]
    skipped = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, skipped):
            continue
        seen.add(id(each))
        if isinstance(each, torch.Tensor):
            memory[each.untyped_storage().data_ptr()] = each.untyped_storage().nbytes()
        elif isinstance(each, np.ndarray):
            memory[each.ctypes.data] = each.nbytes
        else:
            left.extend(gc.get_referents(each))
    return sum(memory.values())


@pytest.mark.skipif(find_mode() is None, reason="this processor multiplies no int8")
@pytest.mark.parametrize("quantization", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_a_model_holds_its_file_and_at_most_a_seventh_more(tmp_path: Path, quantization: str) -> None:
    """No matrix is held twice, and none in more bits than the file has and the kernels need."""
    path = write_checkpoint(tmp_path / "wide", seed=1, hidden_size=256)
    file = _convert(path, tmp_path / "m.gguf", quantization, **{"llama.attention.head_count": 16})
    model = load_model(checkpoint_of(str(file)), device="cpu")
    weights = sum(int(tensor.n_bytes) for tensor in gguf.GGUFReader(file).tensors)
    assert model.is_quantized
    assert weights <= held_bytes(model) <= 1.15 * weights


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("rows", "width"), [(576, 576), (49152, 576), (192, 576), (8192, 2048), (2048, 8192)])
def test_a_packed_matrix_takes_at_most_a_seventh_more_than_in_the_file(name: str, rows: int, width: int) -> None:
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    assert num_bytes(KINDS[name], rows, width) <= 1.15 * rows * width / block * size


@pytest.mark.skipif(find_mode() is None, reason="this processor multiplies no int8")
def test_a_file_that_is_gone_or_another_is_not_read(tiny_target: Path, tmp_path: Path) -> None:
    file = _convert(tiny_target, tmp_path / "m.gguf", "Q8_0")
    folder = checkpoint_of(str(file))
    moved = file.rename(tmp_path / "moved.gguf")
    assert not load_model(folder, device="cpu").is_quantized
    assert checkpoint_of(str(moved)) == folder
    assert load_model(folder, device="cpu").is_quantized
    _convert(tiny_target, moved, "Q4_0")
    assert not load_model(folder, device="cpu").is_quantized
