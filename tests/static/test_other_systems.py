"""What needs no engine works on Windows and macOS, as far as Linux can tell; what cannot is refused in a sentence."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import other_systems
from tests.support.production import PLAIN, SPEC
from tests.support.watched import serving_counters

ROOT = Path(__file__).parents[2]
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
LIGHT = f"""
check compose.yaml
check crlf.yaml
check run.sh
check {MODEL} --speculative-config spec.json
size {MODEL} --gpu H100
pick {MODEL} --gpu H200 --workload code --concurrency 8
upgrade compose.yaml --from 0.19.1 --to newest
explain ngram
facts
config
schema check
inspect bundle/eagle3 --target bundle/target
report run
compare run run
deploy compose.yaml --to compose --out deployed
verify deployed
rollback deployed
skill install skill
""".strip().splitlines()
REFUSED = """
serve bundle/target
warm-up bundle/target --out kernels
decide bundle/target --workload code --minutes 1
""".strip().splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("other")
    compose = (ROOT / "tests/static/documented/compose.yaml").read_bytes()
    (folder / "compose.yaml").write_bytes(compose)
    (folder / "crlf.yaml").write_bytes(compose.replace(b"\n", b"\r\n"))
    (folder / "run.sh").write_bytes(b"#!/bin/bash\r\nMODEL=gpt2\r\nvllm serve $MODEL \\\r\n  --max-num-seqs 8\r\n")
    (folder / "spec.json").write_bytes(b'{"method": "ngram", "num_speculative_tokens": 3}\r\n')
    (folder / "bundle").symlink_to(ROOT / "bundle")
    shutil.copytree(ROOT / "tests/core/documents/run", folder / "run")
    return folder


def run_as(system: str, commands: list[str], folder: Path) -> tuple[dict[str, int], str, str]:
    """Run commands; return the exit code of each, what they print and their errors."""
    done = subprocess.run(
        [sys.executable, other_systems.__file__, system], input="\n".join(commands).encode(), cwd=folder,
        capture_output=True, check=False, env=os.environ | {"COLUMNS": "120"},
    )  # fmt: skip
    errors = done.stderr.decode("cp1252").replace("\r\n", "\n")
    codes = {line: int(code) for code, line in re.findall(r"^ENDED (\S+) (.*)$", errors, re.M)}
    assert len(codes) == len(commands), errors
    return codes, done.stdout.decode("cp1252" if system == "windows" else "utf-8"), errors


@pytest.mark.parametrize("system", ["windows", "macos"])
def test_verbs_without_an_engine_give_their_answer(system: str, folder: Path) -> None:
    with serving_counters(SPEC, PLAIN) as (spec, plain):
        watch = f"watch {spec} --plain {plain} --once --interval 0.2"
        shutil.rmtree(folder / "deployed", ignore_errors=True)
        shutil.rmtree(folder / "skill", ignore_errors=True)
        codes, shown, errors = run_as(system, [*LIGHT, watch], folder)
    assert "Traceback" not in errors
    assert "never awaited" not in errors
    assert {line: code for line, code in codes.items() if code not in (0, 1)} == {}
    assert codes[watch] == codes["check crlf.yaml"] == codes["verify deployed"] == 0
    assert "gpt2" in shown


def test_on_windows_the_rest_is_refused_in_a_sentence(folder: Path) -> None:
    codes, _, errors = run_as("windows", REFUSED, folder)
    assert set(codes.values()) == {2}
    assert "Traceback" not in errors
    assert "pip install" not in errors
    assert errors.count("WSL") >= len(REFUSED)


def test_line_ends_change_no_answer(folder: Path) -> None:
    answers = [run_as("windows", [f"check {name}.yaml --json"], folder)[1] for name in ("compose", "crlf")]
    assert answers[0].replace("compose.yaml", "NAME") == answers[1].replace("crlf.yaml", "NAME")


def test_the_simulation_takes_away_what_it_says(folder: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.support import other_systems as o; o.become_windows()\n"
        "import os, signal\n"
        "assert not hasattr(os, 'fork') and not hasattr(signal, 'SIGKILL') and not os.path.exists('/proc/none')\n"
        "for name in ('fcntl', 'resource', 'pwd'):\n"
        "    try: __import__(name)\n"
        "    except ModuleNotFoundError: continue\n"
        "    raise AssertionError(name)\n"
        "assert open('compose.yaml').encoding == 'cp1252'\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)
