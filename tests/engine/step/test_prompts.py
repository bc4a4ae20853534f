"""Which passes over prompts are padded to a size, and what they compute then."""

from types import SimpleNamespace

import pytest

from draftwise import LLM, SamplingParams
from draftwise.engine.step.prompts import PromptSize, prompt_sizes
from draftwise.engine.step.scheduler import Chunk

SIZES = (PromptSize(16, 1), PromptSize(16, 8), PromptSize(32, 1), PromptSize(32, 8))


def chunks(*spans):
    return [Chunk(SimpleNamespace(tokens=[1] * 100), start, length) for start, length in spans]


@pytest.mark.parametrize(
    ("spans", "size"),
    [
        ([(0, 1)], SIZES[0]),
        ([(40, 16)], SIZES[0]),
        ([(0, 17)], SIZES[2]),
        ([(0, 8), (3, 8)], SIZES[1]),
        ([(0, 30), (0, 1)], SIZES[3]),
        ([(0, 33)], None),
        ([(0, 1)] * 9, None),
        ([(80, 10)], SIZES[0]),
        ([(85, 10)], None),  # 16 rows from 85 on end behind the last page
        ([(85, 10), (0, 5)], SIZES[1]),
    ],
)
def test_the_smallest_size_with_room_for_padding_behind_the_last_prompt(spans, size):
    assert PromptSize.of(chunks(*spans), SIZES, reach=96) == size


def test_sizes_are_no_larger_than_a_step():
    sizes = prompt_sizes(max_num_seqs=4, max_num_batched_tokens=128)
    assert sizes == tuple(sorted(sizes))
    assert {size.num_rows for size in sizes} == {16, 32, 64, 96, 128}
    assert {size.num_seqs for size in prompt_sizes(max_num_seqs=1, max_num_batched_tokens=64)} == {1}


def test_one_graph_serves_all_prompts_of_a_size(tiny_target):
    """What a graph does again is what its first pass did, with other numbers in the same tensors."""
    prompts = [[5, 7, 9, 5, 7, 9, 5, 7], [3] * 11, [8, 6, 4, 2], [2] * 30, [1, 2] * 60]
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)

    def generate(llm):
        alone = [llm.generate([prompt], params)[0] for prompt in prompts]
        return [output.outputs[0].token_ids for output in (*alone, *llm.generate(prompts, params))]

    settings = {"dtype": "float64", "device": "cpu", "enable_prefix_caching": False, "max_model_len": 160}
    expected = generate(LLM(str(tiny_target), lag=0, **settings))
    llm = LLM(str(tiny_target), lag=1, **settings)
    llm.engine.runner.prompt_sizes = prompt_sizes(max_num_seqs=8, max_num_batched_tokens=192)
    work = {}

    def replay(key, given):
        return work.setdefault(key, given)()

    llm.engine.runner.graphs.run = replay
    assert generate(llm) == expected
    used = {key[1] for key in work if key[0] == "prompts"}
    assert used == {PromptSize(16, 1), PromptSize(32, 1), PromptSize(128, 1), PromptSize(192, 8)}
