"""The files of a deployment: the service, its twin, what undoes it, what it rests on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from draftwise.core import Finding, InvalidSetup
from draftwise.deploy import kserve as layouts
from draftwise.deploy.files import Folder, Step
from draftwise.deploy.memo import write_memo
from draftwise.deploy.observe import VLLM, Observation, observe
from draftwise.deploy.order import Order
from draftwise.deploy.read_back import read_back
from draftwise.deploy.render import compose, kserve, kubernetes, llm_service, production_stack, systemd
from draftwise.setups.write import write_json

__all__ = ["TARGETS", "Target", "deploy"]

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _as_it_is(order: Order) -> Order:
    return order


def _no_steps(_spec: Order, _plain: Order) -> Mapping[str, Step]:
    return {}


def _nothing(_order: Order) -> tuple[()]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A platform."""

    render: Callable[[Order], str]
    suffix: str
    lost: tuple[str, ...] = ()
    """Fields of a setup that its files have no place for."""
    apply: str
    """The command that puts a file into force; `{file}` and `{name}` are filled in."""
    remove: str
    """The command that takes it away."""
    in_cluster: bool = False
    """Whether it runs on Kubernetes."""
    prepare: Callable[[Order], Order] = _as_it_is
    """Settles what the platform leaves open, such as where the weights lie."""
    write_more: Callable[[Order, Order], Mapping[str, Step]] = _no_steps
    """Further files by name, from both twins."""
    find_limits: Callable[[Order], Iterable[Finding]] = _nothing
    """What the platform does not grant."""
    describe: Callable[[Order], Iterable[str]] = _nothing
    """Where the weights lie and why, a sentence each."""


TARGETS: Mapping[str, Target] = {
    "kubernetes": Target(
        render=kubernetes.render,
        suffix=".yaml",
        apply="kubectl apply -f {file} && kubectl rollout status deployment/{name} --timeout={startup}s",
        remove="kubectl delete -f {file}",
        in_cluster=True,
    ),
    "kserve": Target(
        render=kserve.render,
        suffix=".yaml",
        apply="kubectl apply -f {file} && kubectl wait --for=condition=Ready inferenceservice/{name} "
        "--timeout={startup}s",
        remove="kubectl delete -f {file}",
        prepare=layouts.prepare,
        write_more=layouts.write_more,
        find_limits=layouts.find_limits,
        describe=layouts.describe_layout,
        in_cluster=True,
    ),
    "llminferenceservice": Target(
        render=llm_service.render,
        prepare=llm_service.prepare,
        suffix=".yaml",
        apply="kubectl apply -f {file} && kubectl wait --for=condition=Ready llminferenceservice/{name} "
        "--timeout={startup}s",
        remove="kubectl delete -f {file}",
        find_limits=layouts.warn_of_deadline,
        in_cluster=True,
    ),
    "production-stack": Target(
        render=production_stack.render,
        suffix=".yaml",
        apply="helm upgrade --install {name} vllm/vllm-stack -f {file} --wait --timeout {startup}s",
        remove="helm uninstall {name}",
        prepare=production_stack.prepare,
        in_cluster=True,
    ),
    "compose": Target(
        render=compose.render,
        suffix=".yaml",
        apply="docker compose -f {file} up -d --wait",
        remove="docker compose -f {file} down",
    ),
    "systemd": Target(
        render=systemd.render,
        suffix=".service",
        lost=("engine_version", "device"),
        apply="sudo cp {file} /etc/systemd/system/{name}.service && sudo systemctl daemon-reload && "
        "sudo systemctl enable --now {name}",
        remove="sudo systemctl disable --now {name} && sudo rm /etc/systemd/system/{name}.service",
    ),
}


def deploy(order: Order, to: str, *, metrics_prefix: str | None = VLLM) -> Folder:
    """Return the files of an order for a platform.

    Args:
        order: of the side that speculates.
        to: one of `TARGETS`.
        metrics_prefix: how the names of the server's metrics begin; None for no files that watch it.

    Raises:
        InvalidSetup: a file does not start what was ordered.
    """
    target = TARGETS[to]
    order = target.prepare(order)
    sides = {"spec": order, "plain": order.without_speculation()}
    files: dict[str, str] = {}
    for side, each in sides.items():
        name, text = f"{side}{target.suffix}", target.render(each)
        if found := read_back(text, each.setup, name=name, lost=target.lost):
            raise InvalidSetup(found)
        files[name] = text
    more = target.write_more(sides["spec"], sides["plain"])
    files |= {name: step.text for name, step in more.items()}
    watched = _watch(order, target, metrics_prefix)
    files |= {name: text for name, (_, text) in watched.files.items()}
    if refused := tuple(_find_refusals(files, order.platform.release)):
        raise InvalidSetup(refused)
    limits = tuple(target.find_limits(order))
    files["setup.json"] = write_json(order.setup)
    files["MEMO.md"] = write_memo(
        order,
        files={**_describe(target), **{name: step.about for name, step in more.items()}, **watched.describe()},
        apply={step.does: step.command for step in more.values()} | _list_commands(target, sides),
        weights=tuple(target.describe(order)),
        limits=limits,
        unwatched=watched.missing,
    )
    return Folder(files, limits)


def _find_refusals(files: Mapping[str, str], release: str) -> Iterator[Finding]:
    """Yield what an API server would refuse or drop of the objects in some files."""
    from draftwise.deploy.validate import validate

    for name, text in files.items():
        for document in yaml.load_all(text, _LOADER) if name.endswith(".yaml") else ():
            if isinstance(document, dict) and "kind" in document:
                yield from (replace(each, where=f"{name} {each.where}") for each in validate(document, release))


def _watch(order: Order, target: Target, prefix: str | None) -> Observation:
    if prefix is None:
        return Observation(files={}, missing=("Nothing is watched: files for that were not wanted.",))
    return observe(order, in_cluster=target.in_cluster, prefix=prefix)


def _describe(target: Target) -> Mapping[str, str]:
    return {
        f"spec{target.suffix}": "the service",
        f"plain{target.suffix}": "its twin without speculation, to compare with and to go back to",
        "setup.json": "the setup, as every verb of draftwise reads it",
    }


def _list_commands(target: Target, sides: Mapping[str, Order]) -> dict[str, str]:
    spec, plain = (
        {"file": f"{side}{target.suffix}", "name": each.name, "startup": each.startup_s} for side, each in sides.items()
    )
    start, stop = target.apply.format, target.remove.format
    return {
        "Prove the folder": "sha256sum -c CHECKSUMS",
        "Start it": start(**spec),
        "Go back: start the twin, send the traffic there, then": f"{start(**plain)}\n{stop(**spec)}",
    }
