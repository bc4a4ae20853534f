"""Greedy output of every method beside plain decoding, token for token, on the bundled model and workloads.

    python benchmarks/greedy_equality.py --device cpu --dtype bfloat16 float32 --weights int8 int4 Q8_0 Q4_0 Q4_K \
        --prompts 2 --max-tokens 48 --out results.json

`--weights` rounds the target while loading (int8, int4), or writes a GGUF file of that type and serves it.
Each method runs on an engine with room (a batch of 16, then the same prompts again out of the prefix cache, then with
drafts of up to 0, 1 and all tokens for one request after the other), on one that takes six prompts at a time, which
start while others decode, and on one without room (chunked prefill, so few pages that sequences are preempted). Where
an output differs from plain decoding's, the plain engine says how far below the best choice they are at the first
difference: within what rounding does to a logit in that dtype it is a numerical tie, else an error. On a CPU, and in
float32 and float64 everywhere, there must be no difference at all. The exit code is 1 when something is wrong; rows
are written as they are measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

from draftwise import LLM, SamplingParams, __version__
from draftwise.engine.engine_outputs import RequestOutput
from draftwise.engine.text.tokenizer import load_tokenizer

METHODS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    "ngram_gpu": {"method": "ngram_gpu", "num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    "suffix": {"method": "suffix", "num_speculative_tokens": 8},
    "draft_model": {"method": "draft_model", "num_speculative_tokens": 4},
    "medusa": {"method": "medusa", "num_speculative_tokens": 4},
    "mlp_speculator": {"method": "mlp_speculator", "num_speculative_tokens": 4},
    "eagle": {"method": "eagle", "num_speculative_tokens": 4},
    "eagle3": {"method": "eagle3", "num_speculative_tokens": 5},
    "p_eagle": {"method": "eagle3", "num_speculative_tokens": 5, "parallel_drafting": True},
    "mtp": {"method": "mtp", "num_speculative_tokens": 3},
    "dflash": {"method": "dflash", "num_speculative_tokens": 8},
}
TIE_GAP = {"bfloat16": 0.25, "float16": 0.03, "float32": 1e-4, "float64": 0.0}
"""Nats: two logits of magnitude 16 that are two to four roundings of the dtype apart."""
ROOM = 2400
"""Pages for all prompts at once, so that two engines fit on one GPU."""
WEIGHTS = ("int8", "int4", "Q8_0", "Q4_0", "Q4_K")
NEAR = 5
"""Tokens listed where outputs part."""
MAY_TIE = ("bfloat16", "float16")
"""On a GPU."""

MIXED = "drafted and plain"

Row = dict[str, Any]
Prompts = list[list[int]]


def add_bundle(parser: argparse.ArgumentParser) -> None:
    """Add the folders of the models and of the prompts, which have to be there."""

    def folder(text: str, holds: str) -> Path:
        if next(Path(text).glob(holds), None) is None:
            raise argparse.ArgumentTypeError(f"there is no {Path(text) / holds}")
        return Path(text)

    workloads = "src/draftwise/workloads/bundled"
    parser.add_argument("--bundle", type=partial(folder, holds="target/config.json"), default="bundle")
    parser.add_argument("--workloads", type=partial(folder, holds="*.jsonl"), default=workloads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_bundle(parser)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", nargs="*", default=["bfloat16", "float32"], choices=TIE_GAP)
    parser.add_argument("--weights", nargs="*", default=[], choices=WEIGHTS)
    parser.add_argument("--methods", nargs="+", choices=["plain", *METHODS], default=["plain", *METHODS])
    parser.add_argument("--prompts", type=int, default=8, help="of each workload")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no further method after so long")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    began, rows = time.monotonic(), list[Row]()
    about = provenance(args.device) | {"max_tokens": args.max_tokens}
    for dtype in (*args.dtype, *args.weights):
        reference = Reference(args, dtype)
        for method in args.methods:
            if time.monotonic() - began > args.seconds:
                rows.append({"dtype": dtype, "method": method, "left_out": "no time left"})
                continue
            for row in check_method(reference, args, dtype, method):
                rows.append(row)
                print(as_line(row), flush=True)
            write(args.out, about | {"seconds": round(time.monotonic() - began, 1), "rows": rows})
        del reference
    wrong = [row for row in rows if is_wrong(row)]
    never = {row["dtype"] for row in rows} - {row["dtype"] for row in rows if row.get("preemptions")}
    print(
        f"{len(rows)} runs in {time.monotonic() - began:.0f} s; wrong: {len(wrong)}; never preempted: {sorted(never)}"
    )
    sys.exit(bool(wrong or never))


def provenance(device: str) -> Row:
    """Return where and how a run on a device takes place."""
    return {
        "date": date.today().isoformat(),
        "command": " ".join(["python", *sys.argv]),
        "versions": {"draftwise": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.machine(),
    }


def write(path: Path | None, result: Row) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")


def gap_below_best(best: Mapping[int, Any], *tokens: int) -> float:
    """Return how far below the best log-probability the worst of these tokens is; infinite where it is not listed."""
    listed = {token: entry.logprob for token, entry in best.items()}
    return max(listed.values()) - min(listed.get(token, float("-inf")) for token in tokens)


class Reference:
    """Plain decoding of the prompts: its outputs, and how close its choices were.

    Closeness is asked for in requests of its own: with log-probabilities a step may take another path through the
    engine than the outputs that are compared.
    """

    def __init__(self, args: argparse.Namespace, dtype: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.target: Row = {"model": str(args.bundle / "target"), "device": args.device}
        """How engines load the target."""
        self.may_tie = args.device == "cuda" and dtype in MAY_TIE
        self._tokenizer = load_tokenizer(self.target["model"], skip=False)
        if dtype in ("int8", "int4"):
            self.target["quantization"] = dtype
        elif dtype in WEIGHTS:
            self.target["model"] = write_gguf(args.bundle / "target", Path(self._folder.name), dtype)
        else:
            self.target["dtype"] = dtype
        self._llm = LLM(**self.target, num_gpu_blocks_override=ROOM)
        self.prompts = self._read_prompts(args.workloads, args.prompts)
        self.params = SamplingParams(temperature=0, max_tokens=args.max_tokens)
        self.outputs = [output.outputs[0].token_ids for output in generate(self._llm, self.prompts, self.params)]

    def drafter(self, folder: Path) -> str:
        """Return a drafter's folder, without the note for which weights it was trained: a GGUF file has others."""
        own = Path(self._folder.name) / folder.name
        own.mkdir(exist_ok=True)
        for file in folder.iterdir():
            if file.name != "draftwise.json" and not (own / file.name).exists():
                (own / file.name).symlink_to(file.resolve())
        return str(own)

    def gap(self, index: int, tokens: Sequence[int]) -> float | None:
        """Return how far below the best choice the worse is where `tokens` part from plain output; None: they do not.

        It need not be the second: several logits may be equal in a narrow dtype.
        """
        plain = self.outputs[index]
        if plain == tokens:
            return None
        at = next((i for i, (x, y) in enumerate(zip(plain, tokens, strict=False)) if x != y), None)
        if at is None:
            return float("inf")
        params = SamplingParams(temperature=0, max_tokens=1, logprobs=NEAR)
        (output,) = generate(self._llm, [self.prompts[index] + plain[:at]], params)
        return gap_below_best((output.outputs[0].logprobs or [])[0], plain[at], tokens[at])

    def _read_prompts(self, folder: Path, count: int) -> Prompts:
        tokenizer = self._tokenizer
        lines = (line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()[:count])
        return [
            tokenizer.encode(prompt["prompt"])
            if "prompt" in prompt
            else tokenizer.encode(tokenizer.apply_chat_template(prompt["messages"]), False)
            for prompt in map(json.loads, lines)
        ]


def write_gguf(checkpoint: Path, folder: Path, kind: str) -> str:
    """Write a Llama checkpoint as a GGUF file of a type; return its path."""
    config = json.loads((checkpoint / "config.json").read_text())
    tokens = json.loads((checkpoint / "tokenizer.json").read_text())["model"]
    shards = [load_file(file) for file in sorted(checkpoint.glob("*.safetensors"))]
    file, own = folder / f"{kind}.gguf", gguf.GGMLQuantizationType[kind]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")  # prompts are token ids
    writer.add_token_list(list(tokens["vocab"]))
    writer.add_token_merges([" ".join(merge) for merge in tokens["merges"]])
    writer.add_eos_token_id(config["eos_token_id"][0])
    writer.add_eot_token_id(config["eos_token_id"][1])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, tensor in ((name, tensor) for shard in shards for name, tensor in shard.items()):
        values = tensor.float().numpy()
        if count := heads.get(name.split(".")[-2]):  # rotated by pairs of neighbors there
            values = values.reshape(count, 2, -1, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)
        stored = values if values.ndim == 1 else to_q4_k(values) if kind == "Q4_K" else gguf.quantize(values, own)
        raw = None if values.ndim == 1 else own
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), stored, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(file)


def to_q4_k(values: np.ndarray) -> np.ndarray:
    """Return rows as blocks of 256 with eight scales and minima of six bits each; `gguf` only reads these."""
    x = values.reshape(len(values), -1, 8, 32)
    low = np.maximum(-x.min(-1), 0)
    step = (x.max(-1) + low) / 15
    d, dmin = (np.float16(each.max(-1, keepdims=True) / 63).astype(np.float32) for each in (step, low))
    scale, minimum = (
        np.divide(each, unit, out=np.zeros_like(each), where=unit > 0).round().clip(0, 63).astype(np.uint8)
        for each, unit in ((step, d), (low, dmin))
    )
    own = (d * scale)[..., None]
    shifted = x + (dmin * minimum)[..., None]
    q = np.divide(shifted, own, out=np.zeros_like(shifted), where=own > 0).round().clip(0, 15).astype(np.uint8)
    both = scale[..., 4:] & 15 | (minimum[..., 4:] & 15) << 4
    six = [part[..., :4] | part[..., 4:] >> 4 << 6 for part in (scale, minimum)]
    halves = [each.astype(np.float16).view(np.uint8) for each in (d, dmin)]
    nibbles = (q[..., ::2, :] | q[..., 1::2, :] << 4).reshape(*q.shape[:2], 128)
    return np.concatenate((*halves, *six, both, nibbles), axis=-1).reshape(len(values), -1)


def check_method(reference: Reference, args: argparse.Namespace, dtype: str, method: str) -> Iterator[Row]:
    """Yield a row for each circumstance that the method is tried in."""
    spec = None
    if method != "plain":
        folder = args.bundle / method
        spec = METHODS[method] | ({"model": reference.drafter(folder)} if folder.is_dir() else {})
    longest = max(map(len, reference.prompts)) + args.max_tokens + 1
    pages = -(-longest // 16) + 3  # the longest alone has room; those that grow beside each other have not
    cramped = {"max_model_len": longest, "max_num_batched_tokens": 96, "num_gpu_blocks_override": pages}
    roomy = {"num_gpu_blocks_override": ROOM}
    few = roomy | {"max_num_seqs": 6, "max_num_batched_tokens": 600}
    roomy_ways = ("batch of 16", "prefix cached", MIXED) if spec else ("batch of 16", "prefix cached")
    ways = ((roomy, roomy_ways), (few, ("six at a time",)), (cramped, ("preempted, chunked",)))
    for settings, circumstances in ways:
        began = time.monotonic()
        llm = LLM(**reference.target, speculative_config=spec, **settings)
        ready_s = time.monotonic() - began
        for circumstance in circumstances:
            yield (
                {"dtype": dtype, "method": method, "circumstance": circumstance}
                | compare(reference, llm, dtype, is_mixed=circumstance == MIXED)
                | {"ready_s": round(ready_s, 2)}
            )
        del llm
        gc.collect()


def compare(reference: Reference, llm: LLM, dtype: str, *, is_mixed: bool) -> Row:
    """Run the prompts; return how many outputs equal plain decoding's and what the others' gaps are."""
    before, began = llm.engine.stats(), time.monotonic()
    counts = ((0, 1, None)[i % 3] if is_mixed else None for i in range(len(reference.prompts)))
    params = [replace(reference.params, num_speculative_tokens=count) for count in counts]
    outputs, most = generate(llm, reference.prompts, params), TIE_GAP[dtype] if reference.may_tie else -1.0
    found = [reference.gap(i, output.outputs[0].token_ids) for i, output in enumerate(outputs)]
    gaps = [gap for gap in found if gap is not None]
    after = llm.engine.stats()
    llm.engine.scheduler.pool.check_integrity()
    spec = after.spec - before.spec
    return {
        "prompts": len(outputs),
        "equal": len(outputs) - len(gaps),
        "ties": sum(gap <= most for gap in gaps),
        "real_differences": sum(gap > most for gap in gaps),
        "gaps": [round(gap, 6) for gap in gaps],
        "acceptance_length": spec.acceptance_length,
        "drafts": spec.num_drafts,
        "preemptions": after.num_preemptions - before.num_preemptions,
        "cached_tokens": after.prefix_cache_hits - before.prefix_cache_hits,
        "pages_left_held": round(after.kv_cache_usage, 6),
        "seconds": round(time.monotonic() - began, 2),
    }


def generate(llm: LLM, prompts: Prompts, params: SamplingParams | Sequence[SamplingParams]) -> list[RequestOutput]:
    return llm.generate([{"prompt_token_ids": ids} for ids in prompts], params)


def is_wrong(row: Row) -> bool:
    """Say whether a row shows an error of the engine or of the check."""
    if "left_out" in row:
        return True
    differs = row["real_differences"] > 0
    missed = row["circumstance"] == "prefix cached" and row["method"] == "plain" and not row["cached_tokens"]
    return differs or missed or row["pages_left_held"] > 0


def as_line(row: Row) -> str:
    length = f"{row['acceptance_length']:.2f}" if row["acceptance_length"] else "-"
    return (
        f"{'WRONG' if is_wrong(row) else 'ok':5} {row['dtype']:9} {row['method']:15} {row['circumstance']:19} "
        f"equal {row['equal']}/{row['prompts']} ties {row['ties']} real {row['real_differences']} length {length} "
        f"preempted {row['preemptions']} cached {row['cached_tokens']} {row['seconds']} s (start {row['ready_s']} s)"
    )


if __name__ == "__main__":
    main()
