"""One container of a Kubernetes object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from draftwise.setups.read.manifests.parts import Found, get_env, get_gpus, get_mapping, get_words
from draftwise.setups.read.manifests.yaml_text import Document, Path, get_text
from draftwise.setups.read.shell.launch import Launch, run_image

__all__ = ["get_gpu_product", "read_container"]

_PRODUCT = "nvidia.com/gpu.product"


def read_container(
    document: Document, path: Path, container: Mapping[str, Any], pod: Mapping[str, Any] | None = None
) -> Launch | None:
    """Return the server that a container starts, or None.

    Args:
        document: where it is written.
        path: of the container.
        container: its mapping.
        pod: the pod spec around it, for the kind of GPU.
    """
    found: Found = []
    env = get_env(document, (*path, "env"), container.get("env"))
    command, args = (
        get_words(document, (*path, key), container.get(key), found, env=env) for key in ("command", "args")
    )
    launch = run_image(str(container.get("image") or ""), command, args)
    if launch is None:
        return None
    return replace(
        launch,
        env=env | dict(launch.env),
        num_gpus=get_gpus(container) or launch.num_gpus,
        gpu=get_gpu_product(pod or {}),
        where=f"line {document.line(path)} {get_text(path)}",
        findings=(*found, *launch.findings),
    )


def get_gpu_product(pod: Mapping[str, Any]) -> str:
    """Return the GPU that a pod's node selector asks for; empty for none."""
    return str(get_mapping(pod, "nodeSelector").get(_PRODUCT) or "")
