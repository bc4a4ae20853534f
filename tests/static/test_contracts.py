"""The import contracts hold, and each breaks when what it forbids is planted."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.support import planted_imports

from draftwise.verbs import VERBS as ROWS

ROOT = Path(__file__).parents[2]
LAYERED = "The operator's loop is layered, and no folder stands outside it"
NO_TORCH = "What needs no torch cannot reach it, not even by a detour"
VERBS = "A verb of the command line knows no other"
CLI = "The command line builds requests and renders results: it knows verbs, nouns and renderers"
ACYCLIC = "Siblings do not depend on each other in a circle"
DECIDING = "A decision is made in one pass: numbers, validity checks, verdicts, decision"
PLANNING = "Planning is layered: verbs, schedules, forecasts, steps, sizing, checking"
CHECKING = "Checking goes through vLLM's own stages"
MEASURING = "Measuring is layered: a session sweeps, a sweep takes turns, a turn is load"
PAGES = "Pages ask verbs, and nothing below"
PLANTS = [
    (PAGES, "verbs/pages/pages_app.py", "from draftwise.plan.check import check"),
    (PAGES, "verbs/pages/answers.py", "from draftwise.knowledge import gpus"),
    (LAYERED, "core/shape.py", "from draftwise.knowledge import gpus"),
    (LAYERED, "knowledge/gpus.py", "from draftwise.setups import read"),
    (LAYERED, "deciding/thresholds.py", "from draftwise.reporting import svg"),
    (LAYERED, "attic/__init__.py", "from draftwise.core import Finding"),
    (NO_TORCH, "core/shape.py", "import torch"),
    (NO_TORCH, "knowledge/gpus.py", "import safetensors"),
    (NO_TORCH, "setups/read/sources.py", "import tokenizers"),
    (NO_TORCH, "workloads/workload_rows.py", "from draftwise.serve import engine_process"),
    (NO_TORCH, "statistics/family.py", "import torch"),
    (NO_TORCH, "runs/turn_order.py", "import transformers"),
    (NO_TORCH, "plan/upgrade.py", "from draftwise.training import training_progress"),
    (NO_TORCH, "backends/gpu_placement.py", "from draftwise.engine import llm"),
    (NO_TORCH, "deciding/thresholds.py", "from draftwise.engine.llm import LLM"),
    (NO_TORCH, "reporting/svg.py", "from draftwise.training import run_folder"),
    (NO_TORCH, "measure/sweep.py", "from draftwise.serve import channel"),
    (NO_TORCH, "version.py", "from draftwise import engine"),
    (CLI, "cli/check_command.py", "from draftwise.plan.check import judge"),
    (CLI, "cli/_results.py", "from draftwise.watching import watcher"),
    (VERBS, "cli/check_command.py", "from draftwise.cli.size_command import size"),
    (ACYCLIC, "knowledge/stored.py", "from draftwise.knowledge.rules import get_rule"),
    (ACYCLIC, "serve/errors.py", "from draftwise.serve import app"),
    (DECIDING, "deciding/comparison/cell.py", "from draftwise.deciding import validity"),
    (DECIDING, "deciding/verdict.py", "from draftwise.deciding import conclusions"),
    (PLANNING, "plan/check/__init__.py", "from draftwise.plan import size"),
    (PLANNING, "plan/spec_schema.py", "from draftwise.plan import release_changes"),
    (CHECKING, "plan/check/spec/drafter_config.py", "from draftwise.plan.check import engine"),
    (CHECKING, "plan/check/stages.py", "from draftwise.plan.check.model import Model"),
    (MEASURING, "measure/load/client.py", "from draftwise.measure import readiness"),
    (MEASURING, "measure/experiment.py", "from draftwise.measure import sweep"),
]
"""Contract, file (a new one where there is none) and the import that breaks it."""


BY_NAME = {
    "__init__.py",
    "cli/_group.py",
    "core/lazy.py",
    "deploying/targets/target_rows.py",
    "engine/kernels/cuda/compile_ahead.py",
    "knowledge/methods.py",
    "verbs/verb.py",
}
"""Files that import by name, which no contract sees: lazily what the package itself exports, runs or compiles."""


def test_imports_by_name_stand_where_they_are_known() -> None:
    package = ROOT / "src/draftwise"
    found = {file.relative_to(package).as_posix() for file in package.rglob("*.py") if _imports_by_name(file)}
    assert found == BY_NAME


def _imports_by_name(file: Path) -> bool:
    text = file.read_text(encoding="utf-8")
    return "import_module(" in text or "__import__(" in text


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """The names of the contracts that do not hold: of the package as it is, then with each of the plants alone."""
    copy = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "data", "bundled"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    command, plants = [sys.executable, planted_imports.__file__], json.dumps([plant[1:] for plant in PLANTS])
    told = subprocess.run(command, cwd=copy, input=plants, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    found: list[list[str]] = json.loads(told.stdout)
    return found


def test_every_contract_holds(broken: list[list[str]]) -> None:
    assert broken[0] == []


def read_contracts() -> dict[str, dict[str, Any]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {each["name"]: each for each in settings["tool"]["importlinter"]["contracts"]}


def test_no_contract_goes_without_a_plant() -> None:
    assert {contract for contract, _, _ in PLANTS} == read_contracts().keys()


def list_verbs() -> set[str]:
    return {path.stem for path in (ROOT / "src" / "draftwise" / "cli").glob("*_command.py")}


def test_the_contract_on_verbs_names_them_all() -> None:
    contract = read_contracts()[VERBS]
    assert {name.rpartition(".")[2] for name in contract["modules"]} == list_verbs()


def test_every_verb_is_a_row_and_a_file_of_its_name() -> None:
    modules = {row.module for row in ROWS.values()}
    assert {f"{module}_command" for module in modules} == list_verbs()
    assert [each for each in modules if not (ROOT / "src/draftwise/verbs" / f"{each}.py").is_file()] == []


@pytest.mark.parametrize("number", range(len(PLANTS)), ids=[f"{file}: {text}" for _, file, text in PLANTS])
def test_a_planted_import_breaks_its_contract(broken: list[list[str]], number: int) -> None:
    assert PLANTS[number][0] in broken[1 + number]
