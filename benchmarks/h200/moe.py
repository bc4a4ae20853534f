"""A mixture of experts of Qwen3-30B-A3B's shape on one GPU: is it right, and what do its steps cost?

    python benchmarks/h200/moe.py --out moe.json
    python benchmarks/h200/moe.py --parts steps --layers 16 --out steps.json

`kernels` times the experts of one layer at 1 to 2048 tokens, as the engine runs them and with the library alone, and
compares them with all experts in float32.
`logits` compares log-probabilities with transformers on two layers of full width, as against_transformers.py does.
`greedy` counts outputs that are equal with and without CUDA graphs, and with and without drafts.
`steps` times decoding at 1, 8 and 64 sequences with 48 layers of random weights (not dummies: equal experts and equal
rows would all be read together), plain, with ngram and with EAGLE-3. vLLM stands beside it, with 16 layers, in

    python benchmarks/h200/versus_vllm.py run --scale moe --cases plain eagle3-k3 ngram-k5 --no-large --no-capacity \\
      --no-transformers --vllm-python PYTHON --out OUT

Every part is written when it ends; one that fails leaves its error in the result and the others run.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
import traceback
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from cases import CASES
from floors import kv_bytes_for
from shapes import SCALES, Config, write_folders
from side import Side
from torch import Tensor

from draftwise import LLM, SamplingParams, __version__
from draftwise.engine.kernels import Kernels
from draftwise.engine.kernels.cuda import experts as code
from draftwise.engine.models.checkpoint import write_tensors
from draftwise.engine.models.mixture import run_all

SCALE = SCALES["moe"]
MOST = 3.0
"""Our error over transformers' own, both against float32 (see against_transformers.py)."""
TOKENS = (1, 2, 5, 8, 16, 40, 64, 128, 320, 512, 2048)
CHECKED = 64
"""Tokens up to which the kernels' results are compared."""
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 4}

Row = dict[str, Any]


@torch.inference_mode()
def measure_kernels(_args: argparse.Namespace) -> list[Row]:
    """Return the time and the error of one layer's experts, by tokens and by way."""
    config, rows = SCALE.target, list[Row]()
    count, chosen_count = config["num_experts"], config["num_experts_per_tok"]
    hidden, inner = config["hidden_size"], config["moe_intermediate_size"]
    gate_up, down = (noise(count, *size) for size in ((2 * inner, hidden), (hidden, inner)))
    exact = Kernels(None, None, 1e-6, torch.float32)  # type: ignore[arg-type]
    expert_bytes = 2 * (gate_up.numel() + down.numel()) / count
    for tokens in TOKENS:
        logits = [torch.randn(tokens, count, device="cuda").bfloat16() for _ in range(4)]
        routed = [code.route(each, chosen_count, normalize=True) for each in logits]
        x = torch.randn(tokens, hidden, device="cuda").bfloat16()
        used = sum(len(chosen.unique()) for _, chosen in routed) / len(routed)
        rows_of_block = code._choose_rows(tokens * chosen_count / count)
        parts: dict[str, list[Callable[[], Any]]] = {
            "route": [partial(code.route, each, chosen_count, normalize=True) for each in logits]
        }
        if tokens > 1:  # one token's pairs are grouped by nobody
            parts["group"] = [partial(code.group, chosen, count, rows_of_block) for _, chosen in routed]
        ways: dict[str, Callable[..., Tensor]] = {"chosen": code.run_experts, "library": code._run_library}
        parts |= {name: [partial(way, x, *each, gate_up, down) for each in routed] for name, way in ways.items()}
        expected = run_all(exact, x.float(), *routed[0], gate_up.float(), down.float()) if tokens <= CHECKED else None
        for name, calls in parts.items():
            row: Row = {"tokens": tokens, "experts": used, "way": name}
            try:
                row["ms"] = graph_ms(calls)
                if name in ways:
                    row["tb_per_s"] = round(used * expert_bytes / row["ms"] / 1e9, 3)
                    if expected is not None:
                        row["error"] = float((calls[0]().float() - expected).norm() / expected.norm())
            except Exception as error:
                row["failed"] = f"{type(error).__name__}: {error}"[:300]
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def graph_ms(calls: list[Callable[[], object]]) -> float:
    """Return the median time of one call, all of them captured in one graph, which also says that they can be."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(12):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return round(sorted(times)[len(times) // 2] / len(calls), 4)


def noise(*shape: int, seed: int = 0, spread: float = 0.02) -> Tensor:
    """Return random values in bfloat16 on the GPU."""
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(0, spread, generator=generator)


def write_checkpoint(folder: Path) -> Config:
    """Write two layers of full width with random weights, as transformers does; return the config."""
    config = SCALE.target | {"num_hidden_layers": 2, "vocab_size": 32768}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if (folder / "model.safetensors").exists():
        return config
    hidden, size, inner = config["hidden_size"], config["head_dim"], config["moe_intermediate_size"]
    query, key = (config[f"num_{kind}_heads"] * size for kind in ("attention", "key_value"))
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (config["vocab_size"], hidden)}
    shapes |= {"lm_head": (config["vocab_size"], hidden), "model.norm": (hidden,)}
    for i in range(config["num_hidden_layers"]):
        layer = {"self_attn.q_proj": (query, hidden), "self_attn.k_proj": (key, hidden)}
        layer |= {"self_attn.v_proj": (key, hidden), "self_attn.o_proj": (hidden, query)}
        layer |= {"mlp.gate": (config["num_experts"], hidden)}
        norms = {"self_attn.q_norm": (size,), "self_attn.k_norm": (size,)}
        norms |= {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
        for e in range(config["num_experts"]):
            layer |= {f"mlp.experts.{e}.{half}_proj": (inner, hidden) for half in ("gate", "up")}
            layer[f"mlp.experts.{e}.down_proj"] = (hidden, inner)
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in (layer | norms).items()}
    tensors = {
        f"{name}.weight": (noise(*shape, seed=seed, spread=0.03) + (1 if len(shape) == 1 else 0)).cpu()
        for seed, (name, shape) in enumerate(shapes.items())
    }
    write_tensors(folder / "model.safetensors", tensors)
    return config


def prompts(config: Config, count: int, length: int) -> list[list[int]]:
    """Return random prompts, of which each second one repeats a block of 16 tokens."""
    generator = torch.Generator().manual_seed(1)
    found = torch.randint(3, config["vocab_size"] - 3, (count, length), generator=generator).tolist()
    return [(each[:16] * length)[:length] if i % 2 else each for i, each in enumerate(found)]


def start(folder: Path, spec: Row | None, **settings: Any) -> LLM:
    """Return an engine over the two layers."""
    return LLM(
        str(folder),
        speculative_config=spec,
        device="cuda",
        skip_tokenizer_init=True,
        max_model_len=1024,
        kv_cache_memory_bytes=1 << 30,
        **settings,
    )


def measure_logits(args: argparse.Namespace) -> list[Row]:
    """Return our errors and transformers' own in bfloat16, both against transformers in float32."""
    from against_transformers import compare

    folder = args.folders / "two-layers"
    config = write_checkpoint(folder)
    exact, same = (score(folder, dtype) for dtype in ("float32", "bfloat16"))
    texts, rows = prompts(config, 6, 96), list[Row]()
    for name, spec in {"plain": None, "ngram": NGRAM}.items():
        llm = start(folder, spec, dtype="bfloat16")
        for row in compare(llm, texts, exact, same):
            rows.append({"method": name} | row | {"ratio": round(row["ours"] / row["transformers"], 3)})
            print(json.dumps(rows[-1]), flush=True)
        del llm
    assert all(row["ratio"] < MOST for row in rows), "our errors are larger than rounding makes them"
    return rows


def score(folder: Path, dtype: str) -> Callable[[list[int]], Tensor]:
    """Return transformers' log-probability of each token but the first, float64."""
    # Its grouped products know few types; a loop over the experts knows all.
    loop = {"experts_implementation": "eager"} if int(transformers.__version__.split(".")[0]) >= 5 else {}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), **loop)
    model = model.to("cuda").eval()

    def run(ids: list[int]) -> Tensor:
        with torch.inference_mode():
            logits = model(torch.tensor([ids], device="cuda")).logits[0, :-1].double()
        return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:], device="cuda")[:, None])[:, 0].cpu()

    return run


def measure_greedy(args: argparse.Namespace) -> list[Row]:
    """Return how many outputs equal those of plain decoding without CUDA graphs."""
    folder, rows = args.folders / "two-layers", list[Row]()
    config = write_checkpoint(folder)
    params, texts = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True), prompts(config, 12, 64)
    for dtype in ("float32", "bfloat16"):
        baseline: list[list[int]] = []
        for name, spec, eager in (("plain", None, True), ("plain", None, False), ("ngram", NGRAM, False)):
            llm = start(folder, spec, dtype=dtype, enforce_eager=eager)
            for _ in range(2):  # the second time graphs are replayed
                outputs = llm.generate([{"prompt_token_ids": text} for text in texts], params)
            tokens = [output.outputs[0].token_ids for output in outputs]
            baseline = baseline or tokens
            equal = sum(ours == theirs for ours, theirs in zip(tokens, baseline, strict=True))
            rows.append({"dtype": dtype, "method": name, "captured": not eager, "equal": equal, "of": len(texts)})
            print(json.dumps(rows[-1]), flush=True)
            del llm
    assert all(row["equal"] == row["of"] for row in rows if row["dtype"] == "float32"), "an output differs"
    return rows


def measure_steps(args: argparse.Namespace) -> list[Row]:
    """Return the step times of our engine, in the rows of versus_vllm.py."""
    target = SCALE.target | {"num_hidden_layers": args.layers}
    scale, rows = dataclasses.replace(SCALE, target=target), list[Row]()
    folders = write_folders(args.folders / f"moe-{args.layers}", scale)
    side = Side(scale, folders, device="cuda")
    for name in args.cases:
        kv_bytes = kv_bytes_for(CASES[name], scale, max(scale.batches), scale.output_tokens)
        opened = side.open(case=name, max_num_seqs=max(scale.batches), kv_bytes=kv_bytes)
        print(json.dumps(opened), flush=True)
        for batch in scale.batches:
            row = side.row(batch=batch, output_tokens=scale.output_tokens, warm_tokens=24, repeats=2)
            rows.append({"engine": "draftwise", "case": name, "layers": args.layers, "batch": batch} | row)
            print(json.dumps(rows[-1]), flush=True)
    side.close()
    return rows


PARTS = {"kernels": measure_kernels, "logits": measure_logits, "greedy": measure_greedy, "steps": measure_steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--layers", type=int, default=48, help="of steps")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=["plain", "eagle3-k3", "ngram-k5"])
    parser.add_argument("--folders", type=Path, default=Path("/dev/shm/draftwise-bench"))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    result: Row = {
        "date": date.today().isoformat(),
        "command": " ".join(["python", *sys.argv]),
        "versions": {"draftwise": __version__, "torch": torch.__version__, "transformers": transformers.__version__},
        "device": torch.cuda.get_device_name(),
    }
    failed = False
    for name in args.parts:
        began = time.monotonic()
        try:
            result[name] = PARTS[name](args)
        except Exception:
            traceback.print_exc()
            result[name], failed = {"failed": traceback.format_exc()[-2000:]}, True
        torch.cuda.empty_cache()
        print(f"[{name}: {time.monotonic() - began:.0f} s]", flush=True)
        if args.out:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
