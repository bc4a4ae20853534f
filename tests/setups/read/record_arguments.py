"""Writes vllm_arguments_<release>.json: what the argument parser of an installed vLLM makes of random command lines.

Run with the Python that has vLLM: `python tests/setups/read/record_arguments.py FLAGS_JSON OUT_JSON`, where FLAGS_JSON
holds the `flags` table of that release (`json.dumps(dict(get_release(...).table("flags")))`).
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import sys
from typing import Any

_LIKELY = (
    "--tensor-parallel-size", "--max-model-len", "--speculative-config", "--gpu-memory-utilization", "--model",
    "--enforce-eager", "--enable-prefix-caching", "--max-num-seqs", "--dtype", "--served-model-name", "--spec-method",
    "--spec-tokens", "--kv-cache-dtype", "--max-num-batched-tokens", "--enable-lora", "--trust-remote-code", "--port",
    "--seed", "--disable-log-stats", "--async-scheduling", "--attention-backend", "--hf-overrides",
    "--pipeline-parallel-size",
)  # fmt: skip
_LEFT_OUT = (
    "--lora-modules", "--limit-mm-per-prompt", "--pt-load-map-location", "--hf-token", "--api-key", "--device-ids",
)  # fmt: skip
"""Flags with parsers of their own, which say nothing about speculation."""
_TEXTS = ["1", "2", "0", "-1", "8k", "8K", "2.5k", "1.5", "0.9", "abc", "a/b", "None", "true", "1e3", "16G", "auto"]
_JSON = (
    '{"method": "ngram", "num_speculative_tokens": 5}', '{"method":"eagle","model":"a/b"}', "{'method': 'ngram'}",
    "{method: ngram}", "[1]", "3", "None", '{"a": {"b": [1, 2.5, null, true]}}', '{"method": "ngram",}', "{}",
)  # fmt: skip
_STRAY = (
    "extra",
    "--speculative-model",
    "-x",
    "--",
    "-1",
    "-O2",
    "-O",
    "-tp4",
    "--tensor-paralel-size",
    "-sc.method=x",
)


def spell(name: str, rng: random.Random) -> str:
    draw = rng.random()
    if name.startswith("--") and draw < 0.15:
        return "--" + name[2:].replace("-", "_")
    return name[: rng.randint(4, len(name))] if name.startswith("--") and draw < 0.25 else name


def value(row: dict[str, Any], rng: random.Random) -> str:
    if row.get("choices") and rng.random() < 0.8:
        return str(rng.choice(row["choices"]))
    return rng.choice(_JSON if row["kind"] == "json" else _TEXTS)


def flag(name: str, row: dict[str, Any], rng: random.Random) -> list[str]:
    written = spell(rng.choice([name, *row["aliases"], *([row["negation"]] if "negation" in row else [])]), rng)
    if name == "--speculative-config" and rng.random() < 0.4:
        key = rng.choice(["method", "num_speculative_tokens", "a.b", "l+"])
        text = rng.choice(["ngram", "5", "8k", "1,2"])
        return [f"{written}.{key}={text}"] if rng.random() < 0.5 else [f"{written}.{key}", text]
    if row["kind"] == "switch":
        return [written if rng.random() < 0.9 else f"{written}=true"]
    if row["kind"] == "list":
        return [written, *(value(row, rng) for _ in range(rng.randint(1, 2)))]
    draw = rng.random()
    text = value(row, rng)
    return [written] if draw < 0.05 else [f"{written}={text}"] if draw < 0.5 else [written, text]


def command_line(flags: dict[str, Any], rng: random.Random) -> list[str]:
    words = [rng.choice(["m", "org/model", "./path"])] if rng.random() < 0.75 else []
    for _ in range(rng.randint(0, 4)):
        name = rng.choice(_LIKELY) if rng.random() < 0.75 else rng.choice(sorted(flags))
        is_plain = not name.endswith("-config") or name == "--speculative-config"
        if name in flags and name not in _LEFT_OUT and is_plain:
            words += flag(name, flags[name], rng)
    if rng.random() < 0.06:
        words.insert(rng.randint(0, len(words)), rng.choice(_STRAY))
    return words


def plain(item: Any) -> Any:
    try:
        return json.loads(json.dumps(item))
    except (TypeError, ValueError):
        return None


def main(flags_path: str, out_path: str, count: int = 400) -> None:
    import vllm
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm")
    ServeSubcommand().subparser_init(parser.add_subparsers(dest="subparser"))
    defaults = vars(parser.parse_args(["serve", "m"]))
    with open(flags_path, encoding="utf-8") as file:
        flags = json.load(file)
    rng, cases = random.Random(0), []
    for _ in range(count):
        words = command_line(flags, rng)
        case: dict[str, Any] = {"argv": words}
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                found = vars(parser.parse_args(["serve", *words]))
            case["values"] = {
                key: plain(each)
                for key, each in found.items()
                if key not in ("dispatch_function", "subparser") and plain(each) != plain(defaults.get(key))
            }
        except SystemExit:
            case["error"] = "SystemExit"
        except ValueError as error:
            case["error"] = type(error).__name__
        cases.append(json.dumps(case, ensure_ascii=False))
    with open(out_path, "w", encoding="utf-8") as file:
        file.write('{"vllm": ' + json.dumps(vllm.__version__) + ', "cases": [\n' + ",\n".join(cases) + "\n]}\n")


if __name__ == "__main__":
    main(*sys.argv[1:3])
