"""A drafter trained on states that real vLLM streams, beside one trained on the target's own: are they equal?

    python benchmarks/interop/served_states.py --vllm VLLM --out benchmarks/interop/results/served_states.json

vLLM for CPU serves the bundled target with the method `extract_hidden_states`; `draftwise train eagle3` learns texts of
this repository twice, once with `--hidden-states URL`, in float32. The exit code is 1 when the trained weights differ
by more than rounding, or when files of hidden states are left.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import torch
from safetensors.torch import load_file

from draftwise import __version__
from draftwise.training.progress import Reporter
from draftwise.training.run_settings import TrainSettings
from draftwise.training.training_run import train

sys.path.append(str(Path(__file__).parents[1] / "h200"))

from record import command_line

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TARGET = ROOT / "bundle/target"
AUX_LAYERS = (2, 4, 7)
LAST = 8
SERVE = "--host 127.0.0.1 --enforce-eager --dtype float32 --kv-cache-memory-bytes 134217728 --max-model-len 512"
CONNECTOR = "cpu_states_connector"
MOST_DIFFERENCE = 1e-2
"""Of a matrix of the drafter, relative to its size, after all steps."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--vllm", type=command_line, required=True, help="command of a vLLM 0.32 for CPU, up to `serve`"
    )
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        states = folder / "states"
        texts = "\n\n".join(file.read_text() for file in sorted((ROOT / "docs").glob("*.md")))
        (folder / "docs.txt").write_text(texts[:40_000])
        own = TrainSettings(
            target=str(TARGET),
            data=(str(folder / "docs.txt"),),
            out=str(folder / "own"),
            options={"target_layers": AUX_LAYERS, "num_speculative_tokens": 3, "intermediate_size": 512},
            answers="given",
            max_length=256,
            heldout=0.05,
            heldout_tokens=1024,
            steps=args.steps,
            batch_tokens=1024,
            device="cpu",
        )
        seconds = {"own": timed(own)}
        url, server = start(args.vllm, states, folder / "vllm.log")
        vllm = httpx.get(f"{url}/version", trust_env=False).json()["version"]
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the server must not outlive this process
        try:
            seconds["served"] = timed(replace(own, out=str(folder / "served"), hidden_states=url))
        finally:
            server.terminate()
            server.wait(60)
        left = len([*states.glob("*")]) if states.exists() else 0
        differences = compare(folder / "own", folder / "served")
    worst = max(differences.values())
    report = {
        "date": date.today().isoformat(),
        "command": f"python benchmarks/interop/served_states.py --vllm VLLM --steps {args.steps}",
        "versions": {
            "draftwise": __version__,
            "vllm": vllm,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "target": "bundle/target",
        "layers": [*AUX_LAYERS, LAST],
        "steps": args.steps,
        "seconds": {name: round(each, 1) for name, each in seconds.items()},
        "largest_difference": {name: round(each, 6) for name, each in differences.items()},
        "files_left": left,
    }
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    sys.exit(bool(left or worst > MOST_DIFFERENCE))


def timed(settings: TrainSettings) -> float:
    """Train; return the seconds that it took, loading and held-out evaluation included."""
    started = time.monotonic()
    train("eagle3", settings, Reporter())
    return time.monotonic() - started


def start(vllm: str, states: Path, log: Path) -> tuple[str, subprocess.Popen[bytes]]:
    """Start the server; return its URL and process once it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    layers = {"hf_config": {"eagle_aux_hidden_state_layer_ids": [*AUX_LAYERS, LAST]}}
    spec = {"method": "extract_hidden_states", "num_speculative_tokens": 1, "draft_model_config": layers}
    transfer: dict[str, Any] = {"kv_connector": "CpuStatesConnector", "kv_connector_module_path": CONNECTOR}
    transfer |= {"kv_role": "kv_producer", "kv_connector_extra_config": {"shared_storage_path": str(states)}}
    command = [*shlex.split(vllm), "serve", str(TARGET), *SERVE.split(), "--port", str(port)]
    command += ["--speculative-config", json.dumps(spec), "--kv-transfer-config", json.dumps(transfer)]
    # vLLM's own environment: of this project's paths it sees the connector's alone.
    environment = os.environ | {"PYTHONPATH": str(HERE), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
    url = f"http://127.0.0.1:{port}"
    while process.poll() is None:
        try:
            if httpx.get(f"{url}/health", trust_env=False).is_success:
                return url, process
        except httpx.HTTPError:
            time.sleep(0.5)
    sys.exit(f"vLLM ended with {process.returncode}:\n{log.read_text()[-4000:]}")


def compare(own: Path, served: Path) -> dict[str, float]:
    """Return for each tensor how far the two drafters are apart, relative to its size."""
    one, other = (load_file(folder / "model.safetensors") for folder in (own, served))
    floats = {name: each.float() for name, each in one.items() if each.is_floating_point()}
    return {name: float((other[name].float() - each).norm() / each.norm()) for name, each in floats.items()}


if __name__ == "__main__":
    main()
