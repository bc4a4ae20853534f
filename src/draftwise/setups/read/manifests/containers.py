"""Reads one container of a Kubernetes object, with variables from the container, ConfigMaps and Secrets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from draftwise.setups.read.manifests.parts import Findings, get_gpus, get_mapping, get_words
from draftwise.setups.read.manifests.references import KUBERNETES
from draftwise.setups.read.manifests.yaml_text import Path, YamlDocument, get_text
from draftwise.setups.read.place import Place
from draftwise.setups.read.shell.environment import NOTHING_SET, Environment
from draftwise.setups.read.shell.launch import Launch, run_image
from draftwise.setups.read.shell.open_texts import PER_COMMAND, check_work
from draftwise.setups.read.shell.words import Word

_KINDS: Mapping[str, str] = {"ConfigMap": "configMap", "Secret": "secret"}
"""Kind of a store -> how references to it begin."""
_SECRET = "a secret, which draftwise does not read"
_AWAY = "which is outside this text"


@dataclass(frozen=True, slots=True)
class Stores:
    """ConfigMaps and Secrets of a text, and the operator's values for other variables."""

    stored: Mapping[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    """Kind and name -> values by key."""
    given: Mapping[str, str] = field(default_factory=dict)

    def read_env(self, document: YamlDocument, path: Path, container: Mapping[str, Any]) -> Environment:
        """Return the variables of the container at a path."""
        env, work = NOTHING_SET, 0
        sources = container.get("envFrom")
        for source in sources if isinstance(sources, list) else ():
            env |= self._read_source(get_mapping(source))
        entries = container.get("env")
        for index, entry in enumerate(entries if isinstance(entries, list) else ()):
            if isinstance(entry, Mapping) and isinstance(entry.get("name"), str):
                env |= self._read_entry(document, (*path, "env", index), entry, env)
                work += PER_COMMAND + len(env.values) + len(env.unknown)
                check_work(work, document.line((*path, "env", index)))
        return env.given(self.given)

    def _read_source(self, source: Mapping[str, Any]) -> Environment:
        """Return the variables of one entry of `envFrom`."""
        prefix = str(source.get("prefix") or "")
        for kind, begin in _KINDS.items():
            reference = get_mapping(source, f"{begin}Ref")
            if not reference:
                continue
            stored = self.stored.get((kind, str(reference.get("name"))))
            if stored is None:
                return Environment(elsewhere=f"{kind} {reference.get('name')}, {_AWAY}")
            if kind == "Secret":
                return Environment(unknown=dict.fromkeys((prefix + key for key in stored), _SECRET))
            return Environment(values={prefix + key: value for key, value in stored.items()})
        return NOTHING_SET

    def _read_entry(
        self, document: YamlDocument, path: Path, entry: Mapping[str, Any], env: Environment
    ) -> Environment:
        """Return the one variable of an entry of `env`, whose value may refer to those before it."""
        name, given = entry["name"], get_mapping(entry, "valueFrom")
        if given:
            value, origin = self._look_up(given)
            if origin:
                return Environment(unknown={name: origin})
        else:
            value = document.texts.get((*path, "value"), str(entry.get("value") or ""))
        word = KUBERNETES.fill_in(Word(value), env)
        if word.unknown:
            return Environment(unknown={name: f"made of {', '.join(word.unknown)}"})
        return Environment(values={name: word.text})

    def _look_up(self, given: Mapping[str, Any]) -> tuple[str, str]:
        """Return the value that `valueFrom` stands for, and where it would come from if it is not at hand."""
        for kind, begin in _KINDS.items():
            reference = get_mapping(given, f"{begin}KeyRef")
            if reference:
                store, key = str(reference.get("name")), str(reference.get("key"))
                stored = self.stored.get((kind, store))
                if kind == "Secret":
                    return "", f"key {key} of Secret {store}: {_SECRET}"
                if stored is None or key not in stored:
                    return "", f"key {key} of {kind} {store}, {_AWAY}"
                return stored[key], ""
        return "", f"a {next(iter(given))} that the cluster sets"


def read_stores(documents: Sequence[YamlDocument], given: Mapping[str, str]) -> Stores:
    """Return the ConfigMaps and Secrets among documents."""
    return Stores(dict(_find_stores(documents)), given)


def _find_stores(documents: Sequence[YamlDocument]) -> Iterator[tuple[tuple[str, str], Mapping[str, str]]]:
    for document in documents:
        value = get_mapping(document.value)
        kind = str(value.get("kind"))
        if kind in _KINDS:
            texts = {
                str(key): document.texts.get((part, key), text)
                for part in ("data", "stringData")
                for key, text in get_mapping(value, part).items()
            }
            name = str(get_mapping(value, "metadata").get("name"))
            yield (kind, name), {key: text for key, text in texts.items() if isinstance(text, str)}


_PRODUCT = "nvidia.com/gpu.product"


def read_container(
    document: YamlDocument,
    path: Path,
    container: Mapping[str, Any],
    stores: Stores,
    pod: Mapping[str, Any] | None = None,
) -> Launch | None:
    """Return the server that a container starts, or None."""
    found: Findings = []
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
        place=Place(form="object", value=document.value, path=path),
    )


def get_container_words(
    document: YamlDocument, path: Path, container: Mapping[str, Any], env: Environment, found: Findings
) -> tuple[Word, ...]:
    """Return `command` or `args` of a container, with variables expanded."""
    words = get_words(document, path, container.get(str(path[-1])), found)
    return tuple(KUBERNETES.fill_in(word, env) for word in words)


def get_volumes(container: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the mount paths of a container's volumes."""
    mounts = container.get("volumeMounts")
    paths = (get_mapping(mount).get("mountPath") for mount in (mounts if isinstance(mounts, list) else ()))
    return tuple(path for path in paths if isinstance(path, str))


def get_gpu_product(pod: Mapping[str, Any]) -> str:
    """Return the GPU in a pod's node selector; empty without one."""
    return str(get_mapping(pod, "nodeSelector").get(_PRODUCT) or "")
