"""One container of a Kubernetes object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from draftwise.setups.read.manifests.parts import Found, get_gpus, get_mapping, get_words
from draftwise.setups.read.manifests.references import KUBERNETES
from draftwise.setups.read.manifests.variables import Stores
from draftwise.setups.read.manifests.yaml_text import Document, Path, get_text
from draftwise.setups.read.shell.environment import Environment
from draftwise.setups.read.shell.launch import Launch, run_image
from draftwise.setups.read.shell.words import Word

__all__ = ["get_container_words", "get_gpu_product", "get_volumes", "read_container"]

_PRODUCT = "nvidia.com/gpu.product"


def read_container(
    document: Document,
    path: Path,
    container: Mapping[str, Any],
    stores: Stores,
    pod: Mapping[str, Any] | None = None,
) -> Launch | None:
    """Return the server that a container starts, or None.

    Args:
        document: where it is written.
        path: of the container.
        container: its mapping.
        stores: where its variables may come from.
        pod: the pod spec around it, for the kind of GPU.
    """
    found: Found = []
    env = stores.read_env(document, path, container)
    command, args = (get_container_words(document, (*path, key), container, env, found) for key in ("command", "args"))
    launch = run_image(Word(str(container.get("image") or "")), command, args, env=env)
    if launch is None:
        return None
    return replace(
        launch,
        num_gpus=get_gpus(container) or launch.num_gpus,
        gpu=get_gpu_product(pod or {}),
        volumes=get_volumes(container),
        where=f"line {document.line(path)} {get_text(path)}",
        findings=(*found, *launch.findings),
    )


def get_container_words(
    document: Document, path: Path, container: Mapping[str, Any], env: Environment, found: Found
) -> tuple[Word, ...]:
    """Return `command` or `args` of a container, with its variables put in.

    Args:
        document: where it is written.
        path: of the list; its last part is the key.
        container: its mapping.
        env: its variables.
        found: takes what is wrong.
    """
    words = get_words(document, path, container.get(str(path[-1])), found)
    return tuple(KUBERNETES.fill_in(word, env) for word in words)


def get_volumes(container: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the directories at which a container has volumes mounted."""
    mounts = container.get("volumeMounts")
    paths = (get_mapping(mount).get("mountPath") for mount in (mounts if isinstance(mounts, list) else ()))
    return tuple(path for path in paths if isinstance(path, str))


def get_gpu_product(pod: Mapping[str, Any]) -> str:
    """Return the GPU that a pod's node selector asks for; empty for none."""
    return str(get_mapping(pod, "nodeSelector").get(_PRODUCT) or "")
