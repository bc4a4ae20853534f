"""Products of few rows against torch, in every way of cutting them up."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from draftwise.engine.kernels.cuda import matmul as products
from draftwise.engine.kernels.cuda.kernel_launch import interpreted
from draftwise.engine.kernels.cuda.matmul import has_copy_engine
from draftwise.engine.kernels.cuda.matmul_configs import Config, MatmulDevice, choose
from draftwise.engine.kernels.cuda.matmul_fp8 import quantize_rows
from draftwise.engine.models.linear import CudaLinear, last_outputs, quantize

NUM_IN = 512
H200 = MatmulDevice(num_sms=132, shared_bytes=232_448, hopper=True)
SMALLER = MatmulDevice(num_sms=84, shared_bytes=101_376, hopper=False)
CUTS = [
    Config(outputs=16, columns=64, fold=4, stages=4),
    Config(outputs=16, columns=128, fold=4, stages=5),
    Config(outputs=32, columns=128, fold=2, stages=3),
    Config(outputs=64, columns=64, fold=1, stages=5),
    Config(outputs=8, columns=64, fold=8, stages=4),
]
CONFIGS = [
    *(CUTS if not interpreted() else ()),  # only a Hopper GPU starts early; elsewhere they are the following ones
    *(dataclasses.replace(config, early=False) for config in CUTS),
    *(dataclasses.replace(config, early=False, copies=False) for config in CUTS),
    Config(outputs=16, columns=32, fold=2, stages=2, copies=False, early=False),
]
BIASES = [False, True]


@pytest.fixture
def dtype(device):
    """The interpreter multiplies no bfloat16."""
    torch.manual_seed(0)
    return torch.float16 if device.type == "cpu" else torch.bfloat16


def random(*shape: int, device: torch.device, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape, device=device) * scale).to(dtype)


def check(actual: torch.Tensor, expected: torch.Tensor, roundings: int = 1) -> None:
    """Both are rounded to a 16-bit type, at most one bit apart at each rounding."""
    tolerance = 2 * roundings * torch.finfo(actual.dtype).eps
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance / 16)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("num_rows", [1, 5, 16])
@pytest.mark.parametrize("with_bias", BIASES)
def test_product(config, num_rows, with_bias, device, dtype):
    x, weight = random(num_rows, NUM_IN, device=device, dtype=dtype), random(80, NUM_IN, device=device, dtype=dtype)
    bias = random(80, device=device, dtype=dtype) if with_bias else None
    weight *= NUM_IN**-0.5
    expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    check(products.run_matmul(config, x, weight, bias), expected)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("num_rows", [1, 5, 16])
def test_gated_product(config, num_rows, device, dtype):
    x, weight = random(num_rows, NUM_IN, device=device, dtype=dtype), random(160, NUM_IN, device=device, dtype=dtype)
    weight *= NUM_IN**-0.5
    gate, up = F.linear(x.double(), weight.double()).to(dtype).chunk(2, dim=-1)
    check(products.run_gated(config, x, weight), (F.silu(gate) * up).double(), roundings=3)


@pytest.mark.parametrize("parts", [2, 3, 5])
@pytest.mark.parametrize("num_rows", [17, 48, 64])
@pytest.mark.parametrize("columns", [64, 128])
def test_parts_add_up_to_the_product(parts, num_rows, columns, device, dtype):
    if interpreted() or not has_copy_engine():
        pytest.skip("only a Hopper GPU leaves parts to the reader")
    width = 1408  # 11 tiles: parts of different lengths
    x, weight = random(num_rows, width, device=device, dtype=dtype), random(80, width, device=device, dtype=dtype)
    weight *= width**-0.5
    config = Config(outputs=64, columns=columns, fold=1, stages=3, parts=parts)
    parts_PRO = products.run_matmul(config, x, weight)
    assert parts_PRO.shape == (parts, num_rows, 80)
    check(parts_PRO.sum(0).to(dtype), F.linear(x.double(), weight.double()))
    assert torch.equal(parts_PRO, products.run_matmul(config, x, weight))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("early", [False, True])
def test_rows_have_the_same_bits_in_any_batch(gated, early, device, dtype):
    """The order of sums follows from the fold alone."""
    if device.type == "cpu":
        pytest.skip("the interpreter's products sum in an order that depends on their sizes")
    x, weight = random(64, NUM_IN, device=device, dtype=dtype), random(192, NUM_IN, device=device, dtype=dtype)
    run = products.run_gated if gated else products.run_matmul
    for fold in (1, 2, 4):
        config = Config(outputs=64 // fold, columns=64, fold=fold, stages=3)
        together = run(config, x, weight)
        for num_rows, columns in ((1, 64), (4, 128), (8, 64), (16, 128), (40, 64)):
            alone = dataclasses.replace(config, columns=columns, early=early)
            assert torch.equal(run(alone, x[:num_rows], weight), together[:num_rows])


def test_rows_that_lie_apart(device, dtype):
    wide, weight = random(4, 2 * NUM_IN, device=device, dtype=dtype), random(48, NUM_IN, device=device, dtype=dtype)
    linear = CudaLinear(weight)
    assert torch.equal(linear(wide[:, NUM_IN:]), linear(wide[:, NUM_IN:].contiguous()))


@pytest.mark.parametrize(("num_rows", "num_in"), [(65, 512), (3, 80), (0, 512)])
def test_other_shapes_go_to_the_library(num_rows, num_in, device, dtype):
    x, weight = random(num_rows, num_in, device=device, dtype=dtype), random(48, num_in, device=device, dtype=dtype)
    bias = random(48, device=device, dtype=dtype)
    linear = CudaLinear(weight, bias)
    assert products.find_config(x, weight, gated=False) is None
    torch.testing.assert_close(linear(x), F.linear(x, weight, bias))
    gate, up = F.linear(x, weight, bias).chunk(2, dim=-1)
    torch.testing.assert_close(linear.gated(x), F.silu(gate) * up, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("num_rows", [3, 65])
@pytest.mark.parametrize("num_out", [1, 63, 64, 65, 130])
@pytest.mark.parametrize("has_room", [False, True])
def test_any_number_of_outputs_is_computed_in_aligned_ones(num_rows, num_out, has_room, device, dtype):
    """What lies behind a matrix in its memory may be anything, and is never part of an answer."""
    x = random(num_rows, NUM_IN, device=device, dtype=dtype)
    memory = random(192 if has_room else num_out, NUM_IN, device=device, dtype=dtype)
    memory[num_out:] = torch.nan
    weight, bias = memory[:num_out], random(num_out, device=device, dtype=dtype)
    linear = CudaLinear(weight, bias)
    assert len(linear.weight) % 64 == 0
    assert (linear.weight.data_ptr() == weight.data_ptr()) == (has_room or num_out == 64)
    assert linear(x).shape == (num_rows, num_out)
    exact = F.linear(x.double(), weight.double(), bias.double())
    torch.testing.assert_close(linear(x).double(), exact, rtol=2e-2, atol=2e-2)
    last = num_out // 2 + 1
    torch.testing.assert_close(last_outputs(linear, x, last).double(), exact[:, -last:], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("num_rows", [1, 6, 64, 70])
@pytest.mark.parametrize("gated", [False, True])
def test_one_byte_weights(num_rows, gated, device, dtype):
    """Where the GPU multiplies such values, activations are rounded too; the kernels of others do so for many rows."""
    x, weight = random(num_rows, NUM_IN, device=device, dtype=dtype), random(96, NUM_IN, device=device, dtype=dtype)
    weight_fp8, scale = quantize(weight * NUM_IN**-0.5)
    linear = CudaLinear(weight_fp8, None, scale)
    actual = (linear.gated(x) if gated else linear(x)).double()
    if has_copy_engine() or (device.type == "cuda" and num_rows > 64):
        rounded, scale_of_rows = quantize_rows(x)
        x = rounded.double() * scale_of_rows.double().unsqueeze(1)
    exact = F.linear(x.double(), weight_fp8.double() * scale.double().unsqueeze(1))
    if gated:
        gate, up = exact.chunk(2, dim=-1)
        exact = F.silu(gate) * up
    assert (actual - exact).norm() / exact.norm() < 6e-3


def test_quantize_rows(device, dtype):
    x = random(5, 200, device=device, dtype=dtype)
    x[2] = 0
    quantized, scale = quantize_rows(x)
    expected, expected_scale = quantize(x)
    torch.testing.assert_close(scale, expected_scale)
    share = (quantized.float() == expected.float()).float().mean()
    assert share > (0.9 if device.type == "cpu" else 0.99)  # the interpreter loses the carry of some roundings


@pytest.mark.parametrize("num_out", [2048, 3072, 3840, 4096, 5120, 6144, 7168, 8192])
@pytest.mark.parametrize("num_in", [1536, 5120, 14336])
def test_only_what_the_library_does_or_few_programs_share_comes_in_parts(num_out, num_in):
    for num_rows in range(1, 66):
        whole = choose(num_rows, num_out, num_in, H200, gated=False)
        config = choose(num_rows, num_out, num_in, H200, gated=False, in_parts=True)
        few = whole is None or num_out // whole.outputs % H200.num_sms < 0.75 * H200.num_sms
        assert config == whole or (few and 16 < num_rows <= 64)
        if config is not None and config.parts > 1:
            assert 2 <= config.stages <= num_in // config.columns // config.parts
            assert config.stages * config.stage_bytes(num_rows, gated=False) < H200.shared_bytes
        assert choose(num_rows, num_out, num_in, SMALLER, gated=False, in_parts=True) == choose(
            num_rows, num_out, num_in, SMALLER, gated=False
        )


@pytest.mark.parametrize("shape", [(6144, 4096), (4096, 14336), (128256, 4096), (2048, 2048), (320, 192), (32000, 64)])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("weight_bytes", [1, 2])
@pytest.mark.parametrize("device", [H200, SMALLER], ids=["hopper", "smaller"])
def test_every_shape_has_a_config_that_fits(shape, gated, weight_bytes, device):
    folds = {}
    for num_rows in range(1, 65):
        config = choose(num_rows, *shape, device, gated=gated, weight_bytes=weight_bytes)
        if config is None and num_rows > 16 and weight_bytes == 2 and not gated:
            continue  # cuBLAS is faster for some
        assert config is not None
        assert shape[1] % (config.fold * config.columns) == 0
        assert (
            config.stage_bytes(num_rows, gated=gated, weight_bytes=weight_bytes) * config.stages < device.shared_bytes
        )
        assert not config.copies or device.hopper
        assert not config.early or (config.copies and config.columns * weight_bytes >= 128)
        folds.setdefault(num_rows <= 8, set()).add(config.fold)
    assert len(folds[True]) == 1


@pytest.mark.parametrize(
    ("num_rows", "shape", "way"),
    [
        (8, (5120, 13824), (16, 128, 4, 3)),
        (16, (7168, 20480), (32, 128, 2, 4)),  # finer cuts are no evener and read more activations
        (32, (4096, 11008), (32, 128, 2, 7)),
        (32, (7680, 5120), (64, 128, 1, 9)),
        (32, (9216, 7168), (32, 64, 2, 4)),
        (48, (4096, 4096), None),  # one program each for half of the multiprocessors
        (64, (4096, 4096), (32, 128, 2, 4)),
        (64, (5120, 13824), None),
        (64, (6144, 4096), (64, 128, 1, 7)),
        (64, (9216, 7168), None),
        (64, (12288, 4096), (64, 64, 1, 4)),
        (64, (151936, 1536), (64, 128, 1, 3)),
    ],
)
def test_products_are_cut_as_was_measured_to_be_best(num_rows, shape, way):
    """Within 4 % of the best way that was tried on an H200, cuBLAS included (but for 48 rows: 12 %)."""
    config = choose(num_rows, *shape, H200, gated=False)
    assert way == (config and (config.outputs, config.columns, config.fold, config.stages))


def test_few_stages_are_not_an_invitation_to_one_program_more():
    """Else some multiprocessors get three where two each were to share the work evenly."""
    for num_rows, num_in in ((1, 11008), (8, 12800), (8, 14336)):
        config = choose(num_rows, 4096, num_in, H200, gated=False)
        assert config is not None
        assert 3 * config.stages * config.stage_bytes(num_rows, gated=False) > H200.shared_bytes


def test_no_config_beyond_the_limits():
    assert choose(65, 4096, 4096, H200, gated=False) is None
    assert choose(0, 4096, 4096, H200, gated=False) is None
    assert choose(1, 4096, 4000, H200, gated=False) is not None
    assert choose(1, 4096, 4008, H200, gated=False) is None


@pytest.mark.parametrize(
    ("num_rows", "shape", "gated", "way"),
    [
        (1, (14336, 4096), True, (32, 256, 2, 3)),
        (8, (4096, 14336), False, (16, 256, 4, 4)),
        (64, (14336, 4096), True, (64, 256, 1, 2)),
        (64, (5120, 13824), False, (64, 256, 1, 7)),  # unlike cuBLAS for 16 bits, the library is slower throughout
    ],
)
def test_one_byte_products_are_cut_as_was_measured_to_be_best(num_rows, shape, gated, way):
    config = choose(num_rows, *shape, H200, gated=gated, weight_bytes=1)
    assert way == (config.outputs, config.columns, config.fold, config.stages)


@pytest.mark.parametrize("most", [1, 70, 512, 1501])
def test_the_library_has_loaded_what_any_fewer_rows_need(most, monkeypatch):
    """To load a kernel of cuBLAS later waits for all that is under way; tiles of rows decide which one it is."""
    multiplied = []

    def linear(x, weight, bias):
        multiplied.append((len(x), weight.data_ptr(), bias is None))
        return x.new_empty(len(x), len(weight))

    monkeypatch.setattr(products, "F", SimpleNamespace(linear=linear))
    same, alike, bias = torch.empty(8, 4), torch.empty(8, 4), torch.empty(8)
    with products.loading_library():
        for rows, weight in ((1, same), (most, same), (most, alike)):  # torch multiplies float32
            products.matmul(torch.empty(rows, 4), weight)
        products.matmul(torch.empty(1, 4), same, bias)
    products.matmul(torch.empty(most + 1, 4), same)
    loaded = [rows for rows, pointer, has_none in multiplied[4:-1] if (pointer, has_none) == (same.data_ptr(), True)]
    assert multiplied[4 + len(loaded) :] == [(1, same.data_ptr(), False), (most + 1, same.data_ptr(), True)]
    assert max(loaded) == most
    for rows in range(1, most // 8 * 8 + 1):
        tile = 1 if rows <= 544 else 32 if rows <= 1024 else 256
        alike = [each for each in loaded if -(-each // tile) == -(-rows // tile)]
        assert any(min(each & -each, 8) == min(rows & -rows, 8) for each in alike), rows
    assert len(loaded) <= 544 + 15 * 4 + 3 * 4
