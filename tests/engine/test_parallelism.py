"""More than one GPU: the same finding from every entrance, with vLLM's command."""

import pytest

from draftwise import LLM
from draftwise.core import InvalidSetup, SpecConfig
from draftwise.engine.engine_config import one_gpu_settings, vllm_setup
from draftwise.setups.write import write_shell

NGRAM = {"method": "ngram", "num_speculative_tokens": 5}


def test_one_of_each_is_what_there_is():
    settings = {"tensor_parallel_size": 1, "data_parallel_size": None, "max_num_seqs": 4}
    assert one_gpu_settings("m", None, settings) == {"max_num_seqs": 4}


def test_llm_names_the_command_before_it_loads_anything():
    with pytest.raises(InvalidSetup) as caught:
        LLM("/no/such/model", speculative_config=NGRAM, tensor_parallel_size=2, max_model_len=4096)
    (finding,) = caught.value.findings
    assert (finding.code, finding.where) == ("more-than-one-gpu", "tensor_parallel_size")
    assert finding.fix == (
        "Run: vllm serve /no/such/model --tensor-parallel-size 2 --max-model-len 4096 "
        """--speculative-config '{"method": "ngram", "num_speculative_tokens": 5}'"""
    )


def test_the_command_has_vllms_flags_only():
    settings = {
        "device": "cuda",
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "pipeline_parallel_size": 2,
        "tensor_parallel_size": 1,
        "quantization": None,
        "cudagraph_capture_sizes": [1, 2],
    }
    expected = "vllm serve 'my model' --enforce-eager --no-enable-prefix-caching --pipeline-parallel-size 2"
    assert write_shell(vllm_setup("my model", None, settings)) == expected
    assert vllm_setup("m", SpecConfig.parse(NGRAM), {}).spec == SpecConfig.parse(NGRAM)
