"""What training refuses, one case a code: each is shown on the code's page."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from draftwise.core import InvalidSetup
from draftwise.core.progress import Silent
from draftwise.engine.text.tokenizer import Tokenizer
from draftwise.training import draft_model_trainer
from draftwise.training.data import TextSample, read_samples, split
from draftwise.training.drafter_export import new_folder
from draftwise.training.run_folder import RunFolder
from draftwise.training.run_settings import TrainSettings
from draftwise.training.training_loop import TrainingRun
from draftwise.training.training_run import TrainingMemory, train

Case = Callable[[Path, pytest.MonkeyPatch], object]


def learn(target: Path, row: dict[str, str], **changes: Any) -> None:
    """Train for two steps on a text that repeats itself."""
    rows = [json.dumps(row | {"prompt": f"{row['prompt']} {number}"}) + "\n" for number in range(40)]
    Path("data.jsonl").write_text("".join(rows), encoding="utf-8")
    settings = TrainSettings(
        target=str(target), data=("data.jsonl",), out="drafter", answers="given", heldout=0.1, steps=2,
        batch_tokens=256, save_minutes=1000, device="cpu", options={"num_heads": 2},
    )  # fmt: skip
    train("medusa", dataclasses.replace(settings, **changes), Silent())


def fill_a_gpu(target: Path, patch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 24.00 GiB.")

    patch.setattr(TrainingRun, "_take_steps", fail)
    learn(target, {"prompt": "one", "completion": "two three. " * 20})


def lose_the_loss(*_: object) -> None:
    run = SimpleNamespace(
        _ranks=SimpleNamespace(gather=lambda value: [value]), _loss_sum=math.nan, _loss_count=1,
        _position=SimpleNamespace(step=40), _settings=SimpleNamespace(lr=0.01),
    )  # fmt: skip
    TrainingRun._log_loss(run, SimpleNamespace())  # type: ignore[arg-type]


def read(target: Path, name: str, data: bytes) -> None:
    Path(name).write_bytes(data)
    list(read_samples([name], Tokenizer.from_pretrained(target), max_length=64, window=16))


def write_over(name: str, *, is_folder: bool) -> None:
    if is_folder:
        Path("drafter").mkdir()
        Path("drafter/config.json").touch()
    else:
        Path("drafter").touch()
    RunFolder(name).check_free()


def export_over(name: str) -> None:
    Path(name).mkdir()
    with new_folder(Path(name)):
        raise AssertionError("it was there")


def start_from_another_family(_: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(draft_model_trainer.FrozenTarget, "load", lambda *_: SimpleNamespace(vocab_size=32000))
    draft_model_trainer._load("models/other", SimpleNamespace(vocab_size=128256, device="cpu"))  # type: ignore[arg-type]


REFUSED: dict[str, Case] = {
    "already-there": lambda *_: write_over("drafter", is_folder=True),
    "no-folder": lambda *_: write_over("drafter", is_folder=False),
    "output-exists": lambda *_: export_over("exported"),
    "unknown-data": lambda target, _: read(target, "data.csv", b"a,b"),
    "unreadable-data": lambda target, _: read(target, "data.txt", b"\xff\xfe\xff"),
    "bad-entry": lambda target, _: read(target, "data.jsonl", b'{"text": "ok"}\n{"messages": "hi"}\n'),
    "no-answers": lambda target, _: learn(target, {"prompt": "one two three"}),
    "too-little-data": lambda *_: split([TextSample(np.arange(9, dtype=np.int32), 0)], 0.1, most_tokens=100),
    "out-of-memory": fill_a_gpu,
    "other-vocabulary": start_from_another_family,
    "diverged": lose_the_loss,
    "run-too-large": lambda *_: TrainingMemory(
        target=140 * 10**9, drafter=10**10, states=10**9, there=80 * 10**9
    ).check(),
}


@pytest.mark.parametrize("code", REFUSED)
def test_it_is_refused(code: str, tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidSetup) as caught:
        REFUSED[code](tiny_target, monkeypatch)
    assert [each.code for each in caught.value.findings] == [code]


def test_a_file_in_the_place_of_the_folder_of_a_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "training").touch()
    with pytest.raises(InvalidSetup, match="training is not a folder"):
        RunFolder(tmp_path).check_free()
