"""What vLLM's memory profiler measures on a GPU: weights, peak, non-torch, graphs and KV blocks, case by case.

    python benchmarks/h200/vllm_memory.py run --out memory.jsonl --limit-s 540
    python benchmarks/h200/vllm_memory.py run --out memory.jsonl --only eagle3-k3,draft1b-k4
    python benchmarks/h200/vllm_memory.py run --out memory.jsonl --scale tiny --only base,eagle3-k3   # on a CPU build

Each case starts one engine in a process of its own, with dummy weights of a real shape, and appends one line to --out
as soon as the engine is up. The exact bytes are read from vLLM's own worker (they are what its log lines round); the
allocations that live at the profiler's peak are listed with the source lines that made them. The process of the next
case is started early and waits, without touching the device, so that its imports cost no time. Cases whose names end in
-tp2 take two GPUs, and their numbers are those of the first.

`pack MEMORY.jsonl ... --out results/vllm_memory.json` makes one file of the lines of several runs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

Config = dict[str, Any]

LLAMA: Config = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "max_position_embeddings": 131072, "attention_bias": False, "mlp_bias": False,
    "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
QWEN3: Config = {**LLAMA, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "rope_theta": 1e6}


def shape(hidden: int, layers: int, heads: int, kv: int, dim: int, inner: int, vocab: int) -> Config:
    return {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv,
        "head_dim": dim, "intermediate_size": inner, "vocab_size": vocab,
    }  # fmt: skip


TARGETS: dict[str, dict[str, Config]] = {
    "full": {
        "llama-8b": {**LLAMA, **shape(4096, 32, 32, 8, 128, 14336, 128256)},
        "llama-1b": {**LLAMA, **shape(2048, 16, 32, 8, 64, 8192, 128256), "tie_word_embeddings": True},
        "qwen3-8b": {**QWEN3, **shape(4096, 36, 32, 8, 128, 12288, 151936), "max_position_embeddings": 40960},
        "qwen2.5-7b": {
            **LLAMA, **shape(3584, 28, 28, 4, 128, 18944, 152064), "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2", "max_position_embeddings": 32768,
        },
        "qwen3-30b-a3b": {
            **QWEN3, **shape(2048, 48, 32, 4, 128, 6144, 151936), "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe", "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
            "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "max_position_embeddings": 40960,
        },
        "gemma2-9b": {
            **LLAMA, **shape(3584, 42, 16, 8, 256, 14336, 256000), "architectures": ["Gemma2ForCausalLM"],
            "model_type": "gemma2", "tie_word_embeddings": True, "sliding_window": 4096, "rope_theta": 10000.0,
            "hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256,
            "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "max_position_embeddings": 8192,
        },
        "mistral-7b-window": {
            **LLAMA, **shape(4096, 32, 32, 8, 128, 14336, 32000), "architectures": ["MistralForCausalLM"],
            "model_type": "mistral", "sliding_window": 4096, "max_position_embeddings": 32768,
        },
    },
    "tiny": {"llama-8b": {**LLAMA, **shape(256, 8, 4, 2, 64, 512, 1024)}},
}  # fmt: skip
DRAFT: dict[str, Config] = {
    "full": {**LLAMA, **shape(2048, 16, 32, 8, 64, 8192, 128256), "tie_word_embeddings": True},
    "tiny": {**LLAMA, **shape(128, 2, 2, 1, 64, 256, 1024), "tie_word_embeddings": True},
}
DRAFT_VOCAB = {"full": 32000, "tiny": 256}
DFLASH_LAYERS = {"full": [1, 8, 15, 22, 29], "tiny": [1, 3, 5]}
PAPER: Config = {"prompt_lookup_min": 1, "prompt_lookup_max": 5}

BASE: Config = {"max_model_len": 4096, "max_num_seqs": 256}
SERVER: Config = {"max_model_len": 8192, "max_num_seqs": 1024, "max_num_batched_tokens": 8192}
V1: Config = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
TP2: Config = {"tensor_parallel_size": 2}


def cases(models: Path) -> dict[str, Config]:
    """Return the cases in the order of their importance: {"target"?, "spec"?, "args"?, "env"?} by name."""
    eagle3 = {"method": "eagle3", "model": str(models / "eagle3"), "draft_load_config": {"load_format": "safetensors"}}
    draft = {"method": "draft_model", "model": str(models / "draft")}
    e3, e5 = ({"spec": {**eagle3, "num_speculative_tokens": k}} for k in (3, 5))
    d4 = {"spec": {**draft, "num_speculative_tokens": 4}}
    f7 = {"spec": {"method": "dflash", "model": str(models / "dflash"), "num_speculative_tokens": 7}}
    n5 = {"spec": {"method": "ngram", **PAPER, "num_speculative_tokens": 5}}
    return {
        "base": {},
        "eagle3-k3": e3,
        "draft1b-k4": d4,
        "dflash-k7": f7,
        "base-server": {"args": SERVER},
        "eagle3-k3-server": {**e3, "args": SERVER},
        "base-v1runner": {"env": V1},
        "ngram-k5": n5,
        "base-tokens2048": {"args": {"max_num_batched_tokens": 2048}},
        "base-fp8kv": {"args": {"kv_cache_dtype": "fp8"}},
        "base-eager": {"args": {"enforce_eager": True}},
        "base-len32768": {"args": {"max_model_len": 32768}},
        "base-util0.5": {"args": {"gpu_memory_utilization": 0.5}},
        "base-seqs64": {"args": {"max_num_seqs": 64}},
        "draft1b-k4-tokens2048": {**d4, "args": {"max_num_batched_tokens": 2048}},
        "eagle3-k3-tokens2048": {**e3, "args": {"max_num_batched_tokens": 2048}},
        "eagle3-k3-v1runner": {**e3, "env": V1},
        "qwen3-8b": {"target": "qwen3-8b"},
        "mistral-7b-window": {"target": "mistral-7b-window", "args": {"max_model_len": 32768}},
        "qwen3-30b-a3b": {"target": "qwen3-30b-a3b"},
        "gemma2-9b": {"target": "gemma2-9b", "args": {"max_model_len": 8192}},
        "base-fp8": {"args": {"quantization": "fp8"}},
        "qwen2.5-7b": {"target": "qwen2.5-7b"},
        "llama-1b": {"target": "llama-1b"},
        "eagle3-k5-seqs64": {**e5, "args": {"max_num_seqs": 64}},
        "draft1b-k4-eager": {**d4, "args": {"enforce_eager": True}},
        "dflash-k7-server": {**f7, "args": SERVER},
        "draft1b-k4-server": {**d4, "args": SERVER},
        "base-v1runner-server": {"env": V1, "args": SERVER},
        "base-tokens32768": {"args": {"max_num_batched_tokens": 32768}},
        "base-capture1024": {"args": {"compilation_config": {"max_cudagraph_capture_size": 1024}}},
        "base-tp2": {"args": TP2},
        "eagle3-k3-tp2": {**e3, "args": TP2},
        "draft1b-k4-tp2": {**d4, "args": TP2},
        "base-server-tp2": {"args": {**SERVER, **TP2}},
        "qwen3-8b-tp2": {"target": "qwen3-8b", "args": TP2},
        "dflash-k7-tp2": {**f7, "args": TP2},
    }


def write_models(root: Path, scale: str) -> None:
    """Write config.json of every model, and random weights for the EAGLE-3 head.

    A head with its own lm_head needs a checkpoint file: vLLM notices the matrix only while it reads one.
    """
    for name, config in model_configs(scale).items():
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / "config.json").write_text(json.dumps(config, indent=1))
    _write_eagle3_head(root / "eagle3", TARGETS[scale]["llama-8b"], DRAFT_VOCAB[scale])


def model_configs(scale: str) -> dict[str, Config]:
    """Return config.json of every target and drafter by its folder's name."""
    target = TARGETS[scale]["llama-8b"]
    layers = DFLASH_LAYERS[scale]
    return {
        **TARGETS[scale],
        "draft": DRAFT[scale],
        "eagle3": {
            **target, "num_hidden_layers": 1, "draft_vocab_size": DRAFT_VOCAB[scale],
            "architectures": ["LlamaForCausalLMEagle3"],
        },
        "dflash": {
            **target, "model_type": "qwen3", "architectures": ["DFlashDraftModel"], "num_hidden_layers": len(layers),
            "block_size": 8, "layer_types": ["full_attention"] * len(layers),
            "dflash_config": {"target_layer_ids": layers, "mask_token_id": target["vocab_size"] - 2},
        },
    }  # fmt: skip


def _write_eagle3_head(folder: Path, target: Config, draft_vocab: int) -> None:
    import torch
    from safetensors.torch import save_file

    h, i, v = target["hidden_size"], target["intermediate_size"], target["vocab_size"]
    q, kv = (target[key] * target["head_dim"] for key in ("num_attention_heads", "num_key_value_heads"))
    shapes = {
        "self_attn.q_proj": (q, 2 * h), "self_attn.k_proj": (kv, 2 * h), "self_attn.v_proj": (kv, 2 * h),
        "self_attn.o_proj": (h, q), "mlp.gate_proj": (i, h), "mlp.up_proj": (i, h), "mlp.down_proj": (h, i),
    }  # fmt: skip
    norms = ("midlayer.hidden_norm", "midlayer.input_layernorm", "midlayer.post_attention_layernorm", "norm")
    weights = {f"midlayer.{name}.weight": torch.zeros(size, dtype=torch.bfloat16) for name, size in shapes.items()}
    weights |= {f"{name}.weight": torch.ones(h, dtype=torch.bfloat16) for name in norms}
    weights["fc.weight"] = torch.zeros(h, 3 * h, dtype=torch.bfloat16)
    weights["lm_head.weight"] = torch.zeros(draft_vocab, h, dtype=torch.bfloat16)
    weights["d2t"] = torch.arange(draft_vocab) * (v // draft_vocab - 1)
    weights["t2d"] = torch.zeros(v, dtype=torch.bool)
    weights["t2d"][torch.arange(draft_vocab) * (v // draft_vocab)] = True
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def peak_allocations(events: list[Config], top: int = 40) -> Config:
    """Return the largest sum of live allocations in a trace of the allocator, and what was alive then."""
    live: dict[int, Config] = {}
    now = peak = 0
    at_peak: list[Config] = []
    for event in events:
        if event["action"] == "alloc":
            live[event["addr"]] = event
            now += event["size"]
            if now > peak:
                peak, at_peak = now, list(live.values())
        elif event["action"] == "free_requested" and event["addr"] in live:
            now -= live.pop(event["addr"])["size"]
    largest = sorted(at_peak, key=lambda event: -event["size"])[:top]
    return {
        "peak": peak,
        "left": now,
        "at_peak": [{"bytes": event["size"], "frames": _frames(event)} for event in largest],
    }


def _frames(event: Config, depth: int = 5) -> list[str]:
    names = [
        f"{frame['filename'].rsplit('/vllm/', 1)[-1][-60:]}:{frame['line']}:{frame['name']}"
        for frame in event.get("frames", ())
        if "/torch/nn/" not in frame["filename"]
    ]
    return names[:depth]


class Watch:
    """Notes what the worker allocates: before the weights, by the weights, in the profiling run, by the graphs."""

    def __init__(self) -> None:
        self.seen: Config = {}

    def install(self) -> None:
        from vllm.v1.worker import gpu_worker

        worker = gpu_worker.Worker
        for name in ("load_model", "determine_available_memory", "initialize_from_config", "compile_or_warm_up_model"):
            setattr(worker, name, self._noting(name, getattr(worker, name)))

    def _noting(self, name: str, original: Any) -> Any:
        import torch

        def noting(worker: Any, *args: Any, **kwargs: Any) -> Any:
            before = torch.cuda.memory_allocated()
            if name == "determine_available_memory":
                self._trace(worker.model_runner)
            result = original(worker, *args, **kwargs)
            worker.seen = self.seen  # read_worker asks for it, in another process where there are several GPUs
            free, total = torch.cuda.mem_get_info()
            self.seen[name] = {
                "allocated_before": before, "allocated_after": torch.cuda.memory_allocated(),
                "reserved_after": torch.cuda.memory_reserved(), "free_after": free, "total": total,
                "result": result if isinstance(result, int) else None,
            }  # fmt: skip
            return result

        return noting

    def _trace(self, runner: Any) -> None:
        """Trace the allocator during the profiling run alone."""
        import torch

        original = runner.profile_run

        def traced() -> None:
            torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=400_000)
            try:
                original()
                self.seen["profile_run"] = peak_allocations(torch.cuda.memory._snapshot()["device_traces"][0])
            finally:
                torch.cuda.memory._record_memory_history(enabled=None)
            self.seen["profile_run"]["peak_of_torch"] = torch.cuda.max_memory_allocated()

        runner.profile_run = traced


WORKER_BYTES = (
    "requested_memory", "non_torch_memory", "peak_activation_memory", "cudagraph_memory_estimate",
    "available_kv_cache_memory_bytes",
)  # fmt: skip


def read_worker(wrapper: Any) -> Config:
    """Return the numbers that a worker holds, in the process where it runs."""
    import torch

    worker = wrapper.worker
    runner = worker.model_runner
    groups = getattr(getattr(runner, "kv_cache_config", None), "kv_cache_groups", ())
    numbers = {
        "worker": {key: int(getattr(worker, key)) for key in WORKER_BYTES if hasattr(worker, key)},
        "weights": int(getattr(runner, "model_memory_usage", 0)),
        "init_snapshot": {
            key: int(getattr(worker.init_snapshot, key))
            for key in ("free_memory", "total_memory", "torch_memory", "non_torch_memory")
        } if hasattr(worker, "init_snapshot") else None,
        "runner": type(runner).__module__,
        "kv_groups": [
            {
                "layers": list(group.layer_names), "spec": type(group.kv_cache_spec).__name__,
                "block_size": group.kv_cache_spec.block_size, "page_bytes": group.kv_cache_spec.page_size_bytes,
            }
            for group in groups
        ],
        "watch": getattr(worker, "seen", {}),
    }  # fmt: skip
    if torch.version.cuda:
        numbers["device"] = torch.cuda.get_device_name()
        numbers["at_rest"] = {
            "allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved(),
            "free": torch.cuda.mem_get_info()[0],
        }  # fmt: skip
    return numbers


def read_engine(llm: Any) -> Config:
    """Return the numbers that the engine and the worker of its first GPU hold."""
    config = llm.llm_engine.engine_core.engine_core.vllm_config
    return {
        **llm.collective_rpc(read_worker)[0],
        "num_gpu_blocks": config.cache_config.num_gpu_blocks,
        "block_size": config.cache_config.block_size,
        "cache_dtype": config.cache_config.cache_dtype,
        "gpu_memory_utilization": config.cache_config.gpu_memory_utilization,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "max_model_len": config.model_config.max_model_len,
        "async_scheduling": config.scheduler_config.async_scheduling,
        "cudagraph_mode": str(config.compilation_config.cudagraph_mode),
        "capture_sizes": config.compilation_config.cudagraph_capture_sizes,
    }


def start_engine(case: Config, models: Path, scale: str) -> Any:
    from vllm import LLM

    arguments = {**BASE, **case.get("args", {})}
    if scale == "tiny":
        tiny = {"max_model_len": 512, "max_num_seqs": 4, "kv_cache_memory_bytes": 1 << 26, "enforce_eager": True}
        arguments = {**tiny, **{key: arguments[key] for key in TP2 if key in arguments}}
    return LLM(
        model=str(models / case.get("target", "llama-8b")), load_format="dummy", skip_tokenizer_init=True,
        dtype="bfloat16", enable_prefix_caching=False, generation_config="vllm", seed=0,
        speculative_config=case.get("spec"), **arguments,
    )  # fmt: skip


def run_case(name: str, models: Path, scale: str, go: Path, out: Path) -> None:
    """Import vLLM, wait for the go-ahead, start the engine and write its numbers to `out`."""
    case = cases(models)[name]
    # Workers of several GPUs are forked, after what Watch changes in their class.
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_WORKER_MULTIPROC_METHOD": "fork", **case.get("env", {})}
    import torch
    import vllm

    if torch.version.cuda:
        Watch().install()
    while not go.exists():
        time.sleep(0.05)
    start = time.monotonic()
    engine = start_engine(case, models, scale)
    row = {
        "case": name, "vllm": vllm.__version__, "torch": torch.__version__, "given": case, "defaults": BASE,
        "ready_s": round(time.monotonic() - start, 1), **read_engine(engine),
    }  # fmt: skip
    out.write_text(json.dumps(row))
    sys.stdout.flush()
    for worker in multiprocessing.active_children():
        worker.kill()
    os._exit(0)  # the engine's own shutdown takes seconds that the next case can use


LOG_LINES = re.compile(
    r"Model loading took|Available KV cache memory|GPU KV cache size|Maximum concurrency|Graph captur|CUDA ?[Gg]raph|"
    r"Free memory on device|Actual usage|memory profiling|Chunked prefill|backend|V2 [Mm]odel [Rr]unner|Error|error:"
)


def started(name: str, models: Path, scale: str, work: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, "case", "--name", name, "--scale", scale, "--models", str(models)]
    command += ["--go", str(work / f"go-{name}"), "--out", str(work / f"{name}.json")]
    with (work / f"{name}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


def finish(name: str, process: subprocess.Popen[bytes], work: Path, timeout_s: float) -> Config:
    """Let a waiting case go and return its row, or what went wrong."""
    (work / f"go-{name}").touch()
    try:
        code = process.wait(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        code = -9
    log = (work / f"{name}.log").read_text(errors="replace").splitlines()
    found = work / f"{name}.json"
    row = json.loads(found.read_text()) if found.exists() else {"case": name, "exit": code, "tail": log[-25:]}
    row["log"] = [line[-600:] for line in log if LOG_LINES.search(line)][:60]
    return row


def run(names: list[str], scale: str, models: Path, out: Path, limit_s: float, case_s: float) -> None:
    """Run the cases one after the other while time is left."""
    begin = time.monotonic()
    work = Path(tempfile.mkdtemp(prefix="vllm-memory-"))
    write_models(models, scale)
    waiting = started(names[0], models, scale, work)
    slowest = 0.0
    for index, name in enumerate(names):
        process, spent = waiting, time.monotonic() - begin
        if index and spent + slowest > limit_s:
            print(f"[{spent:.0f}s] no time left for {', '.join(names[index:])}", flush=True)
            os.killpg(process.pid, 9)
            return
        if index + 1 < len(names):
            waiting = started(names[index + 1], models, scale, work)
        row = finish(name, process, work, min(case_s, max(10.0, limit_s - spent)))
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        took = time.monotonic() - begin - spent
        if index:  # the first start has no compile cache
            slowest = max(slowest, min(took, 90.0))
        worker = row.get("worker", {})
        gib = {key: round(value / 2**30, 3) for key, value in {"weights": row.get("weights", 0), **worker}.items()}
        print(f"[{spent + took:.0f}s] {name} {took:.0f}s", gib, row.get("num_gpu_blocks"), flush=True)
        if "tail" in row:
            print(*row["tail"], sep="\n", flush=True)


def pack(files: list[Path], out: Path) -> None:
    """Write the lines of several runs as one JSON file, with the models' configs and without the logs."""
    configs, rows = model_configs("full"), []
    for row in (json.loads(line) for file in files for line in file.read_text().splitlines()):
        if "worker" not in row:
            continue
        log, given = row.pop("log"), row["given"]
        spec = given.get("spec", {})
        row["target_config"] = configs[given.get("target", "llama-8b")]
        row["drafter_config"] = configs[Path(spec["model"]).name] if "model" in spec else None
        row["compiled_before"] = any("Directly load the compiled graph" in line for line in log)
        row["logged_kv_tokens"] = _logged(log, r"KV cache size: ([\d,]+) tokens")
        row["logged_graph_gib"] = _logged(log, r"Graph capturing finished .* took ([\d.]+) GiB")
        profile = row["watch"]["profile_run"]
        profile["at_peak"] = [
            {"mib": round(each["bytes"] / 2**20, 1), "frames": [_shorten(frame) for frame in each["frames"][:3]]}
            for each in profile["at_peak"]
            if each["bytes"] >= 8 << 20
        ]
        spec.pop("model", None)
        row["kv_groups"] = [{**group, "layers": len(group["layers"])} for group in row["kv_groups"]]
        row["capture_sizes"] = {"count": len(row["capture_sizes"] or ()), "largest": max(row["capture_sizes"] or [0])}
        rows.append(json.dumps(row))
    out.write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")


def _shorten(frame: str) -> str:
    """Return a frame without the folder and the hashed name of a compiled graph."""
    name, line, function = frame.rsplit(":", 2)
    name = name.rsplit("/", 2)[-1] if name.count("/") < 2 else "/".join(name.rsplit("/", 2)[-2:])
    return f"compiled:{function}" if re.search(r"c[a-z0-9]{40,}\.py$", name) else f"{name}:{line}:{function}"


def _logged(log: list[str], pattern: str) -> float | None:
    found = next((match for line in log if (match := re.search(pattern, line))), None)
    return None if found is None else float(found[1].replace(",", ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "case", "list", "pack"])
    parser.add_argument("files", nargs="*", type=Path, help="(pack) what runs have written")
    parser.add_argument("--out", type=Path, default=Path("vllm_memory.jsonl"))
    parser.add_argument("--only", default="", help="comma-separated cases; default: all, in order of importance")
    parser.add_argument("--scale", choices=sorted(TARGETS), default="full")
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "vllm-memory-models")
    parser.add_argument("--limit-s", type=float, default=540.0, help="start no case that would not end by then")
    parser.add_argument("--case-s", type=float, default=240.0, help="give one case up after this long")
    parser.add_argument("--name", help="(case) which one")
    parser.add_argument("--go", type=Path, help="(case) the file to wait for")
    given = parser.parse_args()
    every = list(cases(given.models))
    if given.what == "list":
        print("\n".join(every))
    elif given.what == "pack":
        if missing := [str(path) for path in given.files if not path.is_file()]:
            parser.error(f"there is no {', '.join(missing)}")
        pack(given.files, given.out)
    elif given.what == "case":
        run_case(given.name, given.models, given.scale, given.go, given.out)
    else:
        names = given.only.split(",") if given.only else every
        run(names, given.scale, given.models, given.out, given.limit_s, given.case_s)


if __name__ == "__main__":
    main()
