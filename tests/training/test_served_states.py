"""Hidden states from a server: those of the target, none that are wrong, and a run that learns from them."""

from __future__ import annotations

import dataclasses
import json
import threading
from contextlib import contextmanager
from itertools import count

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.training import as_batch
from tests.support.web import serving_answers

from draftwise.core import BackendError, InvalidSetup
from draftwise.core.progress import Silent
from draftwise.training.frozen_target import FrozenTarget
from draftwise.training.run_settings import TrainSettings
from draftwise.training.training_run import train


@contextmanager
def serving_states(target, folder, layers):
    """Serve the target's states as vLLM's method extract_hidden_states does: a file for each prompt, and its lock."""
    numbers, alone = count(), threading.Lock()

    def complete(_path, body):
        tokens = json.loads(body)["prompt"]
        path = folder / f"cmpl-{next(numbers)}.safetensors"
        with alone:  # a target records the states of one pass at a time
            states = target.compute_states(as_batch(torch.tensor([tokens])), layers)
        (folder / f"{path.name}.lock").touch()
        save_file({"hidden_states": torch.stack(states.aux_BTH, dim=2)[0], "token_ids": torch.tensor(tokens)}, path)
        return 200, json.dumps({"kv_transfer_params": {"hidden_states_path": str(path)}})

    with serving_answers(lambda *_: (200, json.dumps({"data": [{"id": "target"}]})), complete) as url:
        yield url


@pytest.fixture(scope="module")
def settings(tiny_target, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    lines = [{"prompt": f"{i:02}", "completion": "the quick brown fox. " * 2} for i in range(30)]
    (folder / "text.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return TrainSettings(
        target=str(tiny_target),
        data=(str(folder / "text.jsonl"),),
        out=str(folder / "never"),
        answers="given",
        heldout=0.1,
        steps=2,
        batch_tokens=256,
        device="cpu",
    )


@pytest.fixture(scope="module")
def target(tiny_target):
    return FrozenTarget.load(tiny_target)


@pytest.mark.parametrize("method", ["eagle3", "mtp"])
def test_a_run_learns_from_served_states_what_it_learns_from_the_target(method, settings, target, tmp_path):
    run = {"online": dataclasses.replace(settings, out=str(tmp_path / "online"))}
    layers = [1, 2] if method == "eagle3" else [2]
    with serving_states(target, tmp_path, layers) as url:
        run["served"] = dataclasses.replace(settings, out=str(tmp_path / "served"), hidden_states=url)
        for each in run.values():
            train(method, each, Silent())
    online, served = (load_file(f"{each.out}/model.safetensors") for each in run.values())
    assert all(torch.allclose(online[name], served[name], atol=1e-4) for name in online)
    assert not [*tmp_path.glob("cmpl-*")]


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        pytest.param([0, 2], "does not write the states of layers 1, 2: those of 1 differ", id="another-layer"),
        pytest.param([1], "holds 1 states per token, but 2 are needed", id="too-few"),
    ],
)
def test_refuses_states_of_other_layers(layers, message, settings, target, tmp_path):
    with serving_states(target, tmp_path, layers) as url:
        wrong = dataclasses.replace(settings, out=str(tmp_path / "out"), hidden_states=url)
        with pytest.raises((InvalidSetup, BackendError), match=message):
            train("eagle3", wrong, Silent())


def test_refuses_a_server_that_writes_no_states(settings, tmp_path):
    models = (200, json.dumps({"data": [{"id": "target"}]}))
    with serving_answers(lambda *_: models, lambda *_: (200, json.dumps({"choices": []}))) as url:
        plain = dataclasses.replace(settings, out=str(tmp_path / "out"), hidden_states=url)
        with pytest.raises(BackendError, match="names no file of hidden states"):
            train("eagle3", plain, Silent())
    with pytest.raises(InvalidSetup, match="must be online, disk or a URL"):
        dataclasses.replace(settings, hidden_states="stream")
