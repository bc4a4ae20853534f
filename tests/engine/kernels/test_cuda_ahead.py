"""Kernels that are compiled ahead are those that are launched, and their folder can be moved and only read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from tests.support.every_method import make_config

NAMES = ["_add_norm", "_best_of_parts", "_best_part", "hopper_kernel"]


SETTINGS = {"skip_tokenizer_init": True, "max_model_len": 256, "max_num_seqs": 12, "max_num_batched_tokens": 640}


def run(name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).with_name(name)
    environment = {
        name: value for name, value in os.environ.items() if name not in ("TRITON_INTERPRET", "DRAFTWISE_PDL")
    }
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    environment |= {"TRITON_CACHE_MANAGER": "draftwise.engine.kernels.cuda.kernel_store:KernelStore"} | variables
    done = subprocess.run(
        [sys.executable, script, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def test_what_was_recorded_is_there_when_it_is_launched(tmp_path):
    filled, moved, own = (tmp_path / name for name in ("filled", "moved", "own"))
    first = run("ahead_without_gpu.py", TRITON_CACHE_DIR=str(filled))
    told = json.loads(first.stdout)
    assert told["jobs"] == NAMES, "each once"
    assert told["failed"] == []
    assert sorted(told["found"]) == [[name, True] for name in NAMES]
    assert "_add_norm was compiled while requests waited" in first.stderr, "another width"

    filled.rename(moved)
    (moved / "read-only").touch()
    again = run("ahead_without_gpu.py", "again", TRITON_CACHE_DIR=str(own), DRAFTWISE_SHIPPED_KERNELS=str(moved))
    assert sorted(json.loads(again.stdout)["found"]) == [[name, True] for name in NAMES]
    assert not list(own.rglob("*.cubin"))


def test_a_kernel_has_one_hash_whatever_is_hashed_first():
    """Triton takes constants of a function into the hash of what calls it only if it has hashed the function before."""
    forwards, backwards = (json.loads(run("hashes_without_gpu.py", order).stdout) for order in ("", "reversed"))
    assert forwards == backwards
    assert len(forwards) > 50
    assert None not in forwards.values()


def test_random_steps_need_no_kernel_that_a_rehearsal_does_not(tiny_target, tiny_draft, tmp_path):
    """Without a drafter, and with one."""
    spec = json.dumps(make_config("eagle3", tiny_target, tiny_draft, tmp_path / "drafter"))
    done = run("rehearsal_without_gpu.py", str(tiny_target), json.dumps(SETTINGS), "", spec)
    for told in json.loads(done.stdout):
        assert told["missed"] == []
        assert told["later"] > 20
        assert {"attend", "join", "_add_norm", "_find_floor"} < set(told["rehearsed"])
