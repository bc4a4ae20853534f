"""Compares a cluster's objects (`kubectl get -o yaml`) with the order, and checks that they are ready."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from draftwise.core import Finding, InvalidSetup, Setup, UnreadableSource
from draftwise.deploying.twin import without_speculation
from draftwise.deploying.weights_layout import MODEL_ROOTS, name_upstream
from draftwise.knowledge.messages import unreadable, warning
from draftwise.setups.read import NoServer, SourceText, read_setups
from draftwise.setups.read.manifests.parts import get_mapping
from draftwise.setups.read.manifests.yaml_text import read_yaml

_REFUSALS = ("error", "unable to connect", "the connection to the server", "bash:", "sh:", "no resources found")
"""How what kubectl, or the shell that does not find it, writes on its standard error begins."""
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_POOL = "draftwise.dev/pool"
_PORT = 8000
"""vLLM's default."""
_RUNNING = "Running"
_REPLICATED, _READY = ("Deployment", "StatefulSet", "LeaderWorkerSet"), ("availableReplicas", "readyReplicas")
_CONDITIONS = ("Ready", "Available", "Progressing", "PodScheduled")
"""Those that are false where an object is not ready."""


def read_objects(source: SourceText) -> tuple[Mapping[str, Any], ...]:
    """Return the objects that kubectl printed.

    Raises:
        UnreadableSource: kubectl printed nothing, or an error.
        InvalidSetup: the text is not YAML.
    """
    lines = source.text.strip().splitlines()
    said = next((line for line in lines if line.lower().startswith(_REFUSALS)), "")
    if said or not lines:
        raise UnreadableSource.because(
            "kubectl-failed",
            f"kubectl returned an error: {said[:300]}"
            if said
            else ("kubectl returned no object. Read its standard error."),
            where=source.name,
            fix="Install kubectl and select the cluster, or ask for an account that may get pods and deployments.",
        )
    found: list[Mapping[str, Any]] = []
    for document in read_yaml(source.text, name=source.name):
        value = get_mapping(document.value)
        items = value.get("items") if str(value.get("kind")).endswith("List") else [value]
        found += [each for each in items or () if isinstance(each, Mapping) and "kind" in each]
    if refused := next((each for each in found if each["kind"] == "Status"), None):
        raise unreadable("kubectl-failed", case="refused", reason=refused.get("message"), name=source.name)
    if not found:
        raise unreadable("kubectl-failed", name=source.name)
    if all(_read(each, _name(each)) is None for each in found):
        names = ", ".join(map(_name, found[:5]))
        raise unreadable("kubectl-failed", case="server", names=names, name=source.name)
    return tuple(found)


def verify_object(value: Mapping[str, Any], setup: Setup) -> Iterator[Finding]:
    """Yield each difference between a running object and the order, and why it is not ready."""
    where = _name(value)
    ordered = without_speculation(setup) if _is_twin(value) else setup
    found = _read(value, where)
    if found is None:
        yield Finding.warning("not-told", f"{where} has no container that starts vLLM.", where=where)
    else:
        yield from _compare(found, ordered, where)
        yield from _compare_applied(value, found, where)
        yield from _judge_status(value, where)


def find_absent(objects: Sequence[Mapping[str, Any]], setup: Setup) -> Iterator[Finding]:
    """Yield that of an ordered server that speculates, the objects have only the twin without speculation."""
    twins = [_name(each) for each in objects if _is_twin(each)]
    servers = [each for each in objects if not _is_twin(each) and _read(each, _name(each)) is not None]
    if setup.spec is not None and twins and not servers:
        text = f"Of the objects, only the twin without speculation serves ({', '.join(twins[:3])}). The order has "
        yield Finding.error("runs-otherwise", f"{text}{_show(setup.spec.to_dict())}.", where=twins[0])


def _is_twin(value: Mapping[str, Any]) -> bool:
    return get_mapping(value, "metadata", "labels").get(_POOL) == "plain"


def _name(value: Mapping[str, Any]) -> str:
    return f"{str(value['kind']).lower()}/{get_mapping(value, 'metadata').get('name', '')}"


def _read(value: Mapping[str, Any], where: str) -> Setup | None:
    """Return the server of an object. None where it starts none."""
    text = yaml.safe_dump({key: each for key, each in value.items() if key != "status"})
    try:
        readings = read_setups(SourceText(text=text, name=f"{where}.yaml"))
    except NoServer:
        return None
    return readings[0].setup


def _compare(found: Setup, ordered: Setup, where: str) -> Iterator[Finding]:
    if not found.engine_version:
        yield Finding.info("not-told", f"The image of {where} does not show its release.", where=where)
    elif found.engine_version != ordered.engine_version:
        text = f"{where} runs vLLM {found.engine_version}, but the order has {ordered.engine_version}."
        yield Finding.error("runs-otherwise", text, where=where)
    before, after = (None if each.spec is None else each.spec.to_dict() for each in (ordered, found))
    if before != after:
        text = f"{where} has the speculative config {_show(after)}, but the order has {_show(before)}."
        yield Finding.error("runs-otherwise", text, where=where)
    else:
        yield Finding.info("seen", f"{where} has the ordered speculative config.", where=where)
    if found.target and not _is_same_model(found.target, ordered):
        text = f"{where} serves {found.target}, but the order has {ordered.target}."
        yield Finding.error("runs-otherwise", text, where=where)
    for name, value in ordered.args.items():
        if found.args.get(name) != value:
            text = f"{where} has {name} {found.args.get(name)!r}, but the order has {value!r}."
            yield Finding.error("runs-otherwise", text, where=where)


def _show(config: Mapping[str, Any] | None) -> str:
    return "none" if config is None else json.dumps(config, separators=(",", ":"))


def _is_same_model(found: str, ordered: Setup) -> bool:
    """Whether a name or directory stands for the model: pods say where KServe puts it, not where it comes from."""
    return name_upstream(found) in (name_upstream(ordered.target), "/mnt/models")


def _compare_applied(value: Mapping[str, Any], found: Setup, where: str) -> Iterator[Finding]:
    """Yield that the next apply would change the speculative config: something but an apply has changed the object."""
    text = get_mapping(value, "metadata", "annotations").get(_APPLIED)
    if not isinstance(text, str):
        return
    try:
        applied = json.loads(text)
        setup = _read(applied, where) if isinstance(applied, Mapping) and "kind" in applied else None
    except (ValueError, InvalidSetup):
        return
    if setup is not None and setup.spec != found.spec:
        yield warning("applied-otherwise", where=where)


def _judge_status(value: Mapping[str, Any], where: str) -> Iterator[Finding]:
    status = get_mapping(value, "status")
    if not status:
        text = f"Cannot tell whether {where} is ready: it has no status, as in a file."
        yield Finding.error("not-told", text, where=where)
        return
    reasons = [*_list_container_reasons(status), *_list_conditions(status), *_count_replicas(value, status)]
    if get_mapping(value, "metadata").get("deletionTimestamp"):
        reasons = ["it is being deleted"]
    if not reasons and status.get("phase", _RUNNING) != _RUNNING:
        reasons = [f"its phase is {status['phase']}"]
    for reason in reasons:
        yield Finding.error("not-ready", f"{where} is not ready: {reason}.", where=where)
    if not reasons and _is_ready(value, status):
        yield Finding.info("seen", f"{where} is ready.", where=where)
    elif not reasons:
        yield Finding.error("not-told", f"Cannot tell whether {where} is ready: no condition shows it.", where=where)
    for each in status.get("containerStatuses") or ():
        if each.get("restartCount"):
            last = get_mapping(each, "lastState", "terminated")
            why = f", last by {last.get('reason')} with exit code {last.get('exitCode')}" if last else ""
            yield warning("restarted", where=where, count=each["restartCount"], why=why)


def _list_container_reasons(status: Mapping[str, Any]) -> Iterator[str]:
    for key in ("initContainerStatuses", "containerStatuses"):
        for each in status.get(key) or ():
            waiting, ended = (get_mapping(each, "state", state) for state in ("waiting", "terminated"))
            if waiting:
                yield f"{each.get('name')} waits ({waiting.get('reason')}) {waiting.get('message', '')}".strip()
            elif ended.get("exitCode"):
                yield f"{each.get('name')} ended with exit code {ended['exitCode']} ({ended.get('reason')})"


def _list_conditions(status: Mapping[str, Any]) -> Iterator[str]:
    for each in status.get("conditions") or ():
        if each.get("type") in _CONDITIONS and each.get("status") == "False":
            yield f"{each['type']} is false ({each.get('reason')}) {each.get('message', '')}".strip().rstrip(".")


def _is_ready(value: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Say whether a condition tells it, or the number of replicas, in which no reason against it was seen."""
    told = {each.get("type") for each in status.get("conditions") or () if each.get("status") == "True"}
    counted = value["kind"] in _REPLICATED and any(each in status for each in _READY)
    return bool(told & {"Ready", "Available"}) or counted or status.get("serviceStatus") == _RUNNING


def _count_replicas(value: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[str]:
    metadata, wanted = get_mapping(value, "metadata"), get_mapping(value, "spec").get("replicas", 1)
    if value["kind"] in _REPLICATED and isinstance(wanted, int):
        available = next((status[each] for each in _READY if each in status), 0)
        if not wanted:
            yield "it is scaled to 0 replicas"
        elif available < wanted:
            yield f"{available} of {wanted} replicas are available"
        elif (updated := status.get("updatedReplicas", wanted)) < wanted:
            yield f"{updated} of {wanted} replicas have the last change"
        if status.get("observedGeneration", 0) < metadata.get("generation", 0):
            yield "its controller has not processed the last change yet"


def list_commands(objects: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield (what to check next, command), with the names of the first object filled in."""
    value = objects[0]
    metadata, name = get_mapping(value, "metadata"), _name(value)
    space = f" -n {metadata['namespace']}" if metadata.get("namespace") else ""
    pod = name if value["kind"] in ("Pod", "Deployment") else f"POD-OF-{metadata.get('name', '')}"
    containers = _list_containers(value)
    at = f"{pod}{space}" + (f" -c {containers[0].get('name')}" if len(containers) > 1 else "")
    found = _read(value, name)
    port = found.args.get("port", _PORT) if found is not None else _PORT
    yield "Show its events", f"kubectl describe {name}{space}"
    yield "The release", f"kubectl exec {at} -- python3 -c 'import vllm; print(vllm.__version__)'"
    yield "Show how it resolved the config", f"kubectl logs {at} | draftwise verify --log - --setup setup.json"
    yield "Show the previous container's log", f"kubectl logs {at} --previous"
    if root := next((each for each in MODEL_ROOTS if found is not None and found.target.startswith(each)), ""):
        sums = "if [ -f CHECKSUMS ]; then sha256sum -c CHECKSUMS; fi"
        yield "The weights", f"kubectl exec {at} -- sh -c 'ls -lR {root} && cd {root} && {sums}'"
    yield "Its counters", f"kubectl exec {at} -- curl -s localhost:{port}/metrics | grep spec_decode"
    yield (
        "Verify the running server",
        f"kubectl port-forward {pod}{space} {port} & draftwise verify http://localhost:{port} --setup setup.json",
    )


def _list_containers(value: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    spec = get_mapping(value, "spec")
    containers = get_mapping(spec, "template", "spec").get("containers") or spec.get("containers") or ()
    return [each for each in containers if isinstance(each, Mapping)]
