"""The size of the page pool: vLLM's arithmetic on a GPU, and errors that say what to change."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from draftwise.core import InvalidSetup, ModelShape
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.memory import pool_size as memory
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.memory.pool_size import DeviceMemory, activation_bytes, graph_budget, num_pages
from draftwise.engine.step.capture import plan_capture

GIB = 2**30
RECORDED = Path(__file__).parents[3] / "benchmarks/h200/results/vllm_memory.json"
CASES = {"base": 0, "base-tokens2048": 0, "base-util0.5": 0, "base-seqs64": 0, "base-fp8kv": 0, "base-fp8": 0}
CASES |= {"eagle3-k3": 3, "eagle3-k3-tokens2048": 3, "draft1b-k4": 4, "dflash-k7": 7}
SHAPE = ModelShape(
    hidden_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=128,
    vocab_size=256,
    max_position_embeddings=4096,
)


def model_on(device):
    return SimpleNamespace(shape=SHAPE, dtype=torch.bfloat16, device=torch.device(device))


def config(**settings):
    return EngineConfig.from_settings(model="m", max_model_len=1024, **settings)


PAGE = 16 * 2 * 2 * 2 * 16 * 2
"""Bytes of a page of SHAPE in bfloat16: tokens, layers, keys and values, heads, values, bytes."""


@pytest.fixture
def device_memory(monkeypatch):
    """A GPU of 1 GiB that `num_pages` sees, with 256 MiB of weights."""
    given = DeviceMemory(total=GIB, share=0, free=GIB * 3 // 4, weights=GIB // 4, activations=0, graphs=0)

    def read(_, share, activations, graphs):
        return replace(given, share=share, activations=activations, graphs=graphs)

    monkeypatch.setattr(memory, "read_device_memory", read)
    monkeypatch.setattr(memory, "_LIBRARIES_BYTES", 2**20)


@pytest.mark.parametrize("case", CASES)
def test_the_pool_is_at_least_97_percent_of_vllms(case):
    row = next(each for each in json.loads(RECORDED.read_text()) if each["case"] == case)
    shape, k = ModelShape.from_hf_config(row["target_config"]), CASES[case]
    drafter = row["drafter_config"] and ModelShape.from_hf_config(row["drafter_config"])
    seqs = row["max_num_seqs"]
    activations = activation_bytes(
        shape,
        rows=row["max_num_batched_tokens"],
        logits_rows=seqs * (k + 1),
        bytes_per_value=2,
        num_aux_layers=3 if k else 0,
    )
    per_seq = (k + 1) * shape.vocab_size * 10
    graphs = plan_capture(seqs, ks=(k,), kernels_per_graph=400, activation_bytes_per_seq=per_seq).num_bytes
    free = row["init_snapshot"]["free_memory"] - row["weights"]
    device = DeviceMemory(
        total=row["init_snapshot"]["total_memory"],
        share=row["gpu_memory_utilization"],
        free=free,
        weights=row["weights"],
        activations=activations,
        graphs=graphs,
    )
    token = shape.kv_bytes_per_token(1 if case == "base-fp8kv" else 2)
    token += drafter.kv_bytes_per_token(2) if drafter else 0
    assert 0.97 <= device.pool_bytes / token / row["logged_kv_tokens"] < 1.03


@pytest.mark.usefixtures("device_memory")
def test_on_a_gpu_everything_else_is_taken_off_the_share():
    pages = num_pages(config(), model_on("cuda"), activation_bytes=64 * 2**20, graph_bytes=32 * 2**20)
    expected = int(GIB * 0.9) - GIB // 4 - (64 + 32 + 1) * 2**20
    assert pages == expected // PAGE - 1


@pytest.mark.usefixtures("device_memory")
def test_fp8_doubles_the_pages_and_a_proposers_state_takes_its_part():
    plain = num_pages(config(), model_on("cuda"))
    assert num_pages(config(kv_cache_dtype="fp8"), model_on("cuda")) - 2 * plain in (1, 2)
    assert num_pages(config(), model_on("cuda"), extra_bytes_per_token=PAGE // 16) == (plain + 1) // 2 - 1


def test_memory_held_by_others_is_not_handed_out():
    held = DeviceMemory(total=GIB, share=0.9, free=GIB // 2, weights=GIB // 4, activations=0, graphs=0)
    assert held.pool_bytes == GIB // 2 - memory._LIBRARIES_BYTES
    assert held.share_for(GIB) is None
    assert "only 0.50 GiB are free" in str(held)


@pytest.mark.usefixtures("device_memory")
def test_what_does_not_fit_is_told_item_by_item_with_ways_out():
    with pytest.raises(InvalidSetup) as caught:
        num_pages(config(gpu_memory_utilization=0.26), model_on("cuda"), activation_bytes=9 * 2**20)
    text = str(caught.value)
    assert "less than one sequence of 1024" in text
    assert "26% of 1.00 GiB, less weights 0.25 GiB, work space 0.01 GiB" in text
    assert "raise gpu_memory_utilization to 0.27" in text
    assert "use kv_cache_dtype or quantization fp8" in text


@pytest.mark.usefixtures("device_memory")
def test_the_share_that_an_error_asks_for_is_enough():
    with pytest.raises(InvalidSetup) as caught:
        num_pages(config(gpu_memory_utilization=0.2), model_on("cuda"))
    share = float(str(caught.value).partition("gpu_memory_utilization to ")[2].partition(";")[0])
    assert num_pages(config(gpu_memory_utilization=share), model_on("cuda")) >= 1024 // 16
    with pytest.raises(InvalidSetup):
        num_pages(config(gpu_memory_utilization=share - 0.01), model_on("cuda"))


@pytest.mark.usefixtures("device_memory")
@pytest.mark.parametrize("share", [0.26, 0.3, 0.9])
def test_graphs_that_stay_in_their_budget_leave_room_for_a_sequence(share):
    settings = config(gpu_memory_utilization=share)
    budget = graph_budget(settings, model_on("cuda"), activation_bytes=2**20)
    assert budget > 0
    pages = num_pages(settings, model_on("cuda"), activation_bytes=2**20, graph_bytes=budget)
    assert pages == 1024 // 16 + 1, "just that, when they use all of it"


@pytest.mark.usefixtures("device_memory")
def test_graphs_do_not_take_from_a_pool_that_was_asked_for():
    free = graph_budget(config(), model_on("cuda"))
    asked = graph_budget(config(kv_cache_memory_bytes=2**29), model_on("cuda"))
    assert asked == free + (1024 // 16 + 2) * PAGE - 2**29
    assert graph_budget(config(kv_cache_memory_bytes=GIB), model_on("cuda")) == 0
    assert graph_budget(config(), model_on("cpu")) is None


def test_given_sizes_go_before_the_share():
    assert num_pages(config(kv_cache_memory_bytes=100 * PAGE), model_on("cuda")) == 100
    assert num_pages(config(num_gpu_blocks_override=77), model_on("cuda")) == 77


def test_on_a_cpu_no_more_than_the_sequences_need():
    assert num_pages(config(max_num_seqs=3, gpu_memory_utilization=0.1), model_on("cpu")) == 3 * 1024 // 16


def test_the_bound_grows_with_what_it_bounds():
    base = {"rows": 2048, "logits_rows": 16, "bytes_per_value": 2}
    small = activation_bytes(SHAPE, **base)
    assert activation_bytes(SHAPE, **base | {"rows": 4096}) > small
    assert activation_bytes(SHAPE, **base | {"logits_rows": 10**6}) > 10**6 * SHAPE.vocab_size * 10


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system does not tell of memory")
def test_a_page_takes_memory_when_something_is_stored_there():
    def resident_kib() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

    before = resident_kib()
    kv = PagedKV(
        SHAPE, num_pages=2**30 // (16 * SHAPE.kv_bytes_per_token(4)), block_size=16, dtype=torch.float32, device="cpu"
    )
    kv.store(0, torch.tensor([5]), torch.ones(1, 2, SHAPE.num_kv_heads, SHAPE.head_dim))
    assert kv.num_bytes > 2**29
    assert resident_kib() - before < 2**17
    assert kv.layers[0].flatten(0, 1)[5].eq(1).all()
    assert not kv.layers[0][1].any()
