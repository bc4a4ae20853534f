"""Engine flags as the command line parser reads them, and the batch sizes that they lead to."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.made_checkpoints import H200, LLAMA, judge, rejections, write

from draftwise.core import Device, Setup
from draftwise.plan.check import get_context
from draftwise.plan.check.engine import fill_in_batch
from draftwise.plan.check.model import read_target
from draftwise.plan.check.stages import collect


@pytest.fixture
def llama(tmp_path: Path) -> str:
    return write(tmp_path, "llama", LLAMA)


def test_flags_of_old_guides(llama: str) -> None:
    report = judge(llama, None, "0.9.2", speculative_model="small", num_speculative_tokens=3)
    assert rejections(report) == ["flag-unknown", "flag-unknown"]
    assert "speculative-config" in report.findings[0].fix


def test_a_flag_of_another_release_says_when_it_existed(llama: str) -> None:
    report = judge(llama, None, "0.33.0", swap_space=4)
    assert rejections(report) == ["flag-unknown"]
    assert "0.9.2" in report.findings[0].message


def test_a_field_without_a_flag_is_for_python(llama: str) -> None:
    assert judge(llama, None, "0.33.0", enable_mm_processor_stats=True).accepted


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_model_len", "2k", 2000), ("max_model_len", "1.5k", 1500), ("max_model_len", "1K", 1024),
        ("max_model_len", "auto", -1), ("tensor_parallel_size", "2", 2), ("gpu_memory_utilization", "0.5", 0.5),
    ],
)  # fmt: skip
def test_values_are_typed(llama: str, name: str, text: str, value: float) -> None:
    context = get_context(Setup(target=llama, engine="vllm", engine_version="0.32.0", args={name: text}))
    assert context.flags.get(name) == value
    assert context.rulings == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [("tensor_parallel_size", "two"), ("tensor_parallel_size", 1.5), ("max_model_len", "1.5K"), ("max_num_seqs", "2k"),
     ("gpu_memory_utilization", "most"), ("dtype", "fp7")],
)  # fmt: skip
def test_values_that_the_parser_refuses(llama: str, name: str, value: object) -> None:
    assert rejections(judge(llama, None, "0.32.0", **{name: value})) == ["flag-value"]


@pytest.mark.parametrize(
    ("device", "args", "sizes"),
    [
        (H200, {}, (8192, 1024)),
        (Device(name="NVIDIA L4", kind="cuda", memory_bytes=24 * 2**30), {}, (2048, 256)),
        (Device(name="NVIDIA A100", kind="cuda", memory_bytes=80 * 2**30), {}, (2048, 256)),
        (Device(name="NVIDIA B200", kind="cuda", memory_bytes=180 * 2**30), {}, (16384, 1024)),
        (H200, {"max_num_seqs": 2}, (4096, 2)),
        (H200, {"max_num_batched_tokens": 512}, (512, 512)),
        (H200, {"enable_chunked_prefill": False}, (8192, 1024)),
        (H200, {"performance_mode": "throughput"}, (16384, 2048)),
        (Device(name="cpu", kind="cpu"), {"tensor_parallel_size": 2}, (4096, 256)),
    ],
)  # fmt: skip
def test_default_batches(llama: str, device: Device, args: dict[str, object], sizes: tuple[int, int]) -> None:
    context = get_context(Setup(target=llama, engine="vllm", engine_version="0.32.0", device=device, args=args))
    filled = fill_in_batch(context, collect(read_target(context))[1])
    assert (filled.flags["max_num_batched_tokens"], filled.flags["max_num_seqs"]) == sizes


def test_batches_that_the_scheduler_refuses(llama: str) -> None:
    assert rejections(judge(llama, None, max_num_batched_tokens=64, max_num_seqs=128)) == ["batch-below-requests"]
    few = judge(llama, None, max_num_batched_tokens=512, max_num_seqs=8, enable_chunked_prefill=False)
    assert rejections(few) == ["batch-below-context"]
