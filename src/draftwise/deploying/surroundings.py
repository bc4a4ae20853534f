"""The surroundings of a source's server: variables, volumes, ports, probes, labels and everything else.

Every item is a `SourceItem`, which is either written into the files of a platform or reported as not carried over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from draftwise.core import Finding, InvalidSetup
from draftwise.deploying.secrets import is_secret
from draftwise.knowledge.messages import fault
from draftwise.knowledge.stored import read_data, read_rows
from draftwise.setups.read import SetupReading
from draftwise.setups.read.manifests.yaml_text import get_text
from draftwise.setups.read.place import Place
from draftwise.setups.read.shell.words import split_words

Part = Literal[
    "env", "env-file", "container", "pod", "labels", "annotations", "pod-labels", "pod-annotations",
    "spec", "replicas", "service", "project", "entry", "unit", "other",
]  # fmt: skip
"""The holder of an item: a variable, a container's or a pod's field, an object's own, a compose service's, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceItem:
    """One item of a server's surroundings."""

    part: Part
    key: str
    """Name of the variable, field, label, setting or object."""
    value: Any
    """Value in Kubernetes' form for variables and pods (`{"name": ..., "value": ...}`), else as in the source."""
    where: str
    """Its place in the source."""
    reason: str = ""
    """Why no platform can hold it; empty if it depends on the platform."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The surroundings of one server."""

    items: tuple[SourceItem, ...] = ()
    image: str = ""
    """Image that the source starts, if it runs `vllm serve`; else empty."""
    form: str = ""
    """Form of the source: object, values, services, unit or command; empty for a plain setup."""
    kind: str = ""
    """Kind of the object that holds the server."""
    may_be_empty: bool = False
    """Whether the source lets the service have no replica."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Known variables among those that the source's fields refer to."""

    def refuse_secrets(self) -> None:
        """Raise InvalidSetup if a literal is a secret, because the files would hold it."""
        found = [each for item in self.items for each in _find_secrets(item.value, item.key, item.where)]
        if found:
            raise InvalidSetup(found)


_FIELDS: Mapping[str, frozenset[str]] = {row["of"]: frozenset(row["fields"]) for row in read_rows("pod_fields")}
"""Fields of a pod and of a container (Kubernetes core/v1), those that a setup tells, and those that clusters write."""
_LISTS: Mapping[str, str] = {"volumeMounts": "mountPath", "ports": "containerPort", "volumes": "name",
                             "initContainers": "name", "containers": "name", "volumeDevices": "devicePath",
                             "imagePullSecrets": "name", "tolerations": "key"}  # fmt: skip
"""Fields that are lists, each of whose entries is an item, and the key that names an entry."""
_FEWEST = frozenset(
    {
        *("replicas", "replicaCount", "minReplicas", "minReplicaCount", "idleReplicaCount", "min_replicas"),
        *("autoscaling.knative.dev/min-scale", "autoscaling.knative.dev/minScale"),
    }
)
"""Fields and annotations that say how few replicas a service may have."""
_SCALING = ("scaling", "autoscaling", "keda")
"""Fields that hold them."""
_REFERENCE = re.compile(r"(?<!\$)\$(?!\$)")
_RUN = read_data("docker_run")
_RUN_OPTIONS: Mapping[str, str] = _RUN["compose_keys"]
"""Options of `docker run` -> keys of a compose service."""
_LISTED = frozenset(_RUN["lists"])
_TOLD_OPTIONS = frozenset(_RUN["told"])


def read_surroundings(reading: SetupReading) -> Surroundings:
    """Return the surroundings of a server that was read."""
    launch = reading.launch
    if launch is None:  # a setup, or a server of Ray, of which only the engine's arguments are read
        rest = SourceItem(part="other", key="rest", value=None, where="everything but engine_kwargs",
                          reason="draftwise reads only these of Ray; carry the rest over yourself")  # fmt: skip
        rests = (rest,) if "engine_kwargs" in reading.where else ()
        return Surroundings(items=rests, may_be_empty=reading.may_be_empty)
    place, image = launch.place, launch.image if launch.entry != "huggingfaceserver" else ""
    if place is None:
        variables = [SourceItem(part="env", key=name, value={"name": name, "value": text}, where=name)
                     for name, text in launch.env.values.items()]  # fmt: skip
        variables += [_refer(name, f"${{{name}}}", name) for name in launch.env.unknown]
        return Surroundings(items=tuple(variables), image=image, form="command" if launch.env.values else "")
    items = tuple(_READERS[place.form](place))
    kind = str(place.value.get("kind") or "") if isinstance(place.value, Mapping) else ""
    unknown = bool(launch.image_unknown) or "$" in image or "{{" in image
    empty = any(_allows_none(each.key, each.value) for each in items if each.part != "other") or _is_scaled_away(place)
    return Surroundings(
        items=items, image="" if unknown else image, form=place.form, kind=kind, may_be_empty=empty,
        variables=place.variables,
    )  # fmt: skip


def _allows_none(key: str, value: Any) -> bool:
    """Return whether a field allows a service no replica."""
    if isinstance(value, Mapping):
        is_on = key in _SCALING and value.get("enabled") is not False
        return is_on and any(_allows_none(str(name), each) for name, each in value.items())
    return key in _FEWEST and str(value) == "0"


def _is_scaled_away(place: Place) -> bool:
    """Return whether another object of the source scales the server to zero, as KEDA's do unless they say otherwise."""
    name = _follow(place.value, ("metadata", "name"))
    for other in place.others:
        spec, is_kedas = _mapping(other, ("spec",)), _follow(other, ("kind",)) != "HorizontalPodAutoscaler"
        if isinstance(name, str) and _follow(spec, ("scaleTargetRef", "name")) in (name, f"{name}-predictor"):
            least = _mapping(spec, ("replicas",)).get("min", 0)  # of KEDA's HTTPScaledObject
            bounds = {"minReplicaCount": least, **spec} if is_kedas else spec
            if any(_allows_none(str(key), value) for key, value in bounds.items()):
                return True
    return False


def _refer(name: str, text: str, where: str) -> SourceItem:
    """Return a variable whose value is set where the server is started; `raw` is how compose says it."""
    return SourceItem(part="env", key=name, value={"name": name, "raw": text}, where=where)


def _follow(value: Any, path: Sequence[str | int]) -> Any:
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return {}
    return value


def _read_object(place: Place) -> Iterator[SourceItem]:
    path = place.path
    in_model = path[-1:] == ("model",)
    pod_path = path[:-1] if in_model else path[:-2]
    container = _follow(place.value, path)
    if in_model:
        yield from _read_runtime(place, container)
    yield from _read_container(container, path)
    pod = _follow(place.value, pod_path)
    skipped = path[len(pod_path)]
    yield from _read_pod(pod, pod_path, skipped=str(skipped), own=path[-1])
    yield from _read_around(place.value, pod_path)
    for other in place.others:
        if isinstance(other, Mapping) and not (in_model and _is_runtime_of(other, container)):
            name = _follow(other, ("metadata", "name")) or ""
            what = f"{other.get('kind', 'document')} {name}".strip()
            yield SourceItem(part="other", key=what, value=None, where=what,
                       reason="it is a separate object: keep it, or point it at the new service")  # fmt: skip


def _is_runtime_of(other: Mapping[str, Any], model: Any) -> bool:
    kinds = ("ServingRuntime", "ClusterServingRuntime")
    return other.get("kind") in kinds and _follow(other, ("metadata", "name")) == _follow(model, ("runtime",))


def _read_runtime(place: Place, model: Any) -> Iterator[SourceItem]:
    for other in place.others:
        if isinstance(other, Mapping) and _is_runtime_of(other, model):
            spec = _follow(other, ("spec",))
            containers = spec.get("containers") if isinstance(spec, Mapping) else None
            for index, each in enumerate(containers if isinstance(containers, list) else ()):
                if index == 0:
                    yield from _read_container(each, ("spec", "containers", index))
            if isinstance(spec, Mapping):
                yield from _read_pod(spec, ("spec",), skipped="containers", own=0)


def _read_container(container: Any, path: Sequence[str | int]) -> Iterator[SourceItem]:
    for key, value in container.items() if isinstance(container, Mapping) else ():
        here = get_text((*path, key))
        if key == "env":
            yield from _read_env(value, (*path, key))
        elif key == "envFrom":
            for index, each in enumerate(value if isinstance(value, list) else ()):
                yield SourceItem(part="env-file", key=here, value=each, where=f"{here}[{index}]")
        elif key == "resources":
            for kind, amounts in value.items() if isinstance(value, Mapping) else ():
                if not isinstance(amounts, Mapping):
                    yield SourceItem(part="container", key="resources", value={kind: amounts}, where=f"{here}.{kind}")
                    continue
                for name, amount in amounts.items():
                    if not _is_gpu(str(name)):
                        where = f"{here}.{kind}.{name}"
                        yield SourceItem(part="container", key="resources", value={kind: {name: amount}}, where=where)
        elif key in _FIELDS["container"]:
            yield from _split("container", str(key), value, here)
        elif key not in _FIELDS["told"]:
            yield SourceItem(part="other", key=str(key), value=value, where=here)


def _read_env(value: Any, path: Sequence[str | int]) -> Iterator[SourceItem]:
    for index, each in enumerate(value if isinstance(value, list) else ()):
        where = get_text((*path, index))
        if isinstance(each, Mapping) and "name" in each:
            yield SourceItem(part="env", key=str(each["name"]), value=dict(each), where=f"{where} ({each['name']})")
        else:
            yield SourceItem(part="other", key=where, value=each, where=where)


def _is_gpu(name: str) -> bool:
    return name in ("nvidia.com/gpu", "amd.com/gpu") or name.startswith("gpu.intel.com/")


def _split(part: Part, key: str, value: Any, here: str) -> Iterator[SourceItem]:
    if key in _LISTS and isinstance(value, list):
        for index, each in enumerate(value):
            name = each.get(_LISTS[key], index) if isinstance(each, Mapping) else index
            yield SourceItem(part=part, key=key, value=each, where=f"{here}[{index}] ({name})")
    elif key == "nodeSelector" and isinstance(value, Mapping):
        for name, text in value.items():
            yield SourceItem(part=part, key=key, value={name: text}, where=f"{here}.{name}")
    else:
        yield SourceItem(part=part, key=key, value=value, where=here)


def _read_pod(pod: Any, path: Sequence[str | int], *, skipped: str, own: str | int) -> Iterator[SourceItem]:
    """Yield the fields of a pod but for the container at index `own` of `containers`."""
    for key, value in pod.items() if isinstance(pod, Mapping) else ():
        here = get_text((*path, key))
        if key == "containers" and isinstance(value, list):
            for index, each in enumerate(value):
                if not (skipped == "containers" and index == own):
                    name = each.get("name", index) if isinstance(each, Mapping) else index
                    yield SourceItem(part="pod", key=key, value=each, where=f"{here}[{index}] ({name})")
        elif key in ("labels", "annotations") and isinstance(value, Mapping):  # a predictor's are its pods'
            yield from _read_marks("pod-labels" if key == "labels" else "pod-annotations", value, here)
        elif key in ("minReplicas", "replicas"):
            yield SourceItem(part="replicas", key=str(key), value=value, where=here)
        elif key in _FIELDS["pod"]:
            yield from _split("pod", str(key), value, here)
        elif key not in (skipped, "model"):
            yield SourceItem(part="other", key=str(key), value=value, where=here)


def _read_marks(part: Part, marks: Mapping[str, Any], here: str) -> Iterator[SourceItem]:
    for key, text in marks.items():
        if key not in _FIELDS["cluster"]:
            yield SourceItem(part=part, key=str(key), value=text, where=f"{here}.{key}")


def _read_around(root: Any, pod_path: Sequence[str | int]) -> Iterator[SourceItem]:
    """Yield what stands on the way from an object's root to its pod."""
    top = max((depth for depth in range(len(pod_path) + 1) if "kind" in _mapping(root, pod_path[:depth])), default=0)
    selectors = _find_selectors(root, pod_path)
    for depth in range(len(pod_path)):
        prefix, inside = pod_path[:depth], pod_path[depth]
        for key, value in _mapping(root, prefix).items():
            here = get_text((*prefix, key))
            if key == inside or key in ("apiVersion", "kind", "status") or depth < top:
                if key != inside and depth < top and key not in ("apiVersion", "kind", "metadata"):
                    yield SourceItem(part="other", key=str(key), value=value, where=here)
            elif key == "metadata" and isinstance(value, Mapping):
                yield from _read_metadata(value, here, is_pod=depth > top, selectors=selectors)
            elif key in ("labels", "annotations") and isinstance(value, Mapping):
                yield from _read_marks("pod-labels" if key == "labels" else "pod-annotations", value, here)
            elif key == "replicas":
                yield SourceItem(part="replicas", key=str(key), value=value, where=here)
            elif key == "selector":
                yield SourceItem(
                    part="other", key=str(key), value=value, where=here, reason="the new objects select their own"
                )
            else:
                yield SourceItem(part="spec", key=str(key), value=value, where=here)


def _mapping(root: Any, path: Sequence[str | int]) -> Mapping[str, Any]:
    found = _follow(root, path)
    return found if isinstance(found, Mapping) else {}


def _find_selectors(root: Any, pod_path: Sequence[str | int]) -> Mapping[str, Any]:
    for depth in range(len(pod_path)):
        found = _mapping(_mapping(root, pod_path[:depth]).get("selector"), ())
        if found:
            labels = found.get("matchLabels")
            return labels if isinstance(labels, Mapping) else found
    return {}


def _read_metadata(
    metadata: Mapping[str, Any], here: str, *, is_pod: bool, selectors: Mapping[str, Any]
) -> Iterator[SourceItem]:
    for key, value in metadata.items():
        if key in ("labels", "annotations") and isinstance(value, Mapping):
            prefix = "pod-" if is_pod else ""
            for each in _read_marks(f"{prefix}{key}", value, f"{here}.{key}"):  # type: ignore[arg-type]
                chosen = is_pod and key == "labels" and each.key in selectors
                why = "the source's own objects find their pods by it, and would send requests to both twins"
                yield SourceItem(part=each.part, key=each.key, value=each.value, where=each.where,
                           reason=why if chosen else "")  # fmt: skip
        elif key not in _FIELDS["cluster"]:
            why = "the new objects have other names (--name)" if key == "name" else ""
            why = "set it for all files with kubectl apply -n NAMESPACE" if key == "namespace" else why
            yield SourceItem(part="other", key=str(key), value=value, where=f"{here}.{key}", reason=why)


def _read_values(place: Place) -> Iterator[SourceItem]:
    """Yield what the values of a chart, or a VLLMRuntime, hold around an engine."""
    if "kind" in place.value:
        path: tuple[str | int, ...] = ("spec",)
        entry = _mapping(place.value, path)
        yield from _read_metadata(_mapping(place.value, ("metadata",)), "metadata", is_pod=False, selectors={})
    else:
        entry, path = _mapping(place.value, place.path), place.path
        for depth in range(len(place.path) - 1):
            for key, value in _mapping(place.value, place.path[:depth]).items():
                if key != place.path[depth]:
                    yield SourceItem(
                        part="other", key=str(key), value=value, where=get_text((*place.path[:depth], key))
                    )
    config = _mapping(entry, ("vllmConfig",))
    for holder, where in ((entry, path), (config, (*path, "vllmConfig"))):
        yield from _read_env(holder.get("env"), (*where, "env"))
    for key, value in entry.items():
        here = get_text((*path, key))
        if key in ("replicaCount", "replicas"):
            yield SourceItem(part="replicas", key=str(key), value=value, where=here)
        elif key not in (*_FIELDS["told"], "env", "vllmConfig"):
            yield SourceItem(part="entry", key=str(key), value=value, where=here)


def _read_compose(place: Place) -> Iterator[SourceItem]:
    service = _mapping(place.value, place.path)
    for key, value in service.items():
        here = get_text((*place.path, key))
        if key == "environment":
            yield from _read_variables(value, here)
        elif key == "env_file":
            for each in value if isinstance(value, list) else [value]:
                name = each.get("path", "") if isinstance(each, Mapping) else each
                yield SourceItem(
                    part="env-file", key=str(name), value=str((place.folder / str(name)).resolve()), where=here
                )
        elif key in ("volumes", "ports") and isinstance(value, list):
            for index, each in enumerate(value):
                found = _resolve(each, place) if key == "volumes" else each
                yield SourceItem(part="service", key=str(key), value=[found], where=f"{here}[{index}]")
        elif key == "labels":
            for name, text in _pairs(value):
                yield SourceItem(part="service", key="labels", value={name: text or ""}, where=f"{here}.{name}")
        elif key == "deploy" and isinstance(value, Mapping):
            yield from _read_deploy(value, here)
        elif key not in ("image", "command", "entrypoint", "gpus"):
            yield SourceItem(part="service", key=str(key), value=value, where=here)
    yield from _read_project(place)


def _read_project(place: Place) -> Iterator[SourceItem]:
    for key, value in place.value.items():
        if key == "services":
            yield from (SourceItem(part="other", key=f"service {name}", value=each, where=f"services.{name}",
                             reason="it is a separate service: keep its file")
                        for name, each in value.items() if name != place.path[-1])  # fmt: skip
        elif key == "name":
            yield SourceItem(part="other", key="name", value=value, where="name",
                       reason="it is the prefix of volumes and networks: pass it with `docker compose -p`")  # fmt: skip
        elif key != "version" and not str(key).startswith("x-"):
            yield SourceItem(part="project", key=str(key), value=value, where=str(key))


def _read_deploy(value: Mapping[str, Any], here: str) -> Iterator[SourceItem]:
    for key, inner in value.items():
        if key == "resources" and isinstance(inner, Mapping):
            for kind, amounts in inner.items():
                for name, amount in amounts.items() if isinstance(amounts, Mapping) else ():
                    if name != "devices":
                        found = {"resources": {kind: {name: amount}}}
                        yield SourceItem(part="service", key="deploy", value=found, where=f"{here}.{key}.{kind}.{name}")
        else:
            yield SourceItem(part="service", key="deploy", value={key: inner}, where=f"{here}.{key}")


def _resolve(volume: Any, place: Place) -> Any:
    """Return a volume whose directory on the host is found from any folder."""
    if isinstance(volume, str) and volume.startswith(("./", "../")):
        source, colon, rest = volume.partition(":")
        return f"{(place.folder / source).resolve()}{colon}{rest}"
    return volume


def _pairs(value: Any) -> Iterator[tuple[str, str | None]]:
    if isinstance(value, Mapping):
        yield from ((str(name), None if text is None else _write_scalar(text)) for name, text in value.items())
    else:
        for each in value if isinstance(value, list) else ():
            name, equals, text = str(each).partition("=")
            yield name, text if equals else None


def _write_scalar(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read_variables(value: Any, here: str) -> Iterator[SourceItem]:
    for name, text in _pairs(value):
        where = f"{here}.{name}"
        if text is None or _REFERENCE.search(text):
            yield _refer(name, f"${{{name}}}" if text is None else text, where)
        else:
            yield SourceItem(part="env", key=name, value={"name": name, "value": text.replace("$$", "$")}, where=where)


def _read_unit(place: Place) -> Iterator[SourceItem]:
    for section, name, value in place.value:
        where = f"[{section}] {name}"
        if name == "Environment":
            for word in split_words(value):
                variable, _, text = word.text.partition("=")
                found = {"name": variable, "value": text.replace("%%", "%")}
                yield SourceItem(part="env", key=variable, value=found, where=f"{where} {variable}")
        elif name == "EnvironmentFile":
            yield SourceItem(part="env-file", key=value, value=value, where=where)
        elif name == "PassEnvironment":
            yield from (_refer(each, f"${{{each}}}", where) for each in value.split())
        elif name not in ("ExecStart", "Exec", "Image"):
            yield SourceItem(part="unit", key=name, value=(section, value), where=where)


def _read_command(place: Place) -> Iterator[SourceItem]:
    for option, value in place.value:
        where = f"{option} {value}".strip()
        if option in ("-e", "--env"):
            name, equals, text = value.partition("=")
            if equals:
                yield SourceItem(part="env", key=name, value={"name": name, "value": text}, where=f"{option} {name}")
            else:
                yield _refer(name, f"${{{name}}}", where)
        elif option == "--env-file":
            yield SourceItem(part="env-file", key=value, value=str((place.folder / value).resolve()), where=where)
        elif option in _RUN_OPTIONS:
            key = _RUN_OPTIONS[option]
            shown = _resolve(value, place) if key == "volumes" else value
            yield SourceItem(part="service", key=key, value=[shown] if key in _LISTED else shown, where=where)
        elif option not in _TOLD_OPTIONS:
            yield SourceItem(part="other", key=option, value=value, where=where)


_READERS = {"object": _read_object, "values": _read_values, "services": _read_compose, "unit": _read_unit,
            "command": _read_command}  # fmt: skip


def _find_secrets(value: Any, key: str, where: str) -> Iterator[Finding]:
    """Yield each literal inside a value that is a secret, by its name or by its looks."""
    match value:
        case {"name": str(name), "value": text} if is_secret(name, str(text)):
            yield fault("secret-in-setup", where=where, how=f"the variable {name}")
        case Mapping():
            for name, inner in value.items():
                if name != "raw":
                    yield from _find_secrets(inner, str(name), where)
        case list() | tuple():
            for inner in value:
                yield from _find_secrets(inner, key, where)
        case str() if is_secret("", value):
            yield fault("secret-in-setup", where=where, how="a variable or a mounted file")
