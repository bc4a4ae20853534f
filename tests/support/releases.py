"""Small releases of vLLM, written for a test."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from draftwise.knowledge.added import AddedRelease, write_release
from draftwise.knowledge.vllm import Release, forget_added, get_release, releases, topics


@pytest.fixture
def wheel(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that unpacks a made-up release under a folder: `wheel(version, {path: source})`."""

    def write(version: str, files: Mapping[str, str]) -> Path:
        root = tmp_path / "wheels" / version
        for path, source in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(textwrap.dedent(source), encoding="utf-8")
        about = {"version": version, "filename": f"vllm-{version}.whl", "sha256": "0" * 64, "built": "2026-01-01"}
        (root / "wheel.json").write_text(json.dumps(about), encoding="utf-8")
        return tmp_path / "wheels"

    return write


@pytest.fixture
def user_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give the test a user's data folder of its own, with no release in it."""
    folder = tmp_path / "user-data"
    monkeypatch.setenv("DRAFTWISE_DATA_DIR", str(folder))
    forget_added()
    yield folder
    forget_added()


@pytest.fixture
def add_like_newest(user_data: Path) -> Callable[..., Release]:
    """Return a function that adds a release with the newest one's tables, changed: `add(version, topic=function)`.

    A function takes the table of its topic, key -> (value, source), and returns another; one that returns None leaves
    the topic out.
    """

    def add(version: str, **changes: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Release:
        newest = releases()[-1]
        tables = {
            topic: {key: (value, "vllm/new.py: symbol") for key, value in newest.table(topic).items()}
            for topic in topics()
        }
        changed = {topic: changes.get(topic, lambda table: table)(table) for topic, table in tables.items()}
        known = {topic: table for topic, table in changed.items() if table is not None}
        missing = dict.fromkeys(changed.keys() - known.keys(), f"vLLM {version}: no class X.")
        about = AddedRelease(
            version=version,
            built="2026-11-20",
            read_from=f"vllm-{version}.whl",
            added="2026-11-21",
            draftwise="0.1",
            topics=sorted(known),
            missing=missing,
        )
        write_release(about, known)
        forget_added()
        return get_release(version)

    return add
