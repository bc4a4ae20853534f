"""Refusals of vLLM that nothing else reads: each one holds, does not hold, or waits for the server's own facts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from draftwise.core import Effect, Ruling, Stage
from draftwise.knowledge.rules import is_within
from draftwise.knowledge.validators import (
    NeededPackage,
    ReadRefusal,
    find_refusal,
    list_conditions,
    list_packages,
)
from draftwise.plan.check.check_report import Resolved
from draftwise.plan.check.cli.condition_values import UNKNOWN, decide, reads_in
from draftwise.plan.check.cli.configs import ServerSettings, describe_surroundings, list_front, spell
from draftwise.plan.check.engine.model_runner import POOLING, choose_runner, find_kind
from draftwise.plan.check.engine.step_budget import find_gpu
from draftwise.plan.check.model.model_config import HfConfig, Model, has_interface
from draftwise.plan.check.stages import SPEC, Context

_DERIVED: Mapping[str, tuple[str, ...]] = {
    "connectors": ("kv_transfer_config", "kv_offloading_size"),
    "caches_prefixes": ("enable_prefix_caching",),
    "mamba_mode": ("enable_prefix_caching", "mamba_cache_mode"),
}
"""Names that follow from flags."""


def find_refusals(context: Context, target: Model | None, resolved: Resolved | None) -> Iterator[Ruling]:
    """Yield the refusals that hold, and those that a given setting asks for and nobody can decide."""
    touched = {*context.given, *context.env, *(["spec"] if context.spec is not None else [])}
    touched |= {name for name, flags in _DERIVED.items() if not context.given.keys().isdisjoint(flags)}
    touched |= {"target_name"} if "://" in context.setup.target else set()
    rows = [row for row in list_conditions() if any(name in row.when for name in touched)]
    stored = {target.quantization or "-"} if target is not None else set()
    asked = [row for row in list_packages() if any(name in row.when for name in touched | stored)]
    names = _describe(context, target, resolved) if rows or asked else {}
    yield from _ask_packages(context, asked, names)
    for row in rows:
        if not (holds := decide(row.when, names)):
            continue
        given = [place for read in reads_in(row.when) if (place := _find_given(context, read))]
        if not given or (holds is UNKNOWN and _waits_for_target(row, names)):
            continue
        for key in find_refusal(context.release, row):
            says = row.says or key.partition(": ")[2].replace("{}", "...").rstrip(".")
            code = "refusal-waits" if holds is UNKNOWN else "settings-refused"
            places, needs = list(dict.fromkeys(given)), row.needs or "values that draftwise does not know"
            for ruling in context.rules.ruling(code, places=places, needs=needs, says=says, where=given[0]):
                yield _place(ruling, row.at, context.release.source("validators", key))


def _ask_packages(context: Context, rows: Sequence[NeededPackage], names: Mapping[str, Any]) -> Iterator[Ruling]:
    """Yield the packages that settings need and the server lacks, or of which nobody said that it has them."""
    for row in rows:
        given = [place for read in reads_in(row.when) if (place := _find_given(context, read))] or ["The target"]
        if not is_within(row.spans, context.release.version) or decide(row.when, names) is not True:
            continue
        is_there = row.is_in(context.packages)
        if is_there and not row.needs:
            continue
        code = "refusal-waits" if is_there else "package-missing" if context.is_listed else "package-unseen"
        how = row.install or f"Run `pip install {row.package}` there."
        told = {"places": given[0], "needs": row.needs, "says": row.says}
        for each in context.rules.ruling(
            code, **(told if is_there else {"asks": given[0], "package": row.package, "how": how}), where=given[0]
        ):
            yield _place(each, row.at, f"vLLM {context.release}, {row.source}")


def _place(ruling: Ruling, at: str, source: str) -> Ruling:
    """Return a ruling with its row's source and stage; what nobody can decide stays unknown."""
    if at != "start":
        return replace(ruling, source=source)
    effect = ruling.effect if ruling.effect is Effect.UNKNOWN else Effect.FAILS_LATER
    return replace(ruling, source=source, effect=effect, stage=Stage.START_UP)


def _waits_for_target(row: ReadRefusal, names: Mapping[str, Any]) -> bool:
    """Say whether a condition asks for an unknown target, whose rules are counted as waiting already."""
    return names["target"] is UNKNOWN and any(read[0] == "target" for read in reads_in(row.when))


def _find_given(context: Context, read: tuple[str, ...]) -> str:
    """Return the flag, key or variable that a condition reads, if it is given and not its default; else nothing."""
    match read:
        case ("flags", name) if context.given.get(name) not in (
            None,
            context.release.table("engine_defaults").get(name),
        ):
            return spell(name)
        case ("objects", name, *path):
            value: Any = context.objects.get(name, {})
            for key in path:
                value = value.get(key) if isinstance(value, Mapping) else None
            return spell(name) if value is not None and value is not False else ""
        case ("target_name",) if "://" in context.setup.target:
            return context.setup.target
        case (name,) if name in _DERIVED:
            return next((spell(flag) for flag in _DERIVED[name] if context.given.get(flag) is not None), "")
        case ("spec", key) if context.keys.get(key) is not None:
            return SPEC
        case ("env" | "envs", name) if name in context.env:
            return name
    return ""


class _Open(dict[str, Any]):
    """An object whose missing keys are null, as are those of the objects in it."""

    def get(self, key: str, default: Any = None) -> Any:
        value = super().get(key, None if default is UNKNOWN else default)
        return _Open(value) if isinstance(value, Mapping) else value


class _Objects(_Open):
    """Flags that hold an object; a missing one is empty."""

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(key, default) or _Open()


class _Packages(dict[str, bool]):
    """Whether a package is installed, unknown where nobody said."""

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(key.replace("_", "-"), False) if self else default


def _describe(context: Context, model: Model | None, resolved: Resolved | None) -> Mapping[str, Any]:
    """Return the values of the names in conditions of `refusals.json`; a name that is missing is unknown."""
    gpu = find_gpu(context)
    runner = choose_runner(context, resolved).name
    captures: Any = UNKNOWN if context.objects.get("compilation_config", {}).keys() & {"mode", "level"} else True
    server = ServerSettings(given={}, platform=context.platform, env=context.env)
    caches = find_caching(context)
    return {
        **describe_surroundings(context.release, server),
        "flags": _Open({**list_front(context.release), **context.flags}),
        "objects": _Objects(context.objects),
        "env": _Open(context.env),
        "packages": _Packages(dict.fromkeys(context.installed or (), True)),
        "speculates": context.spec is not None,
        "spec": _describe_spec(context, resolved),
        "drafter": _Open(context.draft_config),
        "target": _describe_target(context, model),
        "connectors": _list_connectors(context),
        "exchanges": exchanges_tokens(context, model),
        "target_name": context.setup.target,
        "runner": UNKNOWN if runner is None else runner,
        "gpu": UNKNOWN if gpu is None or gpu.capability is None else gpu.capability,
        "captures_graphs": captures if context.platform == "cuda" and not context.runs_eagerly else False,
        "caches_prefixes": caches,
        "mamba_mode": _find_mamba_mode(context, caches),
        "reasoning_parsers": ["", *context.release.table("reasoning_parsers")],
    }


def _describe_spec(context: Context, resolved: Resolved | None) -> Mapping[str, Any]:
    if resolved is None:
        return _Open({"draft_architectures": [], **context.keys})
    drafter = list(resolved.draft_architectures or ())
    known = {"method": resolved.method, "num_speculative_tokens": resolved.num_speculative_tokens}
    return _Open({**context.keys, **resolved.fields, **known, "draft_architectures": drafter})


def _describe_target(context: Context, model: Model | None) -> Any:
    target = context.target
    if target is None or target.is_partial or not target.architectures:
        return UNKNOWN
    config, name = HfConfig(target.config), target.architectures[0]
    row = context.release.table("architectures").get(name)
    pools = UNKNOWN if row is None else row["group"] in POOLING
    dtype = config.text.get("dtype") or config.text.get("torch_dtype")
    is_multimodal = has_interface(context, "SupportsMultiModal")
    kinds = {
        "is_multimodal": is_multimodal,
        "is_hybrid": has_interface(context, "IsHybrid"),
        "splits_hyper_connections": has_interface(context, "SupportsHCSP"),
    }
    return {
        **{key: UNKNOWN if value is None else value for key, value in kinds.items()},
        "architecture": name,
        "architectures": list(target.architectures),
        "max_model_len": UNKNOWN if model is None else model.max_model_len,
        "config": _Open(target.config),
        "text": _Open(config.text.values),
        "dtype": dtype if dtype in ("bfloat16", "float16") else UNKNOWN,
        "quantization": config.quantization,
        "is_encoder_decoder": bool(config.get("is_encoder_decoder")),
        "is_gguf": target.file is not None,
        "uses_mla": has_latents(context, config),
        "pools": pools,
        "pools_only": pools,
        "runner": find_kind(context),
    }


def has_latents(context: Context, config: HfConfig) -> bool:
    """Return whether a model's attention is latent (MLA), and not switched off."""
    off = context.env.get("VLLM_MLA_DISABLE", "0") != "0"
    return config.text.get("kv_lora_rank") is not None and not off


def exchanges_tokens(context: Context, model: Model | None) -> Any:
    """Return whether ranks exchange tokens between experts; vLLM makes the exchange even without expert parallelism."""
    sizes = [context.sizes.get(f"{each}_size") or 1 for each in ("data_parallel", "prefill_context_parallel")]
    if context.platform != "cuda" or not (sizes[0] > 1 or (sizes[1] > 1 and "enable_expert_parallel" in context.on)):
        return False
    return UNKNOWN if model is None else model.config.num_experts > 0


def _list_connectors(context: Context) -> Any:
    """Return the names of the KV connectors, with those inside of a MultiConnector."""
    given = context.objects.get("kv_transfer_config", {})
    if given.get("kv_connector_module_path"):
        return UNKNOWN
    name, extra = given.get("kv_connector"), given.get("kv_connector_extra_config")
    inner = extra.get("connectors") if isinstance(extra, Mapping) and name == "MultiConnector" else ()
    children = [each.get("kv_connector") for each in inner or () if isinstance(each, Mapping)]
    offloads = context.given.get("kv_offloading_size") is not None
    if offloads:
        backend = context.flags.get("kv_offloading_backend")
        name = "OffloadingConnector" if backend in (None, "native") else "LMCacheMPConnector"
    return [each for each in (name, *children) if isinstance(each, str)]


def find_caching(context: Context) -> Any:
    """Return whether the server caches prefixes."""
    asked = context.flags.get("enable_prefix_caching")
    if isinstance(asked, bool):
        return asked
    hybrid = has_interface(context, "IsHybrid")
    if hybrid is None or has_interface(context, "IsAttentionFree"):
        return UNKNOWN
    return context.rules.holds("hybrid-caches-prefixes") if hybrid else True


def _find_mamba_mode(context: Context, caches: Any) -> Any:
    """Return how a hybrid target caches its states; `none` for other targets and without prefixes."""
    if caches is False or has_interface(context, "IsHybrid") is False:
        return "none"
    asked = context.flags.get("mamba_cache_mode")
    if asked is None and context.rules.holds("hybrid-always-aligned"):
        return "align" if caches is True else UNKNOWN
    return UNKNOWN if asked is None else "align" if asked == "none" and caches is True else asked
