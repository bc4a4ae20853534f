"""The embedded engine watched and probed: what it does, and that a disturbed drafter is seen."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import httpx
import pytest
from click.testing import CliRunner, Result

from draftwise.backends import EmbeddedBackend
from draftwise.cli import main
from draftwise.core import Prompt, Setup, SpecConfig, Workload

pytestmark = pytest.mark.engine

BUNDLE = Path(__file__).parents[2] / "bundle"
NOISE = 0.15
"""Standard deviation of what every weight is multiplied with, around 1: tokens per step fall by 2 %."""
LINES = (
    *("def add(a, b):", "class Stack:", "import json", "for line in file:", "The house", "Once upon a time"),
    *("with open(path) as file:", "It was", "while left <= right:", "She said", "if not items:", "On the way"),
)
PROBE = tuple(Prompt(id=line, text=line, max_tokens=12) for line in LINES)


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


@contextmanager
def serving(head: Path, log: Path) -> Iterator[str]:
    spec = SpecConfig(method="eagle3", num_speculative_tokens=3, model=str(head))
    setup = Setup(target=str(BUNDLE / "target"), spec=spec, extra_args=("--dtype", "float32"))
    backend = EmbeddedBackend("arm", setup, log=log)
    with asyncio.Runner() as runner:
        try:
            runner.run(backend.start())
            yield backend.url
        finally:
            runner.run(backend.stop())


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server with the drafter as it was trained."""
    with serving(BUNDLE / "eagle3", tmp_path_factory.mktemp("good") / "arm.log") as url:
        yield url


@pytest.fixture(autouse=True)
def _short_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = (Workload(name="lines", source="test", prompts=PROBE),)
    for module in ("verbs.probing", "measure.probe"):
        monkeypatch.setattr(f"draftwise.{module}.load_probe", lambda number: probe)
    monkeypatch.setattr("draftwise.verbs.probing._REPEATS", 2)


def watch(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["watch", *map(str, arguments)])


def verify(url: str, head: Path, baseline: Path) -> set[str]:
    """Return the errors of `draftwise verify`, but for the one that the embedded engine is no release of vLLM."""
    setup = baseline.parent / "setup.json"
    spec = {"method": "eagle3", "model": str(head), "num_speculative_tokens": 3}
    target = str(BUNDLE / "target")
    setup.write_text(json.dumps({"target": target, "engine_version": "0.26.0", "speculative_config": spec, "args": {}}))
    words = ["verify", url, "--setup", str(setup), "--baseline", str(baseline), "--json"]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    findings = [each for row in json.loads(done.stdout) for each in row["findings"] if each["severity"] == "error"]
    return {each["code"] for each in findings if not each["message"].startswith("The server runs release ")}


def test_its_window_is_what_it_counted(good: str) -> None:
    answered, done = Event(), Event()

    def keep_busy() -> None:
        with httpx.Client(base_url=good, timeout=60) as client:
            model = client.get("/v1/models").json()["data"][0]["id"]
            body = {"model": model, "prompt": "def add(a, b):", "max_tokens": 40, "temperature": 0}
            while not done.is_set():
                client.post("/v1/completions", json=body).raise_for_status()
                answered.set()

    with ThreadPoolExecutor() as pool:
        busy = pool.submit(keep_busy)
        try:
            assert answered.wait(60)
            for seconds in (1, 5, 25):  # on a busy machine a second may see too few steps to tell anything
                seen = watch(good, "--once", "--interval", seconds, "--json")
                assert seen.exit_code == 0, seen.output
                (row,) = json.loads(seen.stdout)["pools"]
                if row["step_s"] is not None:
                    break
        finally:
            done.set()
        busy.result()
    assert row["counts_drafts"] is True
    assert row["tokens_per_step"] == pytest.approx(1 + row["coverage"] * (row["acceptance_length"] - 1))
    assert 1 < row["tokens_per_step"] <= 4
    assert row["rate_per_pos"] == sorted(row["rate_per_pos"], reverse=True)
    assert row["step_s"] > row["seconds_per_token"] > 0


def test_a_disturbed_drafter_is_told_from_a_good_one(good: str, tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.json"
    done = watch(good, "--record-baseline", baseline, "--interval", "0.2")
    assert done.exit_code == 0, done.output
    again = watch(good, "--baseline", baseline, "--probe", "--once", "--interval", "0.2", "--json")
    assert again.exit_code == 0, again.output
    assert [finding["code"] for finding in json.loads(again.stdout)["findings"]] == ["no-traffic", "probe-same"]

    head = disturb(BUNDLE / "eagle3", tmp_path / "eagle3")
    with serving(head, tmp_path / "arm.log") as url:
        assert verify(url, head, baseline) == {"probe-differs"}
