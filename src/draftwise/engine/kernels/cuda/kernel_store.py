"""Triton's cache on disk, in a folder that can be moved, and behind it one that can only be read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from triton.runtime.cache import FileCacheManager

_SHIPPED = "DRAFTWISE_SHIPPED_KERNELS"
"""See `engine.kernel_cache.SHIPPED`."""


class KernelStore(FileCacheManager):  # type: ignore[misc]  # Triton has no types
    """Triton keeps absolute paths of a kernel's files, which do not survive a copy; here they lie side by side."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        super().__init__(key, override=override, dump=dump)
        shipped = os.environ.get(_SHIPPED)
        self._shipped = Path(shipped) / key if shipped and not (override or dump) else None

    def get_file(self, filename: str) -> str | None:
        """Return the path of a file; None if missing."""
        if self._shipped is not None and (self._shipped / filename).is_file():
            return str(self._shipped / filename)
        found: str | None = super().get_file(filename)
        return found

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Return the paths of all files of a kernel by their names; None where it was not compiled yet."""
        listed = self.get_file(f"__grp__{filename}")
        if listed is None:
            return None
        group: dict[str, Any] = json.loads(Path(listed).read_text("utf-8")).get("child_paths") or {}
        beside = {name: Path(listed).parent / Path(path).name for name, path in group.items()}
        return {name: str(path) for name, path in beside.items() if path.is_file()}
