"""The embedded engine's side of versus_vllm.py, and what is looked at in it alone.

    python benchmarks/h200/our_side.py rows --case eagle3-k3 --batch 1 8 --out rows.json
    python benchmarks/h200/our_side.py profile --case plain eagle3-k3 --batch 1 32 --out profile.json
    python benchmarks/h200/our_side.py http --case plain eagle3-k3 --streams 1 8 32 --out http.json

`profile` says where a steady step's time goes on the device: kernels by time, how many there are, and how long nothing
runs. `http` compares tokens/s through `draftwise serve` with the same engine driven in process. Weights are dummies in
the shapes of shapes.py. `peer` obeys versus_vllm.py.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import random
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch
from cases import CASES, Case, prompts, settings_for, spec_config
from clock import News, first_tokens_s, median_row, run, steady_row
from floors import kv_bytes_for
from peer import obey
from shapes import SCALES, Folders, Scale, write_folders

from draftwise import SamplingParams, __version__
from draftwise.core import SpecConfig
from draftwise.engine.config import EngineConfig
from draftwise.engine.core import Engine, Pending, Request


class OurFrontend:
    """The engine, stepped by hand in this process."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._pending: Pending = ()

    def add(self, request_id: str, prompt: list[int], max_tokens: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        self.engine.add(Request(request_id=request_id, prompt_token_ids=prompt, params=params))

    def step(self) -> list[News]:
        self._pending, deltas = self.engine.step(self._pending)
        return [(d.request_id, len(d.token_ids), d.finish_reason is not None) for d in deltas]


class Side:
    """One engine at a time, opened for a case and asked for rows."""

    def __init__(self, scale: Scale, folders: Folders, *, device: str, synthetic: bool = True) -> None:
        self._scale, self._folders, self._device, self._synthetic = scale, folders, device, synthetic
        self._rng = random.Random(7)
        self.case: Case
        self.frontend: OurFrontend | None = None

    def open(self, *, case: str, max_num_seqs: int, kv_bytes: int | None = None, **other: Any) -> dict[str, Any]:
        """Start an engine in place of the last one and return what it decided; without kv_bytes it takes its share."""
        self.close()
        start, left_bytes = time.perf_counter(), torch.cuda.memory_reserved() if self._device == "cuda" else 0
        self.case = CASES[case]
        settings = settings_for(self._scale, self._folders, self._device, max_num_seqs=max_num_seqs, **other)
        config = EngineConfig.from_settings(kv_cache_memory_bytes=kv_bytes, **settings)
        spec = spec_config(self.case, self._folders, synthetic=self._synthetic)
        engine = Engine(config, None if spec is None else SpecConfig.parse(json.dumps(spec)))
        self.frontend = OurFrontend(engine)
        return {
            "version": __version__,
            "ready_s": round(time.perf_counter() - start, 2),
            "left_by_the_last_bytes": left_bytes,
            "max_num_batched_tokens": config.max_num_batched_tokens,
            "kv_tokens": engine.num_pages * config.block_size,
            "findings": [str(each) for each in engine.findings],
        }

    def close(self) -> dict[str, Any]:
        """Let go of the engine and its memory."""
        self.frontend = None
        gc.collect()
        if self._device == "cuda":
            torch.cuda.empty_cache()
        return {}

    def row(self, *, batch: int, output_tokens: int, warm_tokens: int, repeats: int) -> dict[str, Any]:
        """Return the row of a batch size."""
        first = time.perf_counter()
        self._run(batch, warm_tokens)  # the first of a batch size captures its graphs
        warm_s = time.perf_counter() - first
        runs = [self._run(batch, output_tokens) for _ in range(repeats)]
        row = median_row([steady_row(start, steps, batch) for start, steps in runs], batch)
        return row | {"warm_s": round(warm_s, 2)}

    def first(self, *, batch: int, output_tokens: int, repeats: int) -> dict[str, Any]:
        """Return the times until all of a batch had their first token."""
        self._run(batch, output_tokens)
        runs = [self._run(batch, output_tokens) for _ in range(repeats)]
        return {"first_ms": [round(1e3 * first_tokens_s(*each, batch), 3) for each in runs]}

    def floor(self, *, batches: dict[str, list[int]]) -> dict[str, Any]:
        """Return the copy bandwidth and the time of each step's matrix products."""
        from floor_times import copy_bytes_per_s, product_chains_ms

        self.close()
        found = {"copy_bytes_per_s": round(copy_bytes_per_s()), "device": torch.cuda.get_device_name()}
        found |= {"chains": list(product_chains_ms(self._scale, batches))}
        self.close()
        return found

    def transformers(self, *, output_tokens: int, static: bool) -> dict[str, Any]:
        """Return what transformers' `generate()` takes at batch 1."""
        from transformers_generate import generate_ms

        self.close()
        found = generate_ms(self._folders.target, self._scale, output_tokens, device=self._device, static=static)
        self.close()
        return found

    def about(self) -> dict[str, Any]:
        """Return versions."""
        import triton

        return {"torch": torch.__version__, "triton": triton.__version__, "draftwise": __version__}

    def new_prompts(self, batch: int) -> list[list[int]]:
        """Return fresh prompts for the open case."""
        return prompts(self.case, self._scale, batch, self._rng)

    def _run(self, batch: int, output_tokens: int) -> Any:
        assert self.frontend is not None, "open comes first"
        return run(self.frontend, self.new_prompts(batch), output_tokens)


def measure_rows(side: Side, args: argparse.Namespace, scale: Scale) -> dict[str, Any]:
    """Measure cases alone, without vLLM beside them; print each row."""
    rows = []
    output, most = args.output_tokens or scale.output_tokens, max(args.batch)
    for name in args.case:
        opened = side.open(case=name, max_num_seqs=most, kv_bytes=kv_bytes_for(CASES[name], scale, most, output))
        for batch in args.batch:
            row = side.row(batch=batch, output_tokens=output, warm_tokens=min(32, output), repeats=args.repeats)
            rows.append({"engine": "draftwise", "case": name, "batch": batch} | row | {"ready_s": opened["ready_s"]})
            print(json.dumps(rows[-1]), flush=True)
            write(args.out, {"rows": rows})
    return {"rows": rows}


def measure_profile(side: Side, args: argparse.Namespace, scale: Scale) -> dict[str, Any]:
    """Profile cases at batch sizes; print a table each."""
    from profile_steps import as_table, profile_steps

    found, most = [], max(args.batch)
    for name in args.case:
        room = scale.output_tokens
        side.open(case=name, max_num_seqs=most, kv_bytes=kv_bytes_for(CASES[name], scale, most, room))
        for batch in args.batch:
            assert side.frontend is not None
            side.row(batch=batch, output_tokens=room // 2, warm_tokens=min(32, room // 2), repeats=1)
            profile = profile_steps(side.frontend, side.new_prompts(batch), room, num_steps=args.steps)
            found.append({"case": name, "batch": batch} | profile)
            print(f"\n{name}, batch {batch}\n{as_table(profile)}", flush=True)
            write(args.out, {"profiles": found})
    return {"profiles": found}


def measure_http(side: Side, args: argparse.Namespace, scale: Scale) -> dict[str, Any]:
    """Compare streams over HTTP with the same batch in process; print a line each."""
    from http_streams import compare

    rows = []
    for row in compare(side, args.case, args.streams, scale, args.folders / args.scale, device=args.device):
        rows.append(row)
        print(json.dumps(row), flush=True)
        write(args.out, {"rows": rows})
    return {"rows": rows}


def obey_parent(side: Side, _args: argparse.Namespace, _scale: Scale) -> dict[str, Any]:
    """Serve versus_vllm.py."""
    names = ("open", "close", "row", "first", "floor", "transformers", "about")
    obey({name: getattr(side, name) for name in names})
    return {}


def write(path: Path | None, result: dict[str, Any]) -> None:
    """Write a result with its provenance, if there is one and it is wanted."""
    if path is None or not result:
        return
    about = {"date": date.today().isoformat(), "command": " ".join(["python", *sys.argv])}
    about |= {"draftwise": __version__, "torch": torch.__version__}
    about |= {"device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(about | result, indent=1) + "\n")


MODES = {"rows": measure_rows, "profile": measure_profile, "http": measure_http, "peer": obey_parent}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--case", nargs="+", choices=CASES, default=["plain"])
    parser.add_argument("--batch", nargs="+", type=int, default=[1])
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 8, 32], help="of http")
    parser.add_argument("--steps", type=int, default=20, help="of profile")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--output-tokens", type=int)
    parser.add_argument("--scale", choices=SCALES, default="8b")
    parser.add_argument("--folders", type=Path, default=Path("/dev/shm/draftwise-bench"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--acceptance", choices=("synthetic", "real"), default="synthetic")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    scale = SCALES[args.scale]
    folders = write_folders(args.folders / args.scale, scale)
    side = Side(scale, folders, device=args.device, synthetic=args.acceptance == "synthetic")
    write(args.out, MODES[args.mode](side, args, scale))


if __name__ == "__main__":
    main()
