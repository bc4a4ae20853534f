"""Reads platforms, one row each: the settings that a target's files can hold, its commands, and its code.

The rows are in `knowledge/data/deploy_targets.json`. A row names a template of `deploying/templates` and, if the
platform needs its own values, limits, files or checks, a module of this folder.
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
    """Returns the template's placeholders that only this platform has."""
    render: Callable[[ServiceOrder], str] | None = None
    """Writes a server's file if its format is not YAML; None to use the template."""
    prepare: Callable[[ServiceOrder], ServiceOrder] = lambda order: order
    """Fills in what the platform leaves open, such as the place of the weights; refuses what it cannot run."""
    write_more: Callable[[ServiceOrder, ServiceOrder, Observation], Mapping[str, StepFile]] = (
        lambda _spec, _plain, _watched: {}
    )
    """Further files by name, from both twins and what watches them."""
    find_limits: Callable[[ServiceOrder], Iterable[Finding]] = _nothing
    """Yields what the platform does not support."""
    describe: Callable[[ServiceOrder], Iterable[str]] = _nothing
    """Yields the place of the weights and the reason, one sentence each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployTarget:
    """One platform."""

    name: str
    """Name of the platform, a value of `--to`."""
    template: str = ""
    """File of `deploying/templates`; empty if the hooks render."""
    hooks: str = ""
    """Module of `deploying/targets`; empty if the template is enough."""
    suffix: str
    """Suffix of its files."""
    lost: tuple[str, ...] = ()
    """Fields of a setup that its files cannot hold."""
    apply: str
    """Command that applies a file; `{file}`, `{name}` and `{startup}` are filled in."""
    remove: str
    """Command that removes it."""
    in_place: bool = False
    """Whether a new revision reuses port and GPUs of the previous one, which stops first."""
    compare: str = ""
    """Command that shows what applying a file would change (exit code 1 for changes); empty without one."""
    leaves: str = ""
    """What remains on the platform after the speculative service is removed, as a sentence; empty if that depends on
    the layout of the weights."""
    scaled: str = ""
    """Object that a cluster's autoscaler scales: apiVersion, kind and name; empty if the platform scales itself."""
    brings_weights: bool = False
    """Whether its files put the weights where the server looks for them."""
    carries: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Where its files hold a server's surroundings (`surroundings.Part`): paths by part, with the object's kind under
    `kind`."""
    in_cluster: bool = False
    """Whether it runs on Kubernetes."""
    spans_hosts: bool = False
    """Whether its files also start ranks on other hosts."""
    options: tuple[str, ...] = ()
    """Fields of `Platform` that an operator can choose."""
    kind: str = ""
    """Object kind whose schemas (`knowledge.kinds`) define the platform's known releases."""
    since: Mapping[str, str] = field(default_factory=dict)
    """First release of the platform with each feature, by feature."""
    deadline_s: int | None = None
    """Startup deadline in seconds that no field changes; None if it is configurable."""
    address: str = ""
    """Address of a server for a proxy, with `{name}` and `{port}`; empty if the platform does not define one."""
    metrics_prefix: str = VLLM
    """Prefix of the server's metrics on this platform."""
    metrics_port: int | None = None
    """Port of the metrics; None for the server's own port."""

    @property
    def code(self) -> Hooks:
        """The platform's code; its module is imported on first use."""
        return _load(self.hooks)

    def render(self, order: ServiceOrder) -> str:
        """Return the file of a server.

        Raises:
            InvalidSetup: the platform cannot hold the order.
        """
        code = self.code
        return code.render(order) if code.render else write_template(self.template, order, code.list_values(order))

    def prepare(self, order: ServiceOrder) -> ServiceOrder:
        """Return an order completed for the platform.

        Raises:
            InvalidSetup: the platform cannot run the order.
        """
        return self.code.prepare(order)

    def has(self, feature: str, release: Version) -> bool:
        """Return whether a release of the platform has a feature of `since`."""
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
