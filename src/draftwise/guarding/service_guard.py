"""Guards a service: reads each snapshot, decides, acts, records and reports alarms. Also undoes its steps."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf

from draftwise.core import BackendError, Finding, Window
from draftwise.core.action import OUT, Action, Step
from draftwise.guarding.executors import Executor, parse_executor
from draftwise.guarding.guard_state import KEPT_ROWS, Latch, Lease, State, Store
from draftwise.guarding.service_reading import (
    ProbeReading,
    Rules,
    ServiceReading,
    find_k,
    find_requests,
    pool,
    read_sample,
)
from draftwise.guarding.step_policy import decide
from draftwise.knowledge.messages import fault, note, warning
from draftwise.watching.drift import CONFOUNDERS, LEARN_DAYS, ROW_S, DriftRow, RowArrays, find_learned_days, fit_model
from draftwise.watching.stalls import stands_still
from draftwise.watching.watcher import Snapshot


def find_alarms(state: State, reading: ServiceReading, rules: Rules) -> Iterator[Finding]:
    """Yield findings on a state and a reading for the operator."""
    if not rules.break_even:
        yield (
            warning("break-even-unknown", case="given", why=rules.unknown_because)
            if rules.unknown_because
            else warning("break-even-unknown")
        )
    if not any(window is not None for window in (*reading.spec.values(), *reading.plain.values())):
        yield fault("nothing-is-read")
    for name, window in reading.spec.items():
        if window is not None and window.restarted:
            yield warning("replica-restarted", name=name)
        elif window is not None and reading.find_need(window, rules) is None:
            k, why = find_k(window), reading.why_not_compared(window)
            if k and rules.k:
                yield warning("break-even-unknown", case="k", name=name, k=k, run_k=rules.k, why=why)
            elif read_sample(window) is not None:
                yield warning("break-even-unknown", case="no-k", name=name, why=why)
    for name, since_s in state.low_since_s.items():
        seen = pool(state.recent.get(name, ()))
        even = rules.break_even * (1.0 if seen is None else seen.need)
        yield warning("fell-below-break-even", name=name, break_even=even, time=_time(since_s))
    for name, latch in state.latches.items():
        yield warning("is-out-of-traffic", name=name, time=_time(latch.out_since_s), cause=latch.cause)
    if state.drift.alarm_s is not None:
        *causes, last = CONFOUNDERS
        yield warning("acceptance-drifted", since=_time(state.drift.alarm_s), causes=", ".join(causes), last=last)


def not_learned(state: State, past: Sequence[DriftRow]) -> Finding:
    """Return the note that drift is not judged yet, with the missing amount of data."""
    rows = RowArrays.of([row for row in past if row.began_s >= state.learn_from_s])
    return note("drift-not-learned", known=len(find_learned_days(rows)), learn_days=LEARN_DAYS)


def _time(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at_s))


class _Gatherer:
    """Adds windows up to rows."""

    def __init__(self) -> None:
        self._row: DriftRow | None = None

    def add(self, windows: Sequence[Window], *, now_s: float, usable: bool) -> DriftRow | None:
        """Add the windows that end now. Return the previous row if a new one begins.

        Args:
            windows: windows of all speculating replicas.
            now_s: seconds since the epoch.
            usable: whether all replicas ran and received traffic throughout.
        """
        began_s = int(now_s // ROW_S) * ROW_S
        done = self._row if self._row is not None and self._row.began_s != began_s else None
        row = self._row if self._row is not None and done is None else DriftRow(began_s=began_s, drafts=0, accepted=0)
        stats = [window.counters.spec for window in windows]
        self._row = DriftRow(
            began_s=began_s,
            drafts=row.drafts + sum(each.num_drafts for each in stats),
            accepted=row.accepted + sum(each.num_accepted_tokens for each in stats),
            usable=row.usable and usable,
        )
        return done


def follow(state: State, row: DriftRow, past: Sequence[DriftRow], *, learns: bool) -> State:
    """Return the state after one more row: updates the drift model, or learns one if possible.

    Args:
        state: state before the row.
        row: newest row.
        past: all stored rows, including the newest.
        learns: whether a model may be learned now, which takes about a second.
    """
    if state.drift_model is not None:
        return replace(state, drift=state.drift_model.follow(RowArrays.of([row]), state.drift))
    model = fit_model(RowArrays.of([each for each in past if each.began_s >= state.learn_from_s])) if learns else None
    if model is None:
        return state
    missed = [each for each in past if each.began_s >= model.until_s]
    return replace(state, drift_model=model, drift=model.follow(RowArrays.of(missed)))


_DAY_S = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Result of one snapshot."""

    at_s: float
    reading: ServiceReading
    findings: tuple[Finding, ...]
    actions: tuple[Action, ...]
    """The step carried out, if any, and new proposals."""
    state: State


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """A guard's probe and executors."""

    probe: Callable[[str, float], Awaitable[ProbeReading | None]] | None = None
    """Probes one replica at a time; may return None. None: not allowed."""
    executors: tuple[Executor, ...] = ()
    leases: tuple[Lease, ...] = ()


class ServiceGuard:
    """Guards the replicas of one service.

    Args:
        spec: URLs of the speculating replicas.
        plain: URLs of the plain replicas.
        rules: limits from the operator and the run; executors limit the possible steps.
        store: files of the state.
        means: probe and executors.
        probe_every_s: seconds for which a probe's result is valid.
    """

    def __init__(
        self,
        spec: Sequence[str],
        plain: Sequence[str],
        *,
        rules: Rules,
        store: Store,
        means: Means,
        probe_every_s: float = 900.0,
    ) -> None:
        self._spec, self._plain = tuple(spec), tuple(plain)
        can = frozenset(step for executor in means.executors for step in executor.steps)
        self._rules, self._store, self._means = replace(rules, can=can), store, means
        self._probe_every_s = probe_every_s
        self._state = store.read()
        self._written = self._state.to_dict()
        self._rows = deque(store.read_rows(), maxlen=KEPT_ROWS)
        self._gatherer = _Gatherer()
        self._probes: dict[str, ProbeReading] = {}
        self._asked_s: dict[str, float] = {}
        self._learned_day: int | None = None

    @property
    def hold_s(self) -> float:
        """Seconds for which a replica must stay below break-even."""
        return self._rules.hold_s

    async def tick(self, snapshot: Snapshot) -> Tick:
        """Act on a snapshot and its diagnoses.

        Raises:
            InvalidSetup: another guard has taken over.
            StorageError: the state cannot be written. No step is taken then.
        """
        now_s = snapshot.at_s
        for lease in self._means.leases:
            lease.renew(now_s)
        await self._ask(now_s)
        reading = self._read(snapshot)
        with self._store.alone():
            found = [*snapshot.findings, *self._settle()]
            self._follow_drift(reading)
            state, actions = decide(self._state, reading, self._rules)
            found += self._enact(state, actions, now_s)
        found += find_alarms(self._state, reading, self._rules)
        if self._state.drift_model is None:
            found.append(not_learned(self._state, self._rows))
        return Tick(at_s=now_s, reading=reading, findings=tuple(found), actions=actions, state=self._state)

    def release(self) -> None:
        """Release the leases, so that another guard can take over."""
        for lease in self._means.leases:
            lease.give_back()

    def _read(self, snapshot: Snapshot) -> ServiceReading:
        def windows(names: Sequence[str]) -> dict[str, Window | None]:
            return {name: Window.pooled(each for each in snapshot.windows if each.instance == name) for name in names}

        return ServiceReading(
            at_s=snapshot.at_s,
            spec=windows(self._spec),
            plain=windows(self._plain),
            stands=frozenset(each.instance for each in snapshot.windows if stands_still(each)),
            probes=dict(self._probes),
            requests=tuple(find_requests(snapshot.findings, self._spec)),
        )

    async def _ask(self, now_s: float) -> None:
        """Probe the replicas that are out of the traffic, where that was allowed, and not too often."""
        if self._means.probe is None:
            return
        for name in self._state.latches:
            if now_s - self._asked_s.get(name, -inf) >= self._probe_every_s:
                self._asked_s[name] = now_s
                self._probes.pop(name, None)
                with suppress(BackendError):  # it does not answer, which its window says too
                    if (found := await self._means.probe(name, now_s)) is not None:
                        self._probes[name] = found

    def _settle(self) -> Iterator[Finding]:
        """Bring the state up to what others did: an operator by --undo, or by the proxy."""
        stored = self._store.read()
        own = self._state
        self._state, self._written = replace(stored, recent=own.recent, stands=own.stands), stored.to_dict()
        for name, latch in self._state.latches.items():
            executor = next((each for each in self._means.executors if each.name == latch.means), None)
            is_out = None if executor is None else executor.is_out(name)
            if not latch.is_confirmed and is_out is None:
                yield fault("step-unconfirmed", replica=name)
            elif not latch.is_confirmed and is_out and executor is not None:
                self._state = self._state.mark([name], executor.name, is_confirmed=True)
            elif not latch.is_confirmed:
                self._state = self._state.without((name,))
            elif is_out is False and latch.step is not Step.TRICKLE:
                kept = self._state.without((name,))
                self._state = replace(kept, hands_off=kept.hands_off | {name})
        for name in self._state.hands_off:
            yield fault("step-undone-elsewhere", replica=name)

    def _follow_drift(self, reading: ServiceReading) -> None:
        spec = [window for window in reading.spec.values() if window is not None]
        usable = len(spec) == len(reading.spec) and not any(each.restarted for each in spec) and not self._state.latches
        row = self._gatherer.add(spec, now_s=reading.at_s, usable=usable)
        if row is not None:
            self._store.add_row(row)
            self._rows.append(row)
            day = row.began_s // _DAY_S
            self._state = follow(self._state, row, self._rows, learns=day != self._learned_day)
            self._learned_day = day

    def _enact(self, state: State, actions: Sequence[Action], now_s: float) -> Iterator[Finding]:
        """Record proposals and carry out a step: that it is to be done is on disk before, that it was done after."""
        for action in actions:
            if action.executes:
                state = yield from self._carry_out(state, action, now_s)
            else:
                self._store.record(action, at_s=now_s, outcome="proposed")
        self._keep(state)

    def _carry_out(self, state: State, action: Action, now_s: float) -> Generator[Finding, None, State]:
        before = self._state.latches
        executor = self._choose(action)
        self._store.record(action, at_s=now_s, outcome="begun", by=executor.name)
        state = state.mark(action.replicas, executor.name, is_confirmed=False)
        self._keep(replace(state, latches={**before, **state.latches}))
        try:
            executor.carry_out(action)
        except BackendError as error:
            self._store.record(action, at_s=now_s, outcome=f"failed: {error}", by=executor.name)
            names = ", ".join(action.replicas) or "the service"
            yield fault("step-failed", step=action.step, names=names, error=error)
            # What was to go out may be out: it counts as such until it is seen. What was to come back is still out.
            return state if action.step in OUT else replace(state, latches=before)
        self._store.record(action, at_s=now_s, outcome="done", by=executor.name)
        return state.mark(action.replicas, executor.name, is_confirmed=True)

    def _choose(self, action: Action) -> Executor:
        """Return what carries a step out: what took a replica out also puts it back."""
        took_out = {latch.means for name, latch in self._state.latches.items() if name in action.replicas}
        able = [each for each in self._means.executors if action.step in each.steps]
        return next((each for each in able if each.name in took_out), able[0])

    def _keep(self, state: State) -> None:
        self._state = state
        if (row := state.to_dict()) != self._written:
            self._store.write(state)
            self._written = row


def undo(store: Store, *, now_s: float) -> Iterator[str]:
    """Put back every replica that a guard took out, and yield one sentence per step.

    A running guard continues, but leaves these replicas alone until the change is acknowledged.

    Raises:
        BackendError: an executor failed. Earlier steps stay undone, and you can repeat the command.
    """
    with store.alone():
        state = store.read()
        for replica, latch in state.latches.items():
            action = Action(
                step=Step.RELEASE,
                replicas=(replica,),
                cause=latch.cause,
                reason="The operator undid it.",
                executes=True,
            )
            means = _put_back(action, latch, store)
            state = state.without((replica,))
            state = replace(state, hands_off=state.hands_off | {replica}, last_step_s=now_s)
            store.write(state)
            store.record(action, at_s=now_s, outcome="undone", by=means)
            yield f"{replica} is in the traffic again ({means})."
        if store.patch.exists():
            store.patch.unlink()
            yield f"{store.patch} is removed. If you committed it, revert the commit."


def _put_back(action: Action, latch: Latch, store: Store) -> str:
    """Return the executor that put a replica back: the one that took it out."""
    executor = parse_executor(latch.means, patch_file=store.patch)
    executor.carry_out(action)
    return executor.name
