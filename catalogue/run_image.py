"""Runs the commands of examples/kubernetes out of an image, as a pod would: another user, no rights, a read-only root.

    python -m catalogue.run_image ROOT > catalogue/platform/run_image.json

ROOT is the image's file system, e.g. of `buildah mount`. Services are fakes on loopback; a Job ends by itself, and a
Deployment gets SIGTERM after its first output. Needs root for its mounts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

__all__ = ["list_pods", "run_all"]

_MANIFESTS = Path(__file__).parents[1] / "examples" / "kubernetes"
_USER = "65532"
_LINE = """vllm serve Qwen/Qwen3-8B --speculative-config '{"method": "ngram", "num_speculative_tokens": 5}'"""
_FAKES = {
    "llama-plain": {"step_s": 0.002, "first_token_s": 0.005},
    "llama-spec": {"step_s": 0.002, "first_token_s": 0.005, "k": 3, "accepted": [2]},
}
_PATIENCE_S = 300.0
_ENTER = """
set -e
mount --bind "$ROOT" "$ROOT"
mount -t tmpfs -o mode=1777 tmpfs "$ROOT/tmp"
mount --bind /dev "$ROOT/dev"; mount -t proc proc "$ROOT/proc"
for each in $VOLUMES; do mount --bind "$FOLDER$each" "$ROOT$each"; done
mount -o remount,bind,ro "$ROOT"
exec chroot "$ROOT" /usr/bin/env -i PATH=/opt/draftwise/bin:/usr/bin HOME=/tmp PYTHONDONTWRITEBYTECODE=1 \
  PYTHONUNBUFFERED=1 $VARIABLES setpriv --reuid $USER_ID --regid $USER_ID --clear-groups --bounding-set=-all \
  --inh-caps=-all --no-new-privs draftwise "$@"
"""


def list_pods() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the kind and the pod's spec of each manifest that starts pods."""
    for path in sorted(_MANIFESTS.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            spec = document.get("spec", {})
            spec = spec.get("jobTemplate", {"spec": spec})["spec"]
            if "template" in spec:
                yield document["kind"], spec["template"]["spec"]


@contextmanager
def _serving() -> Iterator[Mapping[str, str]]:
    """Yield the URLs of the fakes by their names in the manifests."""
    words = [sys.executable, "-m", "tests.support.fake_server", "--script"]
    fakes = {
        name: subprocess.Popen([*words, json.dumps(script)], stdout=subprocess.PIPE, text=True)
        for name, script in _FAKES.items()
    }
    try:
        yield {f"http://{name}:8000": each.stdout.readline().strip() for name, each in fakes.items() if each.stdout}
    finally:
        for each in fakes.values():
            each.terminate()


def run_all(root: Path) -> list[dict[str, Any]]:
    """Return what each command of the manifests did, and two that need no service."""
    for each in ("tmp", "logs", "runs", "baseline", "state"):
        (root / each).mkdir(exist_ok=True)
    with TemporaryDirectory() as name, _serving() as urls:
        folder = _fill(Path(name))
        rows = [_run(root, folder, ["--version"]), _run(root, folder, ["check", _LINE, "--vllm", "0.33.0"])]
        for kind, pod in list_pods():
            (container,) = pod["containers"]
            words = [_replace(word, urls) for word in container["args"]]
            volumes = [each["mountPath"] for each in container["volumeMounts"] if each["mountPath"] != "/tmp"]
            # A Job's own name, which the kubelet would write into its arguments.
            words = [word.replace("$(JOB)", "first-of-cronjob") for word in words]
            if kind in ("Job", "CronJob"):
                words += ["--minutes=0.5"]
            rows.append({"kind": kind} | _run(root, folder, words, volumes=volumes, goes_on=kind == "Deployment"))
    return rows


def _fill(folder: Path) -> Path:
    """Make what claims and config maps hold; the pod's user may write where the manifests' fsGroup lets it."""
    for each in ("logs", "runs", "baseline", "state"):
        (folder / each).mkdir()
        os.chown(folder / each, int(_USER), int(_USER))
    folder.chmod(0o755)
    requests = [{"prompt": f"Write about number {number}.", "max_tokens": 24} for number in range(80)]
    (folder / "logs/requests.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in requests))
    known = Path(__file__).parents[1] / "tests/core/documents/baseline.json"
    (folder / "baseline/baseline.json").write_bytes(known.read_bytes())
    return folder


def _replace(word: str, urls: Mapping[str, str]) -> str:
    for name, url in urls.items():
        word = word.replace(name, url)
    return word


def _run(
    root: Path, folder: Path, words: Sequence[str], *, volumes: Sequence[str] = (), goes_on: bool = False
) -> dict[str, Any]:
    variables = {
        "ROOT": str(root), "FOLDER": str(folder), "VOLUMES": " ".join(volumes), "USER_ID": _USER, "VARIABLES": "",
    }  # fmt: skip
    began = time.monotonic()
    process = subprocess.Popen(
        ["unshare", "--mount", "bash", "-c", _ENTER, "pod", *words], env={**os.environ, **variables},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    first = ""
    if goes_on and process.stdout is not None:
        first = process.stdout.readline()
        process.terminate()
    out, error = process.communicate(timeout=_PATIENCE_S)
    lines = [*(first + out).splitlines(), *error.splitlines()]
    wrote = (str(each.relative_to(folder)) for each in folder.rglob("*.json") if "baseline" not in str(each))
    return {
        "command": words[0],
        "exit_code": process.returncode,
        "seconds": round(time.monotonic() - began, 1),
        "first_line": lines[0][:160] if lines else "",
        "last_line": lines[-1][:160] if lines else "",
        "wrote": sorted(wrote),
    }


if __name__ == "__main__":
    rows = run_all(Path(sys.argv[1]))
    json.dump(rows, sys.stdout, indent=1)
    print()
    # 1 is bad news, such as a service that gains nothing, and 130 a stop; others could not do their work.
    sys.exit(any(row["exit_code"] not in (0, 1, 130) for row in rows))
