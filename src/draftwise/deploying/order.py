"""An order for production: a setup that its release accepts, with everything its service needs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import ceil
from typing import Literal

from draftwise.core import NO_LIMITS, Expected, Finding, InvalidSetup, Rollback, Setup, Severity
from draftwise.deploying.secrets import refuse_secrets
from draftwise.deploying.surroundings import Surroundings
from draftwise.deploying.twin import Pool, count_device, count_gpus, find_other_hosts, without_speculation
from draftwise.deploying.weights_layout import IMAGE, Layout, WeightsPlacement
from draftwise.knowledge.images import find_release
from draftwise.knowledge.messages import fault, refusal
from draftwise.knowledge.vllm import get_release
from draftwise.plan.check import Report, check
from draftwise.plan.size import size
from draftwise.setups.write import write_json

Mode = Literal["Standard", "Knative"]
"""KServe's deployment mode: a Deployment, or a Knative Service with revisions."""

_GIB = 1 << 30
_PORT = 8000
"""vLLM's default."""
_STARTUP_FACTOR = 1.5
"""Times a measured cold start, before a server that has not answered yet is given up."""
_STARTUP_PRIOR_S = 1200.0
"""Budget where no cold start was measured: loading from a network, compilation and graphs of a large model."""
_ANY_GPU = "1000GiB"
"""Stands for a GPU that is not named: weights do not depend on it."""
_PROCESS_BYTES = 6 * _GIB
"""Host memory of the API server and the engine's own processes."""
_WORKER_BYTES = 4 * _GIB
"""Host memory of each GPU's worker: pinned buffers and libraries."""
_SHM_BYTES = 2 * _GIB
"""Shared memory per GPU in /dev/shm: messages between the processes, and NCCL's buffers."""
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,50}[a-z0-9])?")
"""A DNS label as Services want it, which leaves room for `-plain` and a suffix of the platform's."""

_SHORTEST_LULL_S, _LONGEST_LULL_S = 300, 3600
"""Kubernetes' own bound, and the longest that its autoscalers and Knative's take."""
_PRODUCT = re.compile(r"(?:NVIDIA|Tesla|Quadro)-[\w.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvidence:
    """The measurements of a setup, for later readers of its files."""

    run: str = ""
    """Name of the run directory; empty if nothing was measured."""
    headline: str = ""
    """The result in a sentence."""
    rollback: tuple[Rollback, ...] = ()
    wanted_gain: float = 0.0
    """Share by which a change has to be faster to be worth it."""
    not_adopted: tuple[str, ...] = ()
    """Where the run did not adopt it, one sentence each."""
    speed_ups: Mapping[str, float] = field(default_factory=dict)
    """Ratio of tokens per second with and without speculation, by workload, under its heaviest load."""
    arm: str = ""
    """Deployed arm of the run."""
    plain_arm: str = ""
    """Arm of the run without speculation."""
    expected: Expected | None = None
    """Growth of its counters in the deciding cell."""
    curve_ms: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    """(streams, milliseconds per step) by arm."""
    unmeasured: tuple[str, ...] = ()
    """What the files assume without a measurement, one sentence each."""

    def carry_over(self, measured: Setup, deployed: Setup, *, hardware: Sequence[str]) -> RunEvidence:
        """Return what still holds for another setup, engine or GPU; thresholds for rolling back do not carry over."""
        others = list(_find_others(measured, deployed, hardware))
        if not others:
            return self
        if self.rollback:
            why = "; ".join(each.rstrip(".") for each in others)
            others.append(f"{NO_LIMITS}the run's limits apply only to the setup that it measured ({why}).")
        unmeasured = (*self.unmeasured, *others)
        return replace(self, rollback=(), speed_ups={}, expected=None, curve_ms={}, unmeasured=unmeasured)


def _find_others(measured: Setup, deployed: Setup, hardware: Sequence[str]) -> Iterator[str]:
    if (measured.engine, measured.engine_version) != (deployed.engine, deployed.engine_version):
        before = " ".join(part for part in (measured.engine, measured.engine_version) if part) or "an unknown engine"
        yield f"vLLM {deployed.engine_version}: the run measured {before}."
    if measured.target != deployed.target:
        yield f"{deployed.target}: the run measured {measured.target or 'a model whose name it does not know'}."
    gpu = deployed.device
    if gpu is not None and not any(gpu.name.lower() in each.lower() for each in hardware):
        yield f"{gpu.name}: the run measured {' and '.join(hardware) or 'hardware that it does not know'}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Resources of the processes in addition to GPU memory."""

    cpus: int
    memory_bytes: int
    shm_bytes: int
    weights_bytes: int = 0
    """Size of target and drafter on a volume; 0 if unknown."""

    @property
    def limit_bytes(self) -> int:
        """Least limit of memory: shared memory counts as the container's or the unit's."""
        return self.memory_bytes + self.shm_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Limits of scaling a service."""

    most: int
    """Maximum number of replicas."""
    per_replica: int | None = None
    """Requests in flight per replica; None for the run's value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """Properties of the platform that the files depend on."""

    release: str = ""
    """KServe's release; empty for the newest known one."""
    mode: Mode = "Standard"
    service_account: str = ""
    """Service account whose secrets give access to the weights."""
    layout: Layout | None = None
    """Layout of the weights; None to choose one automatically."""
    verifier: str = ""
    """Image with draftwise; empty without one."""
    scale: Scale | None = None
    """None for one replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOrder:
    """One service."""

    name: str
    """A DNS label."""
    pool: Pool
    """Twin: `spec` or `plain`."""
    setup: Setup
    image: str
    """Container image; its tag names the release."""
    host: Host
    startup_s: int
    """Startup deadline in seconds."""
    owner: str = ""
    """Owner of the service; empty if not given."""
    evidence: RunEvidence = field(default_factory=RunEvidence)
    placement: WeightsPlacement = field(default_factory=WeightsPlacement)
    platform: Platform = field(default_factory=Platform)
    around: Surroundings = field(default_factory=Surroundings)
    """Surroundings of the server in the source."""
    twin_of: str = ""
    """Name of the service that it is the twin of; empty for the service itself."""

    @property
    def port(self) -> int:
        """Port that it listens on."""
        port = self.setup.args.get("port")
        return port if isinstance(port, int) else _PORT

    @property
    def num_gpus(self) -> int:
        """Number of GPUs of the server."""
        return 1 if self.setup.device is None else self.setup.device.count

    @property
    def gpu_product(self) -> str:
        """Value of the label nvidia.com/gpu.product; empty if the setup does not have it."""
        device = self.setup.device
        return device.name if device is not None and _PRODUCT.fullmatch(device.name) else ""

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of its objects (service, instance, pool and revision), by which rules select its metrics."""
        return {**self.selector, "draftwise.dev/pool": self.pool, "draftwise.dev/revision": self.revision}

    @property
    def selector(self) -> Mapping[str, str]:
        """Labels that do not change with speculation, for selectors."""
        return {"app.kubernetes.io/name": self.service, "app.kubernetes.io/instance": self.name}

    @property
    def revision(self) -> str:
        """Beginning of its setup's checksum."""
        return sha256(write_json(self.setup).encode()).hexdigest()[:16]

    @property
    def service(self) -> str:
        """The name that both twins share."""
        return self.twin_of or self.name

    @property
    def annotations(self) -> Mapping[str, str]:
        """Annotations for readers of the running object."""
        evidence = self.evidence
        known = {
            "setup": self.revision,
            "run": evidence.run,
            "found": evidence.headline,
            "owner": self.owner,
            "not-measured": " ".join(evidence.unmeasured),
        }
        return {f"draftwise.dev/{key}": value for key, value in known.items() if value}

    def without_speculation(self) -> ServiceOrder:
        """Return the twin: the same server without speculation, under another name."""
        return replace(self.go_back(), name=f"{self.name}-plain", twin_of=self.service)

    def go_back(self) -> ServiceOrder:
        """Return the next revision of the service: the same server under its name, without speculation."""
        plain, placement = without_speculation(self.setup), replace(self.placement, drafts=())
        return replace(self, pool="plain", setup=plain, placement=placement)


def find_lull_s(order: ServiceOrder) -> int:
    """Return the seconds of low load before a replica is removed, at least its startup deadline."""
    return min(max(_SHORTEST_LULL_S, order.startup_s), _LONGEST_LULL_S)


def make_order(
    setup: Setup,
    *,
    name: str = "",
    image: str = "",
    cold_start_s: float | None = None,
    evidence: RunEvidence | None = None,
    around: Surroundings | None = None,
) -> ServiceOrder:
    """Return the order for a setup.

    Args:
        setup: setup of vLLM, with its release.
        name: name of the service; by default from the target's.
        image: container image; by default the source's, else vLLM's own of the release.
        cold_start_s: seconds that a cold start took.
        evidence: measurements of the setup.
        around: surroundings of the server in the source.

    Raises:
        InvalidSetup: the setup lacks what a service needs, or its release does not start it.
    """
    _refuse_incomplete(setup, is_written=True)
    refuse_secrets(setup)
    around = around or Surroundings()
    around.refuse_secrets()
    setup = settle_method(setup)
    name = name or _name_after(setup.target)
    if not _NAME.fullmatch(name):
        raise refusal("service-name", name=name)
    if image and not IMAGE.fullmatch(image):
        raise refusal("no-such-image", image=image[:80])
    evidence, setup = evidence or RunEvidence(), count_device(setup)
    startup_s = _STARTUP_PRIOR_S if cold_start_s is None else _STARTUP_FACTOR * cold_start_s
    host, remarks = _find_host(setup)
    if cold_start_s is None:
        remarks = (*remarks, f"Duration of a cold start: {startup_s:.0f} s is a guess. Pass --cold-start-s.")
    return ServiceOrder(
        name=name,
        pool="plain" if setup.spec is None else "spec",
        setup=setup,
        image=image or _choose_image(setup, around),
        host=host,
        startup_s=10 * ceil(startup_s / 10),
        evidence=replace(evidence, unmeasured=(*evidence.unmeasured, *remarks)),
        around=around,
    )


def _choose_image(setup: Setup, around: Surroundings) -> str:
    """Return the source's image where it has the release that is deployed, else vLLM's own of that release."""
    release = get_release(setup.engine_version)
    named = find_release(around.image)
    if around.image and (not named or str(get_release(named, nearest=True)) == str(release)):
        return around.image
    return f"vllm/vllm-openai:v{release}"


def _find_errors(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.severity is Severity.ERROR]


def settle_method(setup: Setup) -> Setup:
    """Return a setup whose config names its method, so that no directory's name decides it.

    Raises:
        InvalidSetup: the setup lacks what a server needs, or its release does not start it.
    """
    _refuse_incomplete(setup)
    if errors := _find_errors(report := check(setup)):
        raise InvalidSetup(errors)
    spec, resolved = setup.spec, report.resolved
    if spec is None or spec.method is not None or resolved is None:
        return setup
    named = replace(setup, spec=replace(spec, method=resolved.method))
    return setup if _find_errors(check(named)) else named  # a release may know the method by an older name


def _refuse_incomplete(setup: Setup, *, is_written: bool = False) -> None:
    lacks = {
        fault("release-not-given"): setup.engine != "vllm" or not setup.engine_version,
        fault("target-not-named"): not setup.target or setup.target.lstrip().startswith("{"),
        fault("no-cpu-service"): is_written and setup.device is not None and setup.device.kind == "cpu",
    }
    if found := [finding for finding, is_so in lacks.items() if is_so]:
        raise InvalidSetup(found)


def refuse_other_hosts(setup: Setup, *, fix: str) -> None:
    """Raise InvalidSetup for a server with ranks on other hosts, if the files are for one host."""
    if flag := find_other_hosts(setup):
        raise refusal("several-hosts", flag=flag, fix=fix)


def _name_after(target: str) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", target.rstrip("/").rpartition("/")[2].lower()).strip("-")
    name = name if name[:1].isalpha() else f"model-{name}"
    return name[:52].strip("-")


def _find_host(setup: Setup) -> tuple[Host, tuple[str, ...]]:
    """Return what the host gives, and what of it is a guess."""
    gpus, remarks, weights = count_gpus(setup), list[str](), 0
    is_known = setup.device is not None and setup.device.name != "GPU"
    if not is_known:
        remarks.append("Whether it fits into GPU memory: name the GPUs with --gpu.")
    try:
        sizing = size(setup, gpu=None if is_known else _ANY_GPU)
        weights = gpus * (sizing.budget.target + sizing.budget.drafter)
    except InvalidSetup as error:
        remarks.append(f"Whether it fits, and how much host memory its weights need. {error.findings[0].message}")
    else:
        errors = [finding for finding in sizing.findings if finding.severity is Severity.ERROR]
        if is_known and errors:
            raise InvalidSetup(errors)
    # Weights pass through the page cache on their way to the GPUs; a limit below them makes every start slow.
    memory = weights + _PROCESS_BYTES + gpus * _WORKER_BYTES
    host = Host(
        cpus=2 + 2 * gpus, memory_bytes=_GIB * ceil(memory / _GIB), shm_bytes=gpus * _SHM_BYTES, weights_bytes=weights
    )
    return host, tuple(remarks)
