"""Mutates what operators give to draftwise until something other than an answer or InvalidSetup comes back.

    nice python benchmarks/fuzz.py --minutes 60 --out benchmarks/cpu/results/fuzz.json --crashes crashes

Every input has a time limit; one that crashes or hangs is kept as a directory under --crashes, once for each place
in the code, and `--replay DIRECTORY` runs it again.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from draftwise import __version__
from draftwise.checkpoints.inspect import inspect_checkpoint
from draftwise.checkpoints.pair import inspect_pair
from draftwise.core import InvalidSetup, Setup, SpecConfig
from draftwise.knowledge.gpus import read_gpus
from draftwise.knowledge.models import read_models
from draftwise.knowledge.vllm import releases
from draftwise.plan.check import check
from draftwise.plan.size import size
from draftwise.setups.read import read_setups

Input = Mapping[str, bytes]
"""File name -> content."""

LIMIT_S = 5.0
"""Longest time for one input; the machine is shared, and every answer should come in milliseconds."""
MEMORY_BYTES = 4 << 30

SPECS: tuple[dict[str, Any], ...] = (
    {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    {"method": "suffix", "num_speculative_tokens": 8, "suffix_decoding_max_tree_depth": 24},
    {"method": "draft_model", "model": "drafter", "num_speculative_tokens": 4, "draft_tensor_parallel_size": 1},
    {"method": "eagle3", "model": "drafter", "num_speculative_tokens": 3, "quantization": "fp8", "revision": "main"},
    {"model": "drafter", "num_speculative_tokens": 3, "attention_backend": "FLASH_ATTN", "max_model_len": 2048},
    {"method": "mtp", "num_speculative_tokens": 1, "moe_backend": "auto"},
    {"method": "dflash", "model": "drafter", "num_speculative_tokens": 8, "parallel_drafting": True},
    {"method": "ngram", "num_speculative_tokens": 4, "num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 64, 1]]},
    {"method": "ngram", "num_speculative_tokens": 3, "rejection_sample_method": "synthetic",
     "synthetic_acceptance_rates": [0.9, 0.5, 0.1]},
)  # fmt: skip
HEADS: tuple[dict[str, Any], ...] = (
    {"model_type": "llama", "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 64, "num_hidden_layers": 1,
     "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 512, "draft_vocab_size": 128},
    {"model_type": "medusa", "architectures": ["MedusaModel"], "hidden_size": 64, "num_heads": 3, "num_layers": 1,
     "vocab_size": 512},
    {"model_type": "eagle", "architectures": ["EagleModel"], "model": {"model_type": "llama", "hidden_size": 64}},
    {"speculators_model_type": "eagle3", "speculators_config": {"proposal_methods": [{"speculative_tokens": 3}],
     "verifier": {"name_or_path": "target"}}, "transformer_layer_config": {"hidden_size": 64}},
    {"model_type": "qwen3", "architectures": ["DFlashDraftModel"], "hidden_size": 64, "num_hidden_layers": 2,
     "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 512, "block_size": 8,
     "dflash_config": {"mask_token_id": 1, "target_layer_ids": [1, 3]}},
)  # fmt: skip
COMMANDS = (
    "VLLM_USE_V2_MODEL_RUNNER=1 vllm serve org/model -tp 2 --max_model_len=8k --speculative-config 'SPEC' --seed 1",
    "docker run --gpus '\"device=0,1\"' -e A=b -p8000:8000 vllm/vllm-openai:v0.19.1 --model m -sc.method ngram",
    "A=(--x 'y z')\nexport M=m\npip install vllm==0.20.0\nbash -c \"vllm serve $M ${A[@]} ${P:-1}\" \\\n > log 2>&1 &",
    "python -m vllm.entrypoints.openai.api_server --model m --speculative-model [ngram] --num-speculative-tokens 5",
    '[Service]\nEnvironment="A=b" C=d\nExecStart=-/bin/vllm serve ${C} \\\n --speculative-config "SPEC"\n',
    "vllm serve m --speculative-config {\"method\": \"ngram\"} --config c.yaml -O3 --no-enable-prefix-caching",
)  # fmt: skip
MANIFESTS = (
    "x: &e {VLLM_A: 1}\nservices:\n  a: &x\n    image: vllm/vllm-openai:v0.20.0\n    environment: {<<: *e}\n"
    "    command: ['--model', m, --speculative-config, 'SPEC']\n  b: {<<: *x, gpus: 2, command: --model $M}\n",
    "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec:\n  template:\n    spec:\n      containers:\n"
    "      - image: vllm/vllm-openai:v0.33.0\n        args: ['--model=$(M)', '--speculative-config=SPEC']\n"
    "        env: [{name: M, value: m}]\n        resources: {limits: {nvidia.com/gpu: 2}}\n",
    "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: a}\nspec:\n  predictor:\n"
    "    storageUris: [{uri: 'hf://a/b', mountPath: /mnt/models/t}]\n"
    "    model: {modelFormat: {name: vLLM}, runtimeVersion: v0.20.0, args: [--speculative-config, 'SPEC']}\n"
    "---\nkind: LLMInferenceService\napiVersion: v1\nspec:\n  model: {uri: hf://a/b}\n  template:\n    containers:\n"
    "    - {name: main, env: [{name: VLLM_ADDITIONAL_ARGS, value: --speculative-config SPEC}]}\n",
    "model: m\nspeculative-config: SPEC\nenable-prefix-caching: false\nmiddleware: [a]\ntensor-parallel-size: 2\n",
    "servingEngineSpec:\n  modelSpec:\n"
    "  - {modelURL: m, tag: v0.20.0, vllmConfig: {maxModelLen: 1, extraArgs: [-q]}}\n",
)  # fmt: skip
HOSTILE_TEXT = (
    *"'\"\\${}[]()<>|&;#:,-=\n\t !*%@`~", "--", "-", "{{", "}}", "$(", "${", "<<EOF\n", "&a ", "*a", "<<: ", "- ",
    "\u2014", "\x00", "\ufeff", "\ufffd", "\u00e9", "\U0001f600", "1e999", "0x", ".nan", "null", "9" * 400, "[" * 300,
    '{"a":' * 300, "a" * 5000, "--speculative-config.", "'{\"method\": 1}'",
)  # fmt: skip
HOSTILE_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, 10**30, -(10**400), 0.5, float("inf"), float("nan"), "", "0", "nan",
    "x" * 3000, "/", "..", "\x00", "\ud800", "llama", [], {}, [None], [[]], {"": None}, [1, "a", {}],
    {"method": "ngram"}, ["LlamaForCausalLM"],
)  # fmt: skip


def mutate_text(text: str, rng: random.Random) -> str:
    for _ in range(rng.randint(1, 8)):
        at, length = rng.randrange(len(text) + 1), rng.randrange(16)
        piece = rng.choice((rng.choice(HOSTILE_TEXT), text[at : at + length] * rng.randint(1, 3), ""))
        text = text[:at] + piece + text[at + rng.choice((0, length)) :]
    return text[:200_000]


def slots(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place in a JSON value: container and key."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from slots(value[key])


def hostile(rng: random.Random) -> Any:
    return json.loads(json.dumps(rng.choice(HOSTILE_VALUES)))  # a fresh one: it may be mutated further


def mutate_json(value: Any, rng: random.Random) -> Any:
    value = json.loads(json.dumps(value))
    for _ in range(rng.randint(1, 5)):
        places = list(slots(value))
        if not places:
            return hostile(rng)
        container, key = rng.choice(places)
        other, source = rng.choice(places)
        draw = rng.random()
        if draw < 0.15 and isinstance(container, dict):
            del container[key]
        elif draw < 0.3:
            container[key] = json.loads(json.dumps(other.get(source) if isinstance(other, dict) else other[source]))
        elif draw < 0.4 and isinstance(container, dict):
            container[rng.choice(("", key + "x", key.upper(), "model_type"))] = hostile(rng)
        else:
            container[key] = hostile(rng)
    return value


def dump(value: Any, rng: random.Random) -> bytes:
    text = json.dumps(value)
    if rng.random() < 0.05:
        text = mutate_text(text, rng)
    content = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.03:
        content = content[: rng.randrange(len(content) + 1)] + bytes([rng.randrange(256)])
    return content


def make_spec(rng: random.Random) -> dict[str, Any]:
    spec = dict(rng.choice(SPECS))
    return spec if rng.random() < 0.2 else mutate_json(spec, rng)


def make_config(rng: random.Random, *, heads: float) -> Any:
    """Return a config.json: of a head with the probability `heads`, else of a known model; most are mutated."""
    config = rng.choice(HEADS) if rng.random() < heads else dict(rng.choice(read_models()).config)
    return config if rng.random() < 0.3 else mutate_json(config, rng)


def make_text(seeds: tuple[str, ...], rng: random.Random) -> Input:
    text = rng.choice(seeds).replace("SPEC", json.dumps(rng.choice(SPECS)))
    return {"text": mutate_text(text, rng).encode("utf-8", "replace")}


def make_setup(rng: random.Random) -> Input:
    return {
        "spec.json": dump(make_spec(rng), rng),
        "target/config.json": dump(make_config(rng, heads=0.05), rng),
        "drafter/config.json": dump(make_config(rng, heads=0.7), rng),
    }


def make_checkpoint(rng: random.Random) -> Input:
    tokenizer = {
        "model": {"type": "BPE", "vocab": {f"t{n}": n for n in range(20)}, "merges": [["t1", "t2"], "t3 t4"]},
        "added_tokens": [{"id": 20, "content": "<eos>", "special": True}],
    }
    files: dict[str, bytes] = {}
    for part in ("target", "drafter"):
        header = {
            name: {"dtype": "BF16", "shape": [8, 8], "data_offsets": [128 * n, 128 * (n + 1)]}
            for n, name in enumerate(rng.sample(TENSORS, 6))
        }
        content = dump(mutate_json(header, rng) if rng.random() < 0.3 else header, rng)
        length = len(content) if rng.random() < 0.97 else rng.choice((0, 1, 2**31, 2**63 - 1, 2**64 - 1))
        files[f"{part}/model.safetensors"] = length.to_bytes(8, "little") + content + bytes(768)
        files[f"{part}/config.json"] = dump(make_config(rng, heads=0.6 if part == "drafter" else 0.05), rng)
        files[f"{part}/tokenizer.json"] = dump(mutate_json(tokenizer, rng) if rng.random() < 0.5 else tokenizer, rng)
        if rng.random() < 0.3:
            index = {"metadata": {}, "weight_map": dict.fromkeys(header, "model.safetensors")}
            files[f"{part}/model.safetensors.index.json"] = dump(mutate_json(index, rng), rng)
        if rng.random() < 0.2:
            files[f"{part}/tokenizer_config.json"] = dump(mutate_json({"added_tokens_decoder": {"1": {}}}, rng), rng)
    return files


TENSORS = (
    "model.embed_tokens.weight", "lm_head.weight", "d2t", "t2d", "fc.weight", "model.norm.weight", "mask_hidden",
    "midlayer.hidden_norm.weight", "model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.gate_proj.weight",
    "blocks.0.0.linear.weight", "model.layers.61.eh_proj.weight", "mtp.fc.weight", "layers.0.self_attn.k_proj.weight",
)  # fmt: skip


def run_spec(folder: Path) -> None:
    check(read_spec(folder, target="Qwen/Qwen3-8B"))


def run_text(folder: Path) -> None:
    content = (folder / "text").read_bytes()
    try:
        readings = read_setups(content.decode("utf-8", "replace"))
    except InvalidSetup:
        (folder / "text.yaml").write_bytes(content)
        readings = read_setups(folder / "text.yaml")
    for reading in readings:
        check(reading.setup)


def run_config(folder: Path) -> None:
    check(read_spec(folder, target=str(folder / "target")))


def run_size(folder: Path) -> None:
    setup = read_spec(folder, target=str(folder / "target"))
    size(setup, gpu=read_gpus()[len(setup.engine_version) % len(read_gpus())])


def run_checkpoint(folder: Path) -> None:
    try:
        inspect_pair(folder / "drafter", folder / "target")
    except InvalidSetup:
        inspect_checkpoint(folder / "target")


def read_spec(folder: Path, *, target: str) -> Setup:
    """Return a setup whose release and flags follow from the spec's bytes, so that a replay meets the same ones."""
    content = (folder / "spec.json").read_bytes()
    draw = random.Random(sha256(content).digest())
    try:
        spec = json.loads(content.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        spec = dict(SPECS[0])
    if not isinstance(spec, dict):
        raise InvalidSetup.because("not-an-object", "the fuzzer made no object")
    if spec.get("model") == "drafter":
        spec["model"] = str(folder / "drafter")
    flags = {"tensor_parallel_size": 2, "enable_lora": True, "max_model_len": 4096, "async_scheduling": True}
    flags |= {"pipeline_parallel_size": 2, "quantization": "fp8", "kv_cache_dtype": "fp8", "max_num_seqs": 16}
    args = {name: value for name, value in flags.items() if draw.random() < 0.15}
    version = str(draw.choice(releases()))
    return Setup(target=target, engine="vllm", engine_version=version, spec=SpecConfig.keep(spec), args=args)


@dataclass(frozen=True, slots=True)
class Parser:
    """One way in."""

    make: Callable[[random.Random], Input]
    run: Callable[[Path], None]


PARSERS: Mapping[str, Parser] = {
    "spec": Parser(lambda rng: {"spec.json": dump(make_spec(rng), rng)}, run_spec),
    "command_line": Parser(lambda rng: make_text(COMMANDS, rng), run_text),
    "yaml": Parser(lambda rng: make_text(MANIFESTS, rng), run_text),
    "config": Parser(make_setup, run_config),
    "size": Parser(make_setup, run_size),
    "checkpoint": Parser(make_checkpoint, run_checkpoint),
}


class Hang(BaseException):
    """The time limit of one input is over."""


@dataclass(slots=True)
class Tally:
    """What one parser has met."""

    inputs: int = 0
    refused: int = 0
    slowest_ms: float = 0.0
    faults: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Place in the code -> how often, with which message, and the first input."""


def attempt(parser: Parser, files: Input, tally: Tally) -> BaseException | None:
    """Run one input; return what went wrong, if something did."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        tally.inputs += 1
        start = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
        try:
            parser.run(folder)
        except InvalidSetup:
            tally.refused += 1
        except (Exception, Hang) as error:
            return error
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            tally.slowest_ms = max(tally.slowest_ms, (time.perf_counter() - start) * 1000)
    return None


def place_of(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/draftwise/" in frame.filename]
    last = frames[-1] if frames else traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} {last.filename.rpartition('/draftwise/')[2]}:{last.lineno} {last.name}"


def keep(files: Input, folder: Path) -> str:
    digest = sha256(b"".join(files[name] for name in sorted(files))).hexdigest()[:12]
    for path, content in files.items():
        target = folder / digest / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return digest


def fuzz(names: list[str], minutes: float, seed: int, crashes: Path) -> dict[str, Tally]:
    rng = random.Random(seed)
    tallies = {name: Tally() for name in names}
    end = time.monotonic() + minutes * 60
    shown = time.monotonic()
    while time.monotonic() < end:
        for name in names:
            files = PARSERS[name].make(rng)
            error = attempt(PARSERS[name], files, tallies[name])
            if error is not None:
                fault = tallies[name].faults.setdefault(place_of(error), {"count": 0, "message": str(error)[:120]})
                fault["count"] += 1
                fault["input"] = fault.get("input") or keep(files, crashes)
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            print(f"{(end - shown) / 60:6.1f} min left  {progress(tallies)}", flush=True)
    return tallies


def progress(tallies: Mapping[str, Tally]) -> str:
    return "  ".join(f"{name} {tally.inputs} ({len(tally.faults)})" for name, tally in tallies.items())


def report(tallies: Mapping[str, Tally], minutes: float, seed: int) -> dict[str, Any]:
    return {
        "draftwise": __version__,
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "minutes": minutes,
        "seed": seed,
        "limit_s": LIMIT_S,
        "parsers": {
            name: {
                "inputs": tally.inputs,
                "refused": tally.refused,
                "slowest_ms": round(tally.slowest_ms, 1),
                "faults": dict(sorted(tally.faults.items())),
            }
            for name, tally in tallies.items()
        },
    }


def replay(folder: Path, names: list[str]) -> None:
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for name in names:
        with TemporaryDirectory() as temporary:
            for path, content in files.items():
                (Path(temporary) / path).parent.mkdir(parents=True, exist_ok=True)
                (Path(temporary) / path).write_bytes(content)
            try:
                PARSERS[name].run(Path(temporary))
            except InvalidSetup as error:
                print(f"{name}: refused: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=PARSERS, default=list(PARSERS))
    parser.add_argument("--crashes", type=Path, default=Path("crashes"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--replay", type=Path, help="run one kept input again, with its traceback")
    options = parser.parse_args()
    if options.replay:
        if not options.replay.is_dir():
            parser.error(f"there is no folder {options.replay}")
        replay(options.replay, options.only)
        return

    def stop(*_: object) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    tallies = fuzz(options.only, options.minutes, options.seed, options.crashes)
    text = json.dumps(report(tallies, options.minutes, options.seed), indent=1) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    sys.exit(any(tally.faults for tally in tallies.values()))


if __name__ == "__main__":
    main()
