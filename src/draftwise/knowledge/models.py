"""Well-known public models: the part of their config.json that judging, sizing and choosing need.

The rows lie in `data/models.json`, one line a model. Keys that a config.json leaves to the default of its model class
are written out where memory depends on them (Gemma's and Llama 4's `tie_word_embeddings`, the text part of Gemma 3).
`catalogue/model_names.py` writes two more files, read for names that the first lacks: config.json files that public
repositories hold (`model_configs.json`), and names of which the architecture alone is known (`model_names.json`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from types import MappingProxyType
from typing import Any

from draftwise.knowledge.stored import read_data

_HUB_NAME = re.compile(r"(?!.*(--|\.\.|\.git$))(\b[\w.-]{1,96}\b/)?\b[\w.-]{1,96}\b", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """One public checkpoint."""

    id: str
    """Its name on the Hugging Face hub."""
    also: tuple[str, ...] = ()
    """Further checkpoints with the same config.json."""
    params: int | None = None
    """Number of weights as published: exact if it has no trailing zeros; None where no source says it."""
    active_params: int | None = None
    """Number of weights that one token uses in a mixture of experts; None for a dense model."""
    source: str
    config: Mapping[str, Any]
    is_partial: bool = False
    """Whether the architecture, and with it the type, is all that is known of config.json."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every name of the row."""
        return (self.id, *self.also)


@cache
def read_models() -> tuple[KnownModel, ...]:
    """Return every model of which config.json is known, by name."""
    return (*_read_rows("models"), *_read_rows("model_configs"))


@cache
def read_names() -> tuple[KnownModel, ...]:
    """Return every model of which the architecture alone is known, by name."""
    return tuple(
        KnownModel(
            id=name,
            source=row["source"],
            config=MappingProxyType({key: row[key] for key in ("architectures", "model_type") if key in row}),
            is_partial=True,
        )
        for row in read_data("model_names")
        for name in row["models"]
    )


@cache
def _read_rows(name: str) -> tuple[KnownModel, ...]:
    rows = (
        {**row, "also": tuple(row.get("also", ())), "config": MappingProxyType(row["config"])}
        for row in read_data(name)
    )
    return tuple(KnownModel(**row) for row in rows)


def find_model(name: str) -> KnownModel | None:
    """Return the row of a model by its name on the hub; None for an unknown one.

    Upper and lower case do not matter. The organization may be left out, and nothing else may.
    """
    wanted = name.strip().lower()
    return next(filter(None, (_by_name(read).get(wanted) for read in _READERS)), None)


def is_hub_name(name: str) -> bool:
    """Return whether a name can be one of the Hugging Face hub (huggingface_hub: validate_repo_id)."""
    return _HUB_NAME.fullmatch(name) is not None


def names_directory(name: str) -> bool:
    """Return whether a checkpoint is spelled as a directory, and not as the hub does."""
    return name.startswith(("/", ".", "~"))


def near_models(name: str) -> str:
    """Return the question whether known names were meant, with a space behind it; nothing where none is near."""
    close = suggest_models(name)
    return f"Did you mean {' or '.join(close)}? " if close else ""


@cache
def suggest_models(name: str) -> tuple[str, ...]:
    """Return the three known names, at most, that are most similar to an unknown one."""
    from difflib import get_close_matches

    known = (*read_models(), *read_names())
    spelled = {each.lower(): each for model in known for each in model.names}
    by_tail = {each.partition("/")[2]: each for each in spelled}
    tail = name.strip().lower().rpartition("/")[2]
    close = get_close_matches(tail, by_tail, n=3, cutoff=0.9 if names_directory(name) else 0.6)
    return tuple(spelled[by_tail[each]] for each in close)


@cache
def _by_name(read: Callable[[], tuple[KnownModel, ...]]) -> Mapping[str, KnownModel]:
    full = {name.lower(): model for model in read() for name in model.names}
    tails = Counter(name.rpartition("/")[2] for name in full)
    short = {tail: model for name, model in full.items() if tails[tail := name.rpartition("/")[2]] == 1}
    return short | full


_READERS: tuple[Callable[[], tuple[KnownModel, ...]], ...] = (partial(_read_rows, "models"), read_models, read_names)
"""Tables of models, each read only where those before it lack a name."""
