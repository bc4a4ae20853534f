"""Well-known public models: the part of their config.json that judging, sizing and choosing need.

The rows are in `data/models.json`, one line per model. They include class defaults that memory depends on, even if the
config.json leaves them out (Gemma's and Llama 4's `tie_word_embeddings`, the text part of Gemma 3).
`catalogue/model_names.py` writes two more files for names that the first lacks: config.json files from public
repositories (`model_configs.json`), and names with only a known architecture (`model_names.json`).
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
_IN_CACHE = re.compile(r"(?:^|/)models--([^/]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """One public checkpoint."""

    id: str
    """Its name on the Hugging Face hub."""
    also: tuple[str, ...] = ()
    """Further checkpoints with the same config.json."""
    params: int | None = None
    """Number of weights as published, exact unless it has trailing zeros; None without a source."""
    active_params: int | None = None
    """Number of weights that a token uses in a mixture of experts; None for a dense model."""
    source: str
    config: Mapping[str, Any]
    is_partial: bool = False
    """Whether only the architecture, and with it the type, is known."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every name of the row."""
        return (self.id, *self.also)


@cache
def read_models() -> tuple[KnownModel, ...]:
    """Return every model with a known config.json, by name."""
    return (*_read_rows("models"), *_read_rows("model_configs"))


@cache
def read_names() -> tuple[KnownModel, ...]:
    """Return every model with only a known architecture, by name."""
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

    Case does not matter. You may leave out the organization, but nothing else.
    """
    wanted = name.strip().lower()
    return next(filter(None, (_by_name(read).get(wanted) for read in _READERS)), None)


def name_in_cache(path: str) -> str:
    """Return the hub name of the model whose directory in the hub's cache a path leads into; empty for another path."""
    found = _IN_CACHE.search(path)
    return found[1].replace("--", "/") if found else ""


def is_hub_name(name: str) -> bool:
    """Return whether a name is valid on the Hugging Face hub (huggingface_hub: validate_repo_id)."""
    return _HUB_NAME.fullmatch(name) is not None


def names_directory(name: str) -> bool:
    """Return whether a checkpoint is spelled as a directory, not as a hub name."""
    return name.startswith(("/", ".", "~"))


def near_models(name: str) -> str:
    """Return a question that suggests similar names, with a space at its end; empty if none is similar."""
    close = suggest_models(name)
    return f"Did you mean {' or '.join(close)}? " if close else ""


@cache
def suggest_models(name: str) -> tuple[str, ...]:
    """Return at most three known names, most similar to an unknown one."""
    from difflib import get_close_matches

    known = (*read_models(), *read_names())
    spelled = {each.lower(): each for model in known for each in model.names}
    by_tail = {each.rpartition("/")[2]: each for each in spelled}
    tail = name.strip().rstrip("/").lower().rpartition("/")[2]
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
