"""A model by its config.json: from a directory, from the table of well-known models, or as JSON text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from draftwise.checkpoints.gguf_files import is_gguf, make_config, read_gguf
from draftwise.checkpoints.text_files import check_directory, parse_json, read_json
from draftwise.knowledge.messages import refusal

if TYPE_CHECKING:
    from draftwise.knowledge.model_copies import ModelCopy

_EXPERT_KEYS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One config.json and the name it was found under."""

    name: str
    """Name exactly as the operator wrote it, because vLLM infers methods from it."""
    config: Mapping[str, Any]
    origin: Literal["directory", "table", "json"]
    directory: Path | None = None
    file: Path | None = None
    """GGUF file that it was made from."""
    copy: ModelCopy | None = None
    """The model that it is a copy of by its name, and whose config.json this is; None for a known model."""
    is_partial: bool = False
    """Whether only the architecture, and with it the type, is known; any other missing value is unknown."""

    model_type: str = field(init=False)
    """`model_type`, or an empty string."""
    architectures: tuple[str, ...] = field(init=False)
    """`architectures`; empty if the file has none."""
    text_config: Mapping[str, Any] = field(init=False, repr=False)
    """The language model's part of a multimodal config; any other config as a whole."""

    def __post_init__(self) -> None:
        names = self.config.get("architectures")
        object.__setattr__(self, "model_type", str(self.config.get("model_type") or ""))
        object.__setattr__(self, "architectures", tuple(map(str, names)) if isinstance(names, list) else ())
        object.__setattr__(self, "text_config", get_text_config(self.config))


def get_text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model's part of a multimodal config.json; any other as a whole."""
    for key in ("text_config", "llm_config", "language_config", "thinker_config"):
        inner = config.get(key)
        if isinstance(inner, Mapping):
            deeper = inner.get("text_config") if key == "thinker_config" else None
            return deeper if isinstance(deeper, Mapping) else inner
    return config


def count_experts(config: Mapping[str, Any]) -> int:
    """Return the number of routed experts; 0 for a dense model."""
    text = get_text_config(config)
    first = next((value for key in _EXPERT_KEYS if (value := text.get(key))), 0)
    first = first[0] if isinstance(first, list) else first
    return first if isinstance(first, int) else 0


_STAND_INS: ContextVar[Mapping[str, Path]] = ContextVar("stand_ins", default=MappingProxyType({}))


@contextmanager
def standing_for(configs: Mapping[str, Path]) -> Iterator[None]:
    """Use directories with a config.json for look-ups of models with other names, within this context."""
    token = _STAND_INS.set(configs)
    try:
        yield
    finally:
        _STAND_INS.reset(token)


def find_model_config(given: str, *, partly: bool = False) -> ModelConfig | None:
    """Return the config of a model; None if it is neither a directory nor in the table.

    Args:
        given: a directory with config.json, a path to a config.json or a GGUF file, a well-known model id, or the JSON
            itself.
        partly: whether to return models with only a known architecture.

    Raises:
        InvalidSetup: the directory has no config.json, or it is not a JSON object; the GGUF file is damaged or has an
            unknown architecture.
    """
    if not given:
        return None
    if (place := _STAND_INS.get().get(given)) is not None:
        return ModelConfig(name=given, config=read_config(place), origin="directory", directory=place)
    if given.lstrip().startswith("{"):
        return ModelConfig(name="config.json", config=parse_json(given, where="--target"), origin="json")
    path = Path(given)
    if is_gguf(path):
        return ModelConfig(name=given, config=make_config(read_gguf(path)), origin="directory", file=path)
    try:
        is_file, is_directory = path.name.endswith(".json") and path.is_file(), path.is_dir()
    except (OSError, ValueError):  # longer than a path may be, or with a null byte
        is_file = is_directory = False
    if is_file:
        return ModelConfig(name=str(path.parent), config=read_json(path), origin="directory", directory=path.parent)
    if is_directory:
        return ModelConfig(name=given, config=read_config(path), origin="directory", directory=path)
    known = _find_known(given)
    return None if known is not None and known.is_partial and not partly else known


def _find_known(name: str) -> ModelConfig | None:
    from draftwise.knowledge.models import find_model, name_in_cache

    name = name_in_cache(name) or name
    if (known := find_model(name)) is not None:
        return ModelConfig(name=name, config=known.config, origin="table", is_partial=known.is_partial)
    from draftwise.knowledge.model_copies import find_copy

    if (copy := find_copy(name)) is None:
        return None
    return ModelConfig(name=name, config=copy.config, origin="table", copy=copy, is_partial=copy.base.is_partial)


def read_config(directory: Path) -> dict[str, Any]:
    """Return a checkpoint's config.json.

    Raises:
        InvalidSetup: the directory or file does not exist, or it is not a JSON object.
    """
    check_directory(directory)
    if not (directory / "config.json").is_file():
        raise refusal("no-config-json", directory=directory)
    return read_json(directory / "config.json")
