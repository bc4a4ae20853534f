"""Measured times of steps take the place of the data sheet's."""

from dataclasses import replace

import pytest
from tests.support.made_calibrations import TRUTH, make_calibration
from tests.support.requirements import requirements

from draftwise.core import InvalidSetup, StepPoint
from draftwise.knowledge.gpus import get_gpu
from draftwise.plan.cost.machine import DecodeBatch
from draftwise.plan.pick.requirements import open_case


def test_a_calibration_replaces_the_data_sheet_and_has_to_be_of_the_same_deployment() -> None:
    measured = make_calibration()
    slower = replace(measured, points=tuple(_slow_down(each, 1.5) for each in measured.points))
    asked = replace(requirements(), calibration=slower, args=slower.args)
    batch = DecodeBatch(sequences=8, context=640)
    found, assumed = open_case(asked).machine, open_case(replace(asked, calibration=None)).machine
    assert found is not None
    assert assumed is not None
    assert found.baseline_s(batch) == pytest.approx(1.5 * TRUTH["plain"](8, 0), rel=0.1)
    assert found.baseline_s(batch) > 1.2 * assumed.baseline_s(batch)
    for other in ({"gpu": get_gpu("H100")}, {"args": {"tensor_parallel_size": 2}}):
        with pytest.raises(InvalidSetup, match="another deployment"):
            open_case(replace(asked, **other))


def _slow_down(point: StepPoint, factor: float) -> StepPoint:
    return replace(point, step_ms=factor * point.step_ms, low=factor * point.low, high=factor * point.high)
