"""The embedded engine serves out of a bundle with no network at all."""

import subprocess
import sys
from pathlib import Path

import pytest

from draftwise.core import Setup, SpecConfig
from draftwise.deploying.weights_bundle import BundleOptions, pack

pytestmark = pytest.mark.engine
MODELS = Path(__file__).parents[3] / "bundle"
CLIENT = """
import fcntl, json, socket, struct, subprocess, sys, time, urllib.request
with socket.socket() as any_socket:  # a new network has its loopback down: SIOCSIFFLAGS, IFF_UP
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1))
folder = sys.argv[1]
spec = {"method": "eagle3", "model": f"{folder}/models/eagle3", "num_speculative_tokens": 3}
words = ["serve", f"{folder}/models/target", "--port", "8000", "-sc", json.dumps(spec)]
server = subprocess.Popen([sys.executable, "-m", "draftwise", *words])
try:
    def call(path, body=None):
        request = urllib.request.Request(f"http://127.0.0.1:8000{path}", body, {"content-type": "application/json"})
        return urllib.request.urlopen(request, timeout=60).read()
    while True:
        try:
            call("/health")
            break
        except OSError:
            assert server.poll() is None
            time.sleep(0.2)
    body = {"model": f"{folder}/models/target", "prompt": "def add(a, b):", "max_tokens": 16, "temperature": 0}
    answer = json.loads(call("/v1/completions", json.dumps(body).encode()))
    drafts = [line for line in call("/metrics").decode().splitlines() if "num_drafts_total{" in line]
    print(answer["usage"]["completion_tokens"], float(drafts[0].split()[-1]) > 0)
finally:
    server.terminate()
    server.wait()
"""


def test_a_bundle_serves_without_a_network(tmp_path: Path) -> None:
    if subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True).returncode:
        pytest.skip("unshare --net is not allowed here")
    spec = SpecConfig(method="eagle3", model=str(MODELS / "eagle3"), num_speculative_tokens=3)
    setup = Setup(target=str(MODELS / "target"), engine="vllm", engine_version="0.26.0", spec=spec)
    pack(setup, {}, tmp_path / "out", BundleOptions(), told=lambda count: None)
    env = dict(line.split("=", 1) for line in (tmp_path / "out" / "env").read_text().splitlines())
    words = ["unshare", "--net", "env", *(f"{name}={value}" for name, value in env.items())]
    client = [sys.executable, "-c", CLIENT, str(tmp_path / "out")]
    done = subprocess.run([*words, *client], check=False, capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-1:] == ["16 True"], done.stderr
