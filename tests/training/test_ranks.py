"""Training on several processes: the steps of one process, gone on with after a kill, and what goes wrong in a word."""

from __future__ import annotations

import dataclasses
import functools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file
from tests.support import killed_rank
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.rendezvous.utils import _PeriodicTimer
from torch.distributed.launcher import api
from torch.distributed.launcher.api import LaunchConfig

from draftwise.cli import main
from draftwise.core import InvalidSetup, Stopped
from draftwise.core.progress import Silent
from draftwise.training.ranks import joined
from draftwise.training.run_settings import TrainSettings
from draftwise.training.training_run import TrainingMemory, train, train_on_gpus

QUIET = Silent()
SMALL = {
    "eagle3": {"num_speculative_tokens": 2},
    "dflash": {"num_speculative_tokens": 3, "num_layers": 1, "mask_token_id": 9},
}
PRELOADED = ["draftwise.training.training_run", "draftwise.training.frozen_target", "transformers"]
FORKED = f"""
import functools, multiprocessing
from torch.distributed.launcher import api
from draftwise.cli import main

multiprocessing.set_forkserver_preload({PRELOADED})
api.LaunchConfig = functools.partial(api.LaunchConfig, start_method="forkserver")
main()
"""
"""The command, whose processes are forked off one that has imported what they need."""


@pytest.fixture(scope="module")
def settings(tiny_target, tmp_path_factory):
    data = tmp_path_factory.mktemp("data") / "text.jsonl"
    lines = [{"prompt": f"{i:02}" * 3, "completion": "the quick brown fox. " * 3} for i in range(60)]
    data.write_text("\n".join(map(json.dumps, lines)))
    return TrainSettings(
        target=str(tiny_target),
        data=(str(data),),
        out="never",
        answers="given",
        heldout=0.1,
        steps=6,
        batch_tokens=256,
        accumulate=2,
        eval_every=3,
        save_minutes=1000,
        save_every=2,
        device="cpu",
        lr=5e-3,
    )


@pytest.fixture
def forked(monkeypatch):
    """Ranks are forked off a process that has imported torch, once for all tests."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    api = "torch.distributed.launcher.api.LaunchConfig"
    monkeypatch.setattr(api, functools.partial(LaunchConfig, start_method="forkserver"))


def losses(out):
    rows = [json.loads(line) for line in (Path(out) / "training" / "log.jsonl").read_text().splitlines()]
    return [row.get("loss", row.get("heldout_loss")) for row in rows]


def distance(a, b):
    one, other = (load_file(f"{out}/model.safetensors") for out in (a, b))
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize(
    ("method", "shard", "changed"),
    [
        pytest.param("dflash", False, {"answers": "target", "answer_tokens": 24, "hidden_states": "disk"}, id="ddp"),
        pytest.param("eagle3", True, {"optimizer": "adamw"}, id="fsdp"),
    ],
)
@pytest.mark.usefixtures("forked")
def test_two_processes_take_the_steps_of_one_with_the_same_batches(method, shard, changed, settings, tmp_path):
    base = dataclasses.replace(settings, options=SMALL[method], **changed)
    alone, together = (dataclasses.replace(base, out=str(tmp_path / name)) for name in ("alone", "together"))
    expected = train(method, alone, QUIET)
    result = train_on_gpus(method, dataclasses.replace(together, shard=shard), 2, quiet=True)
    assert losses(together.out) == pytest.approx(losses(alone.out), rel=1e-5)
    assert len(losses(alone.out)) == 9
    assert result.acceptance == expected.acceptance
    assert distance(alone.out, together.out) < 1e-4


@pytest.mark.usefixtures("forked")
def test_a_run_goes_on_after_one_of_its_processes_was_killed(settings, tmp_path, monkeypatch):
    settings = dataclasses.replace(settings, lr=1e-3)  # larger steps make more of the order of two processes' sums
    killed = dataclasses.replace(settings, options=SMALL["eagle3"], out=str(tmp_path / "killed"))
    with monkeypatch.context() as patch:
        patch.setattr("draftwise.training.training_run._run_rank", killed_rank.run_rank)
        with pytest.raises(InvalidSetup, match=r"Process [01] of 2 ended with .*, and the launcher ended the others\."):
            train_on_gpus("eagle3", killed, 2, quiet=True)
    assert (tmp_path / "killed" / "training" / "checkpoint.pt").exists()
    assert not (tmp_path / "killed" / "model.safetensors").exists()
    flags = {"--target": settings.target, "--data": settings.data[0], "--answers": "given", "--heldout": 0.1}
    flags |= {"--steps": 6, "--batch-tokens": 256, "--accumulate": 2, "--eval-every": 3, "--save-every": 2}
    flags |= {"--device": "cpu", "--lr": settings.lr, "--num-speculative-tokens": 2, "--out": tmp_path / "killed"}
    words = ["train", "eagle3", *(str(word) for flag in flags.items() for word in flag)]
    again = CliRunner().invoke(main, words)  # now alone
    assert again.exit_code == 0, again.stderr
    assert "resuming at step 2" in again.stderr
    assert "memory of each process: target 0.00 + drafter and optimizer 0.00 + hidden states" in again.stderr
    alone = dataclasses.replace(settings, options=SMALL["eagle3"], out=str(tmp_path / "alone"))
    train("eagle3", alone, QUIET)
    assert losses(tmp_path / "killed") == pytest.approx(losses(alone.out), rel=1e-5)


@pytest.mark.parametrize(
    ("changed", "num_gpus", "expected"),
    [
        ({"device": "auto"}, 64, r"--gpus asks for 64 GPUs, but this machine has \d+\. "),
        ({}, 0, r"--gpus must be at least 1, got 0\."),
    ],
)
def test_gpus_that_are_not_there_are_named_before_anything_starts(changed, num_gpus, expected, settings):
    with pytest.raises(InvalidSetup, match=expected):
        train_on_gpus("eagle3", dataclasses.replace(settings, **changed), num_gpus, quiet=True)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"accumulate": 3}, r"--accumulate is 3: 2 processes cannot split that many batches evenly\. Use a multiple"),
        ({"shard": True, "optimizer": "muon"}, r"--optimizer is muon, but it needs whole matrices\. Use adamw"),
        ({"shard": True, "hidden_states": "disk"}, r"--hidden-states is disk, but then each GPU needs the whole"),
    ],
)
def test_what_two_processes_cannot_do_is_one_sentence(changed, expected, settings):
    with pytest.raises(InvalidSetup, match=expected):
        dataclasses.replace(settings, **changed).resolve(learning_rate=1e-3, num_ranks=2)


def test_more_processes_than_gpus_are_refused_under_torchrun(monkeypatch):
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    refused = pytest.raises(InvalidSetup, match=r"4 processes were started on this machine, but it has 2 GPUs")
    with refused, joined("cuda"):
        pass


def test_one_process_shards_under_torchrun_only(settings, monkeypatch):
    alone = dataclasses.replace(settings, shard=True)
    assert not alone.resolve(learning_rate=1e-3).shard
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    assert alone.resolve(learning_rate=1e-3).shard
    assert not settings.resolve(learning_rate=1e-3).shard


def test_a_run_that_cannot_fit_is_refused_before_its_first_step():
    memory = TrainingMemory(target=int(16e9), drafter=int(6e9), states=int(2e9), there=int(20e9))
    with pytest.raises(InvalidSetup, match=r"= 24\.00 GB of 20\.0 GB.*Halve --batch-tokens"):
        memory.check()
    dataclasses.replace(memory, there=int(25e9)).check()


def test_a_signal_stops_all_processes_at_one_step(settings, tmp_path):
    asked = {"--target": settings.target, "--data": settings.data[0], "--answers": "given", "--heldout": 0.1}
    asked |= {"--steps": 100000, "--batch-tokens": 256, "--device": "cpu", "--out": tmp_path / "out", "--gpus": 2}
    words = [str(word) for flag in asked.items() for word in flag]
    command = [sys.executable, "-c", FORKED, "train", "eagle3", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if line.startswith("step 0"):
            break
    os.kill(process.pid, signal.SIGTERM)
    _, rest = process.communicate()
    assert process.returncode == 130, rest
    assert "the same command resumes the run" in rest
    assert "Traceback" not in rest
    assert (tmp_path / "out" / "training" / "checkpoint.pt").exists()


def test_the_launchers_heartbeat_ends_with_a_run_that_is_stopped(settings, monkeypatch):
    """Torch leaves it to the collector, which may run in the heartbeat's own thread."""

    def launch(*_):
        heartbeat = _PeriodicTimer(timedelta(hours=1), print)
        heartbeat.set_name("heartbeat")
        heartbeat.start()
        itself = [heartbeat]
        itself.append(itself)
        raise SignalException("stopped", signal.SIGTERM)

    monkeypatch.setattr(api, "elastic_launch", lambda *_: launch)
    with pytest.raises(Stopped):
        train_on_gpus("eagle3", settings, 2)
    assert "heartbeat" not in {thread.name for thread in threading.enumerate()}
