"""Which tests need the engine, how many threads they take, and a disk that is not waited for; needs no torch itself."""

import gc
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import draftwise
from tests.support.combinations import tries

pytest_plugins = [
    f"tests.support.{name}" for name in ("machine", "package_index", "raised", "releases", "reports", "tiny_models")
]

HERE = Path(__file__).parent
ENGINE_PARTS = (
    *("bundle", "engine", "interop", "lookup", "serve", "training"),
    *(
        "backends/test_embedded_server.py",
        "benchmarks/test_h200_measure_vllm.py",
        "benchmarks/test_h200_versus_vllm.py",
    ),
    *("ui/test_pages_browser.py", "ui/test_pages_server.py"),
    *("checkpoints/test_one_code.py", "cli/test_serve.py", "cli/test_train.py"),
    *("watching/diagnose/test_illnesses.py", "watching/diagnose/test_simulated.py"),
    "watching/test_odd_pages.py",
)
"""Folders and files that need draftwise[engine] or the libraries that it is checked against, in every test."""
LIGHT_FOLDERS = (
    *(
        "backends",
        "benchmarks",
        "catalogue",
        "checkpoints",
        "cli",
        "core",
        "deciding",
        "deploying",
        "extract",
        "knowledge",
    ),
    *(
        "guarding",
        "machine",
        "measure",
        "plan",
        "replaying",
        "reporting",
        "runs",
        "setups",
        "static",
        "statistics",
        "verbs",
        "watching",
    ),
    *("ui", "workloads"),
)
"""Folders of tests of what `pip install draftwise` brings; those that need more among them are marked `engine`."""
LONGEST = (
    *("training/test_ranks.py", "engine/test_engine.py", "engine/replay/test_equals_serving.py"),
    *("bundle/test_drafters.py", "engine/test_structured_output.py", "engine/kernels/test_cuda_attention.py"),
    *("engine/test_engine_distribution.py", "training/test_loop.py", "watching/diagnose/test_simulated.py"),
    "serve/test_warm_up.py",
    *("engine/kernels/test_cuda_ahead.py", "engine/kernels/test_compile_ahead.py", "watching/test_real_engine.py"),
    *("measure/test_kills.py", "cli/test_decide.py", "measure/test_budget.py", "cli/test_gateways.py"),
    *("benchmarks/test_fault_injection.py", "reporting/test_report.py", "measure/test_memory.py"),
    *("measure/test_screening.py", "backends/test_contract.py", "backends/test_vllm_server.py"),
    *("deploying/test_end_to_end.py", "deploying/bundle/test_air_gap.py"),
)
"""Files that take longest, in the order in which they start: before all others, so that all processes end together."""
ENGINE_PACKAGES = ("torch", "numba", "safetensors", "tokenizers", "transformers")
HAS_ENGINE = all(importlib.util.find_spec(name) for name in ENGINE_PACKAGES)

# How long an example takes, or takes to draw, is the machine's affair.
settings.register_profile(
    "draftwise", max_examples=tries(100), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("draftwise")

# Each worker, and each of the processes that tests start, would compile package and tests again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Torch reads it when it is imported, and processes that tests start inherit it. Models of tests are too small for more
# threads than one to pay; on a busy machine they wait for one another many times longer than they compute.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("DRAFTWISE_CACHE_DIR", str(Path(tempfile.gettempdir()) / "draftwise-tests"))
os.environ["DRAFTWISE_DATA_DIR"] = str(Path(tempfile.gettempdir()) / "draftwise-tests" / "no-data")
if os.environ.get("DRAFTWISE_TEST_DEVICE", "cpu") == "cpu":  # transformers imports triton too: this must come first
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--light", action="store_true", help="only what needs no engine, against an installed wheel")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--light"):
        return
    too_much = [name for name in ENGINE_PACKAGES if importlib.util.find_spec(name)]
    if too_much:
        raise pytest.UsageError(f"--light is for an environment without the engine's packages; here are {too_much}")
    if "site-packages" not in Path(draftwise.__file__).parts:
        raise pytest.UsageError(f"--light tests the built wheel, and draftwise is imported from {draftwise.__file__}")


def pytest_collection_finish() -> None:
    """What was collected stays to the end: looking through it for garbage again and again is a tenth of all time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


@cache
def needs_engine(path: Path) -> bool:
    """Return whether every test in a file needs the engine."""
    return any(path.is_relative_to(HERE / part) for part in ENGINE_PARTS)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what cannot even be imported, or holds none of the tests that are asked for; None: others decide."""
    if needs_engine(collection_path):
        return None if HAS_ENGINE else True
    if config.option.markexpr == "engine" and collection_path.match("test_*.py"):
        return None if "mark.engine" in collection_path.read_text(encoding="utf-8") else True
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if needs_engine(item.path):
            item.add_marker("engine")
        elif item.get_closest_marker("engine") and not HAS_ENGINE:
            item.add_marker(pytest.mark.skip(reason="needs draftwise[engine]"))
    place = {HERE / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))
    if config.getoption("--light"):
        left_out = [item for item in items if item.get_closest_marker("engine")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("engine")]


@pytest.fixture(autouse=True, scope="session")
def _disk_is_not_waited_for() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield
