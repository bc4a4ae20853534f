# ruff: noqa: E501 -- a row a case
"""Services that are easily taken for one another, and what is to be said of which of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tests.support.production import PLAIN, SPEC, Phase, Server

__all__ = ["CASES", "Case", "Part"]

DEAD = replace(SPEC, positions=(0.0,) * 3)
WORSE = replace(SPEC, positions=(0.25, 0.1, 0.05))
STOPPED = {"steps": 0.0, "finished": 0.0, "prompt_tokens": 0.0}
HUNG = replace(SPEC, **STOPPED, running=16.0)  # type: ignore[arg-type]
SERVICE, OTHER_REVISION = "llama-3-1-8b-instruct", "0123456789abcdef"


@dataclass(frozen=True, kw_only=True)
class Part:
    """Servers that are scraped with labels of their own."""

    servers: Sequence[Server] = (SPEC, SPEC, SPEC)
    pool: str = "spec"
    labels: Mapping[str, str] = field(default_factory=dict)
    """Over those that the scrape of a deployment gives; an empty value takes one away."""
    minutes: tuple[int, int] = (0, 120)
    """From when on, and how long."""
    start: str = ""
    """Values of process_start_time_seconds; empty for a process that stays."""

    def list_phases(self) -> list[Phase]:
        begin, length = self.minutes
        names = {(self.pool, f"{self.labels.get('namespace', '')}{self.pool}{index}"): each
                 for index, each in enumerate(self.servers)}  # fmt: skip
        before = [Phase(minutes=begin, servers={})] if begin else []
        return [*before, Phase(minutes=length, servers=names)]


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is scraped, and what is said of it."""

    name: str
    parts: Sequence[Part]
    said: frozenset[tuple[str, str, str]] = frozenset()
    """Every alert that fires at any time: finding, namespace, and instance where it is about one."""
    ends: bool = False
    """Whether no alert is left at the end."""

    @property
    def codes(self) -> frozenset[str]:
        """Findings that are told."""
        return frozenset(code for code, _, _ in self.said)


def _said(*found: str) -> frozenset[tuple[str, str, str]]:
    """Return findings written as `code namespace instance`."""
    parts = (f"{each}  ".split(" ") for each in found)
    return frozenset((code, namespace, instance) for code, namespace, instance, *_ in parts)


_TWIN = Part(servers=(PLAIN,), pool="plain")
_UNLABELED = {"service": "", "revision": "", "pool": "", "namespace": "", "job": "annotations"}
_DEAD_SAID = ("zero-acceptance {0}", "fell-below-break-even {0}")
_ALTERNATING = " ".join(["1000 5000"] * 60)

CASES: Sequence[Case] = (
    Case(name="healthy, with its twin", parts=(Part(), _TWIN)),
    Case(name="scraped a second time by annotations", parts=(Part(), Part(labels=_UNLABELED))),
    Case(name="scraped a second time through its Service", parts=(Part(), Part(labels={"revision": "", "job": "service"}))),
    Case(name="a second scrape of dead servers elsewhere", parts=(Part(), Part(servers=(DEAD,), labels=_UNLABELED))),
    Case(name="another plain server of the model", parts=(Part(), Part(servers=(PLAIN,), labels=_UNLABELED))),
    Case(
        name="a faster plain server of another service",
        parts=(Part(), Part(servers=(replace(PLAIN, step_s=0.001),), pool="plain", labels={"service": "other"})),
    ),
    Case(
        name="a dead drafter in staging",
        parts=(Part(), Part(servers=(DEAD, DEAD), labels={"namespace": "staging"})),
        said=_said(*(each.format("staging") for each in _DEAD_SAID)),
    ),
    Case(
        name="a dead drafter in production",
        parts=(Part(servers=(DEAD, DEAD)), Part(labels={"namespace": "staging"})),
        said=_said(*(each.format("prod") for each in _DEAD_SAID)),
    ),
    Case(name="another service of the model is ill", parts=(Part(), Part(servers=(DEAD,), labels={"service": "other"}))),
    Case(
        name="another service of the model is off",
        parts=(Part(), Part(servers=(replace(SPEC, speculates=False),), labels={"service": "other"})),
    ),
    Case(
        name="a new replica is worse, and the old one is not",
        parts=(
            Part(servers=(SPEC,), minutes=(0, 540)),
            Part(servers=(DEAD,), labels={"namespace": "prod"}, minutes=(400, 140), start="_x400 24000x139"),
        ),
        said=_said("replica-outlier prod prodspec0"),
    ),
    Case(
        name="one of two replicas is worse",
        parts=(Part(servers=(SPEC, WORSE)),),
        said=_said("replica-outlier prod spec1"),
    ),
    Case(
        name="one of three replicas is worse",
        parts=(Part(servers=(WORSE, SPEC, SPEC)),),
        said=_said("replica-outlier prod spec0"),
    ),
    Case(
        name="a worse replica in staging accuses none in production",
        parts=(Part(servers=(SPEC, SPEC)), Part(servers=(WORSE, SPEC), labels={"namespace": "staging"})),
        said=_said("replica-outlier staging stagingspec0"),
    ),
    Case(
        name="many requests here, few there",
        parts=(Part(servers=(replace(SPEC, running=35.0, step_s=0.048),)), Part(servers=(replace(PLAIN, running=1.0),), pool="plain")),
    ),
    Case(
        name="slower under the same load",
        parts=(Part(servers=(replace(SPEC, step_s=0.048),)), _TWIN),
        said=_said("slower-than-plain prod"),
    ),
    Case(
        name="slower than the twin in staging only",
        parts=(Part(), _TWIN, Part(servers=(replace(SPEC, step_s=0.048),), labels={"namespace": "staging"}),
               Part(servers=(PLAIN,), pool="plain", labels={"namespace": "staging"})),
        said=_said("slower-than-plain staging"),
    ),
    Case(
        name="went back after a dead drafter",
        parts=(Part(servers=(DEAD,), minutes=(0, 60)), Part(servers=(PLAIN,), pool="plain", minutes=(60, 60))),
        said=_said(*(each.format("prod") for each in _DEAD_SAID)),
        ends=True,
    ),
    Case(
        name="went back after it was slower than its twin",
        parts=(Part(servers=(replace(SPEC, step_s=0.048),), minutes=(0, 90)), Part(servers=(PLAIN,), pool="plain", minutes=(0, 150)),
               Part(servers=(PLAIN,), pool="plain", minutes=(90, 60), labels={"instance": "back"})),
        said=_said("slower-than-plain prod"),
        ends=True,
    ),
    Case(
        name="pods that could not be read were replaced",
        parts=(Part(servers=(replace(SPEC, answers=False),), minutes=(0, 30), labels={"instance": "old"}), Part(minutes=(20, 60))),
        said=_said("server-unread prod"),
        ends=True,
    ),
    Case(
        name="one of three makes no drafts",
        parts=(Part(servers=(SPEC, SPEC, replace(SPEC, speculates=False))),),
        said=_said("partial-rollout prod spec2", "coverage-lost prod"),
    ),
    Case(
        name="one data-parallel rank of a server hangs",
        parts=(Part(servers=(SPEC, SPEC), labels={"engine": "0"}), Part(servers=(SPEC, HUNG), labels={"engine": "1"})),
        said=_said("engine-hung prod spec1"),
    ),
    Case(name="one engine hangs", parts=(Part(servers=(SPEC, HUNG)),), said=_said("engine-hung prod spec1")),
    Case(
        name="requests wait and none runs",
        parts=(Part(servers=(SPEC, replace(HUNG, running=0.0, waiting=50.0))),),
        said=_said("engine-hung prod spec1"),
    ),
    Case(
        name="a hung engine was restarted",
        parts=(Part(servers=(HUNG,), minutes=(0, 20), labels={"instance": "before"}), Part(servers=(SPEC,), minutes=(20, 60))),
        said=_said("engine-hung prod before"),
        ends=True,
    ),
    Case(name="long prompts are read", parts=(Part(servers=(SPEC, replace(HUNG, prompt_tokens=900.0))),)),
    Case(
        name="one address for several servers",
        parts=(Part(servers=(SPEC,), start=_ALTERNATING),),
        said=_said("several-behind-url prod spec0"),
    ),
    Case(name="restarted once", parts=(Part(servers=(SPEC,), start="1000x59 5000x59"),)),
    Case(name="restarted twice by roll-outs", parts=(Part(servers=(SPEC,), start="1000x39 5000x39 9000x39"),)),
    Case(
        name="one process dies again and again",
        parts=(Part(servers=(SPEC, SPEC)), Part(servers=(SPEC,), labels={"instance": "dying"}, start="1000x9 2000x9 3000x9 4000x9 5000x80")),
        said=_said("engine-dies prod dying"),
    ),
    Case(
        name="requests of one replica fail",
        parts=(Part(servers=(SPEC, replace(SPEC, failed=0.1))), _TWIN),
        said=_said("requests-fail prod spec1"),
    ),
    Case(
        name="requests fail in staging only",
        parts=(Part(), Part(servers=(replace(SPEC, failed=0.1),), labels={"namespace": "staging"})),
        said=_said("requests-fail staging stagingspec0"),
    ),
    Case(name="one request of 1,500 fails", parts=(Part(servers=(replace(SPEC, failed=0.001),)),)),
    Case(
        name="requests failed until a restart",
        parts=(Part(servers=(replace(SPEC, failed=0.2),), minutes=(0, 30), labels={"instance": "before"}), Part(servers=(SPEC,), minutes=(30, 60))),
        said=_said("requests-fail prod before"),
        ends=True,
    ),
    Case(
        name="requests queue at one of two",
        parts=(Part(servers=(SPEC, replace(SPEC, waiting=20.0))),),
        said=_said("queue-grew prod spec1"),
    ),
    Case(name="two requests wait everywhere", parts=(Part(servers=(replace(SPEC, waiting=2.0),) * 2),)),
    Case(
        name="the plain twin queues",
        parts=(Part(), Part(servers=(replace(PLAIN, waiting=20.0),), pool="plain")),
        said=_said("queue-grew prod plain0"),
    ),
    Case(name="nothing is scraped", parts=(Part(labels={"service": "other"}),), said=_said("server-unread")),
    Case(
        name="one address in two namespaces, of which one hangs",
        parts=(Part(servers=(SPEC,), labels={"instance": "10.0.0.1:8000"}),
               Part(servers=(HUNG,), labels={"namespace": "staging", "instance": "10.0.0.1:8000"})),
        said=_said("engine-hung staging 10.0.0.1:8000"),
    ),
    Case(
        name="slow in staging, with a plain pool in production alone",
        parts=(Part(), _TWIN, Part(servers=(replace(SPEC, step_s=0.048, prefix_hits=0.1),), labels={"namespace": "staging"})),
    ),
    Case(
        name="the speculating pods are gone and the plain pool serves",
        parts=(Part(minutes=(0, 60)), Part(servers=(PLAIN,) * 2, pool="plain", minutes=(0, 120))),
    ),
    Case(
        name="an old revision that was ill",
        parts=(Part(), Part(servers=(DEAD,), labels={"revision": OTHER_REVISION, "instance": "old"})),
    ),
    Case(
        name="an old revision that is faster",
        parts=(Part(), Part(servers=(replace(PLAIN, step_s=0.001),), pool="plain", labels={"revision": OTHER_REVISION})),
    ),
)  # fmt: skip
