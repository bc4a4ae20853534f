"""Starts one training process for each GPU of this host, through torchrun's elastic launcher."""

from __future__ import annotations

import gc
import json
import logging
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from draftwise.core import Finding, InvalidSetup, Severity, StorageError
from draftwise.training.loop import Stopped
from draftwise.training.progress import Reporter
from draftwise.training.run import TrainResult, train
from draftwise.training.settings import TrainSettings

__all__ = ["train_on_gpus"]

_STOP_S = 120
"""How long the ranks have to end their step and write a checkpoint before they are killed."""


def train_on_gpus(method: str, settings: TrainSettings, num_gpus: int, *, quiet: bool = False) -> TrainResult:
    """Train a drafter on several GPUs of this host, see `run.train`; with device `cpu`, in several processes.

    A rank that dies ends the run; the same call resumes it at its last checkpoint.

    Raises:
        InvalidSetup: as `run.train` does, there are fewer GPUs, or a process died.
        Stopped: by a signal; the same call resumes the run.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    settings.check_gpus(num_gpus)
    for name in ("torch.distributed.elastic", "torch.multiprocessing"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what went wrong is said below
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_gpus,
        run_id="draftwise",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
    )
    if hasattr(config, "shutdown_timeout"):  # not before torch 2.12
        config.shutdown_timeout = _STOP_S
    with tempfile.TemporaryDirectory() as notes:
        try:
            results: dict[int, TrainResult] | None = elastic_launch(config, _run_rank)(method, settings, quiet, notes)
        except ChildFailedError as error:
            _explain(Path(notes))
            rank, failure = error.get_first_failure()
            raise InvalidSetup.because(
                "rank-died",
                f"Process {rank} of {num_gpus} ended with {_name_exit(failure.exitcode)}, and the others with it.",
                fix="The same command resumes the run at its last checkpoint.",
            ) from None
        except SignalException:
            results = None
        if results is None:
            # After a signal torch leaves the thread of its rendezvous running. If that thread is the one in which the
            # collector finds it, it cannot join itself, and says so with a traceback.
            gc.collect()
            _explain(Path(notes))
            raise Stopped("stopped before the first step; the same command starts the run again.")
    return results[0]


def _run_rank(method: str, settings: TrainSettings, quiet: bool, notes: str) -> TrainResult:
    """Train as one rank; what an operator should know is left in a file for the launcher."""
    try:
        return train(method, settings, Reporter(quiet=quiet))
    except InvalidSetup as error:
        _leave(notes, {"findings": [asdict(each) for each in error.findings]})
    except Stopped as stopped:
        _leave(notes, {"stopped": str(stopped)})
    except StorageError as error:
        _leave(notes, {"storage": str(error)})
    sys.exit(1)


def _leave(notes: str, what: object) -> None:
    with tempfile.NamedTemporaryFile("w", dir=notes, suffix=".json", delete=False) as file:
        json.dump(what, file)


def _explain(notes: Path) -> None:
    """Raise what the first rank that left a note raised."""
    for file in sorted(notes.glob("*.json"), key=lambda file: file.stat().st_mtime_ns):
        note = json.loads(file.read_text())
        if "stopped" in note:
            raise Stopped(note["stopped"])
        if "storage" in note:
            raise StorageError(note["storage"])
        findings = [each | {"severity": Severity(each["severity"])} for each in note["findings"]]
        raise InvalidSetup([Finding(**each) for each in findings])


def _name_exit(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit code {status}"
