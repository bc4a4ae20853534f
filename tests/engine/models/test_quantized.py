"""Matrices of four to eight bits: read as the library reads them, multiplied exactly, the same bits everywhere."""

from __future__ import annotations

import ctypes
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from llvmlite import binding as llvm
from llvmlite import ir
from numba import cfunc, types

from draftwise.engine.kernels import cpu_vectors
from draftwise.engine.kernels.cpu_layouts import LAYOUTS, PackedMatrix
from draftwise.engine.models import load_model, weight_loading
from draftwise.engine.models.quantized import (
    KINDS,
    Blocks,
    RoundedBlocks,
    num_bytes,
    pack_blocks,
    read_blocks,
    round_weights,
)

needs_products = pytest.mark.skipif(cpu_vectors.find_mode() is None, reason="this processor multiplies no int8")
SCALES = {"Q6_K": (208,), "Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2)}
"""Where a block has its float16 numbers, if not at its start."""


def make_blocks(name: str, rows: int, width: int, seed: int = 0) -> np.ndarray:
    """Return random blocks of a GGUF's type, [rows, bytes]."""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (rows, width // block, size), dtype=np.uint8)
    for at in SCALES.get(name, (0,)):
        numbers = rng.standard_normal((rows, width // block, 1)) * 0.01
        data[..., at : at + 2] = numbers.astype(np.float16).view(np.uint8)
    return data.reshape(rows, -1)


def matrix_of(kind: str, blocks: Blocks) -> PackedMatrix:
    rows, width = blocks.stored_OK.shape
    return PackedMatrix(kind, pack_blocks(kind, blocks), rows, width // 32)


def values_of(matrix: PackedMatrix) -> torch.Tensor:
    return matrix.read_rows(torch.arange(matrix.rows))


@pytest.mark.parametrize("name", KINDS)
def test_blocks_are_what_the_library_makes_of_them(name):
    """K-quants have the product of two scales, which is rounded to float16."""
    data = make_blocks(name, rows=33, width=512)
    expected = torch.from_numpy(gguf.dequantize(data, gguf.GGMLQuantizationType[name]))
    matrix = matrix_of(KINDS[name], read_blocks(name, data))
    assert matrix.memory.numel() == num_bytes(matrix.kind, 33, 512)
    tolerance = 2**-11 * 64 if name.endswith("_K") else 0
    scale = expected.abs().amax() / 64
    assert (values_of(matrix) - expected).abs().max() <= tolerance * scale


@pytest.mark.parametrize(("kind", "steps"), [("q8", 254), ("q4", 15)])
def test_rounded_weights_are_within_half_a_step(kind, steps):
    weight = torch.randn(40, 96) * torch.logspace(-3, 2, 40).unsqueeze(1)
    weight[3], weight[4, :32] = 0, 0.5
    parts = weight.unflatten(1, (-1, 32))
    span = 2 * parts.abs().amax(2) if kind == "q8" else parts.amax(2) - parts.amin(2)
    error = (values_of(matrix_of(kind, round_weights(kind, weight))) - weight).abs().unflatten(1, (-1, 32)).amax(2)
    assert (error <= 0.51 * span / steps + 2**-10 * parts.abs().amax(2)).all()
    assert not values_of(matrix_of(kind, round_weights(kind, weight)))[3].any()


def compiled(mode: str, kind: str):
    """Return the product of a group, compiled for a kind of processor."""
    multiply = getattr(cpu_vectors, f"multiply_{kind}")

    def run(group, blocks, rows, inputs, out, stride, bias):
        multiply(group, blocks, rows, inputs, out, stride, bias)

    with cpu_vectors.forced(mode):
        return cfunc(types.void(*[types.int64] * 7))(run)


def quantize_inputs(x_RK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows as the kernels read them, and their values, by torch."""
    rows, width = x_RK.shape
    parts = x_RK.view(rows, -1, 32)
    largest = parts.abs().amax(2, keepdim=True)
    whole = (parts * torch.where(largest > 0, 127 / largest, 0.0)).round().int()
    d = largest / 127
    sums = whole.view(rows, -1, 2, 16).sum(3).int()
    fields = (whole.to(torch.int8), d, d * sums.sum(2, keepdim=True), -sums)
    return torch.cat([each.contiguous().view(torch.uint8) for each in fields], 2), (whole * d).view(rows, width)


@needs_products
@pytest.mark.parametrize("kind", LAYOUTS)
def test_products_are_exact_and_the_same_bits_on_every_kind_of_processor_and_in_every_batch(kind):
    own = cpu_vectors.find_mode().name
    modes = {own, "plain", *(["avx2"] if own.startswith("avx") else [])}
    name = {"q4": "Q4_K", "q5": "Q5_1", "q6": "Q6_K", "q8": "Q8_0"}[kind]
    matrix = matrix_of(kind, read_blocks(name, make_blocks(name, rows=16, width=256)))
    x, bias = torch.randn(9, 256, generator=torch.Generator().manual_seed(0)), torch.arange(16.0)
    x[2, :32] = 0
    inputs, rounded = quantize_inputs(x)
    expected = rounded.double() @ values_of(matrix).double().T + bias
    results = []
    for mode in sorted(modes):
        kernel = compiled(mode, kind)
        call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 7)(kernel.address)
        for rows in (1, 9):
            out = torch.zeros(9, 16)
            for first in range(0, 9, rows):
                count = min(rows, 9 - first)
                places = (inputs[first].data_ptr(), out[first].data_ptr(), 64, bias.data_ptr())
                call(matrix.memory.data_ptr(), 8, count, *places)
            results.append(out)
    torch.testing.assert_close(results[0].double(), expected, rtol=1e-5, atol=1e-5)
    assert all(torch.equal(results[0], other) for other in results[1:])


@needs_products
def test_a_product_joins_kinds_and_its_rows_keep_their_bits():
    from draftwise.engine.kernels.cpu import QuantizedLinear

    generator = torch.Generator().manual_seed(0)
    weight, x, bias = (torch.randn(size, generator=generator) for size in ((330, 576), (33, 576), (330,)))
    parts = [matrix_of("q4", round_weights("q4", weight[:192])), matrix_of("q8", round_weights("q8", weight[192:]))]
    linear, rounded = QuantizedLinear(parts, bias), quantize_inputs(x)[1]
    together = linear(x)
    expected = rounded.double() @ torch.cat([values_of(part) for part in parts]).double().T + bias
    torch.testing.assert_close(together.double(), expected, rtol=1e-5, atol=1e-4)
    for rows in (1, 2, 3, 5, 8, 17):
        assert torch.equal(linear(x[:rows]), together[:rows])
    assert torch.equal(linear(x[7:8]), together[7:8])


@needs_products
@pytest.mark.parametrize("how", ["int8", "int4"])
def test_a_checkpoint_is_rounded_while_it_is_loaded(tiny_target: Path, run_paged, how):
    exact = load_model(tiny_target, dtype="float32", device="cpu")
    model = load_model(tiny_target, device="cpu", quantization=how)
    assert model.is_quantized
    assert not exact.is_quantized
    logits = {}
    for each in (exact, model):
        ((hidden,),) = run_paged(each, [[1, 2, 3, 4, 5]], [[5]])
        logits[each] = each.logits(hidden)
    assert logits[model].dtype == torch.float32
    error = (logits[model] - logits[exact]).norm() / logits[exact].norm()
    assert 0 < error < (0.06 if how == "int8" else 0.5)


def test_without_such_instructions_it_runs_as_before_and_says_so(tiny_target: Path, monkeypatch):
    monkeypatch.setattr(weight_loading, "_multiplies_blocks", lambda: False)
    model = load_model(tiny_target, device="cpu", quantization="int8")
    assert not model.is_quantized
    assert [note.code for note in model.notes] == ["no-integer-products"]


@pytest.mark.parametrize(
    ("machine", "features", "mode"),
    [
        ("x86_64", "+avx2,+fma,+f16c,+avx512vnni,+avx512bw,+avx512vl", "avx512_vnni"),
        ("x86_64", "+avx2,+fma,+f16c,+avxvnni,-avx512vnni", "avx_vnni"),
        ("x86_64", "+avx2,+fma,+f16c,-avxvnni,-avx512vnni", "avx2"),
        ("x86_64", "+avx,-avx2,+fma", None),
        ("aarch64", "+neon,+dotprod", "dotprod"),
        ("aarch64", "+neon", None),
        ("riscv64", "", None),
    ],
)
def test_the_processor_decides(machine, features, mode):
    found = cpu_vectors._find_mode(machine, features)
    assert (found and found.name) == mode


def test_numbas_settings_decide_before_the_processor(monkeypatch):
    """LLVM ends the process if a kernel uses instructions that numba was told to leave out."""
    monkeypatch.setattr(cpu_vectors.config, "CPU_FEATURES", "+sse2")
    assert cpu_vectors.find_mode() is None
    monkeypatch.setattr(cpu_vectors.config, "CPU_FEATURES", "+avx2,+fma,+f16c")
    monkeypatch.setattr(cpu_vectors.platform, "machine", lambda: "x86_64")
    assert cpu_vectors.find_mode().name == "avx2"


@pytest.mark.parametrize("kind", LAYOUTS)
def test_products_compile_to_dot_products_on_arm(kind: str):
    """Emulated by qemu, their bits were those of AVX2 and AVX-512; here only the code is looked at."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = ir.Module()
    module.triple = "aarch64-linux-gnu"
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 6), "tile")
    builder = ir.IRBuilder(function.append_basic_block())
    cpu_vectors._tile(builder, cpu_vectors._MODES["dotprod"], kind, 2, tuple(function.args))
    builder.ret_void()
    machine = llvm.Target.from_triple(module.triple).create_target_machine(features="+neon,+dotprod", opt=2)
    code = machine.emit_assembly(llvm.parse_assembly(str(module)))
    assert code.count("sdot") >= 2 * 4 * 8, "two rows, four parts of a group, eight vectors of a block"


def test_heads_and_embeddings_keep_eight_bits():
    source = RoundedBlocks("q4")
    assert source.kind_of("model.layers.0.mlp.down_proj.weight") == "q4"
    assert {source.kind_of(name) for name in ("lm_head.weight", "model.embed_tokens.weight")} == {"q8"}


@needs_products
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_all_layers_at_once_compute_what_one_after_the_other_does(save_tiny, run_paged, family):
    """The same bits, however a prompt is cut, and on any number of threads."""
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    path, _ = save_tiny(family, intermediate_size=288, **sizes)
    model = load_model(path, device="cpu", quantization="int8")
    at_once, model._at_once = model._at_once, None
    tokens, aux = [list(range(1, 40)), [7, 8, 9]], (0, 1, 2)
    one_by_one = run_paged(model, tokens, [[39], [3]], aux_layers=aux)
    assert at_once is not None
    model._at_once = at_once
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for cuts in ([[39], [3]], [[1] * 39, [3]], [[5, 34], [1, 1, 1]]):
                result = run_paged(model, tokens, cuts, aux_layers=aux)
                for ours, theirs in zip(result, one_by_one, strict=True):
                    assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))
    finally:
        torch.set_num_threads(before)
