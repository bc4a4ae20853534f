"""Engine flags as the command line parser reads them, and the batch sizes that they lead to."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.made_checkpoints import H200, LLAMA, judge, rejections, write

from draftwise.core import Device, Setup, Severity
from draftwise.knowledge.vllm import all_keys, releases
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


@pytest.mark.parametrize(
    ("variable", "release", "told", "fix"),
    [
        ("VLLM_ATTENTION_BACKEND", "0.15.0", "0.14.1 was the last release", "Pass --attention-backend."),
        ("VLLM_FLASH_ATTN_VERSION", "0.33.0", "0.14.1 was", "Pass --attention-config.flash_attn_version."),
        ("VLLM_USE_FBGEMM", "0.24.0", "0.23.0 was", "Use --linear-backend fbgemm."),  # what the last release logged
        ("VLLM_USE_V1", "0.11.1", "0.11.0 was", "Remove it."),
        ("VLLM_BATCH_INVARIANT", "0.11.0", "0.11.1 is the first release", "Upgrade, or remove it."),
        ("VLLM_ATTENTON_BACKEND", "0.11.0", "", "Did you mean VLLM_ATTENTION_BACKEND?"),
    ],
)
def test_a_variable_that_the_release_does_not_read(
    llama: str, variable: str, release: str, told: str, fix: str
) -> None:
    setup = Setup(target=llama, engine="vllm", engine_version=release, env={variable: "1"})
    (ruling,) = get_context(setup).rulings
    assert (ruling.code, ruling.severity, ruling.fix) == ("variable-unread", Severity.WARNING, fix)
    assert told in ruling.message


def test_every_variable_is_known_in_its_releases_and_named_in_the_others(llama: str) -> None:
    assert len(all_keys("env")) > 380
    for release in releases():
        setup = Setup(target=llama, engine="vllm", engine_version=str(release), env=dict.fromkeys(all_keys("env"), "1"))
        context = get_context(setup)
        unread = {each.where for each in context.rulings if each.code == "variable-unread"}
        assert unread == {*all_keys("env")} - release.table("env").keys()
        assert unread.isdisjoint(context.env)


def test_a_variable_of_nobody_is_not_judged_and_others_are_not_vllms(llama: str) -> None:
    setup = Setup(target=llama, engine="vllm", engine_version="0.33.0", env={"VLLM_MY_SCRIPT": "1", "HF_HOME": "/x"})
    (ruling,) = get_context(setup).rulings
    assert (ruling.code, ruling.severity) == ("variable-unlisted", Severity.INFO)
