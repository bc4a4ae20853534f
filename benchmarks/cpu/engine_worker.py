"""One engine behind standard streams, for engines.py: a JSON line in (prompts), a RESULT line out (seconds)."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Generate = Callable[[list[list[int]], int], int]
"""(prompts, new tokens) -> tokens generated."""


def load_draftwise(model: str, dtype: str, max_model_len: int) -> tuple[Generate, dict[str, Any]]:
    import torch

    import draftwise
    from draftwise import LLM, SamplingParams

    llm = LLM(model, dtype=dtype, max_model_len=max_model_len, enable_prefix_caching=False)
    kv = llm.engine.runner.kv

    def generate(prompts: list[list[int]], new_tokens: int) -> int:
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    weights = sum(path.stat().st_size for path in Path(model).glob("*.safetensors"))
    about = {"version": draftwise.__version__, "torch": torch.__version__}
    return generate, about | {"weight_bytes": weights, "kv_bytes": kv.num_bytes}


def load_transformers(model: str, dtype: str, _max_model_len: int) -> tuple[Generate, dict[str, Any]]:
    import torch
    import transformers

    lm = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
    lm.generation_config.eos_token_id = None

    def generate(prompts: list[list[int]], new_tokens: int) -> int:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        with torch.inference_mode():
            out = lm.generate(ids, attention_mask=mask, max_new_tokens=new_tokens, do_sample=False, pad_token_id=0)
        return out[:, longest:].numel()

    return generate, {"version": transformers.__version__, "torch": torch.__version__}


def load_vllm(model: str, dtype: str, max_model_len: int) -> tuple[Generate, dict[str, Any]]:
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    import torch
    import vllm
    from vllm import LLM, SamplingParams

    compile_it = os.environ.get("VLLM_COMPILE") == "1"
    llm = LLM(
        model,
        dtype=dtype,
        max_model_len=max_model_len,
        max_num_seqs=16,
        enforce_eager=not compile_it,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=256 * 2**20,
    )

    def generate(prompts: list[list[int]], new_tokens: int) -> int:
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    return generate, {"version": vllm.__version__, "torch": torch.__version__, "compiled": compile_it}


LOADERS = {"draftwise": load_draftwise, "transformers": load_transformers, "vllm": load_vllm}


def main() -> None:
    name, model, dtype, max_model_len = sys.argv[1:5]
    generate, about = LOADERS[name](model, dtype, int(max_model_len))
    answer(about)
    for line in sys.stdin:
        task = json.loads(line)
        start = time.perf_counter()
        tokens = generate(task["prompts"], task["new_tokens"])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        answer({"seconds": time.perf_counter() - start, "tokens": tokens, "peak_memory_bytes": peak})


def answer(value: dict[str, Any]) -> None:
    print("RESULT " + json.dumps(value), flush=True)


if __name__ == "__main__":
    main()
