"""What every result says of where it comes from, and how it is written."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from draftwise import __version__
from draftwise.machine.processes import cpu_name

__all__ = ["provenance", "write"]


def provenance(*packages: str) -> dict[str, Any]:
    """Return date, machine and versions of a measurement that takes place now.

    Args:
        packages: whose versions matter to it beside draftwise's own.
    """
    return {
        "date": date.today().isoformat(),
        "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"},
        "versions": {
            "draftwise": __version__, "python": platform.python_version(), **{name: version(name) for name in packages}
        },
    }  # fmt: skip


def write(result: Mapping[str, Any], out: Path | None) -> None:
    """Write a result as JSON; nothing where no file is given."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
