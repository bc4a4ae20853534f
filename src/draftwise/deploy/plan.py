"""The files of a deployment: the service, its twin, what undoes it, what it rests on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from draftwise.core import InvalidSetup
from draftwise.deploy.files import Folder
from draftwise.deploy.memo import write_memo
from draftwise.deploy.observe import VLLM, Observation, observe
from draftwise.deploy.order import Order
from draftwise.deploy.read_back import read_back
from draftwise.deploy.render import compose, kubernetes, systemd
from draftwise.setups.write import write_json

__all__ = ["TARGETS", "Target", "deploy"]


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
    """Whether its files are objects of Kubernetes."""


TARGETS: Mapping[str, Target] = {
    "kubernetes": Target(
        render=kubernetes.render,
        suffix=".yaml",
        apply="kubectl apply -f {file} && kubectl rollout status deployment/{name} --timeout={startup}s",
        remove="kubectl delete -f {file}",
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
    target, sides = TARGETS[to], {"spec": order, "plain": order.without_speculation()}
    files: dict[str, str] = {}
    for side, each in sides.items():
        name, text = f"{side}{target.suffix}", target.render(each)
        if found := read_back(text, each.setup, name=name, lost=target.lost):
            raise InvalidSetup(found)
        files[name] = text
    files["setup.json"] = write_json(order.setup)
    watched = _watch(order, target, metrics_prefix)
    files |= {name: text for name, (_, text) in watched.files.items()}
    files["MEMO.md"] = write_memo(
        order, files=_describe(target, watched), apply=_list_commands(target, sides), unwatched=watched.missing
    )
    return Folder(files)


def _watch(order: Order, target: Target, prefix: str | None) -> Observation:
    if prefix is None:
        return Observation(
            files={}, missing=("Nothing is: the files were written without any that watch the service.",)
        )
    return observe(order, in_cluster=target.in_cluster, prefix=prefix)


def _describe(target: Target, watched: Observation) -> Mapping[str, str]:
    return {
        f"spec{target.suffix}": "the service",
        f"plain{target.suffix}": "its twin without speculation, to compare with and to go back to",
        "setup.json": "the setup, as every verb of draftwise reads it",
        **{name: text for name, (text, _) in watched.files.items()},
    }


def _list_commands(target: Target, sides: Mapping[str, Order]) -> Mapping[str, str]:
    spec, plain = (
        {"file": f"{side}{target.suffix}", "name": each.name, "startup": each.startup_s} for side, each in sides.items()
    )
    start, stop = target.apply.format, target.remove.format
    return {
        "Prove the folder": "sha256sum -c CHECKSUMS",
        "Start it": start(**spec),
        "Go back: start the twin, send the traffic there, then": f"{start(**plain)}\n{stop(**spec)}",
    }
