"""Verifies that a file starts a setup that its release accepts: findings of `check` and `size`, and differences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from draftwise.core import Finding, InvalidSetup, Setup, Severity, UnreadableSource
from draftwise.deploying.api_server import validate_text
from draftwise.deploying.deployment_folder import DEPLOYMENT, MEMO, SETUP, Record, prove, read_record
from draftwise.deploying.read_back import compare_setups
from draftwise.deploying.twin import Pool, count_device, without_speculation
from draftwise.deploying.weights_layout import rename_upstream
from draftwise.knowledge.messages import note, refusal, unreadable
from draftwise.plan.check import Report, judge
from draftwise.setups.read import SetupReading, SourceText, find_texts, read_setups
from draftwise.setups.read.json_setup import read_json_setup

_NOT_MOUNTED = "directory-not-mounted"


def find_ordered(path: Path) -> Setup | None:
    """Return the ordered setup of a file, from the setup.json next to it; None without one.

    Raises:
        UnreadableSource: that file cannot be read.
    """
    folder = path.parent
    if not (folder / SETUP).is_file():
        return None
    setup = read_setup(folder / SETUP)
    if not (folder / DEPLOYMENT).is_file():
        return setup
    is_plain = path.name in {side.file for pool, side in read_record(folder).files if pool == "plain"}
    return without_speculation(setup) if is_plain else setup


def read_setup(path: Path) -> Setup:
    """Return the setup in a file, such as setup.json, or of a folder that `deploy` wrote.

    Raises:
        UnreadableSource: it does not exist, or has no setup with target and release.
    """
    (source,) = find_texts(path / SETUP if path.is_dir() else path)
    try:
        setup = read_json_setup(source.text, name=source.name).setup
    except InvalidSetup as error:
        raise UnreadableSource(error.findings) from None
    if not (setup.target and setup.engine_version):
        raise unreadable("setup-incomplete", path=path)
    return setup


def report_of(*findings: Finding, setup: Setup | None = None) -> Report:
    """Return a report of only these findings, without a judgement of a setup."""
    setup = setup or Setup(engine="")
    return Report(version=setup.engine_version, setup=setup, findings=findings, resolved=None, is_judged=False)


def prove_deployment(folder: Path, record: Record) -> Iterator[Finding]:
    """Yield each difference between a deployment's folder and what `deploy` wrote."""
    return prove(folder, needed=(DEPLOYMENT, SETUP, MEMO, *(side.file for _, side in record.files)))


def verify_folder(folder: Path, *, gpu: str | None = None) -> Iterator[tuple[str, Report]]:
    """Yield what is wrong with a folder that `deploy` wrote, and with the file of each twin.

    Raises:
        UnreadableSource: the folder is not a deployment's.
    """
    record, setup = read_record(folder), read_setup(folder / SETUP)
    yield str(folder), report_of(*prove_deployment(folder, record))
    ordered: dict[Pool, Setup] = {"spec": setup, "plain": without_speculation(setup)}
    for pool, side in record.files:
        path = folder / side.file
        if path.is_file() and not path.is_symlink():
            (source,) = find_texts(path)
            yield str(path), verify_text(source, ordered[pool], gpu=gpu, platform_release=record.platform_release)


def verify_text(
    source: SourceText, ordered: Setup, *, gpu: str | None = None, platform_release: str = "", index: int | None = None
) -> Report:
    """Return the judged setup of a text, with each difference from the order.

    Args:
        source: a manifest, a unit or a command line.
        ordered: the ordered setup.
        gpu: GPU that it runs on, if the text does not name it.
        platform_release: release of the project that defines its objects' kinds; by default the newest known one.
        index: index of the server, in a text with several.
    """
    try:
        refused = tuple(validate_text(source.text, name=source.name, release=platform_release))
        reading = _read_one(source, ordered, index)
    except InvalidSetup as error:
        return report_of(*error.findings)
    found, name = reading.setup, source.name or "The text"
    lost = tuple(_find_lost(found))
    device = ordered.device or (None if found.device is None else count_device(ordered).device)
    differences = compare_setups(replace(ordered, device=device), found, name=name, lost=lost)
    # Where files put the checkpoints, there is nothing here to be looked at: their names are known.
    judged = replace(rename_upstream(found), engine_version=ordered.engine_version)
    report = judge(replace(reading, setup=judged))
    # `deploy` has warned of a directory that the files do not bring.
    known = (
        replace(each, severity=Severity.WARNING) if each.code == _NOT_MOUNTED else each for each in report.findings
    )
    findings = dict.fromkeys((*refused, *differences, *_tell_lost(name, lost), *known, *_size(judged, gpu)))
    return replace(report, findings=tuple(findings))


def _read_one(source: SourceText, ordered: Setup, index: int | None) -> SetupReading:
    """Return the one server of a text, read for the release that was ordered where it names none."""
    readings = read_setups(source)
    if not any(reading.setup.engine_version for reading in readings):
        readings = read_setups(source, engine_version=ordered.engine_version)
        readings = tuple(replace(each, setup=replace(each.setup, engine_version="")) for each in readings)
    if index is not None and index < len(readings):
        return readings[index]
    if len(readings) != 1:
        raise refusal(
            "several-servers", case="verify", text=source.name or "The text", readings=len(readings), name=source.name
        )
    return readings[0]


def _find_lost(found: Setup) -> Iterator[str]:
    if found.device is None:
        yield "device"
    if not found.engine_version:
        yield "engine_version"


def _tell_lost(name: str, lost: tuple[str, ...]) -> Iterator[Finding]:
    words = {"device": "how many GPUs the server gets", "engine_version": "which vLLM release it starts"}
    if lost:
        yield note("not-told", case="text", name=name, names=" or ".join(words[field] for field in lost))


def _size(found: Setup, gpu: str | None) -> Iterator[Finding]:
    """Yield why a server does not fit its GPUs. Where these are not known, or its model is not, that is not known."""
    device = found.device
    if gpu is None and (device is None or device.name == "GPU"):
        return
    from draftwise.plan.size import size  # most files do not name a GPU

    try:
        sizing = size(found, gpu=gpu)
    except InvalidSetup as error:
        yield note("not-told", case="memory", message=error.findings[0].message, where=error.findings[0].where)
    else:
        yield from (each for each in sizing.findings if each.severity is Severity.ERROR)
