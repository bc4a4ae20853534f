"""What neither the release nor the files grant, whatever the platform is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from draftwise.core import Finding, Setup, Severity
from draftwise.plan.check import check

__all__ = ["find_limits"]


def find_limits(setup: Setup, *, brings_weights: bool) -> Iterator[Finding]:
    """Yield what `check` warns of, and the directories of this machine that the server would look for on another one.

    Args:
        setup: as it was ordered; where files put its checkpoints, there is nothing here to be looked at.
        brings_weights: whether files put them there.
    """
    yield from (finding for finding in check(setup).findings if finding.severity is Severity.WARNING)
    drafter = None if setup.spec is None else setup.spec.model
    for name in filter(None, () if brings_weights else (setup.target, drafter)):
        path = Path(name)
        is_no_name = "://" not in name and (name.count("/") > 1 or name.startswith((".", "~")))  # of the hub's
        if path.is_absolute() or path.is_dir() or is_no_name:
            yield Finding.warning(
                "weights-not-brought",
                f"{name} is a directory, and no file here brings it to where the server runs.",
                where="model",
                fix="Mount it there under that path, or bake it into the image, or name the checkpoint on the hub; "
                "`--to kserve --layout` writes all of that, and `draftwise bundle` packs it.",
            )
