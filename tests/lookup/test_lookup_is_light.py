"""Lookup needs numpy and numba only, so that logs can be replayed where there is no torch."""

import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from draftwise import lookup


@pytest.fixture
def without_torch(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that cannot import torch."""
    (tmp_path / "torch.py").write_text("raise ImportError('here is no torch')")
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}


def test_lookup_comes_without_torch(without_torch: dict[str, str]) -> None:
    def brings_torch(*modules: str) -> bool:
        command = [sys.executable, "-c", f"import {', '.join(modules)}"]
        done = subprocess.run(command, env=without_torch, capture_output=True, text=True, check=False)
        assert done.returncode == 0 or "here is no torch" in done.stderr, done.stderr
        return done.returncode != 0

    modules = [f"draftwise.lookup.{each.name}" for each in pkgutil.iter_modules(lookup.__path__)]
    assert len(modules) == 5
    assert not brings_torch(*modules)
    assert brings_torch("draftwise.engine.proposers.suffix"), "else the test above would see nothing"
