"""The one workload that a `--workload` asks for."""

from typing import Any

from draftwise.core import Workload
from draftwise.workloads import load_workloads


def load_workload(text: str, **given: Any) -> Workload:
    (workload,) = load_workloads(text, **given)
    return workload
