"""What to type after a decision: the configs to paste, by what they are for, and how to go back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from draftwise.core import Decision, Recommendation, Run, Schedule
from draftwise.core.finding import join_names
from draftwise.core.grouping import group_by
from draftwise.reporting.sentences import describe_setting
from draftwise.reporting.tables import name_workload
from draftwise.reporting.units import describe_load

__all__ = ["Action", "describe_way_back", "list_actions"]

_FLAG = "--speculative-config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A speculative config, and what to run it for."""

    setting: str
    """Name of the candidate, or what it is made of."""
    places: tuple[str, ...]
    """The traffic that it is for."""
    text: str
    """What to paste, after `vllm serve MODEL` or `draftwise serve MODEL`."""
    remarks: tuple[str, ...] = ()

    @property
    def heading(self) -> str:
        """What it is, and for what."""
        return f"{self.setting}, for {'; '.join(self.places)}"


def list_actions(decision: Decision, run: Run) -> list[Action]:
    """Return every config that the decision sets anywhere, then the engine's own schedules that do the same."""
    found: dict[str, dict[str, list[str]]] = {}
    for recommendation in decision.recommendations:
        for setting, workload, where in _list_places(recommendation, decision.baseline):
            found.setdefault(setting, {}).setdefault(where, []).append(name_workload(workload))
    settings = (
        Action(setting=name, places=_join_places(places), text=_write_config(name, run))
        for name, places in found.items()
    )
    return [*settings, *_list_schedules(decision)]


def _write_config(candidate: str, run: Run) -> str:
    """Return a candidate's flag, else the command of its server, else what would make it known."""
    spec = next((arm.spec for arm in run.plan.arms if arm.name == candidate), None)
    if spec is not None:
        return f"{_FLAG} '{spec.to_json()}'"
    return run.context.server(candidate).command or f"# not known: measure with --candidate '{candidate}={{...}}'"


def _list_places(recommendation: Recommendation, baseline: str) -> Iterator[tuple[str, str, str]]:
    """Yield every candidate that is set, with the workload and the load that it is set for."""
    for band in recommendation.bands:
        if band.setting != baseline:
            stretch = describe_setting(band, baseline).removeprefix(f"{band.setting} ")
            yield band.setting, band.workload, f"{_tell_temperature(band.temperature)}, {stretch}"
    if not recommendation.bands:
        for each in recommendation.adopted:
            where = f"{_tell_temperature(each.condition.temperature)}, {describe_load(each.condition)}"
            yield each.candidate, each.workload, where


def _tell_temperature(temperature: float) -> str:
    return f"at temperature {temperature:g}"


def _join_places(workloads: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    return tuple(f"{join_names(names)} {where}" for where, names in workloads.items())


def _list_schedules(decision: Decision) -> Iterator[Action]:
    """Yield the schedules by batch size, equal ones once."""
    for text, alike in group_by(lambda each: each.spec.to_json(), decision.schedules).items():
        yield Action(
            setting="Schedule by batch size, in place of switching by hand",
            places=_join_places(_group(alike)),
            text=f"{_FLAG} '{text}'",
            remarks=alike[0].remarks,
        )


def _group(schedules: Sequence[Schedule]) -> dict[str, list[str]]:
    """Return the workloads of schedules by the temperature that they are for."""
    groups = group_by(lambda each: _tell_temperature(each.temperature), schedules)
    return {temperature: [name_workload(each.workload) for each in group] for temperature, group in groups.items()}


def describe_way_back(decision: Decision, run: Run) -> str:
    """Return how to undo an adoption: the baseline's command, where it is known."""
    command = run.context.server(decision.baseline).command
    return command or f"# the same command without {_FLAG}"
