"""Run with an interpreter that has vLLM: prints, as JSON, what the catalogue claims to know about that vLLM."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from typing import Any, get_args


def main() -> None:
    """Read the installed vLLM by importing it, which the catalogue itself never does."""
    import vllm.envs
    from vllm.config import speculative
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.model_executor.models.registry import ModelRegistry
    from vllm.sampling_params import SamplingParams
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.version import __version__

    fields = speculative.SpeculativeConfig.__pydantic_fields__
    known = {
        "version": __version__,
        "methods": _flat(speculative.SpeculativeMethod),
        "spec_fields": {name: _field(field) for name, field in fields.items() if field.init is not False},
        "flags": _flags(_front_end().make_arg_parser(FlexibleArgumentParser())),
        "engine_defaults": {f.name: _plain(_default(f)) for f in dataclasses.fields(AsyncEngineArgs)},
        "architectures": {n: [m.module_name, m.class_name] for n, m in ModelRegistry.models.items()},
        "interfaces": _interfaces(ModelRegistry, sys.argv[1:]),
        "attention_backends": list(AttentionBackendEnum.__members__),
        "sampling_params": list(SamplingParams.__struct_fields__),
        "env": sorted(name for name in vllm.envs.environment_variables if name.startswith("VLLM_")),
    }
    print(json.dumps(known))


def _front_end() -> Any:
    """Return the module of the serving flags, which has moved more than once."""
    for place in ("common", "launchers", "openai"):
        try:
            return importlib.import_module(f"vllm.entrypoints.{place}.cli_args")
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError("cli_args")


def _flat(literal: Any) -> list[str]:
    return [name for arg in get_args(literal) for name in (_flat(arg) if get_args(arg) else [arg])]


def _field(field: Any) -> dict[str, Any]:
    bounds: dict[str, Any] = {}
    for mark in field.metadata:
        bounds |= {key: getattr(mark, key) for key in ("gt", "ge", "lt", "le") if getattr(mark, key, None) is not None}
    return {"default": _plain(field.default), **bounds}


def _default(field: Any) -> Any:
    if field.default is dataclasses.MISSING:
        return field.default_factory() if field.default_factory is not dataclasses.MISSING else None
    return field.default


def _plain(value: Any) -> Any:
    """Return a JSON value; what is none becomes its type's name in angle brackets."""
    if isinstance(value, (set, frozenset, tuple, list)):
        return [_plain(part) for part in value]
    try:
        json.dumps(value)
    except TypeError:
        return f"<{type(value).__name__}>"
    return value


def _flags(parser: Any) -> dict[str, dict[str, Any]]:
    return {
        next(option for option in action.option_strings if option.startswith("--")): {
            "options": list(action.option_strings),
            "dest": action.dest,
            "takes_value": action.nargs != 0,
            "nargs": action.nargs,
            "choices": None if action.choices is None else [_plain(choice) for choice in action.choices],
            "default": _plain(action.default),
        }
        for action in parser._actions
        if any(option.startswith("--") for option in action.option_strings)
    }


def _interfaces(registry: Any, architectures: list[str]) -> dict[str, list[str]]:
    from vllm.model_executor.models.interfaces import supports_pp

    found = {}
    for name in architectures:
        cls = registry.models[name].load_model_cls()
        bases = [base for base in cls.__mro__ if base.__module__ == "vllm.model_executor.models.interfaces"]
        found[name] = sorted({base.__name__ for base in bases} - (set() if supports_pp(cls) else {"SupportsPP"}))
    return found


if __name__ == "__main__":
    main()
