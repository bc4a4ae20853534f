"""EngineArgs: flags as `vllm serve` reads them, both models, and speculation settings of a served checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import replace
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from draftwise.checkpoints.config_json import ModelConfig, find_model_config
from draftwise.core import Finding, InvalidSetup, Ruling, Setup, SpecConfig, Stage
from draftwise.core.finding import join_names
from draftwise.knowledge.flag_types import HUMAN_READABLE, SPEC_FLAGS, read_human_int, read_old_flags
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.methods import methods_where
from draftwise.knowledge.models import is_hub_name
from draftwise.knowledge.rules import Rulebook
from draftwise.knowledge.vllm import Release, all_keys, get_release, history
from draftwise.plan.check.cli.configs import ServerSettings, find_refused, spell
from draftwise.plan.check.model.hf_config import Config, find_faults, find_incomplete
from draftwise.plan.check.stages import Context, Platform, Step, collect

_FREE = frozenset({"quantization"})
"""Flags whose declared choices the parser does not enforce: the config does."""
_PARALLEL = ("peagle",)
"""Speculators types whose heads draft in parallel."""
_URL = re.compile(r"(https?|hf)://", re.IGNORECASE)
_OF_OTHERS = ("VLLM_ADDITIONAL_ARGS", "VLLM_API_SERVER_COUNT", "VLLM_ASCEND_")
"""Beginnings of variables that KServe's templates and vllm-ascend read."""
Served = tuple[str | None, Config | None]
"""Name of the model that is served in place of the checkpoint (None for none), and the speculative JSON."""


def get_context(
    setup: Setup,
    release: Release | None = None,
    *,
    installed: frozenset[str] | None = None,
    shown: frozenset[str] = frozenset(),
    origins: Mapping[str, str] = MappingProxyType({}),
    flag_keys: Set[str] = frozenset(),
) -> Context:
    """Look up everything that a setup names.

    Args:
        flag_keys: keys of the setup's speculative JSON that only a `--spec-*` flag gives.

    Raises:
        InvalidSetup: the setup's release is unknown.
    """
    release = release or get_release(setup.engine_version or "newest")
    rulings, context = collect(_look_up(setup, release, installed, origins, flag_keys))
    return replace(context, rulings=rulings, shown=shown)


def _with_flags(setup: Setup, keys: Set[str]) -> Setup:
    """Return a setup whose JSON is without the keys that flags give."""
    if setup.spec is None or not keys:
        return setup
    spec = setup.spec.to_dict()
    args = {flag: spec.pop(key) for flag, key in SPEC_FLAGS.items() if key in keys and key in spec}
    return replace(setup, args={**setup.args, **args}, spec=SpecConfig.keep(spec) if spec else None)


def _look_up(
    setup: Setup,
    release: Release,
    installed: frozenset[str] | None,
    origins: Mapping[str, str],
    flag_keys: Set[str],
) -> Step[Context]:
    rules = Rulebook(release.version)
    faults: list[Finding] = []
    model = _find_model(setup.target, faults)
    is_checkpoint = model is not None and model.config.get("speculators_config") is not None
    as_given = _with_flags(setup, flag_keys) if is_checkpoint else setup
    given = yield from _read_flags(rules, release, as_given.args)
    env = yield from _read_variables(rules, release, setup.env)
    platform: Platform = "cpu" if setup.device is not None and setup.device.kind == "cpu" else "cuda"
    yield from find_refused(rules, release, ServerSettings(given=given, platform=platform, env=env))
    written = None if as_given.spec is None else as_given.spec.to_dict()
    verifier, spec = yield from _read_served(rules, release, setup.target, model, written)
    doubled = tuple(flag for flag, key in SPEC_FLAGS.items() if flag in given and key in (spec or {}))
    spec = _join_flags(spec, given)
    target = model if verifier is None else _find_model(verifier, faults)
    if target is not None:
        target = yield from _override(rules, target, given)
    drafter = _find_drafter(spec, origins, faults)
    return Context(
        setup=setup,
        release=release,
        rules=rules,
        flags={**release.table("engine_defaults"), **given},
        given=given,
        spec=spec,
        keys={key.replace("-", "_"): value for key, value in (spec or {}).items()},
        target=target,
        drafter=drafter,
        draft_config={} if drafter is None or drafter.is_partial else drafter.config,
        faults=tuple(faults),
        verifier=verifier,
        doubled=doubled,
        platform=platform,
        env=env,
        origins=origins,
        installed=installed,
    )


def _override(rules: Rulebook, target: ModelConfig, flags: Mapping[str, Any]) -> Step[ModelConfig]:
    """Return the target with what --hf-overrides and old flags replace, and yield values of another type."""
    given = dict(_read_object(flags.get("hf_overrides")))
    if scaling := _read_object(flags.get("rope_scaling")):
        given["rope_scaling"] = scaling
    if flags.get("rope_theta") is not None:
        given["rope_theta"] = flags["rope_theta"]
    for key, value in given.items():
        kind = "a list" if key == "architectures" else "a number" if type(target.text_config.get(key)) is int else ""
        is_wrong = (kind == "a list" and isinstance(value, str)) or (
            kind == "a number" and isinstance(value, str | list)
        )
        if is_wrong:
            yield from rules.ruling("overrides-refused", key=key, value=value, kind=kind)
            return target
    return replace(target, config={**target.config, **given})


def _read_object(value: Any) -> Mapping[str, Any]:
    """Return the object that a flag holds, as text or typed. An empty one for any other value."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, Mapping) else {}


def _join_flags(spec: Mapping[str, Any] | None, given: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the speculative JSON with what `--spec-*` flags say. They win over keys that are spelled with dashes."""
    by_flag = {key: given[flag] for flag, key in SPEC_FLAGS.items() if flag in given}
    return {**(spec or {}), **by_flag} if by_flag else spec


def _find_drafter(
    spec: Mapping[str, Any] | None, origins: Mapping[str, str], faults: list[Finding]
) -> ModelConfig | None:
    name = None if spec is None else spec.get("model")
    if not isinstance(name, str) or not name:
        return None
    found = _find_model(origins.get(name, name), faults)
    return None if found is None else replace(found, name=name)


def _find_model(name: str, faults: list[Finding]) -> ModelConfig | None:
    try:
        if _URL.match(name):
            raise refusal("model-is-url", name=name)
        return find_model_config(name, partly=True)
    except InvalidSetup as fault:
        faults.extend(fault.findings)
        return None


def _read_flags(rules: Rulebook, release: Release, args: Mapping[str, Any]) -> Step[Mapping[str, Any]]:
    """Return the flags as the engine gets them, and yield what the command line parser refuses."""
    by_field = {row["field"]: row for row in release.table("flags").values()}
    read: dict[str, Any] = {}
    for name, value in args.items():
        row = by_field.get(name)
        if row is None and name in release.table("engine_defaults"):
            read[name] = value  # a field of EngineArgs without a flag, which Python can set
        elif row is None:
            yield from _find_unknown_flag(rules, name, by_field)
        elif value is not None:
            try:
                read[name] = _read_flag(name, row, value, takes_auto=rules.holds("max-model-len-auto"))
            except ValueError as fault:
                yield from rules.ruling("flag-value", flag=spell(name), fault=fault, name=name)
    return read


def _find_unknown_flag(rules: Rulebook, name: str, known: Mapping[str, Any]) -> Iterator[Ruling]:
    flag = spell(name)
    spans = history("flags", flag)
    if (old := read_old_flags().get(flag)) is not None:
        fix = f'Write it into --speculative-config as "{old.key}".' if not old.note else f"Remove it: {old.note}."
    elif near := get_close_matches(name, known, n=1, cutoff=0.8):
        fix = f"Did you mean {spell(near[0])}?"
    else:
        fix = "Remove it."
    told = f"; it exists from {spans[0].since} to {spans[-1].until or 'now'}" if spans else ""
    yield from rules.ruling("flag-unknown", flag=flag, told=told, fix=fix)


def _read_variables(rules: Rulebook, release: Release, env: Mapping[str, str]) -> Step[Mapping[str, str]]:
    """Return the variables without those that the release does not read, and yield these."""
    own = [name for name in env if name.startswith("VLLM_")]
    unlisted = [name for name in own if name not in release.table("env")]
    foreign: list[str] = []
    for name in unlisted:
        known = all_keys("env")
        if name in known:
            yield from _find_other_releases(rules, release, name)
        elif near := get_close_matches(name, known, n=1, cutoff=0.9):
            yield from rules.ruling("variable-unread", name=name, told="", fix=f"Did you mean {near[0]}?")
        elif not name.startswith(_OF_OTHERS):
            foreign.append(name)
    if foreign:
        yield from rules.ruling("variable-unlisted", names=join_names(foreign))
    return {name: value for name, value in env.items() if name not in unlisted or name not in all_keys("env")}


def _find_other_releases(rules: Rulebook, release: Release, name: str) -> Iterator[Ruling]:
    spans = history("env", name)
    if release.version < spans[0].since:
        told, fix = f"; {spans[0].since} is the first release that does", "Upgrade, or remove it."
    else:
        last = next(span for span in reversed(spans) if span.until is not None and span.until < release.version)
        told = f"; {last.until} was the last release that did"
        fix = last.value.get("instead") or _find_successor(release, name) or "Remove it."
    yield from rules.ruling("variable-unread", name=name, told=told, fix=fix)


def _find_successor(release: Release, variable: str) -> str:
    """Return how to pass the flag, or the field of a config's flag, that has a variable's name in the release."""
    name = variable.removeprefix("VLLM_").removeprefix("V1_").lower()
    flags = release.table("flags")
    fields = (field.split(".") for field in release.table("config_fields") if field.endswith(f".{name}"))
    of_configs = (f"{spell(re.sub('(?<=[a-z])(?=[A-Z])', '_', cls).lower())}.{field}" for cls, field in fields)
    able = (flag for flag in (spell(name), *of_configs) if flag.partition(".")[0] in flags)
    return next((f"Pass {flag}." for flag in able), "")


def _read_flag(name: str, row: Mapping[str, Any], value: Any, *, takes_auto: bool) -> Any:
    """Return a value as the parser hands it on."""
    if (read := _READERS.get(name)) is not None:
        return read(value)
    if row["kind"] != "value" or name in _FREE:
        return value
    declared = row["type"].removesuffix(" | None")
    if declared == "int":
        if takes_auto and name == "max_model_len" and str(value).strip().lower() == "auto":
            return -1
        return _read_int(value, human=name in HUMAN_READABLE)
    if declared == "float":
        return _read_float(value)
    choices = row.get("choices")
    if choices and isinstance(value, str) and value not in choices and "str" not in declared.split(" | "):
        near = get_close_matches(value.lower(), [str(each) for each in choices], n=1, cutoff=0.6)
        hint = f"; did you mean {near[0]}" if near else ""
        raise ValueError(f"must be one of {', '.join(map(str, choices))}, got {value!r}{hint}.")
    return value


def _read_device_ids(value: Any) -> Any:
    """Return the devices of --device-ids, a list with commas: numbers, or UUIDs."""
    if not isinstance(value, str):
        return value
    return [int(each) if each.isdigit() else each for each in map(str.strip, value.split(","))]


def _read_adapters(value: Any) -> Any:
    return [_read_adapter(each) for each in value] if isinstance(value, list) else value


def _read_adapter(value: Any) -> Any:
    """Return one of the modules of --lora-modules: `name=path`, or a JSON object that has both."""
    if not isinstance(value, str) or not value or ("=" in value and "," not in value):
        return value
    try:
        module = json.loads(value)
    except ValueError:
        raise ValueError(f"needs name=path or a JSON object, got {value!r}.") from None
    if not isinstance(module, dict) or not module.keys() >= {"name", "path"}:
        raise ValueError(f"needs the keys name and path in a JSON object, got {value!r}.")
    return module


_READERS: Mapping[str, Callable[[Any], Any]] = {"device_ids": _read_device_ids, "lora_modules": _read_adapters}
"""Flags that the parser reads by a function of their own."""


def _read_int(value: Any, *, human: bool) -> int:
    if isinstance(value, bool):
        raise ValueError("needs a number.")
    try:
        return read_human_int(str(value)) if human else int(str(value).strip())
    except ValueError:
        raise ValueError(f"needs an integer, got {value!r}.") from None


def _read_float(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError("needs a number.")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"needs a number, got {value!r}.") from None


def _read_served(
    rules: Rulebook, release: Release, name: str, model: ModelConfig | None, spec: Config | None
) -> Step[Served]:
    """Return what vLLM serves, and with which speculation, for a model that may be a speculators checkpoint.

    Such a checkpoint names the real target and the speculation itself. Any other model, one that cannot be read, and
    every model in releases without the format is served as it is, with the JSON as written.
    """
    as_written: Served = (None, spec)
    if model is None or model.config.get("speculators_config") is None or not rules.holds("speculators-format"):
        return as_written
    config = model.config
    faults = [*find_incomplete(rules, config, name)] or [*_find_local_verifier(rules, config, name)]
    if not faults and _reads_layers(rules, spec):
        faults = [*islice(find_faults(rules, release, config, name), 1)]
    if faults:
        # Nothing wraps the ValueError here, before any config object is made.
        yield replace(faults[0], stage=Stage.ENGINE, exception="ValueError")
        return as_written
    verifier = _verifier(config)
    if spec is not None and rules.holds("speculators-user-json-wins"):
        return verifier, spec
    if spec is None and rules.holds("speculators-settings-lost"):
        yield from rules.ruling("speculators-settings-lost")
        return verifier, None
    own = _own_settings(release, config)
    if spec is None:
        return verifier, {**own, "model": name}
    yield from _find_replaced(rules, own, name, spec)
    kept = spec if rules.holds("speculators-json-merged") else {}
    return verifier, {**own, **kept, "method": own["method"], "model": name}


def _reads_layers(rules: Rulebook, spec: Config | None) -> bool:
    """Say whether the release converts the layers while it looks for the served model."""
    if not rules.holds("speculators-structure"):
        return False
    return not rules.holds("speculators-user-json-wins" if spec is not None else "speculators-settings-lost")


def _own_settings(release: Release, config: Config) -> Config:
    """Return the speculative JSON that the checkpoint stands for: a type may run under another method's name."""
    kind = config["speculators_model_type"]
    tokens = config["speculators_config"]["proposal_methods"][0]["speculative_tokens"]
    if not isinstance(kind, str) or kind not in release.table("speculators_types"):
        return {"method": kind, "num_speculative_tokens": tokens}
    method = next((name for name, method in methods_where().items() if kind in method.speculators), kind)
    parallel = {"parallel_drafting": True} if kind in _PARALLEL else {}
    return {"method": method, **parallel, "num_speculative_tokens": tokens}


def _verifier(config: Config) -> str:
    return str(config["speculators_config"]["verifier"]["name_or_path"])


def _find_local_verifier(rules: Rulebook, config: Config, name: str) -> Iterator[Ruling]:
    """Yield the refusal of a verifier on disk: some releases take only names of the hub."""
    verifier = _verifier(config)
    if not is_hub_name(verifier) or Path(verifier).exists():
        yield from rules.ruling("speculators-local-verifier", verifier=verifier, where=name)


def _find_replaced(rules: Rulebook, own: Config, name: str, spec: Config) -> Iterator[Ruling]:
    locked = {"method": own["method"], "model": name}
    lost = [key for key, value in locked.items() if key in spec and spec[key] != value]
    if lost:
        yield from rules.ruling("speculators-json-merged", lost=" and ".join(lost), locked=locked)
    if any(own.get(key, locked.get(key)) != value for key, value in spec.items()):
        yield from rules.ruling("speculators-json-replaced", becomes=str({**own, "model": name}))
