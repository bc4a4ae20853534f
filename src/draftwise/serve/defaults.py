"""Sampling defaults from a checkpoint's generation_config.json, as in vLLM."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftwise.core import InvalidSetup
from draftwise.engine.sampling.params import SamplingParams

__all__ = ["Defaults"]

_SAMPLING = (
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("temperature", "top_k", "top_p", "min_p"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Values of fields that a request leaves out."""

    sampling: dict[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    """`max_new_tokens`; None: the rest of the context."""

    @classmethod
    def from_checkpoint(cls, directory: str | Path) -> Defaults:
        """Return the defaults of a checkpoint directory; none without a generation_config.json.

        Raises:
            InvalidSetup: the file is not valid JSON or holds a value out of range.
        """
        path = Path(directory) / "generation_config.json"
        if not path.is_file():
            return cls()
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            sampling = {name: config[name] for name in _SAMPLING if config.get(name) is not None}
            SamplingParams(**sampling)
        except (ValueError, TypeError, AttributeError) as error:
            raise InvalidSetup.because(
                "bad-generation-config", f"{path} cannot be used: {error}", where=str(path), fix="Correct or remove it."
            ) from None
        return cls(sampling=sampling, max_tokens=config.get("max_new_tokens"))
