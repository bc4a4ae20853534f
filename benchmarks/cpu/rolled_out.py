"""A server of real weights is replaced under load: what does `draftwise watch --since-rollout --probe` say of it?

    python benchmarks/cpu/rolled_out.py --prometheus PROMETHEUS [--vllm VLLM]

PROMETHEUS is the program (`ci/platform/service.sh FOLDER` unpacks Debian's); it scrapes one address. The good server
there is probed and watched, then another takes its place: one of the same weights, or of a head whose every weight is
disturbed by 15 %. The operator's files say that only the release changed, so that what `upgrade` says of the step is
told beside what was seen. Without --vllm the embedded engine serves, which is of no release.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import torch
from guarded_service import free_port
from real_diagnoses import STREAMS, Lab, traffic

sys.path.append(str(Path(__file__).parents[1] / "h200"))

from record import command_line

from draftwise import __version__
from draftwise.core import SpecConfig
from draftwise.machine.cores import cpu_name

RESULTS = Path(__file__).parent / "results" / "rolled_out.json"
CPU_FLAGS = "--enforce-eager --dtype float32 --kv-cache-memory-bytes 134217728 --max-model-len 2048"
SCRAPE_S, SPAN_S = 5, 30.0
READY_S = 300
RELEASES = ("0.20.0", "0.26.0")
JUDGED = frozenset({"probe-same", "probe-differs", "after-upgrade", "drafter-changed", "drafter-noise"})
"""Codes of what is judged; the others are what `upgrade` says of the step, and notes."""

NOISED = "a noised head"
CASES = {
    "the same weights": frozenset({"probe-same"}),
    NOISED: frozenset({"after-upgrade", "drafter-changed"}),
}
"""What is rolled out, and the codes of which one must be named first."""


@asynccontextmanager
async def running(command: Sequence[object], ready: str, log: Path) -> AsyncIterator[None]:
    """Run a program for as long as this is entered, from when it answers at a URL."""
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(*map(str, command), stdout=out, stderr=out)
    try:
        async with asyncio.timeout(READY_S), httpx.AsyncClient() as client:
            while True:
                with suppress(httpx.HTTPError):
                    if (await client.get(ready)).is_success:
                        break
                if process.returncode is not None:
                    raise RuntimeError(log.read_text()[-2000:])
                await asyncio.sleep(0.2)
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


class Service:
    """An address at which servers replace each other, and the Prometheus that scrapes it.

    Args:
        lab: for weights and requests.
        vllm: command of vLLM, up to `serve`; empty for the embedded engine.
    """

    def __init__(self, lab: Lab, vllm: str) -> None:
        self.lab, self._vllm = lab, vllm
        self._port, self._recorder = free_port(), free_port()
        self.url, self.prometheus = (f"http://127.0.0.1:{port}" for port in (self._port, self._recorder))

    def record(self, program: str) -> Any:
        """Return what runs Prometheus."""
        folder, every = self.lab.folder, f"{SCRAPE_S}s"
        job = {"job_name": "llm", "static_configs": [{"targets": [f"127.0.0.1:{self._port}"]}]}
        settings = {"global": {"scrape_interval": every, "scrape_timeout": every}, "scrape_configs": [job]}
        (folder / "prometheus.yml").write_text(json.dumps(settings))
        words = [program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        words.append(f"--web.listen-address=127.0.0.1:{self._recorder}")
        return running(words, f"{self.prometheus}/-/ready", folder / "prometheus.log")

    def serve(self, spec: SpecConfig) -> Any:
        """Return what runs a server at the address."""
        begin = [*shlex.split(self._vllm), "serve"] if self._vllm else [sys.executable, "-m", "draftwise", "serve"]
        words = [*begin, self.lab.target, "--served-model-name", "target", "--host", "127.0.0.1"]
        words += ["--port", self._port, "--speculative-config", spec.to_json()]
        words += shlex.split(CPU_FLAGS) if self._vllm else []
        return running(words, f"{self.url}/health", self.lab.folder / "server.log")

    def write_setups(self) -> list[Path]:
        """Return the files of an operator who changed the release."""
        files = [self.lab.folder / f"{release}.sh" for release in RELEASES]
        words = f"--model {self.lab.target} --speculative-config {shlex.quote(self.lab.head.to_json())}"
        for file, release in zip(files, RELEASES, strict=True):
            file.write_text(f"docker run vllm/vllm-openai:v{release} {words}\n")
        return files

    async def watch(self, *arguments: object) -> dict[str, Any]:
        """Return what the command prints, with its exit code."""
        command = [sys.executable, "-m", "draftwise", "watch", *map(str, arguments), "--once", "--json"]
        process = await asyncio.create_subprocess_exec(*command, stdout=-1, stderr=-1)
        out, err = await process.communicate()
        if not out:
            raise RuntimeError(err.decode())
        return {**json.loads(out), "exit": process.returncode}


async def roll_out(service: Service, spec: SpecConfig) -> dict[str, Any]:
    """Replace the good server by another, and return what is said of it."""
    lab, baseline = service.lab, service.lab.folder / "good.json"
    async with service.serve(lab.head):
        async with traffic(service.url, lab.chat, STREAMS):
            await asyncio.sleep(SPAN_S)
        if not baseline.exists():
            async with traffic(service.url, lab.chat, STREAMS):
                recording = asyncio.create_task(
                    service.watch(service.url, "--record-baseline", baseline, "--interval", SPAN_S / 2)
                )
                await asyncio.wait([recording], timeout=SPAN_S / 2 + 5)
            await recording
    before, after = service.write_setups()
    async with service.serve(spec):
        async with traffic(service.url, lab.chat, STREAMS):
            await asyncio.sleep(SPAN_S)
        known = ("--baseline", baseline, "--setup-before", before, "--setup", after)
        recorded = ("--prometheus", service.prometheus, "--since-rollout", "last")
        return await service.watch(service.url, *recorded, "--probe", *known)


def sum_up(name: str, wanted: frozenset[str], seen: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept."""
    codes = [each["code"] for each in seen["findings"]]
    judged = next((code for code in codes if code in JUDGED), "none")
    return {
        "rolled out": name,
        "judged": judged,
        "wanted": sorted(wanted),
        "right": judged in wanted and {"rolled-out", "defaults-changed"} <= set(codes),
        "exit": seen["exit"],
        "findings": [{key: each[key] for key in ("code", "message")} for each in seen["findings"]],
        "tokens_per_step": [pool["tokens_per_step"] for pool in seen["pools"]],
    }


async def run(given: argparse.Namespace) -> None:
    """Roll each out, and write what was said."""
    torch.manual_seed(0)
    with TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            lab = Lab(Path(folder), stack)
            noised = lab.copy_head("noised", lambda each: each * (1 + 0.15 * torch.randn_like(each)))
            service = Service(lab, given.vllm or "")
            await stack.enter_async_context(service.record(given.prometheus))
            for name, wanted in CASES.items():
                if given.only in (None, name):
                    seen = await roll_out(service, noised if name == NOISED else lab.head)
                    write(given.out, "vLLM for CPU" if given.vllm else "embedded", sum_up(name, wanted, seen))


def write(out: Path, engine: str, row: dict[str, Any]) -> None:
    """Put a row into the file, in the place of the one of before."""
    print(json.dumps(row), flush=True)
    known = json.loads(out.read_text()) if out.exists() else {}
    rows = [each for each in known.get(engine, {}).get("roll-outs", []) if each["rolled out"] != row["rolled out"]]
    head = {"draftwise": __version__, "date": datetime.now(UTC).date().isoformat(), "cpu": cpu_name()}
    known[engine] = {**head, "releases": RELEASES, "scrape_s": SCRAPE_S, "span_s": SPAN_S, "roll-outs": [*rows, row]}
    out.write_text(json.dumps(known, indent=1) + "\n")


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prometheus", type=command_line, required=True, help="program")
    parser.add_argument("--only", choices=list(CASES))
    parser.add_argument("--vllm", type=command_line, help="command of a vLLM for CPU, up to `serve`")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
