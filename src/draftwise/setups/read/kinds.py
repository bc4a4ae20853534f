"""What a text or a YAML document is, by its layout: no reader is imported before its format is met."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = [
    "holds_documents",
    "is_compose",
    "is_dockerfile",
    "is_manifest",
    "is_modelservice",
    "is_quadlet",
    "is_stack",
    "is_unit",
    "is_yaml",
    "may_be_python",
]

_YAML = re.compile(r"(?:[ \t\r]*(?:#[^\n]*)?\n)*(?:---|[\w.-]+:(?:\s|$))")
_PYTHON = re.compile(r"^\s*(?:from (?:vllm|ray)[\w.]* import|import (?:vllm|ray)\b)", re.MULTILINE)
_QUADLET = re.compile(r"^\[Container\]\s*$", re.MULTILINE)
_UNIT = re.compile(r"^\[Service\]\s*$", re.MULTILINE)
_DOCKERFILE = re.compile(
    r"(?:[ \t]*(?:#[^\n]*|ARG[ \t][^\n]*)?\r?\n)*[ \t]*FROM[ \t]+[^\s=]+[ \t]*(?:AS[ \t]|\r?\n)", re.IGNORECASE
)
_HOLDING = frozenset({"Application", "ApplicationSet", "HelmRelease", "RayService"})


def is_yaml(text: str) -> bool:
    """Say whether a text begins as YAML does, after blank lines and comments."""
    return _YAML.match(text) is not None


def may_be_python(text: str) -> bool:
    """Say whether a line imports vLLM or Ray as Python does."""
    return _PYTHON.search(text) is not None


def is_quadlet(text: str) -> bool:
    """Say whether a text describes a container as Podman's Quadlet reads it."""
    return _QUADLET.search(text) is not None


def is_unit(text: str) -> bool:
    """Say whether a text is a unit file of a service."""
    return _UNIT.search(text) is not None


def is_dockerfile(text: str) -> bool:
    """Say whether a text begins with FROM, after comments and ARG."""
    return _DOCKERFILE.match(text) is not None


def is_manifest(value: Any) -> bool:
    """Say whether a YAML document is a Kubernetes object."""
    return isinstance(value, Mapping) and {"apiVersion", "kind"} <= set(value)


def holds_documents(value: Any) -> bool:
    """Say whether a Kubernetes object may hold other documents: configs of Ray Serve, values of a chart."""
    return isinstance(value, Mapping) and value.get("kind") in _HOLDING


def is_compose(value: Mapping[str, Any]) -> bool:
    """Say whether a YAML document has the layout of a compose file."""
    services = value.get("services")
    return isinstance(services, Mapping) and bool(services) and "apiVersion" not in value


def is_stack(value: Mapping[str, Any]) -> bool:
    """Say whether a YAML document has the layout of values for vLLM's production-stack chart."""
    engine = value.get("servingEngineSpec")
    return isinstance(engine, Mapping) and isinstance(engine.get("modelSpec"), list)


def is_modelservice(value: Mapping[str, Any]) -> bool:
    """Say whether a YAML document has the layout of values for llm-d's modelservice chart."""
    return isinstance(value.get("modelArtifacts"), Mapping) and ("decode" in value or "prefill" in value)
