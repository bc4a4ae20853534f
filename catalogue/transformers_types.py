"""Reads what the installed transformers knows of each model type into `draftwise.knowledge.model_types`' data file.

    python -m catalogue.transformers_types [FILE]      (run with an interpreter that has transformers and torch)

Unlike the wheels of vLLM, transformers is imported: what a configuration class fills in is found out by making one.
Nothing else of the project is needed, so it runs in the environment of a vLLM, whose transformers is what counts.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import os
import sys
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["classes_by_backend", "describe", "read_installed", "write"]

_DATA = Path(__file__).parents[1] / "src/draftwise/knowledge/data/transformers.json"
_VALUES = ("vocab_size", "max_position_embeddings", "num_attention_heads", "chunk_size")
"""What vLLM asks a config for and a config.json may leave out."""
_KEYS = json.loads(_DATA.with_name("config_keys.json").read_text(encoding="utf-8"))
_READ = {*_VALUES, *_KEYS["numbers"], *_KEYS["limits"]}
"""Names that draftwise reads, and so knows by a type's own spelling."""
_SIZES = _READ - {"num_heads"}
"""A spelling that is such a name itself says nothing new."""
_UNUSUAL = 97
"""A number that no argument has by default."""
_ROPE = ("rope_type", "factor", "original_max_position_embeddings")
_SOURCE = (
    "transformers {version}, models/auto/configuration_auto.py: CONFIG_MAPPING_NAMES and the defaults of each "
    "configuration class; models/auto/modeling_auto.py: the classes for which is_backend_compatible() holds "
    "(buildable), and those that can only set their attention implementation (own_attention); of types that vLLM's own "
    "classes read (vllm/transformers_utils/config.py: _CONFIG_REGISTRY), only `rename`"
)
_WIDTH = 117


def describe(configuration: type[Any], model_class: str | None) -> dict[str, Any]:
    """Return the row of a model type.

    Args:
        configuration: its configuration class; a class that cannot be made without arguments fills in nothing.
        model_class: the class that stands for a config without `architectures`.
    """
    row: dict[str, Any] = {}
    spellings = getattr(configuration, "attribute_map", None) or {}
    if rename := {name: own for name, own in spellings.items() if name in _READ and own not in _SIZES}:
        row["rename"] = rename
    try:
        made = configuration()
    except Exception:  # each class refuses in its own way: parts that are missing, defaults that lie on a hub
        made = None
    values = {name: getattr(made, name, None) for name in _VALUES}
    row |= {name: value for name, value in values.items() if isinstance(value, int) and not isinstance(value, bool)}
    if model_class is not None:
        row["model_class"] = model_class
    rope = getattr(made, "rope_parameters", None)
    # Of the scalings that are defaults, YaRN alone lengthens the context that vLLM derives from a config.
    if isinstance(rope, Mapping) and rope.get("rope_type") == "yarn":
        row["rope_parameters"] = {name: value for name, value in rope.items() if name in _ROPE}
    return row


def find_arguments(configuration: type[Any]) -> dict[str, str]:
    """Return names that draftwise reads and that an argument of another name sets -> that argument."""
    found: dict[str, str] = {}
    for name, argument in inspect.signature(configuration).parameters.items():
        if type(argument.default) is int:
            with contextlib.suppress(Exception):  # it refuses the number
                made = configuration(**{name: _UNUSUAL})
                found |= {each: name for each in _READ - {name} if getattr(made, each, None) == _UNUSUAL}
    return found


def classes_by_backend(models: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the classes that vLLM's Transformers backend builds, and those that only set their attention."""
    buildable = {name for name, cls in models.items() if cls.is_backend_compatible()}
    own = {name for name, cls in models.items() if name not in buildable and cls._can_set_attn_implementation()}
    return sorted(buildable), sorted(own)


def read_installed() -> dict[str, Any]:
    """Return the content of the data file, read from the transformers that this interpreter has."""
    transformers = importlib.import_module("transformers")
    types = importlib.import_module("transformers.models.auto.configuration_auto")
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    names = sorted(types.CONFIG_MAPPING_NAMES)
    stand_ins = {name: _names(cls)[0] for name, cls in auto.MODEL_MAPPING_NAMES.items()}
    listed = (auto.MODEL_MAPPING_NAMES, auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
              auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)  # fmt: skip
    wanted = {name for mapping in listed for entry in mapping.values() for name in _names(entry)}
    models = {name: getattr(transformers, name, None) for name in wanted}
    base = transformers.PreTrainedModel
    buildable, own = classes_by_backend(
        {name: cls for name, cls in models.items() if isinstance(cls, type) and issubclass(cls, base)}
    )
    rows = {name: describe(types.CONFIG_MAPPING[name], stand_ins.get(name)) for name in names}
    registry = importlib.import_module("vllm.transformers_utils.config")._CONFIG_REGISTRY
    for name in sorted(registry.keys() - rows.keys()):
        if rename := describe(registry[name], None).get("rename", {}) | find_arguments(registry[name]):
            rows[name] = {"library": "vllm", "rename": dict(sorted(rename.items()))}
    return {
        "source": _SOURCE.format(version=transformers.__version__),
        "types": rows,
        "buildable": buildable,
        "own_attention": own,
    }


def _names(entry: str | Iterable[str]) -> list[str]:
    return [entry] if isinstance(entry, str) else list(entry)


def write(file: Path, data: Mapping[str, Any]) -> None:
    """Write the data file: one line a model type, the lists of classes filled."""
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in data["types"].items())
    parts = [f'{{"source": {json.dumps(data["source"])}', f' "types": {{\n{rows}\n }}']
    for name in ("buildable", "own_attention"):
        listed = ", ".join(map(json.dumps, data[name]))
        filled = textwrap.fill(listed, _WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
        parts.append(f' "{name}": [\n{filled}\n ]')
    file.write_text(",\n".join(parts) + "}\n", encoding="utf-8")


def main(arguments: list[str]) -> None:
    """Write the file named on the command line, or the data file."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ["HF_HUB_OFFLINE"] = "1"  # what a class would fetch is no default
    write(Path(arguments[0]) if arguments else _DATA, read_installed())


if __name__ == "__main__":
    main(sys.argv[1:])
