"""Plain decoding on a CPU: the embedded engine beside transformers and real vLLM, interleaved in one run.

    python benchmarks/cpu/engines.py --model bundle/target --vllm-python VENV/bin/python --out results.json

Each engine lives in its own process (real vLLM in its own environment) and answers one round at a time,
so that the others are idle while one is measured; ratios are taken round by round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from provenance import provenance, write

sys.path.append(str(Path(__file__).parents[1] / "h200"))

from record import command_line, existing_path

WORKER = Path(__file__).with_name("engine_worker.py")
SHARED_SETTINGS = {"max_model_len": 1024, "new_tokens": 128}


class Peer:
    """A child process that runs one engine and answers rounds over its standard streams."""

    def __init__(self, name: str, python: str, model: str, dtype: str) -> None:
        self.name = name
        command = [python, str(WORKER), name, model, dtype, str(SHARED_SETTINGS["max_model_len"])]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = self._read()

    def run(self, prompts: list[list[int]]) -> dict[str, Any]:
        """Generate for all prompts at once; return seconds and tokens."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps({"prompts": prompts, "new_tokens": SHARED_SETTINGS["new_tokens"]}) + "\n")
        self._child.stdin.flush()
        return self._read()

    def close(self) -> None:
        """End the child."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(timeout=60)

    def _read(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.startswith("RESULT "):
                return json.loads(line.removeprefix("RESULT "))
        raise SystemExit(f"{self.name} ended early with exit code {self._child.wait()}")


def read_prompts(path: Path, model: Path, count: int) -> list[list[int]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    lines = path.read_text().splitlines()
    return [tokenizer.encode(json.loads(lines[i % len(lines)])["prompt"]).ids for i in range(count)]


def measure(peers: list[Peer], prompts: list[list[int]], rounds: int) -> dict[str, Any]:
    """Return tokens/s of each peer and the ratio of the first peer to each other one."""
    for peer in peers:
        peer.run(prompts)
    speeds: dict[str, list[float]] = {peer.name: [] for peer in peers}
    for i in range(rounds):
        for peer in peers[i % len(peers) :] + peers[: i % len(peers)]:
            answer = peer.run(prompts)
            speeds[peer.name].append(answer["tokens"] / answer["seconds"])
    ours = speeds[peers[0].name]
    return {
        "tokens_per_s": {name: round(statistics.median(values), 1) for name, values in speeds.items()},
        "ratio_to": {
            peer.name: round(statistics.median(a / b for a, b in zip(ours, speeds[peer.name], strict=True)), 3)
            for peer in peers[1:]
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=existing_path, default="bundle/target")
    parser.add_argument("--prompts", type=existing_path, default="src/draftwise/workloads/bundled/code.jsonl")
    parser.add_argument(
        "--vllm-python", type=command_line, help="python of an environment with vLLM for CPU; left out when not given"
    )
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if not args.prompts.is_file() or not args.prompts.read_text().strip():
        parser.error(f"argument --prompts: there are no prompts in {args.prompts}")
    peers = [Peer(name, sys.executable, str(args.model), args.dtype) for name in ("draftwise", "transformers")]
    if args.vllm_python:
        peers.append(Peer("vllm", args.vllm_python, str(args.model), args.dtype))
    result = {
        **provenance(),
        "command": " ".join(["python", *sys.argv]).replace(args.vllm_python or "\0", "VLLM_PYTHON"),
        "settings": SHARED_SETTINGS | {"dtype": args.dtype, "model": str(args.model), "rounds": args.rounds},
        "engines": {peer.name: peer.about for peer in peers},
        "streams": {
            str(n): measure(peers, read_prompts(args.prompts, args.model, n), args.rounds) for n in args.streams
        },
    }
    result["peak_memory_bytes"] = peers[0].run(read_prompts(args.prompts, args.model, 1))["peak_memory_bytes"]
    for peer in peers:
        peer.close()
    print(json.dumps(result, indent=1))
    write(result, args.out)


if __name__ == "__main__":
    main()
