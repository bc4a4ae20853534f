"""A method of an installed package: every verb knows it, and a package that is broken is named."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from draftwise.core import InvalidSetup
from draftwise.knowledge import methods
from draftwise.knowledge.methods import GROUP, all_methods, find_method

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/method-of-your-own"
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
SPEC = json.dumps({"method": "repeat_last", "num_speculative_tokens": 4})


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder into which pip installed the example."""
    folder = tmp_path_factory.mktemp("installed")
    source = shutil.copytree(EXAMPLE, tmp_path_factory.mktemp("source") / "example")
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--quiet", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", folder, source], check=True)
    return folder


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(installed), str(ROOT / "src")])
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )


def draftwise(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(installed, "-m", "draftwise", *arguments)


def test_explain_says_what_it_is_and_whose(installed: Path) -> None:
    done = draftwise(installed, "explain", "repeat_last", "--json")
    (answer,) = json.loads(done.stdout)
    assert answer["kind"] == "method"
    assert answer["text"].startswith("Proposes the last k tokens")
    assert "repeat-last 1.0" in answer["text"]


def test_check_refuses_it_for_vllm_and_says_where_it_runs(installed: Path) -> None:
    done = draftwise(installed, "check", LLAMA, "-sc", SPEC, "--json")
    (finding,) = [each for each in json.loads(done.stdout)[0]["findings"] if each["code"] == "unknown-method"]
    assert "repeat-last 1.0" in finding["fix"]
    assert done.returncode == 1


def test_size_counts_it_as_its_row_says(installed: Path) -> None:
    done = draftwise(installed, "size", LLAMA, "--gpu", "H200", "--speculative-config", SPEC, "--json")
    assert done.returncode == 1  # vLLM has no such method, and `size` says so
    assert json.loads(done.stdout)["method"] == "repeat_last"


def test_pick_lists_it_as_what_the_embedded_engine_runs(installed: Path) -> None:
    done = draftwise(installed, "pick", LLAMA, "--gpu", "H200", "--workload", "chat", "--json")
    (refused,) = [each for each in json.loads(done.stdout)["refused"] if each["method"] == "repeat_last"]
    (reason,) = refused["reasons"]
    assert reason["code"] == "not-in-release"
    assert "draftwise serve" in reason["fix"]


@pytest.mark.engine
def test_the_engine_drafts_with_it_and_changes_no_token(installed: Path) -> None:
    script = f"""
import json
from draftwise import LLM, SamplingParams

prompts = ["def add(a, b):", "The quick brown fox", "1 2 3 1 2 3 1 2"]
params = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
plain = LLM({str(ROOT / "bundle/target")!r}).generate(prompts, params)
llm = LLM({str(ROOT / "bundle/target")!r}, speculative_config={SPEC})
drafted = llm.generate(prompts, params)
assert [list(each.outputs[0].token_ids) for each in plain] == [list(each.outputs[0].token_ids) for each in drafted]
print(json.dumps({{each.name: each.value for each in llm.get_metrics() if hasattr(each, "value")}}))
"""
    done = run(installed, "-c", script)
    assert done.returncode == 0, done.stderr
    counted = json.loads(done.stdout.splitlines()[-1])
    assert counted["vllm:spec_decode_num_accepted_tokens"] > 0


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder of installed packages; what was read of others is forgotten before and after."""
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    for name in ("warped", "twisted"):
        sys.modules.pop(name, None)
    for cached in (methods._entry_points, methods._find_added):
        cached.cache_clear()


def install(folder: Path, name: str, code: str, *, package: str = "warped") -> None:
    """Write a package that adds a method, as pip would."""
    (folder / f"{package}.py").write_text(code)
    info = folder / f"{package}-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {package}:ROW\n")


ROW = {"name": "warp", "meaning": "Warps.", "remembers": "nothing", "drafts_from": "text", "network": "none",
       "source": "a test", "checked": "2026-11-28"}  # fmt: skip


def test_a_row_is_a_method_like_any_other(package: Path) -> None:
    install(package, "warp", f"ROW = {ROW | {'keys': ['prompt_lookup_max'], 'advice': {'rank': 2}}}")
    found = find_method("warp")
    assert found is not None
    assert (found.distribution, found.keys, found.advice.rank) == ("warped 2.0", ("prompt_lookup_max",), 2)
    assert all_methods()["warp"] is found
    assert find_method("woof") is None


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("warp", "raise OSError('no warp today')", "no warp today"),
        ("warp", "", "ROW"),
        ("warp", "ROW = 3", "a row is a mapping, not int"),
        ("warp", f"ROW = {ROW | {'network': 'tree'}}", "network: must be one of"),
        ("warp", f"ROW = {ROW | {'netwerk': 'chain'}}", "has the unknown key 'netwerk'"),
        ("warp", f"ROW = {ROW | {'usual_k': 'four'}}", "usual_k: must be a whole number, not 'four'"),
        ("warp", f"ROW = {ROW | {'layout': 'cube'}}", "unknown column or value: layout"),
        ("warp", f"ROW = {ROW | {'advice': {'rang': 3}}}", "rang"),
        ("warp", "ROW = {'name': 'warp'}", "lacks the key 'meaning'"),
        ("warp", f"ROW = {ROW | {'name': 'woof'}}", "'woof'"),
        ("warp", f"ROW = {ROW | {'aliases': ['woof']}}", "no aliases"),
    ],
)
def test_a_row_that_cannot_be_used_is_an_error_that_names_the_package(
    package: Path, name: str, code: str, words: str
) -> None:
    install(package, name, code)
    for look in (lambda: find_method("warp"), all_methods):
        with pytest.raises(InvalidSetup) as refused:
            look()
        (finding,) = refused.value.findings
        assert finding.code == "method-package-broken"
        assert "warped 2.0" in finding.message
        assert words in finding.message


def test_a_name_that_is_taken_is_refused(package: Path) -> None:
    install(package, "medusa", f"ROW = {ROW | {'name': 'medusa'}}")
    with pytest.raises(InvalidSetup, match=r"warped 2\.0 adds the method medusa.*draftwise has a method of that name"):
        all_methods()
    medusa = find_method("medusa")
    assert medusa is not None
    assert not medusa.distribution


def test_two_packages_cannot_add_one_name(package: Path) -> None:
    for each in ("warped", "twisted"):
        install(package, "warp", f"ROW = {ROW}", package=each)
    with pytest.raises(InvalidSetup, match="another installed package"):
        find_method("warp")


def test_code_that_cannot_be_imported_is_named_when_it_is_needed(package: Path) -> None:
    install(package, "warp", f"ROW = {ROW | {'proposer': 'warped:make_warp'}}")
    found = find_method("warp")
    assert found is not None
    assert found.embedded
    with pytest.raises(InvalidSetup, match=r"warped 2\.0 .* proposer warped:make_warp"):
        found.load("proposer")


def test_names_of_the_table_are_found_without_a_look_at_what_is_installed() -> None:
    script = (
        "import sys; from draftwise.knowledge.methods import find_method, methods_where; find_method('mtp'); "
        "find_method('deepseek_mtp'); methods_where(); sys.exit('importlib.metadata' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
