"""Milliseconds of a decode step of the bundled model's shape, beside the matrix products that it cannot do without.

    python benchmarks/cpu/model_step.py --out benchmarks/cpu/results/model_step.json

A case is B sequences with Q new tokens each (Q = k + 1 verifies k drafts). The floor runs the same weights over as
many rows and does nothing else. Step and floor take turns; medians of all turns are compared. Weights are random.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from provenance import provenance, write
from safetensors.torch import save_file

from draftwise.engine.attention.pass_rows import Spans, plan_attention
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.models import CausalLM, load_model

CASES = ((1, 1), (1, 6), (4, 6), (16, 1), (16, 6))
BLOCK_SIZE = 16
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 4096,
    "max_position_embeddings": 2048,
}


def write_checkpoint(folder: Path) -> None:
    """Write a random checkpoint of the bundled model's shape."""
    hidden, inner, vocab = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["vocab_size"]
    kv_size = CONFIG["num_key_value_heads"] * CONFIG["head_dim"]
    sizes = {"model.embed_tokens": (vocab, hidden), "lm_head": (vocab, hidden), "model.norm": (hidden,)}
    for i in range(CONFIG["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        sizes |= {layer + norm: (hidden,) for norm in ("input_layernorm", "post_attention_layernorm")}
        sizes |= {f"{layer}self_attn.{name}_proj": (hidden, hidden) for name in "qo"}
        sizes |= {f"{layer}self_attn.{name}_proj": (kv_size, hidden) for name in "kv"}
        sizes |= {f"{layer}mlp.{name}_proj": (inner, hidden) for name in ("gate", "up")}
        sizes[layer + "mlp.down_proj"] = (hidden, inner)
    torch.manual_seed(0)
    tensors = {
        f"{name}.weight": torch.randn(size, dtype=torch.bfloat16) * size[-1] ** -0.5 for name, size in sizes.items()
    }
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))


def make_step(model: CausalLM, num_seqs: int, num_new: int, context: int) -> Callable[[], object]:
    """Return a function that computes one step, pages scattered as after a long life of the pool."""
    pages_each = -(-context // BLOCK_SIZE)
    kv = PagedKV(
        model.shape, num_pages=pages_each * num_seqs, block_size=BLOCK_SIZE, dtype=model.dtype, device=model.device
    )
    pages_BP = torch.randperm(kv.num_pages, dtype=torch.int32).view(num_seqs, pages_each)
    table_BP = torch.nn.functional.pad(pages_BP, (0, 1), value=kv.num_pages)
    tokens_N = torch.randint(model.shape.vocab_size, (num_seqs * num_new,))

    def step() -> object:
        spans = Spans.of([context - num_new] * num_seqs, [num_new] * num_seqs, model.device)
        plan = plan_attention(spans, table_BP, block_size=BLOCK_SIZE)
        return model.logits(model(tokens_N, plan.positions_N, kv, plan)[0])

    return step


def make_floor(model: CausalLM, num_rows: int) -> Callable[[], object]:
    """Return a function that multiplies as many rows with every weight matrix."""
    hidden_RH = torch.randn(num_rows, model.shape.hidden_size, dtype=model.dtype)
    inner_RI = torch.randn(num_rows, model.shape.intermediate_size, dtype=model.dtype)

    def floor() -> object:
        for layer in model.weights.layers:
            layer.qkv(hidden_RH), layer.o(hidden_RH), layer.gate_up(hidden_RH), layer.down(inner_RI)
        return model.weights.head(hidden_RH)

    return floor


def measure(functions: list[Callable[[], object]], *, turns: int, repeats: int = 10) -> list[float]:
    """Return the median milliseconds of each function; they take turns, so that a disturbance hits all."""
    readings: list[list[float]] = [[] for _ in functions]
    for turn in range(turns + 1):
        for function, own in zip(functions, readings, strict=True):
            for _ in range(repeats):
                start = time.perf_counter()
                function()
                if turn > 0:  # the first turn warms up
                    own.append((time.perf_counter() - start) * 1e3)
    return [statistics.median(own) for own in readings]


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--context", type=int, default=300, help="tokens of each sequence after the step")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--out", type=Path, help="also write the readings as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder))
        model = load_model(folder, dtype=options.dtype, device="cpu")
    rows = []
    print(f"{'B':>3} {'Q':>3} {'step ms':>9} {'floor ms':>9} {'rest ms':>9}")
    for num_seqs, num_new in CASES:
        step = make_step(model, num_seqs, num_new, options.context)
        step_ms, floor_ms = measure([step, make_floor(model, num_seqs * num_new)], turns=options.turns)
        rows.append(
            {"sequences": num_seqs, "new_tokens": num_new, "step_ms": round(step_ms, 3), "floor_ms": round(floor_ms, 3)}
        )
        print(f"{num_seqs:3} {num_new:3} {step_ms:9.2f} {floor_ms:9.2f} {step_ms - floor_ms:9.2f}", flush=True)
    about = {"command": " ".join(["python", *sys.argv]), **provenance("torch"), "threads": torch.get_num_threads()}
    write(about | {"dtype": options.dtype, "context": options.context, "cases": rows}, options.out)


if __name__ == "__main__":
    main()
