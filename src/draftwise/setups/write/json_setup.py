"""A setup as draftwise's own JSON, which `check` and every verb that takes a setup read."""

from __future__ import annotations

import json

from draftwise.core import Setup

__all__ = ["write_json"]


def write_json(setup: Setup) -> str:
    """Return the JSON object of a setup of vLLM; the device is not part of it."""
    return (
        json.dumps(
            {
                "target": setup.target,
                "engine_version": setup.engine_version,
                "speculative_config": None if setup.spec is None else setup.spec.to_dict(),
                "args": dict(setup.args),
                "env": dict(setup.env),
            },
            indent=1,
        )
        + "\n"
    )
