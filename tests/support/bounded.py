"""Run as `python -m tests.support.bounded GROUP`: judges numbers of every size in little memory and few steps.

A case that takes more than its steps (lines that Python runs), or raises what is no finding, is printed.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from itertools import combinations, cycle
from types import FrameType
from typing import Any, cast

import draftwise
from draftwise.core import InvalidSetup
from draftwise.knowledge.vllm import get_release
from draftwise.verbs import load_verb

MEMORY = 3 << 29
STEPS = 600_000
"""A judgement may take so many, and takes some 30,000; `pick` takes twenty times as many."""
NUMBERS: tuple[Any, ...] = (10**10, 10**18, -1, 0, 1.5, -(10**10), 10**400)
TEXTS = ("10000000000", "1000000000000000000", "-1", "0", "1.5", "1e400", "nan", "9" * 400, "9" * 5000)
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
SMALL = {"method": "draft_model", "model": "meta-llama/Llama-3.2-1B-Instruct", "num_speculative_tokens": 3}
BATCH = (
    "--max-num-seqs", "--max-num-batched-tokens", "--max-cudagraph-capture-size", "--max-model-len", "--block-size",
    "--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size",
)  # fmt: skip
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 2000, "intermediate_size": 512,
    "max_position_embeddings": 2048, "sliding_window": 128, "num_experts": 4, "num_nextn_predict_layers": 1,
    "layer_types": ["full_attention"], "quantization_config": {"quant_method": "gptq", "bits": 4},
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
}  # fmt: skip
Case = tuple[str, Callable[[], Any]]


def check_flags(*flags: str, vllm: str = "0.33.0", spec: Any = SMALL) -> Case:
    given = [each[:40] for each in flags]
    return f"{vllm} {given}", lambda: draftwise.check(LLAMA, vllm=vllm, engine_flags=flags, speculative_config=spec)


def numeric_flags() -> Iterator[Case]:
    rows = get_release("0.33.0").table("flags").items()
    names = [
        name for name, row in rows if row["kind"] == "value" and {"int", "float"} & {*str(row["type"]).split(" | ")}
    ]
    for index, name in enumerate(names):
        for text in (TEXTS * 2)[index % len(TEXTS) :][:2]:
            yield check_flags(name, text)


def pairs_of_flags() -> Iterator[Case]:
    releases = cycle(("0.26.0", "0.33.0", "0.19.1"))
    for first, second in combinations(BATCH, 2):
        yield check_flags(first, TEXTS[0], second, TEXTS[1], vllm=next(releases))
        yield check_flags(first, TEXTS[1], second, "1", vllm=next(releases))


def graph_sizes() -> Iterator[Case]:
    for number in NUMBERS:
        yield check_flags("--cudagraph-capture-sizes", "1", str(number), "--max-num-seqs", TEXTS[0], vllm="0.26.0")
        for key in ("max_cudagraph_capture_size", "cudagraph_capture_sizes", "compile_sizes", "mode"):
            for value in (number, [1, number]):
                yield check_flags("--compilation-config", json.dumps({key: value}), vllm="0.26.0")


def keys_of_the_config() -> Iterator[Case]:
    values: list[Any] = [*NUMBERS, [10**10], [[1, 10**18, 3]], [[1, 10**10, 10**10]], {"a": 10**10}]
    bases = cycle((NGRAM, SMALL, {**SMALL, "method": "eagle3", "model": "a/b"}, {**NGRAM, "method": "suffix"}))
    for index, key in enumerate(get_release("0.33.0").table("spec_fields")):
        for value in (values * 2)[index % len(values) :][:5]:
            yield check_flags(vllm="0.33.0", spec={**next(bases), key: value})


def config_files() -> Iterator[Case]:
    values: tuple[Any, ...] = (*NUMBERS, "text", None, [10**10], {}, True)
    for index, key in enumerate(CONFIG):
        for value in (values * 2)[index % len(values) :][:6]:
            text = json.dumps({**CONFIG, key: value})
            judge = partial(draftwise.check, text, vllm="0.33.0", speculative_config=NGRAM)
            yield f"{key} {str(value)[:40]}", judge


def requests() -> Iterator[Case]:
    base = {"target": LLAMA, "gpu": "H200"}
    for name in ("size", "pick"):
        verb = load_verb(name)
        values = cycle((*NUMBERS, float("inf"), float("nan")))
        for each in fields(cast(Any, verb.request)):
            if {"int", "float"} & {*str(each.type).replace("[", " ").replace(",", " ").split()}:
                for value in (next(values), next(values), next(values)):
                    yield f"{name} {each.name} {str(value)[:40]}", partial(verb, **{**base, each.name: value})
        for gpu in ("0GiB", "1e400GiB", "9" * 400 + "GiB", "-1GiB", "999999GiB"):
            yield f"{name} {gpu[:20]}", partial(verb, **{**base, "gpu": gpu})


GROUPS = {
    each.__name__: each
    for each in (numeric_flags, pairs_of_flags, graph_sizes, keys_of_the_config, config_files, requests)
}


class TooManyStepsError(BaseException):
    """More lines were run than a judgement may take."""


def run_bounded(judge: Callable[[], Any], most: int) -> int:
    """Run a judgement, and return its steps; a finding is an answer."""
    left = most

    def count(frame: FrameType, _event: str, _arg: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            sys.settrace(None)
            raise TooManyStepsError(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        return count

    sys.settrace(count)
    try:
        judge()
    except InvalidSetup:
        pass
    finally:
        sys.settrace(None)
    return most - left


def main(group: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    draftwise.check(LLAMA, vllm=["0.19.1", "0.26.0", "0.33.0"], speculative_config=SMALL)  # reads what is kept
    for name, judge in GROUPS[group]():
        try:
            run_bounded(judge, STEPS * (20 if name.startswith("pick") else 1))
        except BaseException as error:
            print(f"{name}: {type(error).__name__} {error}")


if __name__ == "__main__":
    main(sys.argv[1])
