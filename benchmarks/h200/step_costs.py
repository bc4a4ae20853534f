"""How well few measured steps predict all others: the cost model of `draftwise calibrate` against committed rows.

Needs no GPU: it reads what other scripts measured. Every protocol names the rows that calibrate; all others of its
machine are predicted, as the ratio of a speculating step to a plain one of the same batch (what a forecast needs).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from shapes import SCALES, Scale

from draftwise.core import CalibratedSetting, Calibration, SpecConfig, StepPoint
from draftwise.plan.cost.calibrated import CalibratedCosts

__all__ = [
    "MACHINES",
    "PLAIN",
    "PROTOCOLS",
    "RESULTS",
    "Protocol",
    "Result",
    "as_calibration",
    "k_of",
    "predict_rest",
    "read_machine",
    "run",
    "summarize",
]

RESULTS = Path(__file__).parent / "results"
_SCALE = SCALES["8b"]
_CONTEXT = 640
"""512 tokens of prompt and half of an answer of 256."""
_TO_90 = 1.645
_NOISE = {True: 0.06, False: 0.012}
"""Of a measured row, by whether its steps wait for the host."""
_SIZES = {"max_num_seqs": 256, "max_num_batched_tokens": 16384}
PLAIN = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Rows of one engine on one machine."""

    file: str
    engine: str
    rename: Mapping[str, str]
    """Cases of the file by the name they have here; the others are left out."""
    draft_vocab_size: int = _SCALE.draft_vocab_size
    """Rows of the EAGLE-3 head."""


_CASES = ("plain", "eagle3-k3", "dflash-k7", "draft1b-k4", "ngram-k5")
MACHINES = {
    "vLLM 0.26.0, machine 1": Machine(
        file="vllm_steps.json",
        engine="vllm",
        rename={"base": "plain", **{name: name for name in (*_CASES[1:], "eagle3-k1", "eagle3-k5", "eagle3-k7")}},
        draft_vocab_size=128256,
    ),
    "vLLM 0.26.0, machine 2": Machine(file="versus_vllm.json", engine="vllm", rename={name: name for name in _CASES}),
    "draftwise, machine 2": Machine(
        file="versus_vllm.json", engine="draftwise", rename={name: name for name in _CASES}
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """What is measured: for each case, at which batch sizes."""

    machine: str
    measured: Mapping[str, Sequence[int]]
    predicted: tuple[str, ...]


_HEADS = ("eagle3-k1", "eagle3-k3", "eagle3-k5", "eagle3-k7", "dflash-k7")
_ALL = ("eagle3-k1", "eagle3-k3", "eagle3-k5", "eagle3-k7", "dflash-k7", "draft1b-k4", "ngram-k5")
_EACH = {"eagle3-k3": (1, 8, 64), "dflash-k7": (1, 8, 64), "ngram-k5": (1, 8, 64), "draft1b-k4": (1, 8, 64)}
PROTOCOLS = {
    "4 points: plain and eagle3 k=3 at 1 and 64": Protocol(
        machine="vLLM 0.26.0, machine 1",
        measured={"plain": (1, 64), "eagle3-k3": (1, 64)},
        predicted=_HEADS,
    ),
    "4 points: plain and eagle3 k=7 at 1 and 64": Protocol(
        machine="vLLM 0.26.0, machine 1",
        measured={"plain": (1, 64), "eagle3-k7": (1, 64)},
        predicted=_HEADS,
    ),
    "4 points on the other machine": Protocol(
        machine="vLLM 0.26.0, machine 2",
        measured={"plain": (1, 64), "eagle3-k3": (1, 64)},
        predicted=_HEADS,
    ),
    "each method at 1, 8, 64 (machine 1)": Protocol(
        machine="vLLM 0.26.0, machine 1", measured={"plain": (1, 64), **_EACH}, predicted=_ALL
    ),
    "each method at 1, 8, 64 (machine 2)": Protocol(
        machine="vLLM 0.26.0, machine 2", measured={"plain": (1, 64), **_EACH}, predicted=_ALL
    ),
    "each method at 1, 8, 64 (draftwise)": Protocol(
        machine="draftwise, machine 2", measured={"plain": (1, 64), **_EACH}, predicted=_ALL
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One predicted ratio to plain, or a plain step in milliseconds."""

    case: str
    batch: int
    measured: float
    predicted: float
    inside: bool
    """Whether the measured ratio lies in the 90 % interval of the predicted one."""
    host_bound: bool

    @property
    def error(self) -> float:
        return abs(float(np.log(self.predicted / self.measured)))


def read_machine(name: str) -> Calibration:
    """Return all rows of a machine that run inside captured graphs, as a calibration."""
    machine = MACHINES[name]
    rows = [
        {**row, "case": machine.rename[row["case"]]}
        for row in json.loads((RESULTS / machine.file).read_text(encoding="utf-8"))["rows"]
        if row["case"] in machine.rename and row.get("engine", "vllm") == machine.engine
    ]
    return as_calibration(
        rows,
        replace(_SCALE, draft_vocab_size=machine.draft_vocab_size),
        gpu="H200",
        engine=machine.engine,
        version="0.26.0" if machine.engine == "vllm" else "",
        args=_SIZES,
        context=_CONTEXT,
    )


def as_calibration(
    rows: Iterable[Mapping[str, Any]],
    scale: Scale,
    *,
    gpu: str | None,
    engine: str,
    version: str = "",
    args: Mapping[str, Any],
    context: float,
    most_rows: float = 512,
) -> Calibration:
    """Return rows that run inside captured graphs as a calibration.

    Args:
        rows: case, batch and milliseconds of each kind of step.
        scale: shapes of the target and its drafters.
        gpu: in the table of GPUs; None for a processor.
        engine: `vllm` or `draftwise`.
        version: of vLLM.
        args: flags of all servers.
        context: mean length of the sequences, in tokens.
        most_rows: that a captured step computes; larger ones are left out.
    """
    points = [_point(row["case"], row["batch"], row["ms_step"], context) for row in rows]
    return Calibration(
        gpu=gpu,
        hardware=f"one {gpu or 'processor'}",
        engine=engine,
        engine_version=version,
        args=args,
        target="random weights",
        config=scale.target,
        settings=tuple(_setting(case, scale) for case in dict.fromkeys(point.setting for point in points)),
        points=tuple(point for point in points if point.batch * (k_of(point.setting) + 1) <= most_rows),
    )


def run(protocol: Protocol) -> list[Result]:
    """Predict what a protocol does not measure."""
    return predict_rest(read_machine(protocol.machine), protocol.measured, protocol.predicted)


def predict_rest(whole: Calibration, measured: Mapping[str, Sequence[int]], predicted: Sequence[str]) -> list[Result]:
    """Predict the ratio to plain of the steps that were not shown.

    Args:
        whole: all steps.
        measured: batch sizes that are shown of each case.
        predicted: cases whose other steps are predicted; plain itself in milliseconds.
    """
    chosen = [point for point in whole.points if point.batch in measured.get(point.setting, ())]
    costs = CalibratedCosts(replace(whole, points=tuple(chosen)))
    plain = {point.batch: point for point in whole.points_of(PLAIN)}
    rest = [p for p in whole.points if p.setting in predicted and p not in chosen and p.batch in plain]
    return [_predict(costs, point, None if point.setting == PLAIN else plain[point.batch]) for point in rest]


def _predict(costs: CalibratedCosts, point: StepPoint, plain: StepPoint | None) -> Result:
    at = {"sequences": point.batch, "context": point.context}
    steps = [costs.step(point.setting, k_of(point.setting), **at)]
    steps += [] if plain is None else [costs.step(PLAIN, 0, **at)]
    found, sign = costs.predict(steps), np.array([1.0, -1.0][: len(steps)])
    drafting = steps[0].drafting
    host_bound = drafting is not None and not drafting.asynchronous
    noises = [_NOISE[host_bound], _NOISE[False]][: len(steps)]
    spread = np.sqrt(sign @ found.covariance @ sign + np.square(noises).sum())
    measured = point.step_ms / (1.0 if plain is None else plain.step_ms)
    predicted = float(np.exp(sign @ found.logs)) * (1e3 if plain is None else 1.0)
    return Result(
        case=point.setting,
        batch=int(point.batch),
        measured=measured,
        predicted=predicted,
        inside=bool(abs(np.log(predicted / measured)) < _TO_90 * spread),
        host_bound=host_bound,
    )


def summarize(results: Iterable[Result]) -> dict[str, Any]:
    """Return the errors of ratios, in percent."""
    results = list(results)
    errors = [100 * each.error for each in results]
    return {
        "rows": len(errors),
        "median": round(float(np.median(errors)), 2),
        "p90": round(float(np.quantile(errors, 0.9)), 2),
        "max": round(max(errors), 2),
        "inside_90": round(sum(each.inside for each in results) / len(results), 3),
    }


def _point(setting: str, batch: int, ms: float, context: float) -> StepPoint:
    return StepPoint(
        setting=setting,
        load=f"batch={batch}",
        batch=batch,
        context=context,
        drafted=k_of(setting),
        step_ms=ms,
        low=0.99 * ms,
        high=1.01 * ms,
        steps=250,
        source="offline",
    )


def _setting(case: str, scale: Scale) -> CalibratedSetting:
    if case == PLAIN:
        return CalibratedSetting(name=case)
    method = case.split("-k")[0]
    drafters = {
        "eagle3": scale.eagle3,
        "dflash": scale.dflash,
        "draft1b": scale.draft_model,
    }
    drafter = drafters.get(method)
    spec = SpecConfig(
        method={"draft1b": "draft_model"}.get(method, method),
        num_speculative_tokens=k_of(case),
        model=None if drafter is None else json.dumps(drafter),
        options={"prompt_lookup_max": 5} if method == "ngram" else {},
    )
    return CalibratedSetting(name=case, spec=spec, drafter=drafter)


def k_of(case: str) -> int:
    """Return the draft tokens of a case."""
    return 0 if case == PLAIN else int(case.split("-k")[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON to write.")
    given = parser.parse_args()
    found = {}
    for name, protocol in PROTOCOLS.items():
        results = run(protocol)
        captured = [each for each in results if not each.host_bound]
        host_bound = [each for each in results if each.host_bound]
        found[name] = {
            "measured": {case: list(batches) for case, batches in protocol.measured.items()},
            "captured": summarize(captured) if captured else None,
            "host_bound": summarize(host_bound) if host_bound else None,
        }
        print(name, found[name]["captured"], found[name]["host_bound"], sep="\n  ")
    if given.out is not None:
        about = "errors of step-time ratios (speculating over plain), in percent, of rows that were not measured"
        given.out.write_text(json.dumps({"about": about, "protocols": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
