"""What vLLM's releases print while they start, and what is read out of it."""

import json
from pathlib import Path

import pytest

from draftwise.backends.vllm_log import StartupLog, find_root_cause, is_port_taken

LOGS = Path(__file__).parents[1] / "support" / "vllm_logs"


def read(name: str) -> tuple[StartupLog, list[str]]:
    lines = (LOGS / f"{name}.txt").read_text().splitlines()
    log = StartupLog(0)
    for number, line in enumerate(lines, start=1):
        log.take([line], number)
    return log, lines


def test_a_gpu_start_is_followed_through_its_phases() -> None:
    log, _ = read("h200_0.26.0_eagle3")
    assert list(log.began) == [
        "importing vLLM",
        "starting the engine",
        "loading weights",
        "compiling",
        "sizing the KV cache",
        "capturing CUDA graphs",
        "starting the API",
    ]
    assert log.values == {
        "engine_version": "0.26.0",
        "speculative_config": {"method": "eagle3", "model": "/models/eagle3-head", "num_speculative_tokens": 3},
        "runner": "V2",
        "async_scheduling": "enabled",
        "attention_backend": "FLASH_ATTN",
        "weights_gib": 15.8,
        "kv_cache_gib": 22.97,
        "kv_cache_tokens": 182464,
        "graphs_gib": 1.17,
        "init_engine_s": 35.08,
    }
    assert sum(log.seconds().values()) == log.began["starting the API"]


def test_a_cpu_start_ends_ready() -> None:
    log, lines = read("cpu_0.32.0_ngram")
    assert log.is_ready
    assert log.values["kv_cache_tokens"] == 8192
    assert log.values["speculative_config"] == {"method": "ngram", "num_speculative_tokens": 3}
    assert find_root_cause(lines) is None
    assert not is_port_taken(lines)


# As the log calls of these releases print them; the last two are of public bug reports.
VALUES = """\
engine_version|0.9.2|INFO 11-21 09:00:00 [api_server.py:1395] vLLM API server version 0.9.2
engine_version|0.18.0|(APIServer pid=1) INFO 11-21 09:00:00 [utils.py:284]  ▄▄ ▄█ █     █  version 0.18.0
speculative_config|{}|INFO [core.py:58] Initializing a V1 LLM engine (v0.8.5), speculative_config=None, dty=
weights_gib|14.9889|INFO 11-21 09:00:00 [gpu_model_runner.py:1770] Model loading took 14.9889 GiB and 3.123000 seconds
weights_gib|14.9889|INFO 11-21 09:00:00 [gpu_model_runner.py:2602] Model loading took 14.9889 GiB memory and 3.1 seconds
kv_cache_gib|58.21|INFO 11-21 09:00:00 [gpu_worker.py:227] Available KV cache memory: 58.21 GiB
kv_cache_tokens|476720|INFO 11-21 09:00:00 [kv_cache_utils.py:716] GPU KV cache size: 476,720 tokens
kv_cache_tokens|1024|INFO 11-21 09:00:00 [kv_cache_utils.py:2250] GPU KV cache size: 1,024 tokens, Maximum concurrency
graphs_gib|0.57|INFO 11-21 09:00:00 [gpu_model_runner.py:2485] Graph capturing finished in 21 secs, took 0.57 GiB
init_engine_s|61.93|INFO [core.py:171] init engine (profile, create kv cache, warmup model) took 61.93 seconds
async_scheduling|"enabled"|INFO 11-21 09:00:00 [vllm.py:630] Asynchronous scheduling is enabled.
attention_backend|"Flash Attention"|INFO 11-21 09:00:00 [cuda.py:221] Using Flash Attention backend on V1 engine.
kv_cache_tokens|49152|(EngineCore_DP0 pid=212) INFO [kv_cache_utils.py:1087] GPU KV cache size: 49,152 tokens
weights_gib|14.9888|INFO 03-24 04:03:55 [gpu_model_runner.py:1176] Model loading took 14.9888 GB and 28.719376 seconds
"""


@pytest.mark.parametrize("row", VALUES.splitlines())
def test_values_are_read_whatever_the_release(row: str) -> None:
    name, value, line = row.split("|")
    log = StartupLog(0)
    log.take([line], 1)
    assert log.values[name] == (value if name == "engine_version" else json.loads(value))


PHASES = """\
loading weights|INFO 11-21 09:00:00 [gpu_model_runner.py:1746] Starting to load model /m...
compiling|INFO 11-21 09:00:00 [backends.py:420] Using cache directory: /c for vLLM's torch.compile
capturing CUDA graphs 12 %|Capturing CUDA graph shapes:  12%|█▏        | 8/67 [00:02<00:15,  3.91it/s]
capturing CUDA graphs 100 %|Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%|██████████| 11/11
starting the API|INFO 11-21 09:00:00 [api_server.py:1971] Starting vLLM API server 0 on http://0.0.0.0:8000
starting the API|INFO 11-21 09:00:00 [entry.py:140] Starting vLLM server on http://127.0.0.1:18231
ready|INFO:     Application startup complete.
"""


@pytest.mark.parametrize("row", PHASES.splitlines())
def test_the_phase_is_told_with_its_seconds(row: str) -> None:
    phase, _, line = row.partition("|")
    log = StartupLog(10)
    log.take(["nothing of note"], 15)
    assert log.doing(15) == "importing vLLM (5 s)"
    log.take([line], 20)
    assert log.doing(25) == f"{phase} (5 s)"


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("kv_too_small", "ValueError: No available memory for the cache blocks."),
        ("worker_failed", "ValueError: Following weights were not initialized from checkpoint:"),
        ("unknown_flag", "unrecognized arguments: --no-such-flag"),
        ("port_taken", "OSError: [Errno 98] Address already in use"),
    ],
)
def test_the_cause_is_the_first_exception_of_its_own(name: str, cause: str) -> None:
    found = find_root_cause(read(name)[1])
    assert found is not None
    assert found.startswith(cause)


def test_a_validation_error_is_told_with_what_it_says() -> None:
    found = find_root_cause(read("unknown_key")[1])
    assert found is not None
    assert "foo" in found
    assert "Unexpected keyword argument" in found
    assert "For further information" not in found


def test_an_old_engine_that_failed_is_understood_too() -> None:
    # vLLM 0.8.5 to 0.9.2 print no process before the level.
    lines = [
        "ERROR 05-23 09:31:47 [core.py:396] EngineCore failed to start.",
        "ERROR 05-23 09:31:47 [core.py:396] Traceback (most recent call last):",
        'ERROR 05-23 09:31:47 [core.py:396]   File "core.py", line 387, in run_engine_core',
        "ERROR 05-23 09:31:47 [core.py:396] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "Process EngineCore_0:",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    ]
    assert find_root_cause(lines) == "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def test_a_worker_that_was_killed_is_the_cause_not_what_waited_for_it() -> None:
    # As vLLM 0.32.0 for CPU wrote it when memory ran out.
    lines = [
        "(Worker pid=7870) INFO 11-29 23:37:43 [cpu_model_runner.py:87] Warming up model for the compilation...",
        "(EngineCore pid=9) ERROR 11-29 23:41:55 [multiproc_executor.py:315] Worker proc VllmWorker-0 died "
        "unexpectedly (exit code: -9), shutting down executor.",
        "(EngineCore pid=9) ERROR 11-29 23:41:55 [core.py:1510] RuntimeError: cancelled",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    ]
    assert "VllmWorker-0 died unexpectedly (exit code: -9)" in (find_root_cause(lines) or "")
    log = StartupLog(0)
    log.take(lines[:1], 1)
    assert log.doing(9) == "compiling (8 s)"


@pytest.mark.parametrize("worker", ["VllmWorker-0", "VllmWorker rank=1", "Worker_TP1"])
def test_what_a_worker_says_is_the_cause_whatever_its_name(worker: str) -> None:
    stamp = f"({worker} pid=90) ERROR 11-30 12:29:50 [multiproc_executor.py:953]"
    lines = [
        f"{stamp} WorkerProc failed to start.",
        f"{stamp} ValueError: Available memory on node 0 (21.06/23.54 GiB) on startup is less than desired",
        "(EngineCore pid=9) ERROR 11-30 12:29:54 [core.py:1510] Exception: WorkerProc initialization failed due to an "
        "exception in a background process. See stack trace for root cause.",
    ]
    assert (find_root_cause(lines) or "").startswith("ValueError: Available memory on node 0")


def test_a_log_with_consequences_only_gives_the_first_of_them() -> None:
    lines = ["RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"]
    assert find_root_cause(lines) == lines[0]
