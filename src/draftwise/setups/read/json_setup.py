"""JSON that describes a setup: draftwise's own form, the keyword arguments of vLLM, or a bare speculative config."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Literal

from draftwise.core import Finding, InvalidSetup, Setup, SpecConfig
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.rules import get_rule
from draftwise.knowledge.vllm import Release, all_keys, history
from draftwise.setups.read.arguments.flag_values import read_json
from draftwise.setups.read.setup_reading import SetupReading, choose_release, is_shown, no_server

_TARGET = ("target", "model", "model_tag")
_SPEC = "speculative_config"


def read_json_setup(text: str, *, name: str = "", engine_version: str | None = None) -> SetupReading:
    """Return the setup that a JSON object describes.

    With `target` or `args`, it is draftwise's own form (with `speculative_config`, `env`, `engine_version`). With
    `speculative_config` among engine arguments, it has the keywords of `vllm.LLM`. A speculative config is known by its
    keys.

    Raises:
        NoServer: it is an object of something else.
        InvalidSetup: the text is not a JSON object.
    """
    found = read_json(text)
    if found.mistake:
        raise InvalidSetup.because("not-json", f"The text {found.mistake}.", where=name, fix=found.fix)
    if not isinstance(found.value, dict):
        raise refusal("not-an-object", kind=type(found.value).__name__, name=name)
    reading = read_keywords(found.value, where=name, engine_version=engine_version)
    twice = tuple(get_rule("duplicate-key").ruling(key=key[:60], where=name) for key in found.duplicates)
    return replace(reading, findings=twice + reading.findings)


def read_keywords(given: Mapping[str, Any], *, where: str, engine_version: str | None = None) -> SetupReading:
    """Return the setup in a mapping with one of the forms of `read_json_setup`."""
    value = dict(given)
    version = engine_version or str(value.pop("engine_version", None) or value.pop("version", None) or "")
    release, findings = choose_release(version), list[Finding]()
    if _SPEC not in value:
        form = _find_form(value, release)
        if form is None:
            raise no_server(where, json.dumps(value, default=str))
        value = {_SPEC: value} if form == "spec" else value
    target = next((str(value[key]) for key in _TARGET if isinstance(value.get(key), str) and value[key]), "")
    if not target:
        findings.append(get_rule("no-target").ruling(where=where))
    setup = Setup(
        target=target,
        engine="vllm",
        engine_version=version,
        spec=_get_spec(value.get(_SPEC), findings, where),
        args=_get_args(value, release, findings, where),
        env=_get_env(value.get("env")),
    )
    return SetupReading(setup=setup, where=where, findings=tuple(findings))


def _find_form(value: Mapping[str, Any], release: Release) -> Literal["setup", "spec"] | None:
    """Return what the keys of an object say that it is; None for an object of something else."""
    keys = {key.lstrip("-").replace("-", "_") for key in value}
    flags = {row["field"] for row in release.table("flags").values()}
    spec = set(all_keys("spec_fields"))
    is_named = isinstance(value.get("target"), str) or isinstance(value.get("args"), Mapping)
    if is_named or ("model" in keys and len(keys & flags) > 1 and keys & spec <= flags):
        own = {*flags, *_TARGET, _SPEC, "args", "env"}
        of_engine = [key for key in keys if key in own or get_close_matches(key, own, n=1, cutoff=0.9)]
        return "setup" if 2 * len(of_engine) > len(keys) else None
    method = value.get("method")
    alone = keys & spec - flags - {"method"} or (isinstance(method, str) and history("methods", method))
    alike = [key for key in keys if get_close_matches(key, spec, n=1, cutoff=0.75)]
    return "spec" if alone or 2 * len(alike) > len(keys) else None


def read_ray_config(given: Mapping[str, Any], *, where: str, engine_version: str | None = None) -> SetupReading:
    """Return the setup of one `LLMConfig` of Ray Serve: its model, `engine_kwargs` and the variables of its workers."""
    names, keywords, around, deployment = (
        _get_mapping(given, key)
        for key in ("model_loading_config", "engine_kwargs", "runtime_env", "deployment_config")
    )
    model, source = names.get("model_id"), names.get("model_source")
    value: dict[str, Any] = {"model": model, _SPEC: None, **keywords}
    if isinstance(source, str):
        value["model"] = source
        if isinstance(model, str) and model != source:
            value["served_model_name"] = [model]
    env = {name: text for name, text in _get_env(around.get("env_vars")).items() if is_shown(name)}
    fewest = (deployment.get("num_replicas"), _get_mapping(deployment, "autoscaling_config").get("min_replicas"))
    reading = read_keywords({**value, "env": env}, where=where, engine_version=engine_version)
    return replace(reading, may_be_empty="0" in map(str, fewest), packages=frozenset({"ray"}))


def _get_mapping(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = value.get(key)
    return found if isinstance(found, Mapping) else {}


def _get_spec(given: Any, findings: list[Finding], name: str) -> SpecConfig | None:
    if isinstance(given, str):
        inner = read_json(given)
        if inner.mistake:
            findings.append(
                get_rule("flag-json-invalid").ruling(mistake=inner.mistake, where=f"{name} {_SPEC}".strip())
            )
        given = inner.value
    if given is None:
        return None
    if not isinstance(given, Mapping):
        where = f"{name} {_SPEC}".strip()
        raise refusal("not-an-object", case="spec", key=_SPEC, kind=type(given).__name__, where=where)
    return SpecConfig.keep(given)


def _get_args(value: Mapping[str, Any], release: Release, findings: list[Finding], name: str) -> dict[str, Any]:
    """Return the engine arguments by field name. Those that the release does not have are reported and left out."""
    inner = value.get("args")
    known = {row["field"] for row in release.table("flags").values()} | set(release.table("engine_defaults"))
    given = dict(inner) if isinstance(inner, Mapping) else {}
    if inner is None:
        given = {key: each for key, each in value.items() if key not in (*_TARGET, _SPEC, "env")}
    args: dict[str, Any] = {}
    for key, each in given.items():
        field = key.lstrip("-").replace("-", "_")
        if field in known:
            args[field] = each
        else:
            findings.append(get_rule("unknown-engine-argument").ruling(release=release, key=key[:60], where=name))
    return args


def _get_env(given: Any) -> dict[str, str]:
    return {key: str(each) for key, each in given.items()} if isinstance(given, Mapping) else {}
