"""`draftwise train` as an operator runs it: stopped by a signal, gone on with, loaded by the engine."""

from __future__ import annotations

import json
import os
import signal

from click.testing import CliRunner
from jsonschema import Draft7Validator

from draftwise.cli import main
from draftwise.training.training_loop import TrainingRun


def test_a_run_is_stopped_gone_on_with_and_its_drafter_drafts(tiny_target, tmp_path, monkeypatch):
    """Stopped when it has told its first loss."""
    log = TrainingRun._log_loss

    def log_and_stop(*arguments):
        log(*arguments)
        os.kill(os.getpid(), signal.SIGTERM)

    data, out = tmp_path / "data.txt", tmp_path / "drafter"
    data.write_text("one two three four five six. " * 300)
    given = ("medusa", "--target", tiny_target, "--data", data, "--out", out, "--answers", "given", "--device", "cpu")
    given += ("--steps", 60, "--batch-tokens", 1024, "--max-length", 64, "--learn-from", "tokens", "--lr", 0.01)
    words = ["train", *map(str, given), "--num-heads", "2"]
    with monkeypatch.context() as patched:
        patched.setattr(TrainingRun, "_log_loss", log_and_stop)
        run = CliRunner().invoke(main, words)
    assert run.exit_code == 130, run.stderr
    assert "the same command resumes the run" in run.stderr
    assert not (out / "model.safetensors").exists()

    rest = CliRunner().invoke(main, [*words, "--json"])
    assert rest.exit_code == 0, rest.stderr
    assert "resuming at step" in rest.stderr
    result = json.loads(rest.stdout)
    Draft7Validator(json.loads(CliRunner().invoke(main, ["schema", "train"]).stdout)).validate(result)
    assert result["speculative_config"] == {"method": "medusa", "model": str(out), "num_speculative_tokens": 2}
    assert result["acceptance"][0] > 0.5
    assert json.loads((out / "draftwise.json").read_text())["training"]["method"] == "medusa"


def test_mistakes_are_named():
    runner = CliRunner()
    unknown = runner.invoke(main, ["train", "medusa", "--num-head", "2"])
    assert unknown.exit_code == 2
    assert "--num-heads" in unknown.output
    assert runner.invoke(main, ["train", "medusae"]).exit_code == 2
    nowhere = runner.invoke(main, ["train", "medusa", "--target", "nowhere", "--data", "x.txt", "--out", "y"])
    assert nowhere.exit_code == 2
    assert "nowhere: The path is not a directory" in nowhere.output
    both = runner.invoke(main, ["train", "medusa", "--target", "n", "--data", "x", "--out", "y", "--steps", "0"])
    assert both.exit_code == 2
    assert "--steps must be at least 1, got 0." in both.output
