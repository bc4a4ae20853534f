"""Assembles a deployment's folder: the service, its twin, scaling, commands, the memo, measurements.

A speculative service produces more tokens per second at the same demand, so scaling by a token rate would add replicas
because it is fast. Requests in flight fall if answers come sooner, and grow after a rollback.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import floor
from pathlib import Path
from shlex import quote
from typing import Any

from draftwise.core import Expected, Finding, InvalidSetup, Setup, Severity
from draftwise.deploying.api_server import validate_text
from draftwise.deploying.carry import carry, find_secret_commands, find_small_limits, find_uncarried
from draftwise.deploying.deployment_folder import (
    BASELINE,
    CANARY,
    DEPLOYMENT,
    MEMO,
    SETUP,
    Folder,
    Record,
    StepFile,
    TwinFile,
    write_record,
)
from draftwise.deploying.observe import Observation, observe
from draftwise.deploying.observe.promise import PROMETHEUS, Naming, find_crossover, make_baseline, name_for
from draftwise.deploying.order import Scale, ServiceOrder, find_lull_s, refuse_other_hosts
from draftwise.deploying.proxies import Front, ProxyOptions
from draftwise.deploying.proxies.pool_policy import find_policy
from draftwise.deploying.read_back import read_back
from draftwise.deploying.targets import TARGETS, DeployTarget, name_targets
from draftwise.deploying.templating import dump_yaml, fill
from draftwise.deploying.twin import Pool, count_hosts, without_speculation
from draftwise.deploying.weights_layout import name_leftovers
from draftwise.knowledge.messages import refusal, warning
from draftwise.knowledge.vllm import get_release
from draftwise.plan.check import check
from draftwise.plan.release_changes import is_defect
from draftwise.reporting.conditions import describe_rule
from draftwise.reporting.units import describe_load
from draftwise.setups.write import write_json, write_shell

SCALING = "scaling.yaml"
NAMESPACE = "default"
"""Namespace in which queries count requests, because others may have the same service; no data, no scaling."""
_IN_FLIGHT = "sum(vllm:num_requests_running) + sum(vllm:num_requests_waiting)"


def settle(order: ServiceOrder, scaled: str) -> ServiceOrder:
    """Return an order with its requests in flight per replica, if it is scaled.

    Args:
        order: one of the twins.
        scaled: scaled object: apiVersion, kind and name with `{name}`; empty if the platform scales by its own fields.

    Raises:
        InvalidSetup: the platform scales by itself, or the requests per replica are unknown.
    """
    wanted = order.platform.scale
    if wanted is None:
        return order
    if not scaled:
        raise refusal("scales-otherwise")
    known = replace(wanted, per_replica=wanted.per_replica or _find_threshold(order))
    return replace(order, platform=replace(order.platform, scale=known))


def _find_threshold(order: ServiceOrder) -> int:
    """Return the requests in flight that a replica takes, as far as it was measured and pays."""
    evidence = order.evidence
    arm = evidence.plain_arm if order.pool == "plain" else evidence.arm
    measured = [count for count, _ in evidence.curve_ms.get(arm, ())]
    pays = find_crossover(order) if order.pool == "spec" else None
    known = [max(measured)] if measured else []
    found = min([*known, *([pays] if pays else [])], default=0)
    if found < 1:
        raise refusal("replica-not-measured")
    return floor(found)


def scale(orders: Sequence[ServiceOrder], naming: Naming, scaled: str) -> Mapping[str, StepFile]:
    """Return the objects that scale both twins; empty if Knative scales them, or without scaling."""
    scales = [(each, each.platform.scale) for each in orders if each.platform.mode != "Knative"]
    objects = [_make_scaler(each, wanted, naming, scaled) for each, wanted in scales if wanted is not None]
    if not objects:
        return {}
    told = " and ".join(f"{wanted.per_replica} for {each.name}" for each, wanted in scales if wanted is not None)
    most = objects[0]["spec"]["maxReplicaCount"]
    return {
        SCALING: StepFile(
            text=dump_yaml(*objects),
            about=f"KEDA scaling: up to {most} replicas by requests in flight, one replica for every {told}",
            does=f"Scale both (first set Prometheus' address, and the namespace if it is not {NAMESPACE})",
            command=f"kubectl apply -f {SCALING}",
        )
    }


def _make_scaler(order: ServiceOrder, wanted: Scale, naming: Naming, scaled: str) -> dict[str, Any]:
    version, kind, name = scaled.format(name=order.name).split()
    values = {
        "scaled_version": version,
        "scaled_kind": kind,
        "scaled_name": name,
        "max_replicas": wanted.most,
        "threshold": str(wanted.per_replica),
        "lull_s": find_lull_s(order),
        "prometheus": PROMETHEUS,
        "query": naming.write(_IN_FLIGHT, f'namespace="{NAMESPACE}"', f'deployment="{order.name}"'),
    }
    (scaler,) = fill("scaling.yaml", order, values)
    return dict(scaler)


_NO_OWNER = "**Owner:** not given (--owner)."


def _write_memo(
    order: ServiceOrder,
    *,
    files: Mapping[str, str],
    apply: Mapping[str, str],
    weights: Sequence[str] = (),
    limits: Sequence[Finding] = (),
    defects: Sequence[str] = (),
    leave_off: Sequence[str] = (),
    leaves: str = "",
    unwatched: Sequence[str] = (),
) -> str:
    """Return the memo as Markdown."""
    return "\n".join(
        chain(
            _tell(order),
            _list_files(files),
            _list_points("Location of the weights", weights),
            _list_memo_commands(apply),
            _list_points("Limits", (str(each) for each in limits if not is_defect(each))),
            _list_points("Known defects of the release", defects),
            _list_points("Where to leave speculation off", leave_off),
            _list_points("What to expect", _tell_expected(order.evidence.expected)),
            _list_points("When to roll back", map(describe_rule, order.evidence.rollback)),
            _list_points("What a rollback leaves behind", [leaves] if leaves else []),
            _list_points("Not watched", unwatched),
            _list_points("Not measured", order.evidence.unmeasured),
            ("",),
        )
    )


def _tell(order: ServiceOrder) -> Iterator[str]:
    setup, evidence = order.setup, order.evidence
    method = setup.spec.method if setup.spec is not None else None
    yield f"# {order.service}: {f'speculative decoding with {method}' if method else 'plain decoding'}"
    yield ""
    if evidence.headline:
        yield f"**Why.** {evidence.headline} (run `{evidence.run}`)"
    else:
        yield "**Why.** This setup has not been measured. To measure it, run `draftwise decide`."
    yield ""
    yield "**What.** Both files start this server. The twin differs only by the missing speculative config:"
    yield ""
    yield "```sh"
    yield write_shell(setup, line_per_flag=True)
    yield "```"
    yield ""
    hosts, gpus = count_hosts(setup), f"{order.num_gpus} GPU{'s' if order.num_gpus > 1 else ''}"
    who, gib = f"Each of its {hosts} hosts" if hosts > 1 else "It", 1 << 30
    yield (
        f"{who} needs {gpus}, {order.host.cpus} CPUs, {order.host.memory_bytes // gib} GiB of host "
        f"memory and {order.host.shm_bytes // gib} GiB of /dev/shm. Startup deadline: "
        f"{order.startup_s} s."
    )
    yield ""
    yield f"**Owner:** {order.owner}." if order.owner else _NO_OWNER


def _tell_expected(expected: Expected | None) -> Iterator[str]:
    """Yield what the counters of the run said, where its break-even is the highest."""
    if expected is None:
        return
    counters, drafts = expected.counters, expected.counters.spec
    place = f"{expected.workload}, {describe_load(expected.condition)}"
    if counters.tokens_per_step is not None:
        yield f"{place}: {counters.tokens_per_step:.2f} tokens per step."
    if drafts.acceptance_length is not None:
        rates = ", ".join(f"{100 * rate:.0f} %" for rate in drafts.rate_per_pos)
        yield (f"{place}: {drafts.acceptance_length:.2f} output tokens per draft. Accepted by position: {rates}.")


def _list_files(files: Mapping[str, str]) -> Iterator[str]:
    yield from ("", "## Files", "")
    yield from (f"- `{name}`: {text}" for name, text in files.items())


def _list_memo_commands(apply: Mapping[str, str]) -> Iterator[str]:
    yield from ("", "## Commands")
    for text, command in apply.items():
        yield from ("", f"{text}:", "", "```sh", command, "```")


def _list_points(title: str, points: Iterable[str]) -> Iterator[str]:
    """Yield a section. Nothing where there are no points."""
    lines = [f"- {point}" for point in points]
    if lines:
        yield from ("", f"## {title}", "", *lines)


_PROTECTING = ("VLLM_API_KEY",)
"""Variables without which a server answers everybody."""
THEN = " && "
"""Separator of the commands of one step."""


def deploy(
    order: ServiceOrder, to: str, *, metrics_prefix: str | None = "", proxy: ProxyOptions | None = None
) -> Folder:
    """Return the files of an order for a platform.

    Args:
        order: order of the speculative twin.
        to: one of `TARGETS`.
        metrics_prefix: prefix of the server's metrics; empty for the platform's, None to write no files for
            observability.
        proxy: proxy in front of both twins; None without one.

    Raises:
        InvalidSetup: a file does not start the ordered setup, or the setup does not speculate.
    """
    if without_speculation(order.setup) == order.setup:
        raise refusal("no-twin")
    target = TARGETS[to]
    if not target.spans_hosts:
        spanning = name_targets("spans_hosts")
        refuse_other_hosts(
            order.setup,
            fix=(
                "Leave it out, use the GPUs of one host, and add GPUs as replicas (--max-replicas); or use --to "
                f"{spanning} with --nnodes."
            ),
        )
    warned, policy = tuple(_find_limits(order.setup, brings_weights=target.brings_weights)), find_policy(order.setup)
    order = target.prepare(order)
    twins: dict[Pool, ServiceOrder] = {"spec": order, "plain": order.without_speculation()}
    sides = {pool: settle(each, target.scaled) for pool, each in twins.items()}
    back = settle(order.go_back(), target.scaled)
    files: dict[str, str] = {}
    refused_items: dict[str, str] = {}
    for side, each in (*sides.items(), ("rollback", back)):
        name, (text, left) = f"{side}{target.suffix}", carry(target.render(each), each, target)
        refused_items |= left
        if found := read_back(text, each.setup, name=name, lost=target.lost):
            raise InvalidSetup(found)
        files[name] = text
    watched = _watch(order, target, metrics_prefix)
    front = Front()
    if proxy is not None:
        from draftwise.deploying.proxies import put_in_front  # most folders have none

        front = put_in_front(order, proxy, target.address, policy)
    more = {
        **target.code.write_more(sides["spec"], back, watched),
        **scale(list(sides.values()), name_for(order, metrics_prefix or target.metrics_prefix), target.scaled),
        **front.steps,
    }
    for name, step in more.items():
        files[name] = carry(step.text, sides["spec"], target)[0] if name == CANARY else step.text
    files |= {name: text for name, (_, text) in watched.files.items()}
    release = order.platform.release
    if refused := [each for name, text in files.items() for each in validate_text(text, name=name, release=release)]:
        raise InvalidSetup(refused)
    _refuse_open(order, refused_items)
    carried = (*find_uncarried(refused_items), *find_small_limits(order, refused_items))
    limits = (*warned, *target.code.find_limits(order), *front.limits, *_find_other_image(order), *carried)
    files[SETUP] = write_json(order.setup)
    files[BASELINE] = make_baseline(order.evidence, files[SETUP]).to_json()
    record = _make_record(to, target, sides, back, is_scaled=SCALING in more)
    files[DEPLOYMENT] = write_record(record)
    files[MEMO] = _write_memo(
        order,
        files={**_describe(target), **{name: step.about for name, step in more.items()}, **watched.describe()},
        apply={
            "Verify the files": "draftwise verify .  # or only: sha256sum -c --strict CHECKSUMS.sum CHECKSUMS",
            **find_secret_commands(order, target),
            **{step.does: step.command for step in more.values()},
            **({} if CANARY in more or proxy else _offer_proxy(order, to, target)),
            **front.commands,
            **watched.commands,
            **_list_commands(target, record),
        },
        weights=tuple(target.code.describe(order)),
        limits=limits,
        defects=tuple(_tell_defects(order.setup)),
        leave_off=(*order.evidence.not_adopted, *policy.describe_classes()),
        leaves=record.leaves,
        unwatched=watched.missing,
    )
    return Folder(files, limits)


def _find_limits(setup: Setup, *, brings_weights: bool) -> Iterator[Finding]:
    """Yield what `check` warns of, and directories of this machine, which a server on another one lacks."""
    yield from (finding for finding in check(setup).findings if finding.severity is Severity.WARNING)
    bringing = name_targets("brings_weights")
    drafter = None if setup.spec is None else setup.spec.model
    for name in filter(None, () if brings_weights else (setup.target, drafter)):
        path = Path(name)
        is_no_name = "://" not in name and (name.count("/") > 1 or name.startswith((".", "~")))  # of the hub's
        if path.is_absolute() or path.is_dir() or is_no_name:
            yield warning("weights-not-brought", name=name, bringing=bringing)


def _tell_defects(setup: Setup) -> Iterator[str]:
    """Yield the known defects that a setup meets, those that only a service's counters tell among them."""
    report = check(setup)
    release = get_release(report.version)
    for finding in filter(is_defect, report.findings):
        yield f"`{finding.code}`: {finding} Source: {finding.source}."
    for row in report.defects:
        if row.told_by == "watch" and row.state_in(release.version) == "present":
            yield f"`{row.code}`, to watch for: {row.ruling(release)}"


def _refuse_open(order: ServiceOrder, refused: Mapping[str, str]) -> None:
    """Raise where the source's server asks for a key and that of the files would not."""
    for item in order.around.items:
        if item.part == "env" and item.key in _PROTECTING and item.where in refused:
            raise refusal("protection-lost", name=item.key, reason=refused[item.where])


def _find_other_image(order: ServiceOrder) -> Iterator[Finding]:
    if order.around.image and order.around.image != order.image:
        yield warning("not-carried", item=f"image {order.around.image}", reason=f"the files start {order.image}")


def _make_record(
    to: str, target: DeployTarget, sides: Mapping[Pool, ServiceOrder], back: ServiceOrder, *, is_scaled: bool
) -> Record:
    order = sides["spec"]
    layout = order.platform.layout if target.brings_weights else None
    leaves = target.leaves if layout is None else name_leftovers(layout, order.setup)
    return Record(
        leaves=f"{leaves} Also its ScaledObject: `kubectl delete scaledobject {order.name}`." if is_scaled else leaves,
        to=to,
        platform_release=order.platform.release,
        startup_s=order.startup_s,
        sides={pool: TwinFile(file=f"{pool}{target.suffix}", name=each.name) for pool, each in sides.items()},
        back=TwinFile(file=f"rollback{target.suffix}", name=back.name),
    )


def _watch(order: ServiceOrder, target: DeployTarget, prefix: str | None) -> Observation:
    if prefix is None:
        return Observation(files={}, missing=("Nothing: you wrote the deployment with --no-observe.",))
    prefix, port = prefix or target.metrics_prefix, target.metrics_port or order.port
    return observe(order, in_cluster=target.in_cluster, prefix=prefix, port=port)


def _describe(target: DeployTarget) -> Mapping[str, str]:
    return {
        f"spec{target.suffix}": "the service",
        f"rollback{target.suffix}": "the same service without speculation, to roll back to",
        f"plain{target.suffix}": "the twin without speculation, under another name, to run next to the service",
        SETUP: "the setup, which every draftwise verb reads",
        BASELINE: "the run's measurements, to compare production with",
        DEPLOYMENT: "the role of each file, for `draftwise verify` and `draftwise rollback`",
    }


def fill_in(command: str, side: TwinFile, record: Record, folder: Path = Path()) -> str:
    """Return a target's command for one of the twins, quoted for a shell."""
    return command.format(file=quote(str(folder / side.file)), name=side.name, startup=record.startup_s)


def _offer_proxy(order: ServiceOrder, to: str, target: DeployTarget) -> dict[str, str]:
    """Return the command of a canary where the platform itself has none."""
    places = "" if target.address else " --spec-address HOST:PORT --plain-address HOST:PORT"
    return {
        "Try it on 10 % of the requests first, with a proxy in front of both twins (this platform has no "
        "canaries)": f"draftwise deploy {SETUP} --to {to} --name {order.name} --image {order.image} --proxy haproxy "
        f"--share 10{places} --out proxied"
    }


def _list_commands(target: DeployTarget, record: Record) -> dict[str, str]:
    return {
        "Start it": fill_in(target.apply, record.sides["spec"], record),
        "Roll back. Clients keep using the same name. To preview the change, run `draftwise rollback`": fill_in(
            target.apply, record.back, record
        ),
        "Start the twin next to it, for a plain pool or a proxy": fill_in(target.apply, record.sides["plain"], record),
        "Remove the twin": fill_in(target.remove, record.sides["plain"], record),
    }
