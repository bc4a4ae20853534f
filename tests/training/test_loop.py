"""Whole runs: going on after a kill, accumulation, states from disk, answers of the target, refusals."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from draftwise.core import InvalidSetup, StorageError
from draftwise.core.progress import Silent
from draftwise.knowledge.methods import methods_where
from draftwise.training import get_training
from draftwise.training.data import AnswerSettings, TextSample, _generate, answer, cut_prompts
from draftwise.training.frozen_target import FrozenTarget, TokenBatch
from draftwise.training.run_folder import RunFolder
from draftwise.training.run_settings import TrainSettings
from draftwise.training.training_loop import TrainingRun, compute_schedule_factor
from draftwise.training.training_run import train

QUIET = Silent()
PARD = {"hidden_size": 32, "num_attention_heads": 2, "parallel": True, "mask_token_id": 9, "num_speculative_tokens": 3}


@pytest.fixture(scope="module")
def settings(tiny_target, tmp_path_factory):
    """Settings of a short run on a text that repeats itself."""
    folder = tmp_path_factory.mktemp("data")
    data = folder / "text.jsonl"
    lines = [{"prompt": f"{i:02}" * 3, "completion": "the quick brown fox. " * 3} for i in range(60)]
    data.write_text("\n".join(map(json.dumps, lines)))
    return TrainSettings(
        target=str(tiny_target),
        data=(str(data),),
        out=str(folder / "never"),
        answers="given",
        heldout=0.1,
        steps=6,
        batch_tokens=512,
        eval_every=100,
        save_minutes=1000,
        save_every=2,
        device="cpu",
        lr=5e-3,
    )


def weights(out):
    return load_file(f"{out}/model.safetensors")


def distance(a, b):
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def train_and_die(monkeypatch, steps, method, settings):
    """Train; after so many steps the process dies, as far as the run can tell."""
    take, taken = TrainingRun._step, []

    def step(self):
        take(self)
        taken.append(1)
        if len(taken) == steps:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrainingRun, "_step", step)
        with pytest.raises(KeyboardInterrupt):
            train(method, settings, QUIET)


@pytest.mark.parametrize(("method", "options"), [("medusa", {"num_heads": 2}), ("draft_model", PARD)])
def test_a_killed_run_goes_on_to_the_same_weights(method, options, settings, tmp_path, monkeypatch):
    settings = dataclasses.replace(settings, options=options)
    whole = dataclasses.replace(settings, out=str(tmp_path / "whole"))
    parts = dataclasses.replace(settings, out=str(tmp_path / "parts"))
    result = train(method, whole, QUIET)
    train_and_die(monkeypatch, 5, method, parts)
    torch.manual_seed(77)  # another process has another state
    again = train(method, parts, QUIET)
    assert distance(weights(whole.out), weights(parts.out)) == 0
    assert (again.heldout_loss, again.acceptance) == (result.heldout_loss, result.acceptance)
    logs = [(tmp_path / name / "training" / "log.jsonl").read_text().splitlines() for name in ("whole", "parts")]
    rows = [[json.loads(line) | {"seconds": 0} for line in log] for log in logs]
    assert rows[0] == rows[1]
    assert "<svg" in (tmp_path / "whole" / "training" / "loss_curve.svg").read_text()
    assert not (tmp_path / "whole" / "training" / "checkpoint.pt").exists()


def test_an_unfinished_run_with_other_settings_is_not_continued(settings, tmp_path, monkeypatch):
    mine = dataclasses.replace(settings, out=str(tmp_path), options={"num_heads": 2})
    train_and_die(monkeypatch, 3, "medusa", mine)
    with pytest.raises(InvalidSetup, match=r"settings: lr was 0.005, is 0.01; num_heads was 2, is 3\."):
        train("medusa", dataclasses.replace(mine, lr=0.01, options={"num_heads": 3}), QUIET)
    train("medusa", mine, QUIET)
    with pytest.raises(InvalidSetup, match="holds a checkpoint"):
        train("medusa", mine, QUIET)


def replace_weights(state):
    state["network"] = {name: tensor[..., :-1].clone() for name, tensor in state["network"].items()}


def change_averages(state, change):
    for kept in state["optimizers"]["state"].values():
        kept |= {name: change(value) for name, value in kept.items() if value.ndim}


BAD_STATES = {
    "no position": lambda state: state.pop("position"),
    "no network": lambda state: state.pop("network"),
    "an empty network": lambda state: state.update(network={}),
    "another network": replace_weights,
    "optimizers of another kind": lambda state: state.update(optimizers={"state": {}, "param_groups": []}),
    "optimizers that are none": lambda state: state.update(optimizers=None),
    "a step that is text": lambda state: state.update(position={"step": "x", "taken": [0]}),
    "a step behind the last": lambda state: state.update(position=state["position"] | {"step": 7}),
    "a step before the first": lambda state: state.update(position=state["position"] | {"step": -1}),
    "samples of no bucket": lambda state: state.update(position=state["position"] | {"taken": []}),
    "samples of other steps": lambda state: state.update(position=state["position"] | {"taken": [4]}),
    "a network that is not finite": lambda state: next(iter(state["network"].values())).fill_(torch.nan),
    "averages that are not finite": lambda state: change_averages(state, lambda value: value * torch.inf),
    "averages of another shape": lambda state: change_averages(state, lambda value: value[:-1]),
    "counts below zero": lambda state: state.update(counts=[-1, 7]),
    "a sum that is not finite": lambda state: state.update(loss_sum=torch.nan),
    "counts of another kind": lambda state: state.update(counts=3),
    "a sum that is text": lambda state: state.update(loss_sum="x"),
    "nothing": lambda state: state.clear(),
}


@pytest.fixture(scope="module")
def unfinished(settings, tmp_path_factory):
    """Settings of a run that died."""
    mine = dataclasses.replace(settings, out=str(tmp_path_factory.mktemp("unfinished")), options={"num_heads": 2})
    train_and_die(pytest.MonkeyPatch(), 3, "medusa", mine)
    return mine


@pytest.mark.parametrize("case", BAD_STATES)
def test_a_whole_state_that_is_not_this_runs_is_refused(case, unfinished):
    file = Path(unfinished.out) / "training" / "checkpoint.pt"
    before = file.read_bytes()
    state = torch.load(file, weights_only=True)
    BAD_STATES[case](state)
    torch.save(state, file)
    with pytest.raises(InvalidSetup, match="cannot be read") as error:
        train("medusa", unfinished, QUIET)
    assert (error.value.findings[0].code, error.value.findings[0].where) == ("damaged-training-state", str(file))
    file.write_bytes(before)


@pytest.mark.parametrize("row", [{"loss": {}}, {"loss": None}, {"heldout_loss": 1.0}, {"seconds": 1.0}])
def test_a_log_of_what_are_no_numbers_is_refused(row, unfinished):
    file = Path(unfinished.out) / "training" / "log.jsonl"
    before = file.read_text()
    file.write_text(before + json.dumps({"step": 1} | row) + "\n")
    with pytest.raises(InvalidSetup, match="cannot be read") as error:
        train("medusa", unfinished, QUIET)
    assert error.value.findings[0].where == str(file)
    file.write_text(before)


def test_a_states_settings_of_optimizers_are_not_taken(settings, tmp_path, monkeypatch):
    runs = [dataclasses.replace(settings, out=str(tmp_path / name), options={"num_heads": 2}) for name in "ab"]
    for mine in runs:
        train_and_die(monkeypatch, 3, "medusa", mine)
    file = tmp_path / "b" / "training" / "checkpoint.pt"
    state = torch.load(file, weights_only=True)
    for group in state["optimizers"]["param_groups"]:
        group["weight_decay"] = 1e9
    torch.save(state, file)
    for mine in runs:
        train("medusa", mine, QUIET)
    assert distance(*(weights(mine.out) for mine in runs)) == 0


def test_accumulated_batches_make_the_same_steps_as_a_big_one(settings, tmp_path):
    base = dataclasses.replace(settings, options={"num_heads": 2}, steps=3)
    for name, batch_tokens, accumulate in (("one", 512, 1), ("two", 256, 2), ("other", 256, 1)):
        train(
            "medusa",
            dataclasses.replace(base, out=str(tmp_path / name), batch_tokens=batch_tokens, accumulate=accumulate),
            QUIET,
        )
    one, two, other = (weights(tmp_path / name) for name in ("one", "two", "other"))
    # Products of other shapes round differently; by how much depends on the processor.
    assert distance(one, other) > 1e-3
    assert distance(one, two) < distance(one, other) / 50


def test_states_from_disk_are_those_of_the_target(settings, tmp_path, monkeypatch):
    monkeypatch.setattr("draftwise.training.hidden_states._SHARD_BYTES", 200_000)
    base = dataclasses.replace(settings, options={"num_heads": 2})
    online = dataclasses.replace(base, out=str(tmp_path / "online"))
    disk = dataclasses.replace(base, out=str(tmp_path / "disk"), hidden_states="disk", cache=str(tmp_path / "cache"))
    train("medusa", online, QUIET)
    train("medusa", disk, QUIET)
    shards = sorted((tmp_path / "cache").rglob("*.safetensors"))
    assert len(shards) > 2
    assert distance(weights(online.out), weights(disk.out)) < 1e-4
    shards[1].unlink()
    written = shards[0].stat().st_mtime_ns
    train("medusa", dataclasses.replace(disk, out=str(tmp_path / "again")), QUIET)
    assert shards[1].exists()
    assert shards[0].stat().st_mtime_ns == written
    assert distance(weights(tmp_path / "again"), weights(disk.out)) == 0


def test_a_full_disk_is_noticed_before_anything_is_written(settings, tmp_path, monkeypatch):
    monkeypatch.setattr("draftwise.training.hidden_states.shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(InvalidSetup, match="GB are free"):
        train("medusa", dataclasses.replace(settings, out=str(tmp_path), hidden_states="disk"), QUIET)


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), RuntimeError("failed writing file")])
def test_a_checkpoint_that_finds_no_room_leaves_the_one_before(fault, tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    folder.open({})
    folder.save({"step": 2})

    def write_a_part(_state, file):
        file.write_bytes(b"PK")
        raise fault

    monkeypatch.setattr("torch.save", write_a_part)
    with pytest.raises(StorageError, match=r"of step 4 cannot be written.*previous one is kept\. Make room"):
        folder.save({"step": 4})
    assert folder.load() == {"step": 2}
    assert {file.name for file in folder.path.iterdir()} == {"checkpoint.pt", "settings.json", "log.jsonl"}


@pytest.mark.parametrize("fault", [OSError(28, "No space"), SafetensorError("I/O error: No space left (os error 28)")])
def test_a_drafter_that_finds_no_room_is_one_sentence(fault, settings, tmp_path, monkeypatch):
    def export(*_):
        raise fault

    monkeypatch.setattr("draftwise.training.medusa_trainer.save_drafter", export)
    mine = dataclasses.replace(settings, out=str(tmp_path), options={"num_heads": 2}, steps=2)
    with pytest.raises(StorageError, match=r"is full\. Make room there, and repeat the command"):
        train("medusa", mine, QUIET)
    assert not (tmp_path / "model.safetensors").exists()
    assert (tmp_path / "training" / "checkpoint.pt").exists()


def test_the_target_answers_prompts_once(tiny_target, tmp_path, monkeypatch):
    target = FrozenTarget.load(tiny_target)
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(0, 256, (n,), generator=generator).int().numpy() for n in (3, 5, 9, 4)]
    samples = cut_prompts([TextSample(p, len(p)) for p in [*prompts, prompts[0]]], num_tokens=4, room=50)
    assert len(samples) == 4
    spec = AnswerSettings(max_tokens=6, max_num_seqs=2)
    answered = answer(tiny_target, samples, tmp_path, spec, device="cpu", progress=QUIET)
    for sample in answered:
        tokens = torch.from_numpy(sample.tokens).long()[None]
        ones = torch.ones_like(tokens, dtype=torch.bool)
        states = target.compute_states(TokenBatch(tokens_BT=tokens, valid_BT=ones, learned_BT=ones), ())
        greedy = (states.final_BTH @ target.head_VH.T).argmax(-1)
        assert torch.equal(greedy[0, sample.num_prompt - 1 : -1], tokens[0, sample.num_prompt :])
        assert len(sample.tokens) - sample.num_prompt == 6 or sample.tokens[-1] == 256
    (file,) = tmp_path.glob("answers-*.jsonl")
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:2]) + lines[2][:20])  # killed while it wrote the third
    asked = []
    monkeypatch.setattr(
        "draftwise.training.data._generate",
        lambda t, missing, *rest: asked.append(len(missing)) or _generate(t, missing, *rest),
    )
    again = answer(tiny_target, samples, tmp_path, spec, device="cpu", progress=QUIET)
    assert asked == [2]
    assert [each.tokens.tolist() for each in again] == [each.tokens.tolist() for each in answered]


@pytest.mark.parametrize("name", methods_where(trainable=True))
def test_options_of_methods_do_not_shadow_settings_of_runs(name):
    taken = {each.name for each in dataclasses.fields(TrainSettings)} | {"json", "quiet"}
    assert not taken & {option.name for option in get_training(name).OPTIONS}


@pytest.mark.parametrize("shape", ["cosine", "linear", "late"])
def test_the_rate_rises_then_falls(shape):
    rates = [compute_schedule_factor(step, steps=100, warmup=10, shape=shape) for step in range(100)]
    assert rates[:10] == [(i + 1) / 10 for i in range(10)]
    assert max(rates) == 1
    assert sorted(rates[10:], reverse=True) == rates[10:]
    assert 0 < rates[-1] < 0.03
