"""Laws of a budget, what setups resolve to, and what is said about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwise.checkpoints.config_json import find_model_config
from draftwise.core import Device, InvalidSetup, Setup, SpecConfig
from draftwise.core.budget import Budget, KVCache, KVGroup
from draftwise.core.documents import to_json
from draftwise.knowledge.gpus import get_gpu, read_gpus
from draftwise.knowledge.memory_overheads import get_batch_defaults
from draftwise.knowledge.vllm import get_release
from draftwise.plan.check.serving.cuda_graphs import capture_sizes
from draftwise.plan.size import Sizing, size
from draftwise.plan.size.kv_layout import CachedLayer, LayoutRules, lay_out
from draftwise.plan.size.memory_budget import kv_value_bytes
from draftwise.plan.size.view import contexts_of, describe_memory, items

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
EAGLE3 = {"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3}


def sized(
    target: str = LLAMA,
    spec: dict[str, Any] | None = None,
    *,
    gpu: str = "H200",
    version: str = "0.26.0",
    **flags: Any,
) -> Sizing:
    given_spec = None if spec is None else SpecConfig.keep(spec)
    env = flags.pop("env", {})
    setup = Setup(target=target, engine="vllm", engine_version=version, spec=given_spec, args=flags, env=env)
    return size(setup, gpu=gpu)


def codes(sizing: Sizing) -> set[str]:
    return {finding.code for finding in sizing.findings}


def budget_of(kv: KVCache, kv_bytes: int, **changes: Any) -> Budget:
    values: dict[str, Any] = {
        "device": kv_bytes + 200, "requested": kv_bytes + 100, "target": 60, "drafter": 10, "activations": 20,
        "non_torch": 10, "graphs": 5, "graphs_counted": 0, "buffers": 5, "buffers_counted": False, "context": 5,
        "kv": kv, "max_model_len": 4096, "max_num_seqs": 8, "in_flight": 256,
    }  # fmt: skip
    return Budget(**values | changes)


groups = st.lists(
    st.builds(
        KVGroup, num_layers=st.integers(1, 32), block_size=st.sampled_from([16, 32, 128]),
        window=st.none() | st.integers(1, 4096),
    ),
    min_size=1, max_size=4,
)  # fmt: skip


@given(groups=groups, tokens=st.integers(1, 100_000), more=st.integers(0, 1000), in_flight=st.integers(1, 8192))
def test_longer_sequences_never_hold_fewer_blocks(
    groups: list[KVGroup], tokens: int, more: int, in_flight: int
) -> None:
    cache = KVCache(groups=tuple(groups), bytes_per_block=1024, bytes_per_token=64)
    assert cache.blocks_per_sequence(tokens + more, in_flight) >= cache.blocks_per_sequence(tokens, in_flight)
    full = sum(-(-tokens // group.block_size) + 1 for group in groups)
    assert cache.blocks_per_sequence(tokens, in_flight) <= full


@given(groups=groups, blocks=st.integers(0, 100_000), sequences=st.integers(1, 64))
def test_the_longest_context_is_the_longest(groups: list[KVGroup], blocks: int, sequences: int) -> None:
    budget = budget_of(KVCache(groups=tuple(groups), bytes_per_block=64, bytes_per_token=4), blocks * 64)
    longest = budget.longest_context(sequences)
    assert longest == 0 or (budget.starts(longest) and budget.sequences(longest) >= sequences)
    assert longest <= budget.max_model_len
    if longest < budget.max_model_len:
        assert not budget.starts(longest + 1) or budget.sequences(longest + 1) < sequences


@given(kv_bytes=st.integers(0, 10**12), counted=st.booleans(), graphs=st.integers(0, 100), part=st.integers(0, 100))
def test_the_items_shown_are_the_whole_gpu(kv_bytes: int, counted: bool, graphs: int, part: int) -> None:
    cache = lay_out([CachedLayer(64)] * 4)
    budget = budget_of(
        cache, kv_bytes, buffers_counted=counted, graphs=graphs, graphs_counted=min(graphs, part), device=kv_bytes + 400
    )
    if budget.kv_bytes >= 0 and budget.reserve >= 0:
        assert sum(item.num_bytes for item in items(budget)) == budget.device


@settings(max_examples=30)
@given(full=st.integers(1, 40), sliding=st.integers(1, 40), draft=st.integers(0, 4))
def test_hybrid_groups_hold_every_layer(full: int, sliding: int, draft: int) -> None:
    layers = [CachedLayer(4096)] * full + [CachedLayer(4096, 1024)] * sliding + [CachedLayer(4096, None, True)] * draft
    cache = lay_out(layers)
    assert sum(group.num_layers for group in cache.groups) == len(layers)
    size = max(group.num_layers for group in cache.groups)
    assert cache.bytes_per_block == 16 * 4096 * size


def test_one_drafter_layer_beside_gpt_oss_no_longer_doubles_the_groups() -> None:
    layers = [CachedLayer(2048, 128)] * 12 + [CachedLayer(2048)] * 12 + [CachedLayer(2048, None, True)]
    assert len(lay_out(layers).groups) == 2
    assert len(lay_out(layers, rules=LayoutRules(pads_to_larger=False)).groups) == 3


def test_pages_that_do_not_divide_are_refused() -> None:
    with pytest.raises(InvalidSetup) as refused:
        lay_out([CachedLayer(4096, 512), CachedLayer(3072)])
    assert refused.value.findings[0].code == "kv-pages-do-not-divide"


def test_a_head_costs_kv_cache_and_is_compared_with_none() -> None:
    sizing = sized(spec=EAGLE3, gpu="L4", max_model_len=8192)
    assert sizing.budget.kv_tokens < sizing.plain.kv_tokens
    assert sizing.budget.kv.bytes_per_token == sizing.plain.kv.bytes_per_token * 33 // 32
    assert sizing.plain.drafter == 0
    assert "typical-drafter" in codes(sizing)


def test_a_method_without_weights_takes_no_weights() -> None:
    sizing = sized(spec={"method": "ngram", "num_speculative_tokens": 5})
    assert sizing.budget.drafter == 0
    assert sizing.budget.kv.bytes_per_token == sizing.plain.kv.bytes_per_token


def test_more_gpus_share_everything_but_what_is_copied() -> None:
    one, two, sixteen = (sized(tensor_parallel_size=size).budget for size in (1, 2, 16))
    assert one.target / 2 < two.target < one.target / 2 * 1.01
    assert two.kv.bytes_per_token == one.kv.bytes_per_token // 2
    assert sixteen.kv.bytes_per_token == one.kv.bytes_per_token // 8  # 8 key-value heads: each is kept twice


def test_a_latent_is_copied_to_every_gpu() -> None:
    one, eight = (sized("deepseek-ai/DeepSeek-V3", tensor_parallel_size=size).budget for size in (1, 8))
    assert one.kv.bytes_per_token == eight.kv.bytes_per_token == 61 * 576 * 2


def test_the_drafter_is_on_the_last_stage() -> None:
    spec = {"method": "draft_model", "model": "meta-llama/Llama-3.2-1B-Instruct", "num_speculative_tokens": 3}
    sizing = sized(spec=spec, version="0.33.0", gpu="L4", pipeline_parallel_size=2)
    assert sizing.budget.drafter > 0
    assert "drafter-on-last-stage" in codes(sizing)


@pytest.mark.parametrize(
    ("code", "changes", "flags"),
    [
        ("target-heads-not-divisible", {}, {"tensor_parallel_size": 3}),
        ("windows-on-some-layers", {"max_window_layers": 18}, {}),
        ("windows-on-some-layers", {"max_window_layers": None}, {}),
        ("window-without-its-layers", {"max_window_layers": 0}, {"version": "0.10.0"}),
    ],
)
def test_what_does_not_start_has_no_size(tmp_path: Path, code: str, changes: dict[str, Any], flags: Any) -> None:
    model = find_model_config("Qwen/Qwen3-8B")
    assert model is not None
    config = {**model.config, "use_sliding_window": True, "sliding_window": 4096, **changes}
    kept = {key: value for key, value in config.items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(kept), encoding="utf-8")
    with pytest.raises(InvalidSetup) as refused:
        sized(str(tmp_path), **flags)
    assert code in {each.code for each in refused.value.findings}


def test_scales_of_the_cache_are_counted() -> None:
    shape, latent = sized().request.shape, sized("deepseek-ai/DeepSeek-V3", tensor_parallel_size=8).request.shape
    assert kv_value_bytes("int8_per_token_head", shape) == pytest.approx((128 + 4) / 128)
    assert latent.latent_dim * kv_value_bytes("fp8_ds_mla", latent) == pytest.approx(656)


def test_fp8_halves_the_cache() -> None:
    assert sized(kv_cache_dtype="fp8").budget.kv.bytes_per_token * 2 == sized().budget.kv.bytes_per_token


@pytest.mark.parametrize(
    ("version", "env", "counted"),
    [
        ("0.17.1", {}, False), ("0.19.1", {}, False), ("0.21.0", {}, True), ("0.26.0", {}, False),
        ("0.19.1", {"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "1"}, True),
        ("0.21.0", {"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "0"}, False),
        ("0.26.0", {"VLLM_USE_V2_MODEL_RUNNER": "0"}, True), ("0.33.0", {}, True),
    ],
)  # fmt: skip
def test_graphs_are_counted_as_each_release_does(version: str, env: dict[str, str], counted: bool) -> None:
    budget = sized(version=version, env=env).budget
    assert (budget.graphs_counted > 0) is counted
    assert budget.graphs > budget.graphs_counted


@pytest.mark.parametrize(
    ("version", "share", "buffers"), [("0.19.1", 0.9, False), ("0.26.0", 0.92, False), ("0.27.0", 0.92, True)]
)
def test_the_plan_changes_with_the_release(version: str, share: float, buffers: bool) -> None:
    budget = sized(version=version).budget
    assert budget.requested == pytest.approx(budget.device * share)
    assert budget.buffers_counted is buffers
    assert ("size-buffers-not-counted" in codes(sized(version=version))) is not buffers


@pytest.mark.parametrize(
    ("gpu", "version", "tokens", "seqs"),
    [
        ("H200", "0.26.0", 8192, 1024), ("A100-80GB", "0.26.0", 2048, 256), ("L40S", "0.26.0", 2048, 256),
        ("B200", "0.26.0", 8192, 1024), ("B200", "0.28.0", 16384, 1024),
    ],
)  # fmt: skip
def test_batch_sizes_go_by_gpu(gpu: str, version: str, tokens: int, seqs: int) -> None:
    found = get_batch_defaults(get_gpu(gpu), get_release(version))
    assert found == {"max_num_batched_tokens": tokens, "max_num_seqs": seqs}


@pytest.mark.parametrize(
    ("version", "seqs", "k", "largest", "count"),
    [("0.26.0", 256, 0, 512, 51), ("0.26.0", 64, 0, 128, 19), ("0.12.0", 32, 3, 64, 11), ("0.26.0", 32, 3, 256, 35)],
)
def test_captured_sizes(version: str, seqs: int, k: int, largest: int, count: int) -> None:
    sizes = capture_sizes(
        get_release(version), get_gpu("H200"), max_num_seqs=seqs, max_num_batched_tokens=8192, num_speculative_tokens=k
    )
    assert (max(sizes), len(sizes)) == (largest, count)


def test_newer_releases_capture_batches_of_drafts_under_the_same_cap() -> None:
    old, new = (
        capture_sizes(
            get_release(version), get_gpu("H200"), max_num_seqs=256, max_num_batched_tokens=8192,
            num_speculative_tokens=2,
        )
        for version in ("0.28.0", "0.33.0")
    )  # fmt: skip
    assert max(old) == max(new) == 512
    assert {3, 6, 12, 504} <= set(new)
    assert not {3, 6, 12} & set(old)


def test_what_does_not_fit_is_refused_with_a_way_out() -> None:
    sizing = sized("meta-llama/Llama-3.1-70B-Instruct", gpu="H100")
    assert not sizing.budget.fits
    (error,) = [finding for finding in sizing.findings if finding.code == "does-not-fit"]
    assert "--tensor-parallel-size 4" in error.fix
    assert sized("meta-llama/Llama-3.1-70B-Instruct", gpu="H100", tensor_parallel_size=4).budget.fits
    assert {"does-not-fit", "target-takes-most"} <= codes(sizing)


def test_a_context_that_is_too_long_names_the_one_that_fits() -> None:
    sizing = sized(gpu="L4")
    (error,) = [finding for finding in sizing.findings if finding.code == "does-not-fit"]
    length = int(error.fix.split("--max-model-len ")[1].split()[0])
    assert sized(gpu="L4", max_model_len=length).budget.fits


def test_a_model_with_sliding_windows_starts_with_the_context_that_is_advised() -> None:
    model = "google/gemma-3-27b-it"
    sizing = sized(model, gpu="H100", version="0.33.0")
    (error,) = [finding for finding in sizing.findings if finding.code == "does-not-fit"]
    length = int(error.fix.split("--max-model-len ")[1].split()[0])
    assert 65536 < length < sizing.budget.max_model_len
    assert sized(model, gpu="H100", version="0.33.0", max_model_len=length).budget.fits
    assert not sized(model, gpu="H100", version="0.33.0", max_model_len=length + 16384).budget.fits


def test_a_large_drafter_is_warned_of() -> None:
    spec = {"method": "draft_model", "model": LLAMA, "num_speculative_tokens": 3}
    assert "drafter-takes-much" in codes(sized("meta-llama/Llama-3.1-70B-Instruct", spec, gpu="H100-SXM"))
    assert "drafter-takes-much" not in codes(sized("meta-llama/Llama-3.1-70B-Instruct", spec, gpu="B300"))


def test_batches_beyond_the_captured_graphs_are_warned_of() -> None:
    assert "cudagraph-cliff" in codes(sized(spec=EAGLE3, max_num_seqs=256))
    assert "cudagraph-cliff" not in codes(sized(spec=EAGLE3, max_num_seqs=128))


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 10**12}, {"hidden_size": 0}, {"num_attention_heads": 5000}, {"vocab_size": "many"},
        {"sliding_window": -1}, {"layer_types": 3}, {"rope_scaling": []}, {"kv_lora_rank": 512}, {"head_dim": 1.5},
    ],
    ids=lambda changes: next(iter(changes)),
)  # fmt: skip
def test_a_damaged_config_is_refused(changes: dict[str, Any]) -> None:
    from draftwise.knowledge.models import find_model

    model = find_model(LLAMA)
    assert model is not None
    with pytest.raises(InvalidSetup):
        sized(json.dumps({**model.config, **changes}))


def test_a_plan_that_leaves_nothing_for_what_it_does_not_count_is_warned_of() -> None:
    tight = sized(gpu="L4", max_model_len=4096, gpu_memory_utilization=0.97)
    (warning,) = [finding for finding in tight.findings if finding.code == "out-of-memory-ahead"]
    share = float(warning.fix.split()[3])
    assert "out-of-memory-ahead" not in codes(sized(gpu="L4", max_model_len=4096, gpu_memory_utilization=share))


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ({"target": "nobody/nothing"}, "unknown-target"), ({"gpu": "Voodoo2"}, "unknown-gpu"),
        ({"gpu": "0GiB"}, "unknown-gpu"), ({"gpu": "0.001GiB"}, "unknown-gpu"),
        ({"gpu": f"{10**30}GiB"}, "unknown-gpu"), ({"gpu": "2x L40S"}, "unknown-gpu"),
        ({"gpu_memory_utilization": 1.5}, "config-value"), ({"max_num_seqs": 0}, "config-value"),
        ({"gpu_memory_utilization": 1.5, "version": "0.15.0"}, "bad-utilization"),
        ({"max_num_seqs": 0, "version": "0.15.0"}, "bad-number"),
        ({"kv_cache_dtype": "turboquant_4bit_nc"}, "memory-unknown"), ({"version": "0.1"}, "unknown-release"),
        ({"quantization": "gguf"}, "unknown-precision"), ({"max_model_len": "long"}, "flag-value"),
    ],
)  # fmt: skip
def test_mistakes_are_named(flags: dict[str, Any], code: str) -> None:
    with pytest.raises(InvalidSetup) as refused:
        sized(**flags)
    assert [finding.code for finding in refused.value.findings] == [code]


@pytest.mark.parametrize("name", ["NVIDIA H200", "h200", "nvidia_h200"])
def test_gpus_go_by_many_names(name: str) -> None:
    assert get_gpu(name).name == "H200"


def test_a_gpu_can_be_its_memory_alone() -> None:
    assert get_gpu("48GiB").memory_bytes == 48 << 30
    assert get_gpu("80 GB").memory_bytes == 80 * 10**9


def test_the_device_of_a_setup_is_its_gpu() -> None:
    def on(device: Device | None) -> Budget:
        return size(Setup(target=LLAMA, engine="vllm", engine_version="0.26.0", device=device)).budget

    assert on(Device(name="NVIDIA H200", kind="cuda")) == sized().budget
    assert on(Device(name="A card", kind="cuda", memory_bytes=48 << 30)).device == 48 << 30
    with pytest.raises(InvalidSetup, match="You named no GPU"):
        on(None)


def test_every_gpu_is_found_by_its_own_name() -> None:
    assert [get_gpu(gpu.name).name for gpu in read_gpus()] == [gpu.name for gpu in read_gpus()]
    assert all(gpu.source for gpu in read_gpus())


@pytest.mark.parametrize(
    ("capability", "names"),
    [
        (70, "Tesla V100-SXM2-32GB"),
        (75, "Tesla T4"),
        (80, "A30, NVIDIA A100-SXM4-40GB, A100-80GB, A800"),
        (86, "A10, A10G, A16, A40, NVIDIA RTX A6000, RTX A5000, NVIDIA GeForce RTX 3090"),
        (89, "L4, L20, L40, L40S, NVIDIA GeForce RTX 4090, NVIDIA RTX 6000 Ada Generation"),
        (90, "H20, NVIDIA H100 80GB HBM3, H100-NVL, H200, H800, NVIDIA GH200 480GB"),
        (100, "B200, GB200"),
        (103, "B300, GB300"),
        (120, "NVIDIA GeForce RTX 5090, NVIDIA RTX PRO 6000 Blackwell Server Edition"),
        (121, "NVIDIA GB10, DGX Spark"),
        (None, "MI300X, MI325X, AMD Instinct MI355X, 48GiB"),
    ],
)
def test_compute_capabilities_are_those_of_nvidias_own_list(capability: int | None, names: str) -> None:
    assert {name: get_gpu(name).capability for name in names.split(", ")} == dict.fromkeys(
        names.split(", "), capability
    )


def test_the_json_holds_the_budget() -> None:
    sizing = sized(spec=EAGLE3, max_model_len=8192)
    shown = json.loads(json.dumps(to_json(describe_memory(sizing.budget, contexts_of(sizing)))))
    assert shown["kv_bytes"] == sizing.budget.kv_bytes
    assert shown["sequences"]["8192"] == sizing.budget.sequences(8192)


def test_the_plot_follows_the_theme_of_its_reader() -> None:
    from draftwise.reporting.memory_plot import draw

    for spec in (None, EAGLE3):
        drawn = draw(sized(spec=spec, max_model_len=8192))
        assert "<svg" in drawn
        assert "currentColor" in drawn
        assert "prefers-color-scheme" in drawn
        assert ("eagle3 k=3" in drawn) is (spec is not None)


def test_a_directory_without_weights_is_sized_by_its_shape(tmp_path: Path) -> None:
    from draftwise.knowledge.models import find_model

    model = find_model(LLAMA)
    assert model is not None
    (tmp_path / "config.json").write_text(json.dumps(dict(model.config)))
    assert sized(str(tmp_path)).budget == sized().budget
    ngram = {"method": "ngram", "num_speculative_tokens": 3}
    as_json = sized(json.dumps(dict(model.config)), ngram)
    assert (as_json.budget, as_json.plain) == (sized(spec=ngram).budget, sized().budget)


def test_a_server_with_more_sequences_than_blocks_of_states_does_not_fit() -> None:
    target = "nvidia/NVIDIA-Nemotron-Nano-9B-v2"
    flags: dict[str, Any] = {"gpu": "L4", "version": "0.33.0", "max_model_len": 4096, "max_num_seqs": 1024}
    crowded = sized(target, **flags)
    assert not crowded.budget.fits
    lack = next(each for each in crowded.findings if each.code == "does-not-fit")
    assert lack.fix == f"Set --max-num-seqs to {crowded.budget.num_blocks} or less."
    flags["max_num_seqs"] = crowded.budget.num_blocks
    assert sized("nvidia/NVIDIA-Nemotron-Nano-9B-v2", **flags).budget.fits
    assert sized(
        "nvidia/NVIDIA-Nemotron-Nano-9B-v2", **flags | {"max_num_seqs": 1024, "enforce_eager": True}
    ).budget.fits


def test_speculation_adds_states_to_every_sequence() -> None:
    next_model = "Qwen/Qwen3-Next-80B-A3B-Instruct"
    spec = {"method": "mtp", "num_speculative_tokens": 3}
    sizing = sized(next_model, spec, version="0.33.0", tensor_parallel_size=2)
    states = [group.state_blocks for group in sizing.budget.kv.groups if group.state_blocks]
    assert states == [before + 3 for before in (g.state_blocks for g in sizing.plain.kv.groups) if before]
    assert sizing.budget.sequences(1024) < sizing.plain.sequences(1024)
