"""Commands of other engines are named as such, with their speculation in vLLM's terms."""

import pytest

from draftwise.knowledge.methods import find_method
from draftwise.knowledge.stored import read_data
from draftwise.setups.read import read_setups
from draftwise.setups.read.other_engines import find_other_engine
from draftwise.setups.read.setup_reading import NoServer

SGLANG = (
    "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct --speculative-algorithm EAGLE3 "
    "--speculative-draft-model-path org/head --speculative-num-steps 3 --speculative-eagle-topk {width} "
    "--speculative-num-draft-tokens {tokens}"
)
TRTLLM_PYTHON = (
    "from tensorrt_llm import LLM\nfrom tensorrt_llm.llmapi import *\nm = LLM(model='m', speculative_config={})"
)
TRTLLM = "speculative_config:\n  decoding_type: Eagle3\n  max_draft_len: 3\n  speculative_model_dir: /models/head\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SGLANG.format(width=1, tokens=4), ("SGLang", "eagle3", 3, None, "org/head")),
        (SGLANG.format(width=4, tokens=16), ("SGLang", "eagle3", 3, 16, "org/head")),
        ("sglang serve --model m --speculative-algo NEXTN --speculative-num-steps 3", ("SGLang", "mtp", 3, None, "")),
        ("python3 -m sglang.launch_server --model-path m --speculative-algorithm EAGLE --speculative-num-steps=2",
         ("SGLang", "mtp", 2, None, "")),
        ("python3 -m sglang.launch_server --model-path m --speculative-algorithm DFLASH "
         "--speculative-draft-model-path d --speculative-num-draft-tokens 16", ("SGLang", "dflash", 15, None, "d")),
        ("sglang serve --model m --speculative-algo EAGLE --speculative-draft-model-path o/m-eagle3",
         ("SGLang", "eagle3", None, None, "o/m-eagle3")),
        ("sglang serve --model m", ("SGLang", "", None, None, "")),
        (TRTLLM, ("TensorRT-LLM", "eagle3", 3, None, "/models/head")),
        ("trtllm-serve serve m --backend pytorch", ("TensorRT-LLM", "", None, None, "")),
        ("speculative_config: {decoding_type: MTP, num_nextn_predict_layers: 2}", ("TensorRT-LLM", "mtp", 2, None, "")),
        ("python3 -m sglang.launch_server --model m --speculative-algorithm NEXTN --speculative-draft-model-path m "
         "--speculative-num-steps 1 --speculative-num-draft-tokens 1 --speculative-eagle-topk 1",
         ("SGLang", "mtp", 1, None, "")),
        (TRTLLM_PYTHON.format("EagleDecodingConfig(max_draft_len=3, speculative_model_dir='/models/head')"),
         ("TensorRT-LLM", "eagle3", 3, None, "/models/head")),
        (TRTLLM_PYTHON.format("MTPDecodingConfig(num_nextn_predict_layers=2)"), ("TensorRT-LLM", "mtp", 2, None, "")),
        (TRTLLM_PYTHON.format("NGramDecodingConfig(max_draft_len=K)"), ("TensorRT-LLM", "ngram", None, None, "")),
        (TRTLLM_PYTHON.format("LookaheadDecodingConfig(max_window_size=4)"), ("TensorRT-LLM", "", None, None, "")),
        ("import sglang as sgl\nm = sgl.Engine(model_path='m', speculative_algorithm='EAGLE3', "
         "speculative_draft_model_path='d', speculative_num_steps=3)", ("SGLang", "eagle3", 3, None, "d")),
        ("llama-server -m a.gguf -md b.gguf --draft 8", ("llama.cpp", "draft_model", 8, None, "b.gguf")),
        ("llama-server -m a.gguf --model-draft b --draft-max 16", ("llama.cpp", "draft_model", 16, None, "b")),
        ("llama-server -m a.gguf --spec-type draft-mtp --spec-draft-n-max 2", ("llama.cpp", "mtp", 2, None, "")),
        ("llama-server -m a.gguf --spec-type ngram-mod,draft-mtp", ("llama.cpp", "mtp", None, None, "")),
        ("llama serve -hf a/b --spec-type draft-mtp --spec-draft-n-max 2", ("llama.cpp", "mtp", 2, None, "")),
        ("llama-server -m a.gguf --spec-type none", ("llama.cpp", "", None, None, "")),
        ("llama-server -m a.gguf --spec-type mtp:n_min=0,n_max=16", ("llama.cpp", "mtp", 16, None, "")),
        ("--tp 8\n--mem-fraction-static 0.7\n--speculative-algo EAGLE3\n--speculative-num-steps 3",
         ("SGLang", "eagle3", 3, None, "")),
        ("speculative_config: {decoding_type: Eagle, max_draft_len: 4, pytorch_weights_path: d}",
         ("TensorRT-LLM", "eagle3", 4, None, "d")),
        ("vllm-mlx serve m --speculative-method ngram --num-speculative-tokens 3", ("MLX", "ngram", 3, None, "")),
        ("mlx_lm.server --model m --draft-model d --num-draft-tokens 2", ("MLX", "draft_model", 2, None, "d")),
        ("services:\n  a:\n    image: lmsysorg/sglang:v0.5.9\n    command: [python3, -m, sglang.launch_server, "
         "--model-path, m, --speculative-algorithm, EAGLE3, --speculative-num-steps, '3']",
         ("SGLang", "eagle3", 3, None, "")),
    ],
)  # fmt: skip
def test_speculation_in_terms_of_vllm(text: str, expected: tuple[str, str, int | None, int | None, str]):
    found = find_other_engine(text)
    assert found is not None
    assert (found.name, found.method, found.num_drafts, found.num_verified, found.drafter) == expected
    with pytest.raises(NoServer) as error:
        read_setups(text)
    assert [each.code for each in error.value.findings] == ["other-engine"]
    assert expected[0] in error.value.findings[0].message


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("llama-server -m a.gguf --spec-type ngram-mod,draft-mtp --spec-draft-n-max 3", "method mtp and k 3"),
        ("S='--spec-type draft-mtp --spec-draft-n-max 9'\nllama-server -m a.gguf $S > log &",
         "Depending on S, it drafts"),
        ("A=()\nA+=(--speculative-algorithm NEXTN --speculative-num-steps 3)\nsglang serve --model m \"${A[@]}\" -x",
         "Depending on A, it drafts"),
        ("sglang serve --model m $EXTRA", "Whether it speculates depends on EXTRA."),
        ("sglang serve --model $MODEL\necho $DONE", "It does not speculate."),
        ("trtllm-serve m --extra_llm_api_options eagle.yaml", "Whether it speculates depends on eagle.yaml."),
        (".\\llama-cli.exe -m a.gguf --spec-type draft-mtp --spec-draft-n-max 2", "drafts with method mtp and k 2"),
        ("llama-server -m a.gguf --draft-model b.gguf", "Whether it speculates depends on --draft-model."),
        ("llama-server --fim-qwen-7b-spec", "Whether it speculates depends on --fim-qwen-7b-spec."),
        ("llama-server -m a.gguf -c 4096", "It does not speculate."),
        ("from llama_cpp import Llama\nm = Llama(model_path='a.gguf', draft_model=D(10))",
         "Whether it speculates depends on draft_model."),
        ("from tensorrt_llm import LLM\nm = LLM('a', speculative_config=c)",
         "Whether it speculates depends on speculative_config."),
        ("from tensorrt_llm import LLM\nm = LLM('a')", "It does not speculate."),
        (TRTLLM_PYTHON.format("EagleDecodingConfig(max_draft_len=3) if x else MTPDecodingConfig()"),
         "Whether it speculates depends on speculative_config"),
    ],
)  # fmt: skip
def test_words_that_are_not_told_leave_it_open(text: str, told: str):
    found = find_other_engine(text)
    assert found is not None
    assert told in found.describe()


def test_the_line_for_vllm_can_be_read():
    found = find_other_engine(SGLANG.format(width=1, tokens=4))
    assert found is not None
    line = found.to_vllm().removeprefix("For vLLM: ").removesuffix(".")
    (reading,) = read_setups(line)
    assert (reading.setup.target, reading.setup.spec.to_dict()) == (
        "meta-llama/Llama-3.1-8B-Instruct", {"method": "eagle3", "model": "org/head", "num_speculative_tokens": 3},
    )  # fmt: skip


def test_a_gguf_file_is_told_of_by_its_whole_path():
    found = find_other_engine("llama-server -m A:\\models\\a.gguf --spec-type mtp:n_min=0,n_max=16")
    assert found is not None
    assert found.target == "A:\\models\\a.gguf"
    assert "GGUF files need a plugin" in found.to_vllm()


def test_what_is_not_said_has_no_line():
    found = find_other_engine("sglang serve --model m --speculative-algorithm EAGLE3")
    assert found is not None
    assert (found.num_drafts, found.to_vllm()) == (None, "")


def test_vllm_next_to_it_is_read():
    (reading,) = read_setups("# sglang serve was slower\nvllm serve m --seed 1")
    assert dict(reading.setup.args) == {"seed": 1}


def test_every_method_is_one_of_vllm():
    for row in read_data("engines")["engines"]:
        assert row["source"]
        assert all(find_method(method) for method in row["methods"].values())


def test_flags_that_argparse_completes_are_read() -> None:
    found = find_other_engine("python -m sglang.launch_server --model m --speculative-algo EAGLE --speculative-draft d")
    assert found is not None
    assert (found.method, found.drafter) == ("eagle", "d")


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("registry.example/vllm-fork:1.2", "args: [--model, m]"),
        ("registry.example/vllm-fork:1.2", "command: [vllm, serve, m]"),
        ("registry.example/llama-server:1", 'command: ["vllm", "serve", "m"]'),
    ],
)
def test_a_container_that_is_called_as_another_engines_program_starts_what_its_command_says(
    image: str, words: str
) -> None:
    container = f"{{name: llama-server, image: '{image}', {words}}}"
    text = f"kind: Pod\napiVersion: v1\nmetadata: {{name: llama-server}}\nspec: {{containers: [{container}]}}\n"
    (reading,) = read_setups(text, engine_version="0.28.0")
    assert reading.setup.target == "m"
    other = text.replace(words, "args: [-m, m.gguf]").replace("registry.example/vllm-fork:1.2", "ggml-org/llama.cpp")
    with pytest.raises(NoServer, match=r"llama\.cpp"):
        read_setups(other.replace("registry.example/llama-server:1", "ggml-org/llama.cpp"))
