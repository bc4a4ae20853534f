"""A deploy target is a row and a template: one that is planted in a copy is deployed, verified and rolled back."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import draftwise

PACKAGE = Path(draftwise.__file__).parent
ROW = {
    "name": "knative",
    "template": "knative.yaml",
    "suffix": ".yaml",
    "apply": "kubectl apply -f {file} && kubectl wait --for=condition=Ready ksvc/{name} --timeout={startup}s",
    "remove": "kubectl delete -f {file}",
    "compare": "kubectl diff -f {file}",
    "leaves": "Nothing in the cluster: its revisions go with the service.",
    "address": "{name}:80",
    "in_cluster": True,
}
TEMPLATE = """\
apiVersion: serving.knative.dev/v1
kind: Service
metadata: $metadata
spec:
  template:
    metadata:
      labels: $labels
      annotations: {serving.knative.dev/progress-deadline: "${progress_s}s"}
    spec: $pod
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a copy of the package with one platform more."""
    copy = tmp_path_factory.mktemp("copy")
    shutil.copytree(PACKAGE, copy / "draftwise", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    rows = copy / "draftwise/knowledge/data/deploy_targets.json"
    rows.write_text(json.dumps([*json.loads(rows.read_text()), ROW]))
    (copy / "draftwise/deploying/templates" / str(ROW["template"])).write_text(TEMPLATE)
    return copy


def run(package: Path, *words: str) -> str:
    """Return what a command of the copy prints."""
    command = [sys.executable, "-m", "draftwise", *words]
    environment = {**os.environ, "PYTHONPATH": str(package)}
    done = subprocess.run(command, env=environment, cwd=package, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(package: Path) -> Path:
    """What `deploy` writes for the planted platform."""
    spec = '{"method": "ngram", "num_speculative_tokens": 5}'
    setup = ["meta-llama/Llama-3.1-8B-Instruct", "--vllm", "0.26.0", "--gpu", "H200", "-sc", spec]
    run(package, "deploy", *setup, "--to", "knative", "--name", "llama", "--proxy", "haproxy", "--out", "out")
    return package / "out"


def test_a_platform_takes_two_files_of_the_package(package: Path) -> None:
    theirs, ours = (
        {path.relative_to(root / "draftwise"): path.read_bytes() for path in (root / "draftwise").rglob("*.*")
         if path.suffix in (".py", ".json", ".yaml")}
        for root in (package, PACKAGE.parent)
    )  # fmt: skip
    changed = {path.name for path, text in theirs.items() if ours.get(path) != text}
    assert changed == {"deploy_targets.json", "knative.yaml"}


def test_it_is_deployed_with_its_memo_and_what_watches_it(folder: Path) -> None:
    text, memo = ((folder / name).read_text() for name in ("spec.yaml", "MEMO.md"))
    assert "kind: Service" in text
    assert "progress-deadline: 1260s" in text
    assert "kubectl wait --for=condition=Ready ksvc/llama --timeout=1200s" in memo
    assert str(ROW["leaves"]) in memo
    assert "server spec llama:80" in (folder / "haproxy.cfg").read_text()
    assert (folder / "observe/podmonitor.yaml").is_file()


def test_it_is_verified_and_a_change_is_noticed(package: Path, folder: Path) -> None:
    run(package, "verify", str(folder))
    changed = (folder / "spec.yaml").read_text().replace('"num_speculative_tokens":5', '"num_speculative_tokens":4')
    (package / "changed.yaml").write_text(changed)
    with pytest.raises(AssertionError, match="but the order has"):
        run(package, "verify", "changed.yaml", "--setup", str(folder / "setup.json"))


def test_the_way_back_is_that_of_the_row(package: Path, folder: Path) -> None:
    steps = run(package, "rollback", str(folder))
    assert f"kubectl apply -f {folder}/rollback.yaml && kubectl wait --for=condition=Ready ksvc/llama" in steps
    assert f"kubectl delete -f {folder}/plain.yaml" in steps
    assert str(ROW["leaves"]) in steps


def test_its_file_is_edited(package: Path, folder: Path) -> None:
    (package / "mine.yaml").write_text((folder / "plain.yaml").read_text())
    spec = '{"method": "ngram", "num_speculative_tokens": 7}'
    setup = ["meta-llama/Llama-3.1-8B-Instruct", "--vllm", "0.26.0", "--gpu", "H200", "-sc", spec]
    assert '"num_speculative_tokens":7' in run(package, "deploy", *setup, "--edit", "mine.yaml")
