"""Simulates whole decisions with the program's own functions: draw, interval, bar, guards, pace, looks, race.

    python benchmarks/cpu/decision_simulation.py --out benchmarks/cpu/results/decision_simulation.json

Each run has a log of its own, drawn from traffic of a known gain, and a draw of its own. Says how often a gain of 1.00,
1.03 and 1.08 is adopted, how wide intervals are and whether they hold the truth (RMS z: 1 is what 95 % intervals should
have), how often a baseline that is slow at the start is named, what a race of eleven candidates on three workloads
answers in the time of the demo, and how often outputs that differ by rounding are called different. The fast versions
of these are in `tests/statistics`.
"""

from __future__ import annotations

import argparse
import math
from functools import partial
from pathlib import Path

import numpy as np
from provenance import provenance, write

from draftwise import statistics as stats
from draftwise.workloads.reshape import spread_places

MARGIN, CHANCE = 0.03, 0.045
PRIOR, STEP, ASKED_AGAIN = 0.2, 1 / 16, 24
"""Of bfloat16: the scale of rounding that is expected, the distance of logits, and outputs that are asked for again."""
SP, NOISE = 0.12, 0.085
"""Prompts among each other in their gain, and requests of one arm: 0.12 for a pair."""


def make_log(kind: str, rows: int, truth: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float]:
    """Return [N] logarithms of what each row of a log gains, its route, and what the traffic gains."""
    if kind == "three routes":
        by_route, shares = np.array([-0.1, 0.0, 0.25]), [0.5, 0.3, 0.2]
        routes = np.sort(rng.choice(3, rows, p=shares))
        gains = math.log(truth) + by_route[routes] - by_route @ shares
        return gains + 0.7 * SP * rng.standard_normal(rows), routes, math.log(truth)
    course = np.where(np.arange(rows) < rows / 4, 0.2625, -0.0875) * (kind == "gain in the first quarter only")
    gains = math.log(truth) + course + SP * rng.standard_normal(rows)
    return gains, np.zeros(rows, dtype=int), math.log(truth) + float(course.mean())


def decide(kind: str, rows: int, count: int, truth: float, slow: tuple[float, ...], rng: np.random.Generator) -> dict:
    """Return what one run says, and how far its interval lies from the truth.

    `slow`: how many times as slow baseline and candidate are before a share of the prompts, or (-) after it. If neither
    is, what stands at a third or two thirds is adopted; the interval is that of all prompts.
    """
    gains, routes, target = make_log(kind, rows, truth, rng)
    places = np.fromiter(spread_places(rows, rng.random()), dtype=int, count=count)
    text = 0.04 * rng.standard_normal(count)
    slow_T = (np.arange(count) < abs(slow[2]) * count) != (slow[2] < 0)
    plain_step, own_step = (text + NOISE * rng.standard_normal(count) + slow_T * math.log(by) for by in slow[:2])
    ratios = np.exp(plain_step - own_step + gains[places])
    of_draw = {"places": dict(enumerate(1.0 * places)), "routes": dict(enumerate(routes[places].tolist()))}
    looks = (max(6, count // 3), max(7, 2 * count // 3), count)[2 * bool(slow[2]) :]
    said = "open"
    for number, done in enumerate(looks):
        if said == "adopted" and done < count:
            continue
        design = stats.Design.of([(n, n) for n in range(done)], population=rows, **of_draw)
        found = stats.prompt_ratio(ratios[:done], np.ones(done), design)
        look = partial(stats.Looks(pairs=looks[:number], planned=count).level, done, is_end=done == count)
        interval = found.interval(1 - look())
        if said == "adopted":
            break
        said = "open"
        if found.interval(1 - look(CHANCE)).low > stats.find_bar(done, MARGIN):
            tail = stats.guard_tail(np.exp(own_step - gains[places])[:done], np.exp(plain_step[:done]))
            said = "mixed" if tail and tail.answer is stats.Guard.HARM else "adopted"
        is_said = slow[2] or stats.conclude(interval, MARGIN)
        if is_said and doubts(plain_step[:done], own_step[:done], slow, found.log, rng):
            said = "pace changed"
    half = math.log(interval.high / found.value)
    return {"said": said, "z": 1.96 * (found.log - target) / half, "half": half}


def doubts(plain: np.ndarray, own: np.ndarray, slow: tuple[float, ...], log: float, rng: np.random.Generator) -> bool:
    """Return whether any check of the servers' pace raises doubt: in turns, gaps, late warm-ups and anchors."""
    grew = [math.log(by) * ((slow[2] < 0) - (slow[2] > 0)) for by in slow[:2]]
    noise = NOISE * rng.standard_normal((2, 4))
    warm = noise[:, :2].mean(axis=1) - noise[:, 2:].min(axis=1) + grew
    gaps = [np.exp(0.04 * rng.standard_normal((min(30, len(own)), steps))) for steps in (27, 14)]
    paces, turn = (plain, own), 1 if log > 0 else -1
    return bool(
        any(stats.find_pace_change(paces[n], paces[1 - n], claimed=log) for n in (0, 1))
        or any(f(*paces[::turn], claimed=abs(log)) for f in (stats.find_unrest, stats.find_waves))
        or (log < 0 and any(f(*paces, claimed=abs(log)) for f in (stats.find_unrest, stats.find_waves)))
        or stats.find_pauses(*gaps[::turn], claimed=abs(log))
        or stats.find_drift_apart(own, plain, np.arange(float(len(own))), claimed=log)
        or stats.find_split_apart(own, plain, claimed=log)
        or any(stats.has_slowed(*warm[::n], stats.find_step_noise(own - plain), claimed=log) for n in (1, -1))
        or stats.has_moved((2 * NOISE * rng.standard_normal(6) + grew[0] - grew[1]).tolist())
    )


def rows_of_decisions(runs: int) -> list[dict]:
    rows = []
    for kind in ("no order", "three routes", "gain in the first quarter only"):
        for size, count in ((246, 30), (246, 150), (2000, 150)):
            for truth, slow in ((1.0, (1, 1, 0)), (1.03, (1, 1, 0)), (1.08, (1, 1, 0)), (1.0, (2, 1, 0.4)),
                                (1.27, (0.5, 1, 0.4)), (1.0, (3, 1.6, -0.5)), (1.27, (1.6, 3, -0.5))):  # fmt: skip
                rng = np.random.default_rng([size, count, round(100 * truth), round(10 * slow[0])])
                runs_here = runs * (1 if slow[2] else 25 if truth == 1.03 else 5)
                found = [decide(kind, size, count, truth, slow, rng) for _ in range(runs_here)]
                said = [each["said"] for each in found]
                z = np.array([each["z"] for each in found])
                rows.append(
                    {
                        "log": kind,
                        "rows": size,
                        "prompts": count,
                        "truth": truth,
                        "slow": "none" if not slow[2] else f"{slow[0]:g}x and {slow[1]:g}x, of {slow[2]:.0%}",
                        "runs": runs_here,
                        **{each: said.count(each) / runs_here for each in ("adopted", "mixed", "pace changed")},
                        "rms_z": round(float(np.sqrt(np.mean(z**2))), 3),
                        "covers": float(np.mean(np.abs(z) < 1.96)),
                        "half_width": round(float(np.mean([each["half"] for each in found])), 4),
                    }
                )
    return rows


def rows_of_guards(runs: int) -> list[dict]:
    """A gain of 1.08 that harms nobody: no guard may stop it more often where there are more prompts."""
    rows = []
    for count in (50, 150, 300):
        rng = np.random.default_rng(count)
        answers = []
        for _ in range(runs):
            text = 0.04 * rng.standard_normal(count)
            plain = text + 0.05 * rng.standard_normal(count)
            own = text - math.log(1.08) + SP * rng.standard_normal(count) + 0.11 * rng.standard_normal(count)
            answers.append(stats.guard_tail(np.exp(own), np.exp(plain)).answer)
        rows.append({"prompts": count, **{str(each): answers.count(each) / runs for each in stats.Guard}})
    return rows


def rows_of_rounding(runs: int) -> list[dict]:
    """Outputs that differ: how often rounding alone is called an error, and how often wrong answers are."""
    rows = []
    for sigma in (0.15, 0.3, 0.5):
        for count, asked in ((40, 16), (200, 16), (200, 40)):
            rng = np.random.default_rng([count, asked, round(100 * sigma)])
            row = {"sigma_nats": sigma, "answers": count, "plain_against_plain": asked}
            for what, wrong, back in (("called_different_by_rounding_alone", 0.0, 1.0),
                                      ("called_different_5_percent_wrong", 0.05, 1.0),
                                      ("called_different_10_percent_wrong", 0.1, 1.0),
                                      ("the_same_where_3_in_10_come_back", 0.1, 0.3)):  # fmt: skip
                row[what] = sum(differs(count, asked, sigma, wrong, back, rng) for _ in range(runs)) / runs
            rows.append(row)
    return rows


def differs(count: int, asked: int, sigma: float, wrong: float, back: float, rng: np.random.Generator) -> bool:
    """Return whether outputs are called different: flagged, and parted again when asked again, up to 24 of them.

    Half of the answers part by rounding, at a uniform share of a Rayleigh value; wrong ones at 2 nats in the mean.
    """
    rounded = rng.random(asked) * rng.rayleigh(sigma, asked)
    scale = stats.find_rounding_scale(list(rounded[: rng.binomial(asked, 0.5)]), PRIOR, STEP)
    is_wrong = rng.random(count) < wrong
    gaps = np.where(is_wrong, rng.exponential(2.0, count), rng.random(count) * rng.rayleigh(sigma, count))
    parts = is_wrong | (rng.random(count) < 0.5)
    flagged = [bool(is_wrong[n]) for n in np.flatnonzero(parts) if stats.is_beyond_rounding(gaps[n], scale)]
    return any(rng.random() < (back if each else 0.5) for each in flagged[:ASKED_AGAIN])


GAINS = np.array(
    [
        [0.04, 0.00, 0.00, 0.16, 0.12, 0.25, 0.07, 0.03, 0.10, 0.04, -0.03],
        [0.00, 0.00, 0.00, 0.10, 0.16, 0.22, 0.02, 0.05, 0.10, 0.07, 0.01],
        [1.28, 1.28, 1.20, 0.65, 0.12, 0.12, 0.65, 0.50, 0.69, 0.65, 1.00],
    ]
)
"""Logarithms of what eleven candidates gained on three workloads in two runs of the demo."""
PLAIN_S, OVER_S, BUDGET_S = (0.29, 0.41, 0.71), 0.03, 258.0


def race(gains: np.ndarray, sp: float, se: float, rng: np.random.Generator) -> dict:
    """Return what a race in the demo's time answers; half of the prompts' spread is common to all candidates."""
    lanes, names = range(len(gains)), [str(n) for n in range(gains.shape[1])]
    logs: list[dict[str, dict[int, float]]] = [{name: {} for name in names} for _ in lanes]
    open_: list[list[str]] = [list(names) for _ in lanes]
    left: dict[tuple[int, str], str] = {}
    spent, count = 0.0, [0] * len(gains)

    def block_s(lane: int) -> float:
        own = sum(PLAIN_S[lane] * math.exp(-gains[lane, int(name)]) + OVER_S for name in open_[lane])
        return PLAIN_S[lane] + OVER_S + own if open_[lane] else 0.0

    reopened = False
    while True:
        ready = [lane for lane in lanes if open_[lane]]
        if not ready:
            if reopened:
                break
            reopened = True
            for lane in lanes:
                open_[lane] = [max(names, key=lambda name: np.mean(list(logs[lane][name].values())))]
            continue
        lane = min(ready, key=lambda each: count[each])
        if spent + block_s(lane) > BUDGET_S:
            break
        spent += block_s(lane)
        count[lane] += 1
        common, plain = math.sqrt(0.5) * sp * rng.standard_normal(), se / math.sqrt(2) * rng.standard_normal()
        for name in open_[lane]:
            own = math.sqrt(0.5) * sp * rng.standard_normal() + se / math.sqrt(2) * rng.standard_normal()
            logs[lane][name][count[lane]] = gains[lane, int(name)] + common + own + plain
        if count[lane] in stats.RACE_LOOKS and not reopened:
            mine = {name: logs[lane][name] for name in open_[lane]}
            blocks = (BUDGET_S - spent) / sum(map(block_s, ready))
            for each in stats.find_leavers(mine, margin=MARGIN, blocks_left=blocks, family=gains.size):
                open_[lane].remove(each.candidate)
                left[lane, each.candidate] = str(each.reason)
            rest = open_[lane]
            if len(rest) == 1 and stats.leads_surely(logs[lane][rest[0]], margin=MARGIN, family=gains.size):
                open_[lane] = []
    return judge_race(gains, logs)


def judge_race(gains: np.ndarray, logs: list[dict[str, dict[int, float]]]) -> dict:
    cells = [(lane, name) for lane, mine in enumerate(logs) for name in mine]
    found: dict[tuple[int, str], stats.RatioEstimate] = {}
    for lane, name in cells:
        values = list(logs[lane][name].values())
        if len(values) >= stats.FEWEST_PROMPTS:
            design = stats.Design.of([(n, n) for n in range(len(values))])
            found[lane, name] = stats.prompt_ratio(np.exp(values), np.ones(len(values)), design)
    ps = stats.adjust_family([2 * found[cell].p_above(1 + MARGIN) if cell in found else None for cell in cells])
    losses = stats.adjust_family([2 * (1 - found[cell].p_above(1.0)) if cell in found else None for cell in cells])
    adopted, answered, false_labels = set(), set(), 0
    for cell, p, loss in zip(cells, ps, losses, strict=True):
        if cell not in found:
            continue
        lane, name = cell
        interval = found[cell].interval()
        best = max((each for each in found if each[0] == lane), key=lambda each: found[each].log)
        if p <= CHANCE and interval.low > stats.find_bar(len(logs[lane][name]), MARGIN):
            adopted.add(cell)
            answered.add(cell)
        elif (loss <= 0.01 and interval.value < 1 - MARGIN) or (
            interval.low > 1 - MARGIN and interval.high < 1 + MARGIN
        ):
            answered.add(cell)
        elif found[cell].interval(0.99).high < 1 + MARGIN:
            answered.add(cell)
            false_labels += gains[lane, int(name)] > math.log1p(MARGIN) + 1e-9
        elif best != cell and stats.find_lead(logs[lane][best[1]], logs[lane][name]):
            answered.add(cell)
            false_labels += gains[lane, int(name)] > gains[lane, int(best[1])] + math.log1p(MARGIN)
    return {
        "places": len({lane for lane, _ in adopted}),
        "adopted": len(adopted),
        "answered": len(answered),
        "false_adoption": any(gains[lane, int(name)] <= math.log1p(MARGIN) + 1e-12 for lane, name in adopted),
        "false_label": false_labels > 0,
    }


def rows_of_races(runs: int) -> list[dict]:
    rows = []
    for name, gains, se in (("loaded machine", GAINS, 0.25), ("quiet machine", GAINS, 0.08),
                            ("no gain beyond the margin anywhere", 0 * GAINS + math.log1p(MARGIN), 0.25)):  # fmt: skip
        rng = np.random.default_rng(6)
        found = [race(gains, 0.2, se, rng) for _ in range(runs)]
        rows.append(
            {"what": name, "runs": runs} | {key: round(float(np.mean([e[key] for e in found])), 3) for key in found[0]}
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    kinds = (rows_of_decisions, rows_of_guards, rows_of_races, rows_of_rounding)
    found = {rows_of.__name__.removeprefix("rows_of_"): rows_of(given.runs) for rows_of in kinds}
    write({**provenance("numpy"), "runs": given.runs, **found}, given.out)


if __name__ == "__main__":
    main()
