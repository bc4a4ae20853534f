"""Do the pods of `draftwise deploy --to leaderworkerset` make one server? Their commands, run by real vLLM for CPU.

    python benchmarks/interop/two_hosts.py --vllm ~/vllm/bin/vllm --out benchmarks/interop/results/two_hosts.json

For each way to spread a server over two hosts: both containers of `spec.yaml` and of `plain.yaml` are started as
processes of this machine, with what the controller of LeaderWorkerSets puts into their environment filled in as
Kubernetes does. Both groups answer the same prompts, and the words have to be the same, as the counters have to show
drafts. Nothing is measured, and no network lies between the hosts.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import yaml

sys.path.append(str(Path(__file__).parents[1] / "h200"))

from http_load import Server
from record import command_line

from draftwise import __version__
from draftwise.core import Device, Setup, SpecConfig
from draftwise.deploying import deploy, make_order

BUNDLE = Path(__file__).parents[2] / "bundle"
START_S = 180
WAYS: Mapping[str, Mapping[str, int]] = {
    "tensor parallel": {"tensor_parallel_size": 2},
    "data parallel": {"data_parallel_size": 2},
}
METHODS: Mapping[str, Mapping[str, Any]] = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3},
    "eagle3": {"method": "eagle3", "num_speculative_tokens": 3, "model": str(BUNDLE / "eagle3")},
}
SERVE = {"max_model_len": 512, "max_num_seqs": 4, "enforce_eager": True, "dtype": "float32"}
PROMPTS = ("def add(a, b):\n", "import json\n\n\ndef load(path):\n", "class Stack:\n    def push(self, item):\n")
PLACES = {"LWS_LEADER_ADDRESS": "localhost", "LWS_GROUP_SIZE": "2", "POD_IP": "127.0.0.1"}
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "OMP_NUM_THREADS": "1",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", required=True, type=command_line, help="the command of a vLLM for CPU up to `serve`")
    parser.add_argument("--release", default="0.32.0", help="of that vLLM")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rows = []
    for way, sizes in WAYS.items():
        for method, spec in METHODS.items():
            rows.append({"way": way, "method": method} | try_one(args, sizes, SpecConfig.parse(json.dumps(spec))))
            print(rows[-1], flush=True)
            about = {"date": datetime.now(UTC).date().isoformat(), "vllm": args.release}
            args.out.write_text(json.dumps(about | {"draftwise": __version__, "rows": rows}, indent=1) + "\n")
    sys.exit(not all(row["equal"] and row["drafts"] for row in rows))


def try_one(args: argparse.Namespace, sizes: Mapping[str, int], spec: SpecConfig) -> dict[str, Any]:
    """Return what both groups of a setup answer."""
    gpu = Device(name="GPU", kind="cuda")
    flags = {"nnodes": 2, **sizes, **SERVE}
    target = str(BUNDLE / "target")
    setup = Setup(target=target, engine="vllm", engine_version=args.release, device=gpu, spec=spec, args=flags)
    files = deploy(make_order(setup), "leaderworkerset").files
    answers, drafts, ready_s = [], 0.0, []
    for side in ("spec", "plain"):
        with start_group(args.vllm, files[f"{side}.yaml"]) as (server, seconds):
            ready_s.append(round(seconds, 1))
            answers.append([ask(server.port, target, prompt) for prompt in PROMPTS])
            drafts += count_drafts(server.port)
    return {"equal": answers[0] == answers[1], "answers": len(PROMPTS), "drafts": drafts, "ready_s": ready_s}


@contextmanager
def start_group(vllm: str, manifest: str) -> Iterator[tuple[Server, float]]:
    """Start both pods of a group; end them with the block. Yields the first one, and the seconds until it answers."""
    template = next(yaml.safe_load_all(manifest))["spec"]["leaderWorkerTemplate"]
    with ExitStack() as ends:
        logs = Path(ends.enter_context(TemporaryDirectory()))
        pods = []
        for index, role in enumerate(("leader", "worker")):
            (container,) = template[f"{role}Template"]["spec"]["containers"]
            words = [*container["command"], *container["args"]]
            command = [vllm, *(fill_in(word, {**PLACES, "LWS_WORKER_INDEX": str(index)}) for word in words[1:])]
            pods.append(ends.enter_context(Server(command, logs / role, ENVIRONMENT)))
        yield pods[0], pods[0].wait(START_S)


def fill_in(word: str, variables: Mapping[str, str]) -> str:
    """Return an argument as Kubernetes hands it over: `$(NAME)` replaced where there is such a variable."""
    return re.sub(r"\$\((\w+)\)", lambda found: variables.get(found[1], found[0]), word)


def ask(port: int, model: str, prompt: str) -> str:
    body = {"model": model, "prompt": prompt, "max_tokens": 32, "temperature": 0}
    answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, trust_env=False, timeout=60)
    text: str = answer.raise_for_status().json()["choices"][0]["text"]
    return text


def count_drafts(port: int) -> float:
    metrics = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False, timeout=10).text
    return sum(float(value) for value in re.findall(r"^vllm:spec_decode_num_drafts_total\{.*\} (\S+)$", metrics, re.M))


if __name__ == "__main__":
    main()
