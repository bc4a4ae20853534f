"""CPU kernels are compiled before an engine says that it is ready, by one process for all."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LISTEN = """
import json, sys
from numba.core import event

def listen(kind):
    seen = event.RecordingListener()
    event.register(kind, seen)
    return seen
"""
SERVE = (
    LISTEN
    + """
from numba import njit
from draftwise import LLM, SamplingParams

target, spec = sys.argv[1], json.loads(sys.argv[2])
llm = LLM(target, speculative_config=spec, device="cpu", dtype=sys.argv[3], max_model_len=200)
locks = listen("numba:compiler_lock")  # taken to compile, and to load what was compiled before
greedy, sampled = SamplingParams(temperature=0, max_tokens=24), SamplingParams(temperature=1, top_p=0.9, max_tokens=24)
llm.generate("abcabcabc", greedy)
llm.generate(["abcabc", "a" * 100, "xyz" * 20], [greedy, sampled, SamplingParams(logprobs=2, min_p=0.1)])
llm.generate("abcabcabc", greedy)
quiet = len(locks.buffer)
njit(lambda: 1)()
print(json.dumps([quiet, len(locks.buffer)]))
"""
)
COMPILE = (
    LISTEN
    + """
passes = listen("numba:run_pass")
import torch
from draftwise.engine.kernels.cpu import CpuKernels
from draftwise.core import ModelShape

CpuKernels(None, None, 1e-5, torch.bfloat16).compile()
print(len(passes.buffer))
"""
)


def start(code: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | variables)


@pytest.mark.parametrize(
    ("spec", "dtype"), [(None, "bfloat16"), ({"method": "suffix"}, "float32")], ids=["plain", "suffix"]
)
def test_requests_compile_and_load_no_kernel(tiny_target: Path, spec: dict[str, str] | None, dtype: str) -> None:
    process = start(SERVE, str(tiny_target), json.dumps(spec), dtype)
    quiet, heard = json.loads(process.communicate()[0])
    assert process.returncode == 0
    assert quiet == 0
    assert heard > 0, "the listener hears of compilation"


def test_of_processes_that_start_together_one_compiles(tmp_path: Path) -> None:
    places = {"NUMBA_CACHE_DIR": str(tmp_path / "numba"), "DRAFTWISE_CACHE_DIR": str(tmp_path / "cache")}
    processes = [start(COMPILE, **places) for _ in range(3)]
    passes = sorted(int(process.communicate()[0]) for process in processes)
    assert passes[:2] == [0, 0]
    assert passes[2] > 0
