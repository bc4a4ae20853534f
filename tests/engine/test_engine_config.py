"""Settings: names, choices and numbers, every fault at once."""

import pytest

from draftwise.core import InvalidSetup
from draftwise.engine.engine_config import EngineConfig, Limits


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"gpu_memory_utilisation": 0.9}, "gpu_memory_utilisation is not an engine setting. Did you mean gpu_memory_"),
        ({"gpu_memory_utilization": 90}, "more than 0 and at most 1, got 90"),
        ({"gpu_memory_utilization": 0}, "more than 0 and at most 1, got 0"),
        ({"gpu_memory_utilization": True}, "more than 0 and at most 1, got True"),
        (
            {"kv_cache_dtype": "fp8_e4m2"},
            "kv_cache_dtype is 'fp8_e4m2', which is not one of its values. Did you mean fp8_e4m3?",
        ),
        ({"quantization": "awq"}, "quantization is 'awq', which is not one of its values. Known: fp8, int8, int4."),
        ({"load_format": "dumy"}, "Did you mean dummy?"),
        ({"device": "metal"}, "Known: auto, cpu, cuda."),
        ({"cudagraph_capture_sizes": [4, 0]}, "positive integers"),
        ({"cudagraph_capture_sizes": []}, "positive integers"),
        ({"block_size": 0}, "block_size must be positive, got 0"),
    ],
)
def test_a_bad_setting_is_named_with_a_way_out(settings, words):
    with pytest.raises(InvalidSetup) as caught:
        EngineConfig.from_settings(model="m", **settings)
    assert words in str(caught.value)


def test_all_faults_are_told_at_once():
    with pytest.raises(InvalidSetup) as caught:
        EngineConfig.from_settings(model="m", max_num_seqs=0, load_format="x", max_num_seq=3)
    assert [finding.code for finding in caught.value.findings] == ["unknown-setting", "not-positive", "unknown-choice"]


def test_capture_sizes_are_ascending_and_none_stands_for_the_default():
    config = EngineConfig.from_settings(model="m", cudagraph_capture_sizes=[8, 1, 8], quantization=None)
    assert config.cudagraph_capture_sizes == (1, 8)
    assert config.quantization is None
    assert EngineConfig.from_settings(model="m").cudagraph_capture_sizes is None


def test_sizes_for_graphs_that_are_switched_off_are_refused() -> None:
    with pytest.raises(InvalidSetup, match="cudagraph_capture_sizes sets the batches to capture"):
        EngineConfig.from_settings(enforce_eager=True, cudagraph_capture_sizes=[1, 2])


def test_a_large_gpu_computes_more_at_once_than_a_small_one_and_that_more_than_a_cpu():
    limits = [Limits.of_device(memory) for memory in (None, 24 << 30, 80 << 30)]
    assert [each.max_num_seqs for each in limits] == sorted({each.max_num_seqs for each in limits})
    assert [each.max_num_batched_tokens for each in limits] == [2048, 2048, 8192]
