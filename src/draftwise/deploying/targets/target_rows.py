"""Reads platforms, one row each: the settings a target's files can carry, its commands, and its template's code.

The rows are in `knowledge/data/deploy_targets.json`. A row names a template of `deploying/templates`, and a module of
this folder where the template needs values of its own, or the platform limits, files or a check of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module

from packaging.version import Version

from draftwise.core import Finding
from draftwise.deploying.deployment_folder import StepFile
from draftwise.deploying.observe import VLLM, Observation
from draftwise.deploying.order import ServiceOrder
from draftwise.deploying.templating import write_template
from draftwise.knowledge.stored import read_rows


def _nothing(_order: ServiceOrder) -> tuple[()]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """The code of a platform, in a module of `deploying/targets`, as its constant `HOOKS`."""

    list_values: Callable[[ServiceOrder], Mapping[str, object]] = lambda _order: {}
    """The placeholders of the template that are the platform's own."""
    render: Callable[[ServiceOrder], str] | None = None
    """Writes a server's file, for a format that is not YAML; None for the template."""
    prepare: Callable[[ServiceOrder], ServiceOrder] = lambda order: order
    """Settles what the platform leaves open, such as where the weights lie; refuses what it cannot run."""
    write_more: Callable[[ServiceOrder, ServiceOrder, Observation], Mapping[str, StepFile]] = (
        lambda _spec, _plain, _watched: {}
    )
    """Further files by name, from both twins and what watches them."""
    find_limits: Callable[[ServiceOrder], Iterable[Finding]] = _nothing
    """What the platform does not grant."""
    describe: Callable[[ServiceOrder], Iterable[str]] = _nothing
    """Where the weights lie and why, a sentence each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployTarget:
    """One platform."""

    name: str
    """Name of the platform, a value of `--to`."""
    template: str = ""
    """File of `deploying/templates`; empty where the hooks render."""
    hooks: str = ""
    """Module of `deploying/targets`; empty where the template needs nothing of its own."""
    suffix: str
    """End of the names of its files."""
    lost: tuple[str, ...] = ()
    """Fields of a setup that its files have no place for."""
    apply: str
    """The command that puts a file into force; `{file}`, `{name}` and `{startup}` are filled in."""
    remove: str
    """The command that takes it away."""
    in_place: bool = False
    """Whether a new revision takes the port and the GPUs of the one before, which ends first."""
    compare: str = ""
    """The command that shows what applying a file would change (exit code 1: something); empty for no such command."""
    leaves: str = ""
    """What stays on the platform after the service with speculation was taken away, a sentence; empty where that
    depends on the layout of the weights."""
    scaled: str = ""
    """What an autoscaler of the cluster scales: apiVersion, kind and name; empty where the platform does it itself."""
    brings_weights: bool = False
    """Whether its files put the weights where the server looks for them."""
    carries: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Where its files take what stands around a server (`surroundings.Part`): the paths by part, under `kind` the kind
    of the object that has them."""
    in_cluster: bool = False
    """Whether it runs on Kubernetes."""
    spans_hosts: bool = False
    """Whether its files start ranks on other hosts, too."""
    options: tuple[str, ...] = ()
    """Fields of a `Platform` that an operator may choose."""
    kind: str = ""
    """Kind of the object whose schemas (`knowledge.kinds`) tell which releases of the platform are known."""
    since: Mapping[str, str] = field(default_factory=dict)
    """First release of the platform with a feature, by the feature."""
    deadline_s: int | None = None
    """Seconds that the platform gives a start, where no field changes that."""
    address: str = ""
    """How a proxy reaches a server, with `{name}` and `{port}`; empty where the platform does not settle it."""
    metrics_prefix: str = VLLM
    """How the names of the server's metrics begin there."""
    metrics_port: int | None = None
    """Where they are shown; None for the server's own port."""

    @property
    def code(self) -> Hooks:
        """The platform's code; its module is imported with the first use."""
        return _load(self.hooks)

    def render(self, order: ServiceOrder) -> str:
        """Return the file of a server.

        Raises:
            InvalidSetup: the platform does not take what was ordered.
        """
        code = self.code
        return code.render(order) if code.render else write_template(self.template, order, code.list_values(order))

    def prepare(self, order: ServiceOrder) -> ServiceOrder:
        """Return an order with what the platform leaves open.

        Raises:
            InvalidSetup: the platform does not run what was ordered.
        """
        return self.code.prepare(order)

    def has(self, feature: str, release: Version) -> bool:
        """Say whether a release of the platform has a feature of `since`."""
        return release >= Version(self.since[feature])


@cache
def _load(module: str) -> Hooks:
    if not module:
        return Hooks()
    hooks: Hooks = import_module(f"draftwise.deploying.targets.{module}").HOOKS
    return hooks


TARGETS: Mapping[str, DeployTarget] = {row["name"]: DeployTarget(**row) for row in read_rows("deploy_targets")}


def name_targets(column: str) -> str:
    """Return the names of the targets with a column set, for messages: `a or b`."""
    return " or ".join(name for name, target in TARGETS.items() if getattr(target, column))
