"""What `Kernel` tells the driver against what Triton would tell it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


def test_a_kernel_that_is_found_again_is_launched_as_triton_launches_it():
    script = Path(__file__).with_name("launch_without_gpu.py")
    environment = {
        name: value for name, value in os.environ.items() if name not in ("TRITON_INTERPRET", "DRAFTWISE_PDL")
    }
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    verdicts = json.loads(done.stdout)
    assert len(verdicts) == 108
    assert all(verdicts)
