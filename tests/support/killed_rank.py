"""What a rank runs of a training whose second rank is killed; in a module, from which a launcher imports it."""

from __future__ import annotations

import os
import signal
from unittest.mock import patch

from draftwise.training.run_settings import TrainSettings
from draftwise.training.training_loop import TrainingRun
from draftwise.training.training_run import TrainedDrafter, _run_rank


def run_rank(method: str, settings: TrainSettings, quiet: bool, notes: str) -> TrainedDrafter:
    """Train as one rank; the second one dies after its third step, without a word."""
    step, taken = TrainingRun._step, list[int]()

    def step_and_die(run: TrainingRun) -> None:
        step(run)
        taken.append(1)
        if len(taken) == 3 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)

    with patch.object(TrainingRun, "_step", step_and_die):
        return _run_rank(method, settings, quiet, notes)
