"""vLLM's half of the law of the KV cache: builds vLLM's own layers for every case and asks its own planner for blocks.

    VLLM_PYTHON worker.py --cases CASES.jsonl --out OUT.jsonl --models FOLDER --tree SOURCES

The layers are built on torch's meta device, which holds shapes and no memory, under the oracle's pretended H200. Each
case runs through `create_engine_config()`, the model class, the drafter's class, the platform's block size, every
layer's `get_kv_cache_spec()` and `get_kv_cache_configs()`. Answers that OUT holds already are kept.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import signal
import subprocess
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

MEMORY = 1 << 40
"""Bytes that the planner is given on each GPU: enough for every case, so that blocks tell the bytes of a block."""
PATIENCE = 120
"""Seconds for a case."""
LENGTHS = (1024, 8192)
"""Lengths, besides the longest, at which the blocks of a sequence are recorded."""
OFFLINE = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "CRITICAL",
    "OMP_NUM_THREADS": "1",
}  # fmt: skip


def main() -> None:
    options = read_options()
    if options.child:
        answer_all(options)
        return
    while waiting := find_waiting(options):
        command = [sys.executable, __file__, *sys.argv[1:], "--child"]
        died = subprocess.run(command, check=False).returncode
        if died and (left := find_waiting(options)):
            with options.out.open("a") as out:
                out.write(json.dumps({"id": left[0]["id"], "error": "the process died"}) + "\n")
        if len(find_waiting(options)) == len(waiting):
            sys.exit(f"no progress with {len(waiting)} cases to go")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def find_waiting(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the cases without an answer, in their order."""
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    answered = {json.loads(line)["id"] for line in lines}
    return [case for case in map(json.loads, options.cases.read_text().splitlines()) if case["id"] not in answered]


def answer_all(options: argparse.Namespace) -> None:
    cases = find_waiting(options)
    out = options.out.resolve().open("a")
    os.environ.update(OFFLINE)
    oracle = str(Path(__file__).resolve().parents[1] / "oracle")
    here = str(Path(__file__).resolve().parent)
    sys.path[0] = str(options.tree.resolve())
    sys.path[1:1] = [oracle, here]
    models = options.models.resolve()
    os.chdir(models)
    import no_device
    import surroundings

    sys.path.remove(oracle)
    sys.path.remove(here)
    surroundings.prepare("cuda")
    no_device.prepare()
    know_types(models)
    for case in cases:
        out.write(json.dumps({"id": case["id"], **judge(case)}) + "\n")
        out.flush()


def know_types(models: Path) -> None:
    """Register the model types that come with code of their own as bare values, which their classes add little to."""
    from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig
    from vllm.transformers_utils.config import _CONFIG_REGISTRY

    for path in models.glob("*/config.json"):
        name = json.loads(path.read_text()).get("model_type")
        if name and name not in CONFIG_MAPPING and name not in _CONFIG_REGISTRY:
            AutoConfig.register(name, type(f"Bare{name}", (PretrainedConfig,), {"model_type": name}))


def judge(case: dict[str, Any]) -> dict[str, Any]:
    """Return what vLLM makes of a case: layers, groups and blocks, or why it does not start."""
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(PATIENCE)
    try:
        return plan(case)
    except (Exception, LateError) as error:
        if os.environ.get("KV_LAW_TRACE"):
            traceback.print_exc()
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/vllm/" in frame.filename]
        where = f"{Path(frames[-1].filename).name}:{frames[-1].name}" if frames else ""
        gist = " | ".join(str(error).splitlines()[:2])[:300]
        return {"error": f"{type(error).__name__}: {gist}", "raised_in": where}
    finally:
        signal.alarm(0)


class LateError(BaseException):
    """A case took too long; vLLM, which goes on after exceptions of model classes, shall not catch it."""


def give_up(*_: object) -> None:
    raise LateError("no answer in time")


def plan(case: dict[str, Any]) -> dict[str, Any]:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    flags = dict(case.get("flags") or {})
    if case.get("spec"):
        flags["speculative_config"] = case["spec"]
    given = AsyncEngineArgs(model=case["target"], skip_tokenizer_init=True, load_format="dummy", **flags)
    tp, pp = flags.get("tensor_parallel_size", 1), flags.get("pipeline_parallel_size", 1)
    specs, weights = [], Counter[str]()
    for stage in range(pp):
        config = given.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
        specs.append(layers_of(config, tp, pp, stage, weights))
    resolve_layout(config, specs)
    return describe(config, specs) | ({"weights": weights} if tp * pp == 1 else {})


def layers_of(config: Any, tp: int, pp: int, stage: int, weights: Counter[str]) -> dict[str, Any]:
    """Return the specs of the layers that one pipeline stage builds, its drafter's among them.

    `weights` counts the target's parameters by the first part of their names.
    """
    import no_device
    from vllm.config import set_current_vllm_config
    from vllm.platforms import current_platform

    with set_current_vllm_config(config):
        no_device.be_rank(tp, pp, stage)
    for name, parameter in no_device.build(config, config.model_config).named_parameters():
        weights[name.partition(".")[0]] += parameter.numel()
    spec = config.speculative_config
    if spec is not None and stage == pp - 1 and draws_a_model(spec):
        own = spec.apply_draft_overrides(config) if hasattr(spec, "apply_draft_overrides") else config
        no_device.build(own, spec.draft_model_config, is_draft=True)
    if hasattr(current_platform, "update_block_size_for_backend"):
        current_platform.update_block_size_for_backend(config)
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

    with set_current_vllm_config(config):
        found = get_kv_cache_spec(config)
    context = config.compilation_config.static_forward_context
    return {
        name: each
        for name, each in found.items()
        if not getattr(context.get(name), "kv_sharing_target_layer_name", None)
    }


def draws_a_model(spec: Any) -> bool:
    return spec.draft_model_config is not None and spec.method not in ("ngram", "ngram_gpu", "suffix")


def resolve_layout(config: Any, specs: list[dict[str, Any]]) -> None:
    """Let vLLM choose the order of dimensions in memory, on which the packing of pages depends (from 0.30 on)."""
    utils = importlib.import_module("vllm.v1.attention.backends.utils")
    if not hasattr(utils, "resolve_kv_cache_layout"):
        return
    from vllm.config import set_current_vllm_config
    from vllm.v1.worker import worker_base

    with set_current_vllm_config(config):
        names = worker_base.WorkerBase.get_supported_kv_cache_layouts(type("Worker", (), {"vllm_config": config})())
    utils.resolve_kv_cache_layout(config, [names], [each for stage in specs for each in stage.values()])


def planned(config: Any, specs: list[dict[str, Any]], memory: int) -> Any:
    """Return the scheduler's view of vLLM's plan; ValueError where it refuses to start."""
    import copy

    from vllm.v1.core import kv_cache_utils

    specs = copy.deepcopy(specs)
    try:
        module: Any = importlib.import_module("vllm.v1.core.kv_cache_planning")
    except ModuleNotFoundError:
        module = kv_cache_utils
    further = (
        [module.get_global_kv_cache_groups(config, specs)] if hasattr(module, "get_global_kv_cache_groups") else []
    )
    configs = module.get_kv_cache_configs(config, specs, [memory] * len(specs), *further)
    make = (
        getattr(kv_cache_utils, "generate_scheduler_kv_cache_config", None) or module.generate_scheduler_kv_cache_config
    )
    return make(configs)


def describe(config: Any, specs: list[dict[str, Any]]) -> dict[str, Any]:
    whole = planned(config, specs, MEMORY)
    longest = config.model_config.max_model_len
    lengths = {length: blocks(config, whole, length) for length in (*LENGTHS, longest) if length <= longest}
    answer = {
        "blocks": whole.num_blocks,
        "max_model_len": longest,
        "mode": getattr(config.cache_config, "mamba_cache_mode", None),
        "layers": sorted(Counter(fingerprint(each) for stage in specs for each in stage.values()).items(), key=str),
        "groups": [[len(group.layer_names), group.kv_cache_spec.block_size] for group in whole.kv_cache_groups],
        "per_sequence": {str(length): count for length, count in lengths.items()},
        "in_flight": getattr(config, "max_in_flight_tokens", config.scheduler_config.max_num_batched_tokens),
        "max_num_seqs": config.scheduler_config.max_num_seqs,
    }
    if whole.kv_cache_groups:
        answer["least"] = least(config, specs, MEMORY // whole.num_blocks, lengths[longest])
    return answer


def blocks(config: Any, whole: Any, length: int) -> int:
    """Return the blocks of a sequence of that many tokens, as vLLM counts them for its maximum concurrency."""
    before = config.model_config.max_model_len
    config.model_config.max_model_len = length
    try:
        return sum(
            math.ceil(group.kv_cache_spec.max_memory_usage_bytes(config) / group.kv_cache_spec.page_size_bytes)
            for group in whole.kv_cache_groups
        )
    finally:
        config.model_config.max_model_len = before


def least(config: Any, specs: list[dict[str, Any]], bytes_per_block: int, needed: int) -> int | None:
    """Return the fewest blocks with which vLLM starts: those of one sequence, or one more for the null block."""
    for count in (needed, needed + 1, needed + 2):
        try:
            planned(config, specs, count * bytes_per_block)
        except ValueError:
            continue
        return count
    return None


def fingerprint(spec: Any) -> str:
    """Return what matters of a layer's spec: kind, tokens of a block, bytes of its page, window."""
    kind = type(spec).__name__.removesuffix("Spec")
    window = getattr(spec, "sliding_window", None) or getattr(spec, "attention_chunk_size", None)
    return f"{kind} {spec.block_size} {spec.page_size_bytes}" + (f" {window}" if window else "")


if __name__ == "__main__":
    main()
