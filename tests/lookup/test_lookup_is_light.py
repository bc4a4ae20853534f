"""Lookup needs numpy and numba only, so that logs can be replayed where there is no torch."""

import pkgutil
import subprocess
import sys

from draftwise import lookup


def brings_torch(*modules: str) -> bool:
    """Whether a process that imports these has torch."""
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 1


def test_lookup_comes_without_torch() -> None:
    modules = [f"draftwise.lookup.{each.name}" for each in pkgutil.iter_modules(lookup.__path__)]
    assert len(modules) == 6
    assert not brings_torch(*modules)
    assert brings_torch("draftwise.engine.proposers.suffix"), "else the test above would see nothing"
