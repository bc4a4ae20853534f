"""CPU kernels are compiled before an engine says that it is ready, by one process for all."""

import json
import os
import subprocess
import sys
from pathlib import Path

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
from draftwise import LLM, SamplingParams

locks = listen("numba:compiler_lock")  # taken to compile, and to load what was compiled before
greedy, sampled = SamplingParams(temperature=0, max_tokens=24), SamplingParams(temperature=1, top_p=0.9, max_tokens=24)
told = []
for spec, dtype in ((None, "bfloat16"), ({"method": "suffix"}, "float32")):
    llm = LLM(sys.argv[1], speculative_config=spec, device="cpu", dtype=dtype, max_model_len=200)
    before = len(locks.buffer)
    llm.generate("abcabcabc", greedy)
    llm.generate(["abcabc", "a" * 100, "xyz" * 20], [greedy, sampled, SamplingParams(logprobs=2, min_p=0.1)])
    llm.generate("abcabcabc", greedy)
    told += [before, len(locks.buffer)]
print(json.dumps(told))
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


def test_requests_compile_and_load_no_kernel(tiny_target: Path) -> None:
    """Of an engine that does not speculate, and of one that looks text up in a tree."""
    process = start(SERVE, str(tiny_target))
    plain_ready, plain_served, suffix_ready, suffix_served = json.loads(process.communicate()[0])
    assert process.returncode == 0
    assert plain_served == plain_ready
    assert suffix_served == suffix_ready
    assert suffix_ready > 0, "the listener hears of compilation"


def test_of_processes_that_start_together_one_compiles(tmp_path: Path) -> None:
    places = {"NUMBA_CACHE_DIR": str(tmp_path / "numba"), "DRAFTWISE_CACHE_DIR": str(tmp_path / "cache")}
    processes = [start(COMPILE, **places) for _ in range(2)]
    passes = sorted(int(process.communicate()[0]) for process in processes)
    assert passes[0] == 0
    assert passes[1] > 0
