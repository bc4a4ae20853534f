"""Small releases of vLLM, written for a test."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest


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
