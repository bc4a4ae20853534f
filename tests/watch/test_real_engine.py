"""The embedded engine watched and probed: what it does, and that a disturbed drafter is seen."""

import asyncio
import json
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from draftwise.backends import EmbeddedBackend
from draftwise.cli import main
from draftwise.core import Setup, SpecConfig
from draftwise.measure.probe import load_probe

pytestmark = pytest.mark.engine

BUNDLE = Path(__file__).parents[2] / "bundle"
NOISE = 0.08
"""Standard deviation of what every weight is multiplied with, around 1: tokens per step fall by 2 %."""


def disturb(head: Path, out: Path) -> Path:
    """Copy a drafter, every matrix a little off."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(head, out)
    torch.manual_seed(0)
    for file in out.glob("*.safetensors"):
        tensors = load_file(file)
        noisy = {
            name: (each * (1 + NOISE * torch.randn(each.shape))).to(each.dtype)
            if each.is_floating_point() and each.dim() == 2
            else each
            for name, each in tensors.items()
        }
        save_file(noisy, file)
    return out


def with_server(tmp_path: Path, head: Path, do: Callable[[str], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        spec = SpecConfig(method="eagle3", num_speculative_tokens=3, model=str(head))
        backend = EmbeddedBackend("arm", Setup(target=str(BUNDLE / "target"), spec=spec), log=tmp_path / "arm.log")
        try:
            await backend.start()
            await do(backend.url)
        finally:
            await backend.stop()

    asyncio.run(run())


def watch(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["watch", *map(str, arguments)])


def verify(url: str, head: Path, baseline: Path) -> set[str]:
    """Return the errors of `draftwise verify`, but for the one that the embedded engine is no release of vLLM."""
    setup = baseline.parent / "setup.json"
    spec = {"method": "eagle3", "model": str(head), "num_speculative_tokens": 3}
    target = str(BUNDLE / "target")
    setup.write_text(json.dumps({"target": target, "engine_version": "0.26.0", "speculative_config": spec, "args": {}}))
    words = ["verify", url, "--setup", str(setup), "--baseline", str(baseline), "--prompts", "12", "--json"]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    findings = [each for row in json.loads(done.stdout) for each in row["findings"] if each["severity"] == "error"]
    return {each["code"] for each in findings if not each["message"].startswith("Release ")}


def test_its_window_is_what_it_counted(tmp_path: Path) -> None:
    async def keep_busy(url: str, done: asyncio.Event) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            model = (await client.get("/v1/models")).json()["data"][0]["id"]
            body = {"model": model, "prompt": "def add(a, b):", "max_tokens": 40, "temperature": 0}
            while not done.is_set():
                (await client.post("/v1/completions", json=body)).raise_for_status()

    async def look(url: str) -> None:
        done = asyncio.Event()
        busy = asyncio.create_task(keep_busy(url, done))
        seen = await asyncio.to_thread(watch, url, "--once", "--interval", "4", "--json")
        done.set()
        await busy
        assert seen.exit_code == 0, seen.output
        (pool,) = json.loads(seen.stdout)["pools"]
        assert pool["counts_drafts"] is True
        assert pool["tokens_per_step"] == pytest.approx(1 + pool["coverage"] * (pool["acceptance_length"] - 1))
        assert 1 < pool["tokens_per_step"] <= 4
        assert pool["rate_per_pos"] == sorted(pool["rate_per_pos"], reverse=True)
        assert pool["step_s"] > pool["seconds_per_token"] > 0

    with_server(tmp_path, BUNDLE / "eagle3", look)


def test_a_disturbed_drafter_is_told_from_a_good_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwise.cli._probing.load_probe", lambda number: load_probe(12))
    monkeypatch.setattr("draftwise.cli._probing._REPEATS", 2)
    baseline = tmp_path / "baseline.json"

    async def record(url: str) -> None:
        done = await asyncio.to_thread(watch, url, "--record-baseline", baseline, "--interval", "0.2")
        assert done.exit_code == 0, done.output
        again = await asyncio.to_thread(
            watch, url, "--baseline", baseline, "--probe", "--once", "--interval", "0.2", "--json"
        )
        assert again.exit_code == 0, again.output
        printed = json.loads(again.stdout)
        assert [finding["code"] for finding in printed["findings"]] == ["no-traffic", "probe-same"]
        assert await asyncio.to_thread(verify, url, BUNDLE / "eagle3", baseline) == set()

    async def probe(url: str) -> None:
        done = await asyncio.to_thread(watch, url, "--baseline", baseline, "--probe", "--once", "--interval", "0.2")
        assert done.exit_code == 1, done.output
        assert "probe-differs" in done.output
        assert await asyncio.to_thread(verify, url, tmp_path / "eagle3", baseline) == {"probe-differs"}

    with_server(tmp_path, BUNDLE / "eagle3", record)
    with_server(tmp_path, disturb(BUNDLE / "eagle3", tmp_path / "eagle3"), probe)
