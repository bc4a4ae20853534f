"""CPU servers: what their config refuses as on a GPU, and what only there."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.made_checkpoints import LLAMA, rejections, write

from draftwise.core import Device, Setup, SpecConfig
from draftwise.plan.check import Report, check

NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
FORCE_V2 = {"VLLM_USE_V2_MODEL_RUNNER": "1"}
FORCE_V1 = {"VLLM_USE_V2_MODEL_RUNNER": "0"}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("cpu"), "llama", LLAMA)


def serve(
    target: str, version: str, spec: dict[str, Any] | None, env: dict[str, str] | None = None,
    kind: str = "cpu", **args: Any
) -> Report:  # fmt: skip
    device = Device(name="EPYC" if kind == "cpu" else "H200", kind=kind)
    config = None if spec is None else SpecConfig.keep(spec)
    return check(
        Setup(
            target=target, engine="vllm", engine_version=version, device=device, spec=config, args=args, env=env or {}
        )
    )


@pytest.mark.parametrize("version", ["0.14.1", "0.22.1", "0.32.0", "0.33.0"])
def test_async_scheduling_that_is_asked_for_is_refused_as_on_a_gpu(llama: str, version: str) -> None:
    assert rejections(serve(llama, version, NGRAM, async_scheduling=True)) == ["async-rejected"]
    assert rejections(serve(llama, version, NGRAM)) == []


@pytest.mark.parametrize(
    ("version", "env", "kind", "codes"),
    [
        ("0.14.1", {}, "cpu", ["async-rejected"]),
        ("0.14.1", {}, "cuda", ["async-rejected"]),
        ("0.15.0", {}, "cuda", []),
        ("0.32.0", {}, "cpu", []),
        ("0.32.0", FORCE_V1, "cuda", ["async-rejected"]),
        ("0.32.0", {}, "cuda", []),
        ("0.33.0", {}, "cpu", ["async-rejected"]),
        ("0.33.0", {}, "cuda", []),
    ],
)
def test_async_scheduling_over_pipeline_stages_without_speculation(
    llama: str, version: str, env: dict[str, str], kind: str, codes: list[str]
) -> None:
    report = serve(llama, version, None, env, kind, async_scheduling=True, pipeline_parallel_size=2)
    assert rejections(report) == codes


@pytest.mark.parametrize(
    ("version", "spec", "codes", "runner"),
    [
        ("0.19.1", NGRAM, [], "V1"),
        ("0.21.0", NGRAM, ["runner-v2-rejected"], None),
        ("0.32.0", NGRAM, ["v2-needs-triton"], None),
        ("0.32.0", None, ["v2-needs-triton"], None),
        ("0.33.0", NGRAM, [], "V2"),
        ("0.33.0", None, [], None),
    ],
)
def test_a_forced_v2(
    llama: str, version: str, spec: dict[str, Any] | None, codes: list[str], runner: str | None
) -> None:
    report = serve(llama, version, spec, FORCE_V2)
    assert rejections(report) == codes
    assert (report.resolved and report.resolved.runner) == runner
    fails = {finding.code for finding in report.findings} & {"v2-without-triton-fails"}
    assert bool(fails) is (version == "0.33.0")


def test_a_drafter_that_needs_v2_does_not_take_it_against_the_environment(llama: str) -> None:
    spec = {**NGRAM, "method": "dspark", "model": llama}
    assert "v2-needs-triton" in rejections(serve(llama, "0.26.0", spec))
    assert "v2-needs-triton" not in rejections(serve(llama, "0.26.0", spec, FORCE_V1))


@pytest.mark.parametrize(
    ("version", "dtype", "chunked", "cached", "codes"),
    [
        ("0.20.2", "fp8", None, None, ["cpu-kv-cache-dtype"]),
        ("0.20.2", "fp8", False, None, ["cpu-kv-cache-dtype"]),
        ("0.20.2", "fp8", False, False, []),
        ("0.11.0", "fp8", False, False, ["cpu-kv-cache-dtype"]),
        ("0.10.2", "fp8", None, None, []),
        ("0.10.2", "fp8", None, True, ["cpu-kv-cache-dtype"]),
        ("0.20.2", "bfloat16", None, None, []),
        ("0.14.1", "bfloat16", None, None, ["cpu-kv-cache-dtype"]),
        ("0.21.0", "fp8", None, None, []),
    ],
)
def test_quantized_kv_caches(
    llama: str, version: str, dtype: str, chunked: bool | None, cached: bool | None, codes: list[str]
) -> None:
    flags = {"kv_cache_dtype": dtype, "enable_chunked_prefill": chunked, "enable_prefix_caching": cached}
    assert rejections(serve(llama, version, None, **flags)) == codes
    assert rejections(serve(llama, version, None, kind="cuda", **flags)) == []
