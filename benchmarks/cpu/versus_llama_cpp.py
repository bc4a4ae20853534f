"""The embedded engine and llama.cpp on the same GGUF file: tokens/s, prompts, and how far each is from float32.

    python benchmarks/cpu/versus_llama_cpp.py --model FILE.gguf --llama-python VENV/bin/python --out results.json
    python benchmarks/cpu/versus_llama_cpp.py --model FILE.gguf --llama-python VENV/bin/python --random 1B \
        --kind Q4_0 --rounds 3 --tokens 48 --busy --out results.json

`--random` writes a model with the layers of Llama 3.2 1B and random weights, and its first two layers as a draft model,
into a folder that is removed in the end; FILE.gguf lends the vocabulary. Its text is noise: only speed says something.
`--busy` measures everything again while another program holds a core.

Each engine has a process of its own and answers one turn at a time, so that the others are idle meanwhile. For one
thread seconds are processor time, so that other programs on the machine matter less; for more they are wall time.
Ratios are those of medians. Memory is that of the process after its last turn. `before_the_model` are Python and
libraries; `growth_over_file` is what model, cache and work space add to them, in sizes of the file.
llama.cpp is `llama-cpp-python`, in an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_TURN = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
TEXTS = {
    "chat": _TURN.format("Explain how a bicycle stays upright, in detail."),
    "edit": _TURN.format(
        "Write this again and correct the spelling: "
        + "Yesterday we goed to the market and buyed apples, pears and bred for diner. " * 6
    ),
}
"""As the heads in `bundle/smollm2` were trained to continue them."""
CONTEXT = 2048
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 4}

Generate = Callable[[list[int], int], int]
"""(prompt, new tokens) -> tokens generated."""


def load_draftwise(model: str, options: dict[str, Any]) -> tuple[Generate, Callable[[str], list[int]]]:
    from draftwise import LLM, SamplingParams

    spec = options.get("spec")
    llm = LLM(model, speculative_config=spec, max_model_len=CONTEXT, max_num_seqs=1, enable_prefix_caching=False)

    def generate(prompt: list[int], count: int) -> int:
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        return len(llm.generate([{"prompt_token_ids": prompt}], params)[0].outputs[0].token_ids)

    return generate, llm.get_tokenizer().encode


def load_llama(model: str, options: dict[str, Any]) -> tuple[Generate, Callable[[str], list[int]]]:
    import numpy as np
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaDraftModel, LlamaPromptLookupDecoding

    threads = int(os.environ["OMP_NUM_THREADS"])

    def load(file: str, **more: Any) -> Llama:
        return Llama(file, n_ctx=CONTEXT, n_threads=threads, n_threads_batch=threads, verbose=False, **more)

    class Draft(LlamaDraftModel):
        """A smaller model that drafts greedily."""

        def __init__(self, file: str, k: int) -> None:
            self.model, self.k = load(file), k

        def __call__(self, input_ids: Any, /, **_: Any) -> Any:
            tokens = self.model.generate(input_ids.tolist(), temp=0)
            return np.array([next(tokens) for _ in range(self.k)], dtype=np.intc)

    draft = None
    if options.get("lookup"):
        draft = LlamaPromptLookupDecoding(max_ngram_size=4, num_pred_tokens=options["lookup"])
    elif options.get("draft"):
        draft = Draft(options["draft"], options["k"])
    llm = load(model, draft_model=draft)

    def generate(prompt: list[int], count: int) -> int:
        llm.reset()
        done = 0
        for _ in llm.generate(prompt, temp=0):
            done += 1
            if done == count:
                break
        return done

    return generate, lambda text: llm.tokenize(text.encode(), special=True)


def work() -> None:
    """Answer one line after the other: prompt and tokens in, seconds and tokens out."""
    name, model, options = sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
    if name == "draftwise":
        import draftwise.engine.kernels.cpu_layers
        import draftwise.engine.llm  # noqa: F401 - memory of the libraries alone is taken
    else:
        import llama_cpp  # noqa: F401 - likewise
    alone = memory_of(os.getpid())
    generate, encode = (load_draftwise if name == "draftwise" else load_llama)(model, options)
    print("RESULT " + json.dumps({"alone": alone}), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        prompt = encode(task["text"])[: task.get("cut", CONTEXT)]
        wall, processor = time.perf_counter(), time.process_time()
        tokens = generate(prompt, task["count"])
        answer = {"wall": time.perf_counter() - wall, "processor": time.process_time() - processor}
        print("RESULT " + json.dumps(answer | {"tokens": tokens, "prompt": len(prompt)}), flush=True)


def memory_of(pid: int) -> dict[str, int]:
    """Return bytes that are the process's own, and those of files that it maps and shares with others."""
    status = Path(f"/proc/{pid}/status").read_text()
    kinds = {"own": "RssAnon:", "of_files": "RssFile:"}
    return {name: 1024 * int(status.split(kind)[1].split()[0]) for name, kind in kinds.items()}


def compare_memory(after: dict[str, int], before: dict[str, int], model_bytes: int) -> dict[str, Any]:
    """Return the memory of a process after its turns and before its model, and its growth over the model's file."""
    growth = sum(after.values()) - sum(before.values())
    return {
        "all": sum(after.values()), "after": after, "before_the_model": before,
        "growth_over_file": round(growth / model_bytes, 3),
    }  # fmt: skip


class Peer:
    """A process that runs one engine in one way."""

    def __init__(self, python: str, name: str, model: str, options: dict[str, Any], threads: int) -> None:
        command = [python, __file__, "work", name, model, json.dumps(options)]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.pid = self._child.pid
        self.alone = self._read()["alone"]
        """Memory before the model."""

    def run(self, **task: Any) -> dict[str, Any]:
        """Answer a turn."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(task) + "\n")
        self._child.stdin.flush()
        return self._read()

    def close(self) -> None:
        """End it."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(timeout=60)

    def _read(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.startswith("RESULT "):
                return json.loads(line.removeprefix("RESULT "))
        raise SystemExit(f"A process ended early with exit code {self._child.wait()}")


def measure(args: argparse.Namespace, threads: int) -> dict[str, Any]:
    """Return milliseconds a token of every engine and kind of text, and of prompts; and the ratios to llama.cpp."""
    ways: dict[str, tuple[str, dict[str, Any]]] = {
        "draftwise": ("draftwise", {}),
        "llama.cpp": ("llama", {}),
        "draftwise lookup": ("draftwise", {"spec": NGRAM}),
        "llama.cpp lookup": ("llama", {"lookup": NGRAM["num_speculative_tokens"]}),
    }
    if args.head:
        ways["draftwise eagle3"] = ("draftwise", {"spec": _spec("eagle3", args.head, args.k)})
    if args.draft:
        ways["draftwise draft model"] = ("draftwise", {"spec": _spec("draft_model", args.draft, args.k)})
        ways["llama.cpp draft model"] = ("llama", {"draft": args.draft, "k": args.k})
    pythons = {"draftwise": sys.executable, "llama": args.llama_python}
    peers = {way: Peer(pythons[name], name, args.model, options, threads) for way, (name, options) in ways.items()}
    clock = "processor" if threads == 1 else "wall"
    times: dict[str, dict[str, list[float]]] = {way: {} for way in ways}
    for peer in peers.values():
        peer.run(text=TEXTS["chat"], count=8)
    order = list(peers)
    for i in range(args.rounds):
        for way in order[i % len(order) :] + order[: i % len(order)]:
            for kind, text in TEXTS.items():  # a short answer less a long one: the prompt is in both
                short, long = (peers[way].run(text=text, count=count) for count in (args.tokens // 4, args.tokens))
                spent = (long[clock] - short[clock]) / (long["tokens"] - short["tokens"])
                times[way].setdefault(kind, []).append(1e3 * spent)
            if "spec" not in ways[way][1] and ways[way][1] == {}:
                prompt = peers[way].run(text=TEXTS["edit"] * 4, cut=512, count=1)
                times[way].setdefault("prompt", []).append(1e3 * prompt[clock] / prompt["prompt"])
    medians = {way: {kind: statistics.median(each) for kind, each in kinds.items()} for way, kinds in times.items()}
    size = Path(args.model).stat().st_size
    memory = {way: compare_memory(memory_of(peer.pid), peer.alone, size) for way, peer in peers.items()}
    for peer in peers.values():
        peer.close()
    ratios = {
        f"{way} / {way.replace('draftwise', 'llama.cpp')}": {
            kind: round(medians[way.replace("draftwise", "llama.cpp")][kind] / value, 3)
            for kind, value in medians[way].items()
        }
        for way in ways
        if way.startswith("draftwise") and way.replace("draftwise", "llama.cpp") in ways
    }
    for way in ways:
        if way.startswith("draftwise "):
            ratios[f"{way} / draftwise"] = {
                kind: round(medians["draftwise"][kind] / value, 3) for kind, value in medians[way].items()
            }
    shown = {way: {kind: round(value, 3) for kind, value in kinds.items()} for way, kinds in medians.items()}
    return {"clock": clock, "ms_a_token": shown, "times_as_fast": ratios, "memory_bytes": memory}


def _spec(method: str, model: str, k: int) -> dict[str, Any]:
    return {"method": method, "model": model, "num_speculative_tokens": k}


@contextmanager
def busy_core() -> Iterator[None]:
    """Let another program compute meanwhile."""
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        child.kill()
        child.wait()


def write_random(folder: Path, vocabulary: str, kind: str) -> tuple[str, str]:
    """Write a model with the layers of Llama 3.2 1B and one of its first two layers; return both files.

    Weights are random blocks of a type whose values are about as large as those of a model at its start.
    """
    import gguf
    import numpy as np

    hidden, inner, heads, groups, size = 2048, 8192, 32, 8, 64
    known, rng = gguf.GGUFReader(vocabulary), np.random.default_rng(0)
    vocab_size = len(known.fields["tokenizer.ggml.tokens"].data)

    def blocks(name: str, rows: int, width: int) -> Any:
        spread = 0.5 * width**-0.5
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
        data = rng.integers(0, 256, (rows, width // block, size), dtype=np.uint8)

        def put(at: int, value: float) -> None:
            data[..., at : at + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)

        put(0, spread / {"Q4_0": 4.6, "Q4_K": 4.6 * 32, "Q8_0": 74}[name])
        if name == "Q4_K":  # all eighths have the scale 32 and the minimum 30, so that weights are around 0
            put(2, 8 * spread / (4.6 * 32))
            data[..., 4:16] = np.repeat(np.array([160, 94, 224], np.uint8), 4)
        return data.reshape(rows, -1)

    layers = []
    for _ in range(16):
        shapes = {
            "attn_q": (heads * size, hidden),
            "attn_k": (groups * size, hidden),
            "attn_v": (groups * size, hidden),
            "attn_output": (hidden, heads * size),
            "ffn_gate": (inner, hidden),
            "ffn_up": (inner, hidden),
            "ffn_down": (hidden, inner),
        }
        layers.append({name: blocks(kind, *shape) for name, shape in shapes.items()})
    embedding = blocks("Q8_0", vocab_size, hidden)
    files = []
    for count in (16, 2):
        files.append(str(folder / f"{count}-layers-{kind}.gguf"))
        writer = gguf.GGUFWriter(files[-1], "llama")
        writer.add_context_length(8192)
        writer.add_embedding_length(hidden)
        writer.add_block_count(count)
        writer.add_feed_forward_length(inner)
        writer.add_head_count(heads)
        writer.add_head_count_kv(groups)
        writer.add_rope_dimension_count(size)
        writer.add_rope_freq_base(500000.0)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_vocab_size(vocab_size)
        for name, field in known.fields.items():
            if name.startswith("tokenizer."):
                inner_type = field.types[-1] if len(field.types) > 1 else None
                writer.add_key_value(name, field.contents(), field.types[0], inner_type)
        eight, own = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType[kind]
        writer.add_tensor("token_embd.weight", embedding, raw_dtype=eight)
        writer.add_tensor("output_norm.weight", np.ones(hidden, np.float32))
        for i, layer in enumerate(layers[:count]):
            for name, data in layer.items():
                writer.add_tensor(f"blk.{i}.{name}.weight", data, raw_dtype=own)
            for name in ("attn_norm", "ffn_norm"):
                writer.add_tensor(f"blk.{i}.{name}.weight", np.ones(hidden, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return files[0], files[1]


LLAMA_LOGITS = """
import sys, numpy as np
from llama_cpp import Llama
model, ids, out = sys.argv[1:]
llm = Llama(model, n_ctx=2048, logits_all=True, verbose=False)
llm.eval(np.load(ids).tolist())
np.save(out, llm.scores[: llm.n_tokens])
"""


def compare_logits(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return how far the next token's distributions are from those of float32 with the file's weights."""
    import numpy as np
    import torch

    from draftwise.engine.attention.pass_rows import Spans, plan_attention
    from draftwise.engine.memory.kv import PagedKV
    from draftwise.engine.models import load_model
    from draftwise.engine.models.gguf_unpacking import checkpoint_of
    from draftwise.engine.text.tokenizer import load_tokenizer

    checkpoint = checkpoint_of(args.model)
    text = Path(args.text).read_text(encoding="utf-8")
    ids = load_tokenizer(checkpoint, skip=False).encode(text)[:480]

    @torch.inference_mode()
    def distributions(dtype: str) -> torch.Tensor:
        model = load_model(checkpoint, dtype=dtype, device="cpu")
        pages = -(-len(ids) // 16)
        kv = PagedKV(model.shape, num_pages=pages, block_size=16, dtype=model.dtype, device="cpu")
        table = torch.arange(pages + 1, dtype=torch.int32).unsqueeze(0)
        plan = plan_attention(Spans.of([0], [len(ids)], "cpu"), table, block_size=16)
        hidden, _ = model(torch.tensor(ids), torch.arange(len(ids)), kv, plan)
        return model.logits(hidden).float().log_softmax(-1)

    np.save(folder / "ids.npy", ids)
    places = [str(folder / name) for name in ("ids.npy", "logits.npy")]
    subprocess.run([args.llama_python, "-c", LLAMA_LOGITS, args.model, *places], check=True)
    exact = distributions("float32")
    others = {name: distributions(dtype) for name, dtype in (("draftwise", "auto"), ("bfloat16", "bfloat16"))}
    others["llama.cpp"] = torch.from_numpy(np.load(places[1])).log_softmax(-1)
    answer = {}
    for name, other in others.items():
        divergence = (exact.exp() * (exact - other)).sum(-1)
        same = (exact.argmax(-1) == other.argmax(-1)).float().mean()
        answer[name] = {"mean": float(divergence.mean()), "largest": float(divergence.max()), "same_token": float(same)}
    return answer


def main() -> None:
    if sys.argv[1:2] == ["work"]:
        work()
        return
    import tempfile

    from provenance import provenance, write

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("--llama-python", required=True, help="python of an environment with llama-cpp-python")
    parser.add_argument("--head", help="folder of an EAGLE-3 head")
    parser.add_argument("--draft", help="GGUF file of a draft model")
    parser.add_argument("--text", default="README.md", help="what distributions are compared on")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--k", type=int, default=3)
    parser.add_argument("--random", choices=["1B"], help="measure a model of random weights instead of --model")
    parser.add_argument("--kind", choices=["Q4_0", "Q4_K", "Q8_0"], default="Q4_0", help="type of random weights")
    parser.add_argument("--busy", action="store_true", help="measure again with a core taken")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result: dict[str, Any] = provenance()
        if args.random:
            os.environ["DRAFTWISE_CACHE_DIR"] = str(Path(folder) / "cache")
            args.model, args.draft = write_random(Path(folder), args.model, args.kind)
        else:
            result["divergence_from_float32"] = compare_logits(args, Path(folder))
        settings = {name: getattr(args, name) for name in ("rounds", "tokens", "k", "random", "kind")}
        settings |= {"model": Path(args.model).name, "model_bytes": Path(args.model).stat().st_size}
        result["settings"] = settings
        result["threads"] = {str(threads): measure(args, threads) for threads in args.threads}
        if args.busy:
            with busy_core():
                result["threads_with_a_core_taken"] = {str(n): measure(args, n) for n in args.threads}
    print(json.dumps(result, indent=1))
    write(result, args.out)


if __name__ == "__main__":
    main()
