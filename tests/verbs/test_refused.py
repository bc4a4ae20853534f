"""What verbs refuse before they begin, and what is not installed: one case a code, each shown on the code's page."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from tests.support.made_calibrations import make_calibration
from tests.support.made_runs import arm, closed, gains, make_run, save_run, workload

import draftwise
from draftwise.checkpoints.text_files import read_bytes
from draftwise.cli import main
from draftwise.core import Arm, InvalidSetup, ModelShape, OpenLoop, Phase, Run, Setup
from draftwise.core.documents import to_json
from draftwise.core.exit_codes import ExitCode
from draftwise.machine import processes
from draftwise.machine.network import find_proxy, open_tls
from draftwise.measure import calibrating, run_context
from draftwise.measure.load.requests import arrival_times
from draftwise.plan.size.kv_layout import lay_out
from draftwise.plan.size.memory_budget import kv_value_bytes
from draftwise.replaying.served_drafts import ServedReplayer
from draftwise.replaying.transcripts import Transcript
from draftwise.reporting import appearance
from draftwise.verbs import replay as replay_verb
from draftwise.verbs import upgrade
from draftwise.workloads import text_lengths

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
SAMPLED = {
    "method": "draft_model",
    "model": "draft",
    "num_speculative_tokens": 3,
    "draft_sample_method": "probabilistic",
}
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 256,
    "max_position_embeddings": 512,
}
URL = "http://127.0.0.1:8001"


def replay(spec: dict[str, Any], **given: Any) -> None:
    row = {"request": {"prompt": [1, 2, 3]}, "response": {"choices": [{"text": "b", "token_ids": [7, 8]}]}}
    Path("log.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    draftwise.replay("log.jsonl", target="model", candidates=[json.dumps(spec)], **given)


def replay_into_a_file(_: pytest.MonkeyPatch) -> None:
    Path("profile").touch()
    replay(NGRAM, out="profile")


def replay_models(patch: pytest.MonkeyPatch, *, torch: object, **given: Any) -> None:
    patch.setattr(replay_verb, "find_spec", lambda _: torch)
    replay(SAMPLED, **given)


def replay_a_warm_answer(_: pytest.MonkeyPatch) -> None:
    warm = Transcript(id="request-7", prompt_ids=(1,), answer_ids=(2,), temperature=0.7)
    list(ServedReplayer(k=3, draft=lambda *_: [], target=lambda *_: []).replay([warm]))


def pick_with_another_calibration(_: pytest.MonkeyPatch) -> None:
    Path("calibration.json").write_text(json.dumps(to_json(make_calibration())), encoding="utf-8")
    draftwise.pick(MODEL, gpu="A100", workload="chat", calibration="calibration.json")


def read_a_file_of_300_mib(_: pytest.MonkeyPatch) -> None:
    Path("tokenizer.json").touch()
    os.truncate("tokenizer.json", 300 << 20)
    read_bytes(Path("tokenizer.json"))


def trust_nothing(patch: pytest.MonkeyPatch) -> None:
    Path("certificates.pem").write_text("none", encoding="utf-8")
    patch.setenv("SSL_CERT_FILE", "certificates.pem")
    open_tls()


def use_an_odd_proxy(patch: pytest.MonkeyPatch) -> None:
    patch.delenv("NO_PROXY", raising=False)
    patch.setenv("HTTP_PROXY", "socks5://user:secret@proxy.example:1080")
    find_proxy("http://server.example:8000")


def make_short_run(speed_up: float) -> Run:
    workloads, arms = [workload("code")], [Arm(name="plain"), arm(3)]
    return make_run({"ngram k=3": gains(speed_up)}, arms=arms, workloads=workloads, conditions=closed(1))


def deploy_a_run(speed_up: float, **given: Any) -> None:
    save_run(Path("run"), make_short_run(speed_up))
    draftwise.deploy("run", to="compose", out="deploy", **given)


def describe_a_broken_model(_: pytest.MonkeyPatch) -> None:
    Path("model").mkdir()
    Path("model/config.json").write_text('{"architectures": 5}', encoding="utf-8")
    run_context._describe_target(Setup(target="model", engine="draftwise", engine_version="0.1.0"))


SILENT = OpenLoop(phases=(Phase(start_per_s=0.0, end_per_s=0.0, duration_s=60.0),))
REFUSED: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "unknown-traffic": lambda _: draftwise.pick(MODEL, gpu="H200", workload="poetry"),
    "unknown-parameter": lambda _: draftwise.pick(MODEL, gpu="H200", uses=["lora"]),
    "pick-chooses-the-config": lambda _: draftwise.pick(
        MODEL, gpu="H200", engine_flags=["--speculative-config", '{"method": "ngram"}']
    ),
    "calibration-of-another": pick_with_another_calibration,
    "replay-needs-lossless": lambda _: replay(NGRAM | {"acceptance_method": "typical_acceptance_sampler"}),
    "replay-judges-tokens": lambda _: replay(SAMPLED | {"rejection_sample_method": "block"}),
    "served-drafts-are-chains": lambda _: replay(SAMPLED | {"parallel_drafting": True}, draft_url=URL),
    "sampled-drafts-need-target": lambda _: replay(SAMPLED, draft_url=URL),
    "replay-needs-engine": lambda patch: replay_models(patch, torch=None),
    "forced-needs-greedy-drafts": lambda patch: replay_models(patch, torch=True, forced=True),
    "temperature-not-served": replay_a_warm_answer,
    "unwritable-replay": replay_into_a_file,
    "file-missing": lambda _: read_bytes(Path("tokenizer.json")),
    "too-large": read_a_file_of_300_mib,
    "ca-bundle-unreadable": trust_nothing,
    "proxy-not-usable": use_an_odd_proxy,
    "no-kv-cache": lambda _: lay_out(()),
    "unknown-kv-cache-dtype": lambda _: kv_value_bytes("turboquant_4bit_nc", ModelShape.from_hf_config(CONFIG)),
    "no-such-candidate": lambda _: deploy_a_run(1.5, candidate="eagle3 k=3"),
    "nothing-to-deploy": lambda _: deploy_a_run(0.8),
    "no-rate": lambda _: next(arrival_times(SILENT, seed=0, key="code")),
    "broken-checkpoint": describe_a_broken_model,
    "nothing-calibrated": lambda _: calibrating.make_calibration(replace(make_short_run(1.5), turns=()), target=MODEL),
    "servers-differ": lambda _: upgrade._pair(SimpleNamespace(readings=[1]), SimpleNamespace(readings=[])),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("code", REFUSED)
def test_it_is_refused(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidSetup) as caught:
        REFUSED[code](monkeypatch)
    assert [each.code for each in caught.value.findings] == [code]
    assert "secret" not in str(caught.value)


@pytest.fixture(autouse=True)
def from_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let draftwise be installed from an index: what installs an extra then names no place of this machine."""
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: SimpleNamespace(read_text=lambda _: None))


def hide(patch: pytest.MonkeyPatch, package: str, *users: str) -> None:
    """Let a package, and the modules of draftwise that import it, not be imported."""
    for name in [each for each in sys.modules if each.startswith(users)]:
        patch.delitem(sys.modules, name)
    patch.setitem(sys.modules, package, None)


MISSING: dict[str, tuple[str, tuple[str, ...], Callable[[], object]]] = {
    "engine-not-installed": (
        *("torch", ("draftwise.training.", "draftwise.engine.models")),
        lambda: draftwise.export("drafter", target="model", out="exported"),
    ),
    "train-not-installed": (
        *("torch", ("draftwise.training.", "draftwise.engine.models")),
        lambda: draftwise.train("medusa", target="model", data="data.txt", out="drafter"),
    ),
    "suffix-needs-numba": (
        *("numba", ("draftwise.lookup",)),
        lambda: replay({"method": "suffix", "num_speculative_tokens": 3}),
    ),
    "no-tokenizers": ("tokenizers", ("tokenizers",), lambda: text_lengths._read_tokenizer(Path("tokenizer.json"))),
}


@pytest.mark.parametrize("code", MISSING)
def test_what_is_not_installed_is_named_with_what_installs_it(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    package, users, call = MISSING[code]
    hide(monkeypatch, package, *users)
    with pytest.raises(InvalidSetup, match=f"{package}.*not installed|needs the package `{package}`") as caught:
        call()
    assert [each.code for each in caught.value.findings] == [code]
    assert "pip install" in caught.value.findings[0].fix


@pytest.mark.parametrize(
    ("word", "package", "users"),
    [("mcp", "mcp_types", "draftwise.verbs.mcp_"), ("ui", "uvicorn", "draftwise.verbs.pages")],
)
def test_a_command_names_the_extra_that_it_needs(
    word: str, package: str, users: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(monkeypatch, package, users, f"{package}.")
    result = CliRunner().invoke(main, [word])
    assert result.exit_code == ExitCode.USAGE
    assert re.search(rf"needs? {package}, which is not installed.*draftwise\[{word}\]", result.output, re.DOTALL)


def test_a_plot_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appearance, "can_draw", lambda: False)
    with pytest.raises(InvalidSetup, match="A plot needs matplotlib") as caught:
        appearance.check_can_draw()
    assert [each.code for each in caught.value.findings] == ["plots-not-installed"]


def test_windows_is_told_to_use_wsl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "os", SimpleNamespace())
    with pytest.raises(InvalidSetup, match="Training runs on Linux and macOS only") as caught:
        draftwise.train("medusa", target="model", data="data.txt", out="drafter")
    assert [each.code for each in caught.value.findings] == ["needs-posix"]
