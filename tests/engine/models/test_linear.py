"""Products with weights on the CPU, as they are and quantized."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from draftwise.engine.models import linear, load_model
from draftwise.engine.models.linear import find_most_alike, make_linear, quantize


@pytest.fixture(params=[torch.bfloat16, torch.float32], ids=str)
def dtype(request):
    torch.manual_seed(0)
    return request.param


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_product(copy, with_bias, dtype):
    x, weight, bias = torch.randn(3, 48).to(dtype), torch.randn(24, 48).to(dtype), torch.randn(24).to(dtype)
    bias = bias if with_bias else None
    torch.testing.assert_close(make_linear(weight, bias, copy=copy)(x), F.linear(x, weight, bias))


def test_quantize(dtype):
    """Each weight is within half a step of what it was; the largest of an output is kept, and zeros stay zeros."""
    weight = torch.randn(24, 48).to(dtype) * torch.logspace(-3, 3, 24).unsqueeze(1).to(dtype)
    weight[5] = 0
    rounded, scale = quantize(weight)
    assert (rounded.dtype, scale.dtype) == (torch.float8_e4m3fn, torch.float32)
    assert (rounded.float().abs().amax(dim=1)[torch.arange(24) != 5] == 448).all()
    assert not rounded[5].float().any()
    again = rounded.double() * scale.double().unsqueeze(1)
    step = torch.maximum(weight.double().abs() / 16, scale.double().unsqueeze(1) * 2**-10)
    assert ((again - weight.double()).abs() <= 1.001 * step).all()


@pytest.mark.parametrize("with_bias", [False, True])
def test_fp8_computes_with_the_rounded_weights(with_bias, dtype):
    x, weight, bias = torch.randn(3, 48).to(dtype), torch.randn(24, 48).to(dtype), torch.randn(24).to(dtype)
    bias = bias if with_bias else None
    rounded, scale = quantize(weight)
    expected = F.linear(x, (rounded.float() * scale.unsqueeze(1)).to(dtype), bias)
    actual = make_linear(weight, bias, quantization="fp8")(x)
    torch.testing.assert_close(actual, expected)
    assert not torch.equal(actual, make_linear(weight, bias)(x))


@pytest.mark.parametrize("shape", [(960, 576), (576, 1536), (2048, 2048)])
def test_a_row_has_the_same_bits_alone_and_among_others(shape, dtype):
    """oneDNN sums a single row in another order than one of several; see `Passes.most_shared_rows` too."""
    generator, most = torch.Generator().manual_seed(0), find_most_alike(dtype)
    linear = make_linear(torch.randn(shape, generator=generator).to(dtype))
    x = torch.randn(most, shape[1], generator=generator).to(dtype)
    together = linear(x)
    for count in (1, 2, 3, 4, 5, 8, 16, 31, 33, most - 1):
        assert torch.equal(linear(x[:count]), together[:count])
    assert torch.equal(linear(x[7:8]), together[7:8])


def test_amx_is_left_out():
    """oneDNN says up to which instructions it goes; processes that are started later do not see the limit."""
    script = """
import os, torch
torch.cpu._is_amx_tile_supported = lambda: True
from draftwise.engine.models import linear
linear._WITHOUT_AMX = "AVX2"
linear.make_linear(torch.zeros(64, 64))(torch.zeros(4, 64))
print(linear.limit_instructions(), os.environ.get("ONEDNN_MAX_CPU_ISA"))"""
    variables = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
    variables["ONEDNN_VERBOSE"] = "1"
    older = {"DNNL_MAX_CPU_ISA": "SSE41"}
    for own, expected in (({}, "AVX2 None"), ({"ONEDNN_MAX_CPU_ISA": "SSE41"}, "SSE41 SSE41"), (older, "SSE41 None")):
        command = [sys.executable, "-c", script]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, env=variables | own)
        lines = ran.stdout.splitlines()
        assert lines[-1] == expected
        (isa,) = (line for line in lines if ",isa:" in line)
        assert "AVX-512" not in isa


_OWN = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "1024", "LRU_CACHE_CAPACITY": "1024"}


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallinfo2 is glibc's")
@pytest.mark.parametrize(("own", "grows"), [({}, False), (_OWN, True)], ids=["default", "own"])
def test_few_kernels_are_kept(own, grows):
    """One kernel for each number of rows: memory in use grows for the first few hundred only, or as an operator says.
    An operator's own values stand, and processes that are started later do not see ours."""
    script = """
import ctypes, os, torch
from draftwise.engine.models.linear import make_linear
class Info(ctypes.Structure):
    _fields_ = [(str(place), ctypes.c_size_t) for place in range(7)] + [("used", ctypes.c_size_t)]
    _fields_ += [(str(place), ctypes.c_size_t) for place in range(8, 10)]
info = ctypes.CDLL(None).mallinfo2
info.restype = Info
linear, used = make_linear(torch.zeros(256, 256)), []
for first in (2, 302, 602):
    for rows in range(first, first + 300):
        linear(torch.zeros(rows, 256))
    used.append(info().used)
print(*used, os.environ.get("LRU_CACHE_CAPACITY"), os.environ.get("ONEDNN_PRIMITIVE_CACHE_CAPACITY"))"""
    variables = {name: value for name, value in os.environ.items() if name not in _OWN}
    command = [sys.executable, "-c", script]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=variables | own)
    first, second, third, *left = ran.stdout.split()
    assert left == ["1024" if own else "None"] * 2
    growth = int(third) - int(second)
    assert (growth > 20 * 2**20) == grows, (first, second, third)
    assert grows or growth < 2 * 2**20, (first, second, third)


@pytest.mark.parametrize("asked", [False, True])
def test_amx_that_stays_is_said(tiny_target, monkeypatch, asked):
    """Torch has multiplied in this process, where oneDNN goes on as it began."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr(linear, "_asked_for_amx", lambda: asked)
    for name in linear._INSTRUCTIONS:
        monkeypatch.delenv(name, raising=False)
    linear.limit_instructions.cache_clear()
    try:
        notes = load_model(tiny_target, dtype="bfloat16", device="cpu").notes
        assert [note.code for note in notes] == ["amx-kept"] * asked
        assert not load_model(tiny_target, dtype="float32", device="cpu").notes
    finally:
        linear.limit_instructions.cache_clear()


@pytest.mark.skipif(platform.machine() != "x86_64" or torch.cpu._is_amx_tile_supported(), reason="needs x86, no AMX")
def test_a_process_without_amx_has_not_asked_for_it():
    assert not linear._asked_for_amx()


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("num_rows", [1, 9, 32, 128])
@pytest.mark.parametrize("shape", [(768, 512), (3072, 512), (512, 1536), (4096, 512)])
def test_a_row_has_the_same_bits_on_any_number_of_threads(shape, num_rows, dtype):
    """So that a step may take fewer while other processes hold cores."""
    product, x = make_linear(torch.randn(shape).to(dtype)), torch.randn(num_rows, shape[1]).to(dtype)
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(product(x))
    assert all(torch.equal(results[0], other) for other in results[1:])
