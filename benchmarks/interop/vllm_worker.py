"""Real vLLM's half of vllm_drafters.py: runs speculative configurations and writes down every draft that it makes.

A job is a line of JSON on stdin, its answer one on stdout. This file imports nothing but vLLM, which lives in an
environment of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

# One process, so that the scheduler is in reach, and stdout for the answer alone.
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
ANSWER = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

COUNTERS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos")


def main() -> None:
    corrections = correct_known_faults()
    for line in sys.stdin:
        ANSWER.write(json.dumps(answer(json.loads(line)) | {"corrections": corrections}) + "\n")
        ANSWER.flush()


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """Start an engine, run the job, and leave nothing of it behind."""
    import torch
    import vllm
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    llm = LLM(
        job["target"],
        speculative_config=job["speculative_config"],
        enforce_eager=True,
        disable_log_stats=False,
        kv_cache_memory_bytes=64 * 2**20,
        **job["settings"],
    )
    core = llm.llm_engine.engine_core
    drafts = record_drafts(core.engine_core.scheduler)
    params = SamplingParams(temperature=0, max_tokens=job["max_tokens"])
    prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    answers = [
        {"tokens": list(output.outputs[0].token_ids), "drafts": drafts.get(tuple(ids), [])}
        for ids, output in zip(job["prompts"], outputs, strict=True)
    ]
    counters = read_counters(llm)
    answers = json.loads(json.dumps(answers))  # the timed passes are recorded too
    num_tokens, ms_per_token = sum(len(each["tokens"]) for each in answers), []
    for _ in range(job["timed_passes"]):
        started = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        ms_per_token.append(1e3 * (time.perf_counter() - started) / num_tokens)
    core.shutdown()
    del llm, core
    cleanup_dist_env_and_memory()
    return {
        "versions": {"vllm": vllm.__version__, "torch": torch.__version__},
        "answers": answers,
        "counters": counters,
        "ms_per_token": ms_per_token,
    }


def correct_known_faults() -> list[str]:
    """Correct what vLLM for CPU computes wrongly; return what it was.

    DFlash norms the context keys of all layers in one call, with one row of weights a layer. The CPU's kernel takes the
    first row for all of them, so that a drafter of several layers drafts worse than it can.
    """
    import torch
    from vllm import _custom_ops as ops
    from vllm.model_executor.models.qwen3_dflash import DFlashQwen3Model
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    keys, weights = torch.ones(2, 1, 1, 32), torch.tensor([[1.0], [2.0]]).expand(2, 32).contiguous()
    normed = torch.empty_like(keys)
    ops.rms_norm(normed, keys, weights, 1e-6)
    if normed[1].mean() > 1.5:
        return []

    def normalize_each_layer(self: Any, all_keys: torch.Tensor) -> torch.Tensor:
        normed = torch.empty_like(all_keys)
        for layer, weight in enumerate(self._k_norm_weights):
            ops.rms_norm(normed[layer], all_keys[layer], weight, self._rms_norm_eps)
        return normed

    DFlashQwen3Model._normalize_context_k = normalize_each_layer
    return ["dflash: k_norm of layer 0 was applied to the context of every layer"]


def record_drafts(scheduler: Any) -> dict[tuple[int, ...], list[tuple[int, list[int]]]]:
    """Return what will hold, by prompt, each draft and how many output tokens were known when it was made."""
    drafts: dict[tuple[int, ...], list[tuple[int, list[int]]]] = {}
    update = scheduler.update_draft_token_ids

    def update_and_record(draft_token_ids: Any) -> None:
        update(draft_token_ids)
        for request_id in draft_token_ids.req_ids:
            request = scheduler.requests.get(request_id)
            if request is not None and not request.is_finished() and request.spec_token_ids:
                draft = (request.num_output_tokens, list(request.spec_token_ids))
                drafts.setdefault(tuple(request.prompt_token_ids), []).append(draft)

    scheduler.update_draft_token_ids = update_and_record
    return drafts


def read_counters(llm: Any) -> dict[str, Any]:
    """Return the speculative counters by their names without `vllm:spec_decode_`."""
    metrics = {metric.name.removeprefix("vllm:spec_decode_"): metric for metric in llm.get_metrics()}
    found = {name: metrics[name] for name in COUNTERS if name in metrics}
    return {name: getattr(metric, "values", None) or getattr(metric, "value", 0) for name, metric in found.items()}


if __name__ == "__main__":
    main()
