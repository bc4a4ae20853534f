"""Pools, replicas, revisions and requests that are taken for others: what is ill is named, healthy ones are not."""

from __future__ import annotations

import pytest
from tests.support.illnesses import HEALTHY, ILLNESSES, Illness

pytestmark = pytest.mark.engine  # numba


@pytest.mark.parametrize("illness", [*ILLNESSES, *HEALTHY], ids=lambda illness: illness.name)
def test_what_is_ill_is_named_and_nothing_else(illness: Illness) -> None:
    assert illness.find_fault(illness.observe(seed=1)) == ""
