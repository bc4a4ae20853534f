"""What each drafter costs on a GPU by itself: milliseconds per draft of k, beside the time to read its weights.

    python benchmarks/h200/drafter_cost.py --out benchmarks/h200/results/drafter_cost.json

Random weights in the published shapes; the target's own layers do not run. The floor of a draft is the bytes of
weights that its passes must read (the drafter's matrices, and the head once for each guess or pass) at the measured
copy bandwidth of the device. `ms` is a draft in a CUDA graph, as a step contains it, `eager_ms` one without.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from draftwise import __version__
from draftwise.core import ModelShape
from draftwise.engine.attention.spans import Spans
from draftwise.engine.models.decoder import CausalLM, Weights
from draftwise.engine.models.linear import make_linear
from draftwise.engine.models.loading import load_model
from draftwise.engine.models.rope import Rope
from draftwise.engine.proposers.dflash import DFlashProposer, load_dflash
from draftwise.engine.proposers.draft_model import DraftModel
from draftwise.engine.proposers.eagle import load_eagle
from draftwise.engine.proposers.eagle3 import load_eagle3
from draftwise.engine.proposers.medusa import MedusaProposer, load_medusa
from draftwise.engine.proposers.mlp_speculator import MlpSpeculatorProposer, load_mlp_speculator
from draftwise.engine.proposers.mtp import load_mtp
from draftwise.engine.proposers.paged import ChainProposer
from draftwise.engine.proposers.proposer import Confirmed, Proposer

BLOCK, CONTEXT, CONFIRMED = 16, 512, 3
MAX_MODEL_LEN = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A target's shape, and the drafters' that go with it."""

    config: dict[str, Any]
    draft_vocab_size: int
    draft_model: dict[str, Any]
    dflash_layers: int
    aux_layers: tuple[int, int, int]


def llama(hidden: int, layers: int, heads: int, kv_heads: int, inner: int, vocab: int, head_dim: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "max_position_embeddings": 4096,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    }


SIZES = {
    "bundled": Size(
        config=llama(512, 8, 8, 2, 1536, 4096, 64),
        draft_vocab_size=2048,
        draft_model=llama(256, 3, 4, 1, 640, 4096, 64),
        dflash_layers=3,
        aux_layers=(2, 4, 7),
    ),
    "Llama-3.1-8B": Size(
        config=llama(4096, 32, 32, 8, 14336, 128256, 128),
        draft_vocab_size=32000,
        draft_model=llama(2048, 16, 32, 8, 8192, 128256, 64) | {"tie_word_embeddings": True},
        dflash_layers=5,
        aux_layers=(2, 16, 29),
    ),
}

Shapes = dict[str, tuple[int, ...]]


def layer_shapes(config: dict[str, Any], prefix: str, *, num_in: int | None = None, input_norm: bool = True) -> Shapes:
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    width = num_in or hidden
    shapes: Shapes = {
        "self_attn.q_proj.weight": (q, width),
        "self_attn.k_proj.weight": (kv, width),
        "self_attn.v_proj.weight": (kv, width),
        "self_attn.o_proj.weight": (hidden, q),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "post_attention_layernorm.weight": (hidden,),
    }
    if input_norm:
        shapes["input_layernorm.weight"] = (hidden,)
    return {prefix + name: shape for name, shape in shapes.items()}


def draft_model(size: Size) -> tuple[dict[str, Any], Shapes]:
    config = size.draft_model
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], config["hidden_size"])}
    shapes["model.norm.weight"] = (config["hidden_size"],)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], config["hidden_size"])
    for i in range(config["num_hidden_layers"]):
        shapes |= layer_shapes(config, f"model.layers.{i}.")
    return config, shapes


def medusa(size: Size) -> tuple[dict[str, Any], Shapes]:
    hidden, vocab = size.config["hidden_size"], size.config["vocab_size"]
    config = {"architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": hidden, "vocab_size": vocab}
    config |= {"num_heads": 4, "num_hidden_layers": 1}
    shapes = {f"blocks.{i}.layers.0.weight": (hidden, hidden) for i in range(4)}
    return config, shapes | {f"lm_heads.{i}.weight": (vocab, hidden) for i in range(4)}


def mlp_speculator(size: Size) -> tuple[dict[str, Any], Shapes]:
    hidden, vocab = size.config["hidden_size"], size.config["vocab_size"]
    inner, n = hidden, 4
    config = {"architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator", "emb_dim": hidden}
    config |= {"vocab_size": vocab, "inner_dim": inner, "n_predict": n, "tie_weights": False, "scale_input": False}
    config |= {"top_k_tokens_per_head": [1] * n, "n_candidates": 1}
    shapes: Shapes = {}
    for s in range(n):
        shapes[f"speculator.emb.{s}.weight"] = shapes[f"speculator.head.{s}.weight"] = (vocab, inner)
        shapes[f"speculator.proj.{s}.weight"] = (inner, inner if s else hidden)
        shapes[f"speculator.ln.{s}.weight"] = shapes[f"speculator.ln.{s}.bias"] = (inner,)
    return config, shapes


def eagle(size: Size) -> tuple[dict[str, Any], Shapes]:
    hidden = size.config["hidden_size"]
    config = size.config | {"architectures": ["EagleLlamaForCausalLM"], "num_hidden_layers": 1}
    return config, {"fc.weight": (hidden, 2 * hidden)} | layer_shapes(config, "layers.0.", input_norm=False)


def eagle3(size: Size) -> tuple[dict[str, Any], Shapes]:
    hidden = size.config["hidden_size"]
    config = size.config | {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1}
    config |= {"draft_vocab_size": size.draft_vocab_size, "eagle_aux_hidden_state_layer_ids": list(size.aux_layers)}
    config |= {"ptd_token_id": 1}
    shapes = {"fc.weight": (hidden, 3 * hidden), "norm.weight": (hidden,), "midlayer.hidden_norm.weight": (hidden,)}
    shapes |= {"lm_head.weight": (size.draft_vocab_size, hidden), "d2t": (size.draft_vocab_size,)}
    shapes |= {"mask_hidden": (1, 1, 3 * hidden)}
    return config, shapes | layer_shapes(config, "midlayer.", num_in=2 * hidden)


def mtp(size: Size) -> tuple[dict[str, Any], Shapes]:
    hidden, prefix = size.config["hidden_size"], "model.mtp_layers.0."
    config = size.config | {"architectures": ["MiMoForCausalLM"], "model_type": "qwen2", "num_nextn_predict_layers": 1}
    shapes = layer_shapes(config, prefix) | {f"{prefix}input_proj.weight": (hidden, 2 * hidden)}
    for norm in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        shapes[f"{prefix}{norm}.weight"] = (hidden,)
    for name in "qkv":
        shapes[f"{prefix}self_attn.{name}_proj.bias"] = shapes[f"{prefix}self_attn.{name}_proj.weight"][:1]
    return config, shapes


def dflash(size: Size) -> tuple[dict[str, Any], Shapes]:
    hidden, head_dim = size.config["hidden_size"], size.config["head_dim"]
    config = size.config | {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": 16}
    config |= {"num_hidden_layers": size.dflash_layers}
    config |= {"dflash_config": {"mask_token_id": 1, "target_layer_ids": [layer - 1 for layer in size.aux_layers]}}
    shapes = {"fc.weight": (hidden, 3 * hidden), "hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
    for i in range(size.dflash_layers):
        shapes |= layer_shapes(config, f"layers.{i}.")
        shapes |= {f"layers.{i}.self_attn.{name}_norm.weight": (head_dim,) for name in "qk"}
    return config, shapes


Load = Callable[[Path, CausalLM, int], Proposer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """How to make a drafter, and which k are measured."""

    write: Callable[[Size], tuple[dict[str, Any], Shapes]]
    load: Load
    ks: tuple[int, ...]
    one_pass: bool = False
    """Whether all guesses come from one pass over its layers."""
    own_head: str | None = None
    """Start of its own heads' names; None: it uses the target's."""


def chained(load: Callable[[Path, CausalLM], Any], *, parallel: bool = False) -> Load:
    return lambda path, target, _k: ChainProposer(load(path, target), max_model_len=MAX_MODEL_LEN, parallel=parallel)


def load_draft_model(path: Path, target: CausalLM) -> DraftModel:
    return DraftModel(load_model(path, dtype=target.dtype, device=target.device))


METHODS = {
    "draft_model": Method(write=draft_model, load=chained(load_draft_model), ks=(4,), own_head="all"),
    "medusa": Method(
        write=medusa,
        load=lambda p, t, k: MedusaProposer(load_medusa(p, t, k=k), t),
        ks=(4,),
        one_pass=True,
        own_head="lm_heads",
    ),
    "mlp_speculator": Method(
        write=mlp_speculator,
        load=lambda p, t, k: MlpSpeculatorProposer(load_mlp_speculator(p, t, k=k), t),
        ks=(4,),
        one_pass=True,
        own_head="speculator.head",
    ),
    "eagle": Method(write=eagle, load=chained(load_eagle), ks=(1, 3, 5)),
    "eagle3": Method(write=eagle3, load=chained(load_eagle3), ks=(1, 3, 5, 7), own_head="lm_head"),
    "p_eagle": Method(
        write=eagle3, load=chained(load_eagle3, parallel=True), ks=(3, 5, 7), one_pass=True, own_head="lm_head"
    ),
    "mtp": Method(write=mtp, load=chained(load_mtp), ks=(1, 3)),
    "dflash": Method(
        write=dflash,
        load=lambda p, t, k: DFlashProposer(
            load_dflash(p, t, max_model_len=MAX_MODEL_LEN, k=k), max_model_len=MAX_MODEL_LEN
        ),
        ks=(3, 7, 15),
        one_pass=True,
    ),
}


def write_checkpoint(folder: Path, config: dict[str, Any], shapes: Shapes) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {}
    for name, shape in shapes.items():
        if name == "d2t":
            tensors[name] = torch.zeros(shape, dtype=torch.long)
        else:
            tensors[name] = (torch.randn(shape, device="cuda") * 0.02).bfloat16().cpu()
    save_file(tensors, folder / "model.safetensors")


def matrix_bytes(shapes: Shapes) -> tuple[int, int]:
    """Return the bytes of the heads among the matrices, and of the rest without embeddings, which are gathered."""
    heads = layers = 0
    for name, shape in shapes.items():
        count = 2 * torch.Size(shape).numel() if len(shape) == 2 else 0
        if "head" in name:
            heads += count
        elif "emb" not in name:
            layers += count
    return heads, layers


def floor_bytes(method: Method, size: Size, config: dict[str, Any], shapes: Shapes, k: int) -> int:
    """Return the bytes of weights that a draft of k cannot do without."""
    heads, layers = matrix_bytes(shapes)
    if method.own_head in ("lm_heads", "speculator.head"):
        return (heads + layers) * k // 4  # the files hold four heads
    if config.get("tie_word_embeddings"):
        heads = 2 * config["vocab_size"] * config["hidden_size"]
    elif method.own_head is None:
        heads = 2 * size.config["vocab_size"] * size.config["hidden_size"]
    return (heads + layers) * (1 if method.one_pass else k)


def make_target(size: Size) -> CausalLM:
    """Return the target without its layers: embedding, norm and head are what drafters borrow."""
    shape = ModelShape.from_hf_config(size.config)

    def matrix() -> torch.Tensor:
        return (torch.randn(shape.vocab_size, shape.hidden_size, device="cuda") * 0.02).bfloat16()

    norm = torch.ones(shape.hidden_size, device="cuda", dtype=torch.bfloat16)
    weights = Weights(embedding_VH=matrix(), layers=(), norm=norm, head=make_linear(matrix()))
    return CausalLM(size.config, shape, Rope.from_hf_config(size.config, shape, where="config.json"), weights)


class Traffic:
    """Sequences that advance by CONFIRMED tokens a draft."""

    def __init__(self, proposer: Proposer, target: CausalLM, num_sequences: int) -> None:
        self._proposer, self._target, self._count = proposer, target, num_sequences
        per_sequence = -(-MAX_MODEL_LEN // BLOCK)
        scratch = num_sequences * per_sequence
        pages_BP = torch.arange(scratch, dtype=torch.int32, device="cuda").view(num_sequences, per_sequence)
        self._page_table_BP = torch.nn.functional.pad(pages_BP, (0, 1), value=scratch)
        self._known = 1 if proposer.aux_layers else 0
        proposer.allocate(num_pages=num_sequences * per_sequence, block_size=BLOCK)

    def news(self, count: int, k: int) -> Confirmed:
        """Return `count` new tokens of every sequence; those of a prompt (k = 0) in ragged rows."""
        shape, rows = self._target.shape, self._count * count
        width = len(self._proposer.aux_layers) * shape.hidden_size
        start, self._known = self._known, self._known + count
        spans = Spans.of([start] * self._count, [count] * self._count, "cuda")
        zero_B = torch.zeros_like(spans.starts_B)
        return Confirmed(
            slots_B=torch.arange(self._count, device="cuda"),
            spans=spans if k == 0 else Spans.on(spans.starts_B, spans.lengths_B, count, uniform=True),
            tokens_N=torch.randint(0, shape.vocab_size, (rows,), device="cuda"),
            num_prompt_B=zero_B + CONTEXT,
            limits_B=zero_B + k,
            page_table_BP=self._page_table_BP,
            features_NF=torch.randn(rows, width, device="cuda", dtype=torch.bfloat16) if width else None,
            temperature_B=zero_B.float(),
            seeds_B=zero_B,
        )


def measure(proposer: Proposer, target: CausalLM, num_sequences: int, k: int, repeats: int) -> dict[str, float]:
    """Return the median time of a draft in a CUDA graph, and of one whose kernels are launched one by one."""
    traffic = Traffic(proposer, target, num_sequences)
    proposer.propose(traffic.news(CONTEXT, 0), 0)
    new = traffic.news(CONFIRMED, k)
    eager = [_milliseconds(lambda: proposer.propose(new, k)) for _ in range(8)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        proposer.propose(new, k)
    captured = [_milliseconds(graph.replay) for _ in range(repeats + 2)]
    return {"ms": round(statistics.median(captured[2:]), 4), "eager_ms": round(statistics.median(eager[3:]), 4)}


def _milliseconds(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def copy_bandwidth() -> float:
    """Return bytes read and written a second by a large copy."""
    source = torch.empty(2 * 2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        target.copy_(source)
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2 * source.nbytes / best


def measure_all(names: list[str], sizes: list[str], batches: list[int], repeats: int, bandwidth: float) -> list[dict]:
    rows = []
    for size_name in sizes:
        size = SIZES[size_name]
        target = make_target(size)
        for name in names:
            method = METHODS[name]
            config, shapes = method.write(size)
            with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
                folder = Path(scratch) / name
                write_checkpoint(folder, config, shapes)
                for k in method.ks:
                    floor = 1e3 * floor_bytes(method, size, config, shapes, k) / bandwidth
                    for batch in batches:
                        row = measure(method.load(folder, target, k), target, batch, k, repeats)
                        row = {"size": size_name, "method": name, "k": k, "batch": batch} | row
                        row |= {"floor_ms": round(floor, 4)}
                        rows.append(row)
                        print(json.dumps(row), flush=True)
            torch.cuda.empty_cache()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    bandwidth = copy_bandwidth()
    result = {
        "date": date.today().isoformat(),
        "command": " ".join(["python", *sys.argv]),
        "versions": {"draftwise": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "device": torch.cuda.get_device_name(),
        "copy_bandwidth_bytes_per_s": round(bandwidth),
        "context": CONTEXT,
        "confirmed_tokens_per_draft": CONFIRMED,
        "rows": measure_all(args.methods, args.sizes, args.batch, args.repeats, bandwidth),
    }
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
