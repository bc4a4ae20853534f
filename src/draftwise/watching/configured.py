"""Reads side information about a service: its setup as judged by `check`, and its start-up log."""

from __future__ import annotations

from pathlib import Path

from draftwise.backends.vllm_log import StartupLog
from draftwise.core import UnreadableSource, cause_of
from draftwise.plan.check import judge
from draftwise.setups.read import SetupReading, read_setups
from draftwise.watching.diagnose import SideInfo


def read_side_info(setup_file: Path | None, start_log: Path | None) -> SideInfo:
    """Read files about a service, for diagnoses that a config or a log can confirm.

    Args:
        setup_file: a manifest, a command line or JSON. Of several servers, the first that speculates counts.
        start_log: a server's start-up log. Its release and model runner override the setup's.

    Raises:
        UnreadableSource: a file does not exist or cannot be read.
        InvalidSetup: the setup file starts no server, or one of an unknown release.
    """
    log = None if start_log is None else _read(start_log)
    started = StartupLog(0.0)
    started.take((log or "").splitlines(), 0.0)
    largest = started.values.get("largest_graph") or None  # 0: it runs without graphs, at any batch
    if setup_file is None:
        return SideInfo(log=log, largest_graph=largest)
    readings = read_setups(setup_file)
    chosen = next((reading for reading in readings if reading.setup.spec is not None), readings[0])
    chosen = chosen if log is None else _settle(chosen, started)
    report = judge(chosen, nearest=True)
    rulings = {finding.code: finding.message for finding in report.findings}
    suspects: dict[str, list[str]] = {}
    for row in report.defects:
        for symptom in row.symptoms:
            suspects.setdefault(symptom, []).append(row.code)
    return SideInfo(spec=chosen.setup.spec, rulings=rulings, suspects=suspects, log=log, largest_graph=largest)


def _settle(reading: SetupReading, started: StartupLog) -> SetupReading:
    """Return a setup as its server started it: Model Runner V1 is fallen back to for reasons that no setup tells."""
    settled = {"engine_version": started.values.get("engine_version") or reading.setup.engine_version}
    if started.values.get("runner") == "V1":
        return reading.with_fields(**settled, env={**reading.setup.env, "VLLM_USE_V2_MODEL_RUNNER": "0"})
    return reading.with_fields(**settled)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        message = f"{path} cannot be read ({cause_of(error)})."
        raise UnreadableSource.because("unreadable-file", message, where=str(path)) from None
