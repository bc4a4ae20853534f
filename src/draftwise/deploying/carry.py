"""Transfers the surroundings of a source's server to the files of a platform, and names the items that do not fit."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from decimal import Decimal
from typing import Any

import yaml

from draftwise.core import Finding
from draftwise.deploying.api_server import read_quantity
from draftwise.deploying.order import ServiceOrder
from draftwise.deploying.surroundings import SourceItem
from draftwise.deploying.targets import DeployTarget
from draftwise.deploying.templating import dump_yaml
from draftwise.knowledge.messages import warning
from draftwise.setups.read.manifests.references import COMPOSE
from draftwise.setups.read.shell.environment import Environment
from draftwise.setups.read.shell.words import Word

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_OWN_LABELS = ("app.kubernetes.io/name", "draftwise.dev/", "app", "leaderworkerset.sigs.k8s.io/")
_SCRAPED = ("prometheus.io/", "prometheus.kserve.io/", "serving.kserve.io/enable-prometheus-scraping")
_TWICE = "the PodMonitor already finds the pods; a second scrape would count everything twice"
_NO_PLACE = "draftwise writes no field of {to} for it; set it on the platform"
_OWN = "the files set their own, {value}"
_FILLED_IN = "only a cluster can fill it in"
_SET = "the deployment sets it"
_MERGED = ("securityContext", "resources", "nodeSelector")
_KEYED = {"volumeMounts": "mountPath", "volumes": "name", "initContainers": "name", "containers": "name"}


def carry(text: str, order: ServiceOrder, target: DeployTarget) -> tuple[str, dict[str, str]]:
    """Return a twin's file with the surroundings of the source's server, and what it cannot hold.

    Returns:
        The text, and the reason for each missing item, by the item's place in the source.
    """
    items = order.around.items
    if not items:
        return text, {}
    if not target.carries:
        return text, {each.where: each.reason or _NO_PLACE.format(to=target.name) for each in items}
    (kind,) = target.carries["kind"]
    if kind == "unit":
        return _carry_into_unit(text, order, items)
    documents = list(yaml.load_all(text, Loader=_Loader))
    refused: dict[str, str] = {}
    for document in documents:
        if kind == "services":
            refused |= _carry_into_compose(document, order, items)
        elif document.get("kind", "") == kind:
            refused |= _Objects(document, order, target).take(items)
    return dump_yaml(*documents), refused


def find_uncarried(refused: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a warning for each item that no file can hold."""
    for where, reason in refused.items():
        yield warning("not-carried", item=where, reason=reason)


_LIMITS = {
    "memory": re.compile(r"(?:deploy\.)?resources\.limits\.memory|mem_limit|limitMemory|Memory(?:Max|High)"),
    "CPUs": re.compile(r"(?:deploy\.)?resources\.limits\.cpus?|cpus|limitCPU|CPUQuota"),
}
"""Keys of a source that limit what its server may take, by what they limit."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def find_small_limits(order: ServiceOrder, refused: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a warning for each limit that the files take over, if the server does not fit in it, or may not."""
    host, gib = order.host, 1 << 30
    env = Environment(values=order.around.variables, elsewhere="set where the server is started")
    needs = {"memory": Decimal(host.limit_bytes), "CPUs": Decimal(host.cpus)}
    for item in order.around.items:
        for kind, names in _LIMITS.items():
            for key, given in () if item.where in refused else _list_leaves(item):
                if not names.fullmatch(key):
                    continue
                word = Word(given) if item.part != "service" else COMPOSE.fill_in(Word(given), env)
                found = None if word.unknown else _read_limit(item, kind, word.text)
                wanted = f"{needs[kind] / gib:.0f} GiB" if kind == "memory" else f"{needs[kind]}"
                if word.unknown:
                    yield warning("limit-open", where=item.where, kind=kind, wanted=wanted, value=word.unknown[0])
                elif found is not None and found < needs[kind]:
                    yield warning("limit-too-small", where=item.where, given=given, kind=kind, wanted=wanted)


def _list_leaves(item: SourceItem) -> Iterator[tuple[str, str]]:
    """Yield the values of an item by the keys that lead to them."""
    left = [(item.key, item.value[1] if item.part == "unit" else item.value)]
    while left:
        key, value = left.pop()
        if isinstance(value, Mapping):
            left += [(f"{key}.{name}", each) for name, each in value.items()]
        else:
            yield key, str(value)


def _read_limit(item: SourceItem, kind: str, given: str) -> Decimal | None:
    """Return a limit in bytes or CPUs; None for any other value. Docker and systemd count in powers of 1,024."""
    if item.part in ("container", "entry"):
        return read_quantity(given)
    if given.endswith("%"):
        is_share = kind == "CPUs" and given[:-1].isdecimal()
        return Decimal(given[:-1]) / 100 if is_share else None
    found = _SIZE.fullmatch(given.strip())
    if found is None or (item.part == "service" and not Decimal(found[1])):
        return None  # 0 is no limit for Docker
    return Decimal(found[1]) * Decimal(1024) ** (" kmgt".index(found[2].lower() or " "))


def find_secret_commands(order: ServiceOrder, target: DeployTarget) -> dict[str, str]:
    """Return the commands that create the secrets in the files, by description."""
    (kind,) = target.carries.get("kind", ("",))
    names = [_name_origin(item) for item in order.around.items
             if item.part == "env" and "value" not in item.value and not _is_of_cluster(item)]  # fmt: skip
    asked = [item.key for item in order.around.items if item.part == "env" and "raw" in item.value]
    files = [item.value for item in order.around.items if item.part == "env-file" and isinstance(item.value, str)]
    names += [f"all of {kind.removesuffix('Ref')} {reference.get('name')}" for item in order.around.items
              if item.part == "env-file" and isinstance(item.value, Mapping)
              for kind, reference in item.value.items() if isinstance(reference, Mapping)]  # fmt: skip
    store = f"{order.service}-env"
    if kind == "unit" and (names or files):
        path = _env_path(order)
        does = f"Write these variables into {path}, readable only by root: {', '.join(names) or 'those of the source'}"
        return {does: f"sudo install -D -m 600 /dev/stdin {path}"}
    if kind == "services" and names:
        does = "Set these variables where docker compose runs, or in a .env file that you do not commit"
        return {f"{does}: {', '.join(names)}": "docker compose config --quiet"}
    if kind not in ("unit", "services") and (asked or files):
        words = [f'--from-literal={name}="${{{name}}}"' for name in asked]
        words += [f"--from-env-file={name.removeprefix('-')}" for name in files]
        return {f"Create the secret {store} with the pods' variables": (
            f"kubectl create secret generic {store} {' '.join(words)}"
        )}  # fmt: skip
    return {}


def _is_of_cluster(item: SourceItem) -> bool:
    """Say whether a variable's value is the pod's own, such as its address."""
    given = item.value.get("valueFrom")
    return isinstance(given, Mapping) and not given.keys() & {"secretKeyRef", "configMapKeyRef"}


def _name_origin(item: SourceItem) -> str:
    """Return a variable with where the source takes it from."""
    for kind, reference in item.value.get("valueFrom", {}).items():
        return f"{item.key} ({kind.removesuffix('KeyRef')} {reference.get('name')}, key {reference.get('key')})"
    return item.key


def _env_path(order: ServiceOrder) -> str:
    return f"/etc/draftwise/{order.service}.env"


def _find(document: Any, path: str, *, make: bool = False) -> Any:
    """Return what stands at a path. A missing mapping at its end is made where that is wanted, else None."""
    steps = [int(part) if part.isdecimal() else part for part in path.split(".")]
    for number, step in enumerate(steps):
        last = number == len(steps) - 1
        if isinstance(step, int):
            if not isinstance(document, list) or step >= len(document):
                return None
        elif step not in document:
            if not (make and last):
                return None
            document[step] = {}
        document = document[step]
    return document


class _Objects:
    """An object that takes items at the places that its target's row names."""

    def __init__(self, document: Any, order: ServiceOrder, target: DeployTarget) -> None:
        self._document, self._order, self._target = document, order, target
        self._refused: dict[str, str] = {}
        self._ports = {
            each.value.get("name"): each.value.get("containerPort")
            for each in order.around.items
            if each.part == "container" and each.key == "ports" and isinstance(each.value, Mapping)
        }

    def take(self, items: Sequence[SourceItem]) -> dict[str, str]:
        """Put items into the object; return those that it does not take, with the reason."""
        replaced: set[tuple[int, str]] = set()
        for item in items:
            reason = item.reason or self._take(item, replaced)
            if reason:
                self._refused[item.where] = reason
        return self._refused

    def _take(self, item: SourceItem, replaced: set[tuple[int, str]]) -> str:
        match item.part:
            case "env":
                return self._take_variable(item)
            case "env-file":
                return self._take_env_file(item)
            case "labels" | "annotations" | "pod-labels" | "pod-annotations":
                return self._take_mark(item)
            case "replicas":
                return self._take_replicas(item)
            case "container" | "pod":
                return self._take_field(item, replaced)
            case "spec":
                return self._take_spec(item)
            case "entry":
                return self._take_entry(item)
        return _NO_PLACE.format(to=self._target.name)

    def _places(self, part: str, *, make: bool = False) -> list[Any]:
        found = (_find(self._document, path, make=make) for path in self._target.carries.get(part, ()))
        return [each for each in found if each is not None]

    def _take_variable(self, item: SourceItem) -> str:
        if item.key in self._order.setup.env:
            return ""
        value = {key: each for key, each in item.value.items() if key != "raw"}
        if "raw" in item.value:
            whole = re.fullmatch(r"\$(?:(\w+)|\{(\w+)(?::?([-?])([^{}]*))?\})", item.value["raw"])
            if whole is None:
                return "its value is composed of variables on the source's host; set it in the files"
            value["valueFrom"] = {"secretKeyRef": {"name": f"{self._order.service}-env", "key": whole[1] or whole[2]}}
            if whole[3] == "-":
                value["valueFrom"]["secretKeyRef"]["optional"] = True
        lists = [each.setdefault("env", []) for each in self._places("container")]
        literal = self._target.carries.get("literals", ()) if "value" in value else ()
        for path in (*self._target.carries.get("env", ()), *literal):
            holder = _find(self._document, path.rpartition(".")[0])
            if holder is not None:
                lists.append(holder.setdefault("env", []))
        for variables in lists:
            if not any(each.get("name") == item.key for each in variables):
                variables.append(copy.deepcopy(value))
            elif "raw" not in item.value and value not in variables:
                variables[:] = [value if each.get("name") == item.key else each for each in variables]
        return "" if lists else _NO_PLACE.format(to=self._target.name)

    def _take_env_file(self, item: SourceItem) -> str:
        value = item.value if isinstance(item.value, Mapping) else {"secretRef": {"name": f"{self._order.service}-env"}}
        containers = self._places("container")
        for container in containers:
            sources = container.setdefault("envFrom", [])
            if value not in sources:
                sources.append(copy.deepcopy(value))
        return "" if containers else _NO_PLACE.format(to=self._target.name)

    def _take_mark(self, item: SourceItem) -> str:
        if item.key.startswith(_SCRAPED) and item.part.endswith("annotations"):
            return _TWICE
        if item.part.endswith("labels") and item.key.startswith(_OWN_LABELS) and not item.key.startswith("app.k"):
            return _SET if item.key == "app" or "/" in item.key else self._add_mark(item)
        return self._add_mark(item)

    def _add_mark(self, item: SourceItem) -> str:
        places = self._places(item.part, make=True)
        for marks in places:
            if item.key in marks and marks[item.key] != item.value:
                return _OWN.format(value=marks[item.key])
            marks[item.key] = item.value
        return "" if places else _NO_PLACE.format(to=self._target.name)

    def _take_replicas(self, item: SourceItem) -> str:
        if self._order.platform.scale is not None:
            return "the autoscaler sets the number of replicas (--max-replicas)"
        if not isinstance(item.value, int) or isinstance(item.value, bool):
            return "it is not a number"
        taken = False
        for path in self._target.carries.get("replicas", ()):
            holder = _find(self._document, path.rpartition(".")[0])
            if holder is not None:
                holder[path.rpartition(".")[2]] = item.value
                if "maxReplicas" in holder:
                    holder["maxReplicas"] = max(holder["maxReplicas"], item.value)
                taken = True
        return "" if taken else _NO_PLACE.format(to=self._target.name)

    def _take_field(self, item: SourceItem, replaced: set[tuple[int, str]]) -> str:
        holders = self._places(item.part)
        if not holders:
            return _NO_PLACE.format(to=self._target.name)
        reasons = [self._put(holder, item, replaced) for holder in holders]
        return next(filter(None, reasons), "")

    def _put(self, holder: MutableMapping[str, Any], item: SourceItem, replaced: set[tuple[int, str]]) -> str:
        key, value = item.key, copy.deepcopy(item.value)
        is_worker = item.part == "container" and "ports" not in holder and "args" in holder and (
            "--headless" in holder["args"])  # fmt: skip
        if is_worker and (key == "ports" or key.endswith("Probe")):
            return ""
        if key == "ports":
            return self._put_port(holder, value)
        if key.endswith("Probe"):
            _number_ports(value, self._ports)
        if key in _KEYED:
            return self._put_keyed(holder, key, value)
        if key in _MERGED:
            _merge(holder.setdefault(key, {}), value)
            if key == "resources":
                _settle_limits(holder[key], value)
            return ""
        if isinstance(holder.get(key), list) or key in ("tolerations", "imagePullSecrets", "volumeDevices"):
            entries = holder.setdefault(key, [])
            if (id(holder), key) not in replaced and key not in ("tolerations", "imagePullSecrets", "volumeDevices"):
                entries.clear()
            replaced.add((id(holder), key))
            if value not in entries:
                entries.append(value)
            return ""
        if key == "serviceAccountName" and holder.get(key, value) != value:
            return _OWN.format(value=holder[key])
        holder[key] = value
        return ""

    def _put_port(self, holder: MutableMapping[str, Any], value: Any) -> str:
        ports = holder.setdefault("ports", [])
        if not isinstance(value, Mapping):
            return "it is not a port"
        same = [each for each in ports if each.get("containerPort") == value.get("containerPort")]
        if same:
            left = {key: each for key, each in value.items() if same[0].get(key, each) != each}
            for key, each in value.items():
                same[0].setdefault(key, each)
            return f"{_OWN.format(value=json.dumps(same[0]))}" if left else ""
        if any(each.get("name") == value.get("name") for each in ports if "name" in value):
            return "it has the name of the server's own port"
        ports.append(value)
        return ""

    def _put_keyed(self, holder: MutableMapping[str, Any], key: str, value: Any) -> str:
        entries, name = holder.setdefault(key, []), _KEYED[key]
        if not isinstance(value, Mapping):
            return "it has no name"
        if key == "volumeMounts":
            path = str(value.get(name, "")).rstrip("/")
            # A mount of the source takes the place of the files' own above or at the same directory.
            given = [each.value for each in self._order.around.items if each.key == "volumeMounts"]
            entries[:] = [each for each in entries if each in given or not f"{each[name]}/".startswith(f"{path}/")]
        elif key == "containers" and any(each.get(name) == value.get(name) for each in entries):
            return "it has the name of the server's own container"
        if value not in entries:
            entries[:] = [each for each in entries if key == "volumeMounts" or each.get(name) != value.get(name)]
            entries.append(value)
        return ""

    def _take_spec(self, item: SourceItem) -> str:
        same = self._order.around.kind == self._document.get("kind")
        if not (same and "spec" in self._target.carries and item.where == f"spec.{item.key}"):
            return _NO_PLACE.format(to=self._target.name)
        own = self._document["spec"].get(item.key)
        if isinstance(own, Mapping) and item.key not in ("strategy", "rolloutStrategy"):
            return _OWN.format(value=json.dumps(own)[:80])
        self._document["spec"][item.key] = copy.deepcopy(item.value)
        return ""

    def _take_entry(self, item: SourceItem) -> str:
        if self._order.around.form != "values" or "entry" not in self._target.carries or self._order.around.kind:
            return _NO_PLACE.format(to=self._target.name)
        for entry in self._places("entry"):
            if item.key in entry and entry[item.key] != item.value and not isinstance(entry[item.key], Mapping):
                entry[item.key] = copy.deepcopy(item.value)
            elif item.key in entry and isinstance(item.value, Mapping):
                _merge(entry[item.key], item.value)
            else:
                entry[item.key] = copy.deepcopy(item.value)
        return ""


def _number_ports(probe: Any, ports: Mapping[Any, Any]) -> None:
    """Put numbers in the place of the ports' names, which are the source's."""
    if isinstance(probe, MutableMapping):
        for key, value in probe.items():
            if key == "port" and isinstance(value, str) and value in ports:
                probe[key] = ports[value]
            else:
                _number_ports(value, ports)


def _settle_limits(resources: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Leave no request above its limit, which Kubernetes refuses: the source's limit wins, then its request."""
    limits, requests = resources.get("limits"), resources.get("requests")
    if not (isinstance(limits, MutableMapping) and isinstance(requests, MutableMapping)):
        return
    for name in limits.keys() & requests.keys():
        most, asked = read_quantity(limits[name]), read_quantity(requests[name])
        if most is not None and asked is not None and asked > most:
            if name in (given.get("limits") or {}):
                requests[name] = limits[name]
            else:
                limits[name] = requests[name]


def _merge(into: MutableMapping[str, Any], value: Any) -> None:
    for key, each in value.items():
        if isinstance(each, Mapping) and isinstance(into.get(key), MutableMapping):
            _merge(into[key], each)
        else:
            into[key] = copy.deepcopy(each)


def _carry_into_compose(document: Any, order: ServiceOrder, items: Sequence[SourceItem]) -> dict[str, str]:
    refused: dict[str, str] = {}
    service = document["services"][order.name]
    for item in items:
        reason = item.reason or _take_into_service(document, service, item, order)
        if reason:
            refused[item.where] = reason
    return refused


def _take_into_service(document: Any, service: Any, item: SourceItem, order: ServiceOrder) -> str:
    match item.part:
        case "env":
            if item.key in order.setup.env:
                return ""
            if _is_of_cluster(item):
                return _FILLED_IN
            environment = service.setdefault("environment", {})
            text = item.value.get("value")
            raw = item.value.get("raw") or f"${{{item.key}:?set {item.key}}}"
            environment[item.key] = raw if text is None else str(text).replace("$", "$$")
        case "env-file":
            name = item.value if isinstance(item.value, str) else f"{order.service}.env"
            service.setdefault("env_file", []).append(name)
        case "service":
            return _take_service_key(service, item)
        case "project":
            _merge(document.setdefault(item.key, {}), {k: v or {} for k, v in (item.value or {}).items()})
        case "replicas":
            return _NO_PLACE.format(to="this platform")
        case _:
            return _NO_PLACE.format(to="this platform")
    return ""


def _find_inside(entry: Any, *, port: bool = False) -> str:
    """Return the path or port inside the container of an entry of compose, in its short or long form."""
    parts = [str(entry.get("target"))] if isinstance(entry, Mapping) else str(entry).split(":")
    return parts[-1].partition("/")[0] if port else parts[:2][-1]


def _take_service_key(service: Any, item: SourceItem) -> str:
    key, value = item.key, item.value
    if key == "container_name":
        return "both twins would have the same name"
    if key in ("labels", "deploy") and isinstance(value, Mapping):
        _merge(service.setdefault(key, {}), value)
    elif key == "labels":
        _merge(service.setdefault(key, {}), {each.partition("=")[0]: each.partition("=")[2] for each in value})
    elif key == "volumes":
        inside = {_find_inside(each) for each in value}
        kept = [each for each in service["volumes"] if _find_inside(each) not in inside]
        service["volumes"] = [*kept, *value]
    elif key == "ports":
        if _find_inside(value[0], port=True) == _find_inside(service["ports"][0], port=True):
            service["ports"] = list(value)
        else:
            service["ports"] = [*service["ports"], *value]
    elif isinstance(value, list) and isinstance(service.get(key), list):
        service[key] = [*service[key], *value]
    else:
        service[key] = copy.deepcopy(value)
    return ""


_ADDED = ("After", "Wants", "Requires", "WantedBy")
_QUIET = ("Description",)


def _carry_into_unit(text: str, order: ServiceOrder, items: Sequence[SourceItem]) -> tuple[str, dict[str, str]]:
    from draftwise.deploying.targets.unit_file import quote_word

    refused: dict[str, str] = {}
    lines = text.splitlines()
    added: dict[str, list[str]] = {"Unit": [], "Service": [], "Install": []}
    for item in items:
        reason = item.reason or (_FILLED_IN if item.part == "env" and _is_of_cluster(item) else "")
        if reason:
            pass
        elif item.part == "env" and item.key not in order.setup.env and "value" in item.value:
            text = str(item.value["value"])
            added["Service"].append(f"Environment={quote_word(f'{item.key}={text}')}")
        elif item.part == "env" and item.key not in order.setup.env:
            added["Service"].append(f"EnvironmentFile={_env_path(order)}")
        elif item.part == "env-file":
            name = item.value if isinstance(item.value, str) else _env_path(order)
            added["Service"].append(f"EnvironmentFile={name}")
        elif item.part == "unit" and item.value[0] in added and item.key not in _QUIET:
            section, value = item.value
            if item.key not in _ADDED:
                lines = [line for line in lines if not line.startswith(f"{item.key}=")]
            added[section].append(f"{item.key}={value}")
        elif item.part != "env" and not reason:
            reason = _SET if item.key in _QUIET else _NO_PLACE.format(to="this platform")
        if reason:
            refused[item.where] = reason
    result: list[str] = []
    for line in lines:
        result.append(line)
        section = line.strip("[]") if line.startswith("[") else ""
        result += dict.fromkeys(each for each in added.get(section, ()) if each not in lines)
    return "\n".join(result) + "\n", refused
