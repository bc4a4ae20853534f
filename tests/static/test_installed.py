"""The package as it is installed: its commands, its data, and what it declares to need."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import draftwise

REPOSITORY = Path(__file__).parents[2]
ROOT = Path(draftwise.__file__).parent
COMMAND = Path(sys.executable).with_name("draftwise")
BUNDLE = REPOSITORY / "bundle"
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
NGRAM = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}'
ENGINE_ROOMS = ("engine", "lookup", "serve", "training")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--version"], f"draftwise {draftwise.__version__}"),
        (["check", MODEL, "--vllm", "0.19.1", "-sc", NGRAM], "accepted"),
        (["size", MODEL, "--gpu", "H100"], "KV"),
        (["pick", MODEL, "--gpu", "H200", "--workload", "code", "--concurrency", "8"], "vllm serve"),
        (["explain", "disable_by_batch_size"], "0.9.2"),
        (["inspect", str(BUNDLE / "eagle3"), "--target", str(BUNDLE / "target")], "eagle3"),
        (["report", "--help"], "report.html"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_the_command_runs(arguments: list[str], words: str, tmp_path: Path) -> None:
    done = subprocess.run([str(COMMAND), *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert words in done.stdout


def test_nothing_of_the_package_is_left_out() -> None:
    """A pattern of .gitignore once kept a whole folder out of the wheel."""
    listed = subprocess.run(
        ["git", "ls-files", "--", "src/draftwise"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("no checkout of git")
    missing = [name for name in listed.stdout.split() if not (ROOT / name.removeprefix("src/draftwise/")).exists()]
    gone = [name for name in missing if (REPOSITORY / name).exists()]
    assert gone == []


def third_party(path: Path) -> set[str]:
    """Return the top-level packages that a module imports anywhere, without the standard library and itself."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"draftwise"}


def test_what_the_light_part_imports_is_declared() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["report"], *extras["mcp"], *extras["ui"]]
    declared = {canonicalize_name(Requirement(line).name) for line in lines}
    distributions = packages_distributions()
    light = [path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0] not in ENGINE_ROOMS]
    optional = {"tokenizers", "uvloop", "torch", "anyio", "mcp_types"}  # the last two come with mcp
    """Imported lazily, with a sentence that names them where they are missing."""
    imported = {name for path in light for name in third_party(path)} - optional
    assert {canonicalize_name(distributions.get(name, [name])[0]) for name in imported} <= declared


def test_bundled_workloads_and_facts_are_there() -> None:
    assert {path.stem for path in ROOT.rglob("bundled/*.jsonl")} == {"code", "prose", "rewrite"}
    assert list(ROOT.glob("knowledge/data/**/*.json*"))
    assert list(ROOT.glob("reporting/*.j2"))
    assert json.loads((BUNDLE / "provenance.json").read_text(encoding="utf-8"))
