"""The folder `training` of a run: its settings, its checkpoint, its log and its curves."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from draftwise.core import InvalidSetup, StorageError, cause_of
from draftwise.knowledge.messages import refusal, text_of
from draftwise.machine.whole_files import replacing, write_whole
from draftwise.reporting.appearance import PALETTE
from draftwise.reporting.svg import to_svg
from draftwise.runs.row_files import RowFile


class RunFolder:
    """Files that a run writes in addition to the drafter.

    Args:
        out: the drafter's folder; the run's own is its subfolder `training`.
        writes: whether this process writes. Other processes of a run only read.
    """

    def __init__(self, out: str | Path, *, writes: bool = True) -> None:
        self._writes = writes
        self.out = Path(out)
        self.path = self.out / "training"
        self.log = self.path / "log.jsonl"
        self.curve = self.path / "loss_curve.svg"
        self._checkpoint = self.path / "checkpoint.pt"
        self._settings = self.path / "settings.json"

    def check_free(self) -> None:
        """Check that a run here overwrites nothing.

        Raises:
            InvalidSetup: the folder has other contents than an unfinished run.
        """
        if (self.out / "model.safetensors").exists() or (self.out / "config.json").exists():
            raise refusal("already-there", out=self.out)
        for folder in (self.out, self.path):
            if folder.exists() and not folder.is_dir():
                raise refusal("no-folder", out=folder)

    def open(self, settings: Mapping[str, Any]) -> None:
        """Start a run, or resume the existing one.

        Args:
            settings: everything that determines the result, as JSON values.

        Raises:
            InvalidSetup: the existing run has other settings.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        if self._checkpoint.exists():
            try:
                before = dict(json.loads(self._settings.read_text(encoding="utf-8")))
            except (OSError, ValueError, TypeError, RecursionError) as error:
                raise self.refuse(error, self._settings) from None
            differing = [key for key in {**before, **settings} if before.get(key) != settings.get(key)]
            if differing:
                shown = "; ".join(f"{key} was {before.get(key)!r}, is {settings.get(key)!r}" for key in differing)
                raise refusal("other-settings", out=self.out, shown=shown)
        self._write(self._settings, json.dumps(settings, indent=2) + "\n")

    def save(self, state: Mapping[str, Any]) -> None:
        """Write a checkpoint atomically: a reader finds the old one or the new one.

        Raises:
            StorageError: the disk is full. The old checkpoint is kept.
        """
        if not self._writes:
            return
        try:
            with replacing(self._checkpoint) as partial:
                torch.save(dict(state), partial)
        except (OSError, RuntimeError) as error:  # torch's writer says the latter of a full disk
            free = shutil.disk_usage(self.path).free
            why = getattr(error, "strerror", None) or f"{free / 1e6:.0f} MB are free"
            raise StorageError(text_of("checkpoint-not-kept", step=state["step"], path=self.path, why=why)) from None

    def load(self) -> dict[str, Any] | None:
        """Return the checkpoint's state; None if missing. Log rows after it are dropped."""
        if not self._checkpoint.exists():
            self._write(self.log, "")
            return None
        try:
            with zipfile.ZipFile(self._checkpoint) as archive:  # torch does not look at the sums
                if (name := archive.testzip()) is not None:
                    raise ValueError(f"{name} has changed")
            state: dict[str, Any] = torch.load(self._checkpoint, map_location="cpu", weights_only=True)
            kept = [row for row in self.rows() if row["step"] <= state["step"]]
        except InvalidSetup:  # of the log
            raise
        except Exception as error:  # torch raises whatever its readers of archives and pickles do
            raise self.refuse(error) from None
        try:
            for row in kept:
                numbers = (row["heldout_loss"], *row["acceptance"]) if "heldout_loss" in row else (row["loss"],)
                _ = [float(each) for each in (row["step"], *numbers)]
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise self.refuse(error, self.log) from None
        self._write(self.log, "".join(json.dumps(row) + "\n" for row in kept))
        return state

    def refuse(self, error: Exception, file: Path | None = None) -> InvalidSetup:
        """Return the error for an unreadable file of the run, by default its checkpoint."""
        told, file = " ".join(cause_of(error).split()), file or self._checkpoint
        return refusal("damaged-training-state", file=file, told=told[:200], path=self.path)

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row to the log."""
        if not self._writes:
            return
        with self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dict(row)) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """Return the log, without an incomplete last row."""
        return [*RowFile(self.log, dict).read()]

    def finish(self) -> None:
        """Remove the checkpoint after the run is complete."""
        if self._writes:
            self._checkpoint.unlink(missing_ok=True)

    def _write(self, file: Path, text: str) -> None:
        if self._writes:
            write_whole(file, text)


def draw_curves(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Draw loss and held-out acceptance by draft position over the steps.

    Args:
        file: written atomically.
    """
    about = "Loss, and held-out acceptance by draft position, against training steps."
    svg = to_svg(lambda: _draw(rows), "curves", title="Training curves", about=about, alone=True)
    write_whole(file, svg)


def _draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    losses = [row for row in rows if "loss" in row]
    held_out = [row for row in rows if "heldout_loss" in row]
    figure = Figure(layout="constrained", figsize=(8.4, 3.2))
    left, right = figure.subplots(1, 2)
    left.plot([row["step"] for row in losses], [row["loss"] for row in losses], color=PALETTE[0], label="learned")
    steps = [row["step"] for row in held_out]
    left.plot(steps, [row["heldout_loss"] for row in held_out], "o-", color=PALETTE[1], ms=3, label="held out")
    left.set_ylabel("loss")
    for position in range(max((len(row["acceptance"]) for row in held_out), default=0)):
        rates = [row["acceptance"][position] for row in held_out]
        color = PALETTE[position % len(PALETTE)]
        right.plot(steps, rates, "o-", color=color, ms=3, label=f"draft position {position + 1}")
    right.set_ylabel("accepted up to there, held out")
    right.set_ylim(0, 1)
    for axes in (left, right):
        axes.set_xlabel("step")
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
    return figure
