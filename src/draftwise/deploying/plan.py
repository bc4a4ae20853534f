"""The files of a deployment: the service, its twin, what undoes it, what it rests on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote

from draftwise.core import Finding, InvalidSetup
from draftwise.deploying import canary
from draftwise.deploying import kserve as layouts
from draftwise.deploying.baseline import make_baseline
from draftwise.deploying.files import Folder, Step
from draftwise.deploying.kserve import CANARY
from draftwise.deploying.layout import name_leftovers
from draftwise.deploying.limits import find_limits
from draftwise.deploying.memo import write_memo
from draftwise.deploying.observe import VLLM, Observation, observe
from draftwise.deploying.observe.naming import name_for
from draftwise.deploying.order import Order, refuse_other_hosts
from draftwise.deploying.proxies import Front, Wanted
from draftwise.deploying.proxies.policy import find_policy
from draftwise.deploying.read_back import read_back
from draftwise.deploying.record import BASELINE, DEPLOYMENT, SETUP, Record, Side, write_record
from draftwise.deploying.render import (
    compose,
    flagger,
    kserve,
    kubernetes,
    leader_worker_set,
    llm_service,
    production_stack,
    ray_serve,
    rollouts,
    systemd,
    vllm_runtime,
)
from draftwise.deploying.scaling import SCALING, scale, settle
from draftwise.deploying.twin import Pool, without_speculation
from draftwise.deploying.validate import validate_text
from draftwise.setups.write import write_json

__all__ = ["TARGETS", "THEN", "Target", "deploy", "fill_in", "start_twin"]

THEN = " && "
"""Between the commands of a step."""


def _as_it_is(order: Order) -> Order:
    return order


def _no_steps(_spec: Order, _plain: Order, _watched: Observation) -> Mapping[str, Step]:
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
    stop: str = ""
    """The command that stops a server whose port and GPUs its twin takes; empty where both run beside each other."""
    compare: str = ""
    """The command that shows what applying a file would change (exit code 1: something); empty where there is none."""
    leaves: str = ""
    """What stays behind on the platform after the service with speculation was taken away, a sentence; empty where that
    depends on the layout of the weights."""
    scaled: str = ""
    """What an autoscaler of the cluster scales: apiVersion, kind and name; empty where the platform does it itself."""
    brings_weights: bool = False
    """Whether its files put the weights where the server looks for them."""
    in_cluster: bool = False
    """Whether it runs on Kubernetes."""
    spans_hosts: bool = False
    """Whether its files start ranks on other hosts, too."""
    prepare: Callable[[Order], Order] = _as_it_is
    """Settles what the platform leaves open, such as where the weights lie."""
    write_more: Callable[[Order, Order, Observation], Mapping[str, Step]] = _no_steps
    """Further files by name, from both twins and what watches them."""
    address: str = ""
    """How a proxy reaches a server, with `{name}` and `{port}`; empty where the platform does not settle it."""
    metrics_prefix: str = VLLM
    """How the names of the server's metrics begin there."""
    metrics_port: int | None = None
    """Where they are shown; None for the server's own port."""
    find_limits: Callable[[Order], Iterable[Finding]] = _nothing
    """What the platform does not grant."""
    describe: Callable[[Order], Iterable[str]] = _nothing
    """Where the weights lie and why, a sentence each."""


_of_kubectl = partial(
    Target,
    suffix=".yaml",
    remove="kubectl delete -f {file}",
    compare="kubectl diff -f {file}",
    in_cluster=True,
)

TARGETS: Mapping[str, Target] = {
    "kubernetes": _of_kubectl(
        render=kubernetes.render,
        scaled="apps/v1 Deployment {name}",
        address="{name}:80",
        apply="kubectl apply -f {file} && kubectl rollout status deployment/{name} --timeout={startup}s",
        leaves="Nothing in the cluster: the cache is the pod's own; a drafter in an image or on a volume stays there.",
    ),
    "kserve": _of_kubectl(
        render=kserve.render,
        scaled="apps/v1 Deployment {name}-predictor",
        apply="kubectl apply -f {file} && kubectl wait --for=condition=Ready inferenceservice/{name} "
        "--timeout={startup}s",
        prepare=layouts.prepare,
        brings_weights=True,
        write_more=layouts.write_more,
        find_limits=layouts.find_limits,
        describe=layouts.describe_layout,
    ),
    "llminferenceservice": _of_kubectl(
        render=llm_service.render,
        prepare=llm_service.prepare,
        apply="kubectl apply -f {file} && kubectl wait --for=condition=Ready llminferenceservice/{name} "
        "--timeout={startup}s",
        leaves="Nothing of the drafter, which vLLM downloads; llm-d's scheduler and its route go with the service.",
        find_limits=layouts.warn_of_deadline,
    ),
    "production-stack": Target(
        render=production_stack.render,
        suffix=".yaml",
        apply="helm upgrade --install {name} vllm/vllm-stack -f {file} --wait --timeout {startup}s",
        remove="helm uninstall {name}",
        leaves="The claims that the chart made, which helm keeps.",
        prepare=production_stack.prepare,
        in_cluster=True,
    ),
    "vllmruntime": _of_kubectl(
        render=vllm_runtime.render,
        address="{name}:80",
        apply="kubectl apply -f {file} && kubectl wait --for=create deployment/{name} --timeout=60s && "
        "kubectl rollout status deployment/{name} --timeout={startup}s",
        leaves="Nothing in the cluster: the operator takes its Deployment and Service away with the object.",
        prepare=vllm_runtime.prepare,
        find_limits=vllm_runtime.find_limits,
    ),
    "argo-rollouts": _of_kubectl(
        render=rollouts.render,
        scaled="argoproj.io/v1alpha1 Rollout {name}",
        address="{name}:80",
        apply="kubectl apply -f {file} && kubectl wait --for=condition=Healthy rollout/{name} --timeout={startup}s",
        leaves="Nothing in the cluster but the AnalysisTemplate and what it found, which other canaries may use.",
        write_more=canary.write_rollout,
        find_limits=canary.warn_of_shares,
    ),
    "flagger": _of_kubectl(
        render=flagger.render,
        apply="kubectl apply -f {file} && kubectl rollout status deployment/{name} --timeout={startup}s",
        leaves="The Canary and the MetricTemplate; with the Canary Flagger's copies and Services go.",
        write_more=canary.write_flagger,
        find_limits=canary.name_provider,
    ),
    "ray-serve": _of_kubectl(
        render=ray_serve.render,
        address="{name}-serve-svc:8000",
        lost=("device",),
        apply="kubectl apply -f {file} && kubectl wait --for=condition=Ready rayservice/{name} --timeout={startup}s",
        leaves="Nothing in the cluster: KubeRay takes its Ray cluster and Services away with the object.",
        prepare=ray_serve.prepare,
        metrics_prefix=ray_serve.METRICS_PREFIX,
        metrics_port=ray_serve.METRICS_PORT,
    ),
    "leaderworkerset": _of_kubectl(
        render=leader_worker_set.render,
        spans_hosts=True,
        scaled="leaderworkerset.x-k8s.io/v1 LeaderWorkerSet {name}",
        address="{name}-http:80",
        apply="kubectl apply -f {file} && kubectl wait --for=condition=Available leaderworkerset/{name} "
        "--timeout={startup}s",
        leaves="Nothing in the cluster: the controller takes the group's pods and their Service away with the set.",
        prepare=leader_worker_set.prepare,
        find_limits=leader_worker_set.find_limits,
    ),
    "compose": Target(
        render=compose.render,
        suffix=".yaml",
        apply="docker compose -f {file} up -d --wait",
        stop="docker compose -f {file} stop",
        remove="docker compose -f {file} rm --stop --force",
        leaves="The image, and what the volumes hold: the weights of the drafter with those of the target.",
    ),
    "systemd": Target(
        render=systemd.render,
        suffix=".service",
        lost=("device",),
        apply="sudo cp {file} /etc/systemd/system/{name}.service && sudo systemctl daemon-reload && "
        "sudo systemctl enable --now {name}",
        stop="sudo systemctl stop {name}",
        remove="sudo systemctl disable --now {name} && sudo rm /etc/systemd/system/{name}.service",
        leaves="The weights in the cache of the service's user; systemd keeps the log of both units.",
    ),
}


def deploy(order: Order, to: str, *, metrics_prefix: str | None = "", proxy: Wanted | None = None) -> Folder:
    """Return the files of an order for a platform.

    Args:
        order: of the side that speculates.
        to: one of `TARGETS`.
        metrics_prefix: how the names of the server's metrics begin; empty for what the platform makes of them, None for
            no files that watch it.
        proxy: in front of both twins; None for none.

    Raises:
        InvalidSetup: a file does not start what was ordered, or the setup does not speculate.
    """
    if without_speculation(order.setup) == order.setup:
        raise InvalidSetup.because(
            "no-twin",
            "The setup does not speculate: its twin would be the same server, and both would take each other's pods.",
            where="-sc",
            fix="Give a speculative config, or the run that adopted one; --edit takes the config out of a file.",
        )
    target = TARGETS[to]
    if not target.spans_hosts:
        refuse_other_hosts(
            order.setup,
            fix="Leave it out, and use the GPUs of one host, more of them as replicas (--max-replicas); or use "
            "--to leaderworkerset with --nnodes.",
        )
    warned, policy = tuple(find_limits(order.setup, brings_weights=target.brings_weights)), find_policy(order.setup)
    order = target.prepare(order)
    twins: dict[Pool, Order] = {"spec": order, "plain": order.without_speculation()}
    sides = {pool: settle(each, target.scaled) for pool, each in twins.items()}
    files: dict[str, str] = {}
    for side, each in sides.items():
        name, text = f"{side}{target.suffix}", target.render(each)
        if found := read_back(text, each.setup, name=name, lost=target.lost):
            raise InvalidSetup(found)
        files[name] = text
    watched = _watch(order, target, metrics_prefix)
    front = Front()
    if proxy is not None:
        from draftwise.deploying.proxies import put_in_front  # most folders have none

        front = put_in_front(order, proxy, target.address, policy)
    more = {
        **target.write_more(sides["spec"], sides["plain"], watched),
        **scale(list(sides.values()), name_for(order, metrics_prefix or target.metrics_prefix), target.scaled),
        **front.steps,
    }
    files |= {name: step.text for name, step in more.items()}
    files |= {name: text for name, (_, text) in watched.files.items()}
    release = order.platform.release
    if refused := [each for name, text in files.items() for each in validate_text(text, name=name, release=release)]:
        raise InvalidSetup(refused)
    limits = (*warned, *target.find_limits(order), *front.limits)
    files[SETUP] = write_json(order.setup)
    files[BASELINE] = make_baseline(order.evidence, files[SETUP]).to_json()
    record = _make_record(to, target, sides, is_scaled=SCALING in more)
    files[DEPLOYMENT] = write_record(record)
    files["MEMO.md"] = write_memo(
        order,
        files={**_describe(target), **{name: step.about for name, step in more.items()}, **watched.describe()},
        apply={
            "Prove the folder": "draftwise verify .  # or, without draftwise: sha256sum -c CHECKSUMS",
            **{step.does: step.command for step in more.values()},
            **({} if CANARY in more or proxy else _offer_proxy(order, to, target)),
            **front.commands,
            **watched.commands,
            **_list_commands(target, record),
        },
        weights=tuple(target.describe(order)),
        limits=limits,
        leave_off=(*order.evidence.not_adopted, *policy.describe_classes()),
        leaves=record.leaves,
        unwatched=watched.missing,
    )
    return Folder(files, limits)


def _make_record(to: str, target: Target, sides: Mapping[Pool, Order], *, is_scaled: bool) -> Record:
    order = sides["spec"]
    layout = order.platform.layout if target.brings_weights else None
    leaves = target.leaves if layout is None else name_leftovers(layout, order.setup)
    return Record(
        leaves=f"{leaves} Its ScaledObject, too: `kubectl delete scaledobject {order.name}`." if is_scaled else leaves,
        to=to,
        platform_release=order.platform.release,
        startup_s=order.startup_s,
        sides={pool: Side(file=f"{pool}{target.suffix}", name=each.name) for pool, each in sides.items()},
    )


def _watch(order: Order, target: Target, prefix: str | None) -> Observation:
    if prefix is None:
        return Observation(files={}, missing=("Nothing is watched: files for that were not wanted.",))
    prefix, port = prefix or target.metrics_prefix, target.metrics_port or order.port
    return observe(order, in_cluster=target.in_cluster, prefix=prefix, port=port)


def _describe(target: Target) -> Mapping[str, str]:
    return {
        f"spec{target.suffix}": "the service",
        f"plain{target.suffix}": "its twin without speculation, to compare with and to go back to",
        SETUP: "the setup, as every verb of draftwise reads it",
        BASELINE: "what the run found, which production is held against",
        DEPLOYMENT: "what the files are for, as `draftwise verify` and `draftwise rollback` read it",
    }


def fill_in(command: str, side: Side, record: Record, folder: Path = Path()) -> str:
    """Return a command of a target for one of the twins, as a shell takes it.

    Args:
        command: of the target.
        side: whose file and name are filled in.
        record: of the folder.
        folder: where the file lies, seen from where the command is to run.
    """
    return command.format(file=quote(str(folder / side.file)), name=side.name, startup=record.startup_s)


def _offer_proxy(order: Order, to: str, target: Target) -> dict[str, str]:
    """Return the command of a canary where the platform itself has none."""
    places = "" if target.address else " --spec-address HOST:PORT --plain-address HOST:PORT"
    return {
        "Try it on 10 % of the requests first: the platform has no canary of its own, a proxy in front of both twins "
        "is one": f"draftwise deploy {SETUP} --to {to} --name {order.name} --image {order.image} --proxy haproxy "
        f"--share 10{places} --out proxied"
    }


def start_twin(target: Target, record: Record, folder: Path = Path()) -> str:
    """Return the command that starts the twin; a service whose port and GPUs it takes is stopped before."""
    spec, plain = record.sides["spec"], record.sides["plain"]
    steps = [fill_in(target.stop, spec, record, folder)] if target.stop else []
    return THEN.join([*steps, fill_in(target.apply, plain, record, folder)])


def _list_commands(target: Target, record: Record) -> dict[str, str]:
    spec = record.sides["spec"]
    how = (
        "send the traffic elsewhere, as the twin takes its place" if target.stop else "start the twin, move the traffic"
    )
    return {
        "Start it": fill_in(target.apply, spec, record),
        f"Go back (`draftwise rollback` says it step by step): {how}, then": (
            f"{start_twin(target, record)}\n{fill_in(target.remove, spec, record)}"
        ),
    }
