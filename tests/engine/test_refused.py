"""What the engine refuses, one case a code: each is shown on the code's page."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from draftwise.core import InvalidSetup, ModelShape, SpecConfig
from draftwise.engine import assembly, families
from draftwise.engine.core import Admission
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.llm import _one_for_each
from draftwise.engine.models import weight_loading
from draftwise.engine.models.rope import Rope
from draftwise.engine.proposers.mtp import check_k
from draftwise.engine.proposers.stateless import pick_count
from draftwise.engine.replayers import check_fit
from draftwise.engine.resolved_spec import resolve_spec
from draftwise.engine.sampling.grammar import Grammars
from draftwise.engine.sampling.params import SamplingParams, StructuredOutputsParams
from draftwise.engine.startup_phases import TimedStartup
from draftwise.engine.text.chat_template import ChatTemplate
from draftwise.engine.text.tokenizer import Tokenizer, _end_ids
from draftwise.lookup.suffix_cache import SuffixCache
from draftwise.replaying.transcripts import Transcript
from draftwise.serve.calls import Defaults
from draftwise.serve.http_server import ServerOptions, bind, serve

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 256,
    "max_position_embeddings": 512,
}
SHAPE = ModelShape.from_hf_config(CONFIG)


def write(name: str, **values: Any) -> Path:
    Path(name).write_text(json.dumps(values), encoding="utf-8")
    return Path()


def ask_for_cuda(patch: pytest.MonkeyPatch, *, has_cuda: bool) -> None:
    patch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    patch.setattr(weight_loading, "find_spec", lambda _: None)
    weight_loading.find_device("cuda")


def run_out_of_memory(patch: pytest.MonkeyPatch) -> None:
    def fill(*_: Any, **__: Any) -> None:
        raise MemoryError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 128849018880 bytes.")

    patch.setattr(assembly, "_build", fill)
    assembly.build(EngineConfig(model="model"), None, startup=TimedStartup(), lag=None)


def compile_without_the_library(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(sys.modules, "llguidance", None)
    patch.setattr(importlib.metadata, "distribution", lambda _: SimpleNamespace(read_text=lambda _: None))
    Grammars(lambda: "{}", end_ids=(1,), vocab_size=256)._compile(StructuredOutputsParams(json_object=True))


def encode_with_a_broken_tokenizer() -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("the vocabulary has no unknown token")

    tokenizer = Tokenizer.__new__(Tokenizer)
    tokenizer._backend = SimpleNamespace(encode_batch_fast=fail)  # type: ignore[assignment]
    tokenizer.encode("a text")


def replay_a_long_answer() -> None:
    engine = SimpleNamespace(config=SimpleNamespace(max_model_len=512), shape=SHAPE)
    check_fit(engine, [Transcript(id="request-7", prompt_ids=(1,) * 500, answer_ids=(2,) * 100)])  # type: ignore[arg-type]


def resolve_a_schedule() -> None:
    schedule = [[1, 8, 9], [9, 64, 1]]
    options = {"prompt_lookup_max": 4, "num_speculative_tokens_per_batch_size": schedule}
    raise InvalidSetup(resolve_spec(SpecConfig(method="ngram", num_speculative_tokens=5, options=options)).findings)


REFUSED: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "unknown-device": lambda _: weight_loading.find_device("tpu"),
    "no-cuda": lambda patch: ask_for_cuda(patch, has_cuda=False),
    "no-triton": lambda patch: ask_for_cuda(patch, has_cuda=True),
    "unknown-dtype": lambda _: weight_loading._resolve_dtype("float8", {}),
    "quantization-not-here": lambda _: weight_loading._check_place("int8", torch.device("cuda")),
    "quantized": lambda _: families.get_family(
        CONFIG | {"quantization_config": {"quant_method": "awq"}}, where="config.json"
    ),
    "engine-out-of-memory": run_out_of_memory,
    "rope-incomplete": lambda _: Rope.from_hf_config(
        CONFIG | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, SHAPE
    ),
    "no-grammar-library": compile_without_the_library,
    "tokenizer-failed": lambda _: encode_with_a_broken_tokenizer(),
    "bad-chat-template": lambda _: ChatTemplate("{% for %}").compiled,
    "bad-end-token": lambda _: _end_ids(write("generation_config.json", eos_token_id="</s>")),
    "bad-generation-config": lambda _: Defaults.from_checkpoint(write("generation_config.json", temperature=-1)),
    "params-mismatch": lambda _: _one_for_each([SamplingParams()], 2),
    "answer-too-long": lambda _: replay_a_long_answer(),
    "suffix-option": lambda _: SuffixCache(min_token_prob=2.0),
    "too-many-draft-tokens": lambda _: pick_count(3, 5, where="drafter"),
    "not-a-multiple": lambda _: check_k(3, 5),
    "clamped-k": lambda _: resolve_a_schedule(),
    "empty-api-key": lambda _: serve(
        EngineConfig(model="model"), None, options=ServerOptions(api_key=""), on_ready=print
    ),
    "cannot-bind": lambda _: bind(ServerOptions(host="203.0.113.7", port=8000, api_key="key", allow_remote=True)),
}


@pytest.mark.parametrize("code", REFUSED)
def test_it_is_refused(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidSetup) as caught:
        REFUSED[code](monkeypatch)
    assert [each.code for each in caught.value.findings] == [code]


def test_the_name_of_a_request_is_taken() -> None:
    admission = Admission(EngineConfig(model="model", max_model_len=512), SHAPE, None, None)  # type: ignore[arg-type]
    request = SimpleNamespace(request_id="request-7", prompt_token_ids=[1, 2], params=SamplingParams())
    found = list(admission.check(request, ids_in_use={"request-7"}))  # type: ignore[arg-type]
    assert [each.code for each in found] == ["request-id-in-use"]
