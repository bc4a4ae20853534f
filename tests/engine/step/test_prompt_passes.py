"""Which passes over prompts are padded to a size, and what they compute then."""

from dataclasses import fields, is_dataclass
from types import SimpleNamespace

import pytest
import torch
from tests.support.every_method import make_config

from draftwise import LLM, SamplingParams
from draftwise.engine.step.prompt_passes import MixedDecode, PromptSize, choose_size, prompt_sizes
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
    assert choose_size(chunks(*spans), SIZES, reach=96) == size


def test_sizes_are_no_larger_than_a_step():
    sizes = prompt_sizes(max_num_seqs=4, max_num_batched_tokens=128)
    assert sizes == tuple(sorted(sizes))
    assert {size.num_rows for size in sizes} == {16, 32, 64, 96, 128}
    assert {size.num_seqs for size in prompt_sizes(max_num_seqs=1, max_num_batched_tokens=64)} == {1}


@pytest.mark.parametrize("num_decodes", [0, 8])
def test_little_is_padded(num_decodes):
    mixed = MixedDecode(count=num_decodes, padded=8, width=4, longest=9) if num_decodes else None
    sizes = prompt_sizes(max_num_seqs=8, max_num_batched_tokens=1024, widths=[4])
    for rows in range(129, 1025):
        size = choose_size(chunks((0, rows - 4 * num_decodes)), sizes, reach=2000, mixed=mixed)
        assert 0 <= size.num_rows - rows < (32 if num_decodes and 256 <= rows <= 480 else 64)


def test_decoding_sequences_of_few_rows_have_sizes_of_their_own():
    sizes = prompt_sizes(max_num_seqs=64, max_num_batched_tokens=300, widths=[1, 4, 200])
    assert {(size.num_decodes, size.width) for size in sizes} == {(0, 0), (64, 1), (32, 4)}

    def choose(count: int, padded: int, width: int, longest: int = 10, *, length: int = 40) -> PromptSize | None:
        mixed = MixedDecode(count=count, padded=padded, width=width, longest=longest)
        return choose_size(chunks((0, length)), sizes, reach=400, mixed=mixed, max_num_rows=300)

    assert choose(15, 16, 4) == PromptSize(128, 8, 32, 4)
    assert choose(40, 40, 4) is None  # more than a graph has
    assert choose(40, 40, 4, length=135) == PromptSize(295, 1, 40, 4)
    assert choose(1, 256, 4, length=295) is None
    assert choose(33, 40, 4) is None
    assert choose(40, 40, 2) is None  # no step drafts one token
    assert choose(32, 32, 4, 4096) == PromptSize(192, 8, 32, 4)
    assert choose(2, 2, 4, 4097) is None
    assert choose(5, 6, 4, length=270) == PromptSize(290, 1, 8, 4)  # more rows than graphs have
    assert choose(5, 6, 4, length=281) is None


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
    work = replay(llm)
    assert generate(llm) == expected
    used = {key[1] for key in work if key[0] == "prompts"}
    assert used == {PromptSize(16, 1), PromptSize(32, 1), PromptSize(128, 1), PromptSize(192, 8)}


@pytest.mark.parametrize("method", [None, "ngram", "suffix", "draft_model", "eagle3", "medusa", "dflash", "mtp"])
@pytest.mark.parametrize("largest", [64, 128])
def test_prompts_beside_decoding_sequences(largest, method, tiny_target, tiny_draft, tmp_path):
    """One pass serves both; all that was captured is done again with other numbers in the same tensors."""
    prompts = [[5, 7, 9, 5, 7, 9, 5, 7], [3] * 11, [8, 6, 4, 2], [2] * 30, [1, 2] * 36, [4], [9, 9, 8, 8] * 3]
    kinds = ({"temperature": 0}, {"temperature": 0.9, "seed": 3}, {"temperature": 0.9, "top_k": 5, "seed": 4})
    more = ({}, {"logprobs": 3}, {"presence_penalty": 0.5}, {"prompt_logprobs": 2}, {"num_speculative_tokens": 1})
    params = [
        SamplingParams(max_tokens=4 + 3 * i % 11, ignore_eos=True, **kinds[i % 3], **more[i % 5]) for i in range(21)
    ]
    spec = make_config(method, tiny_target, tiny_draft, tmp_path / "drafter") if method else None
    settings = {"dtype": "float64", "device": "cpu", "max_model_len": 160, "max_num_seqs": 4}

    def generate(llm):
        return [output.outputs[0].token_ids for output in llm.generate(prompts * 3, params)]

    expected = generate(LLM(str(tiny_target), lag=0, speculative_config=spec, **settings))
    llm = LLM(str(tiny_target), lag=1, speculative_config=spec, **settings)
    width = 1 + (llm.engine.spec.k if llm.engine.spec else 0)
    sizes = prompt_sizes(max_num_seqs=4, max_num_batched_tokens=128, widths=[width])
    llm.engine.runner.prompt_sizes = tuple(size for size in sizes if size.num_rows <= largest)
    llm.engine.runner.max_num_rows = 128
    work, passed = replay(llm), []
    over_many = llm.engine.runner._uncaptured_pass
    llm.engine.runner._uncaptured_pass = lambda batch: passed.append(batch.size.num_rows) or over_many(batch)
    assert generate(llm) == expected
    used = {key[1].num_rows for key in work if key[0] == "prompts" and key[1].num_decodes}
    assert used == {64, 128} - ({128} if largest < 128 else set())
    assert all(64 < num_rows < 128 for num_rows in passed)
    assert bool(passed) == (largest < 128)
    assert {"draft", "end", "logits"} <= {key[0] for key in work}


@pytest.mark.parametrize("method", [None, "eagle3"])
def test_more_sequences_than_graphs_have_share_large_passes(method, tiny_target, tiny_draft, tmp_path, monkeypatch):
    monkeypatch.setattr("draftwise.engine.step.prompt_passes._MOST_DECODE_ROWS", 4)
    spec = make_config(method, tiny_target, tiny_draft, tmp_path / "drafter") if method else None
    settings = {"dtype": "float64", "device": "cpu", "max_model_len": 160, "max_num_seqs": 8}
    prompts = [[1 + i % 7, 2 + i % 5] * (20 + i % 9) for i in range(24)]
    params = [SamplingParams(temperature=0, max_tokens=4 + 3 * i % 11, ignore_eos=True) for i in range(24)]
    expected = [output.outputs[0].token_ids for output in LLM(str(tiny_target), **settings).generate(prompts, params)]
    llm = LLM(str(tiny_target), lag=1, speculative_config=spec, **settings)
    runner, shared = llm.engine.runner, []
    width = 1 + (llm.engine.spec.k if llm.engine.spec else 0)
    runner.prompt_sizes = prompt_sizes(max_num_seqs=8, max_num_batched_tokens=64, widths=[width])
    runner.max_num_rows = 256
    run = runner._run_mixed
    runner._run_mixed = lambda *work: shared.append((len(work[1]), work[3])) or run(*work)
    replay(llm)
    assert [output.outputs[0].token_ids for output in llm.generate(prompts, params)] == expected
    assert any(count * width > 4 and size.num_rows > 64 for count, size in shared)


def replay(llm):
    """Let an engine's work be done again as graphs do it: as the first time, in the same tensors, of which each graph
    overwrites those that others have returned. Rows of passes over prompts are in no graph's memory."""
    work, results = {}, {}

    def run(key, given):
        for other in results:
            spoil(results[other])
        results.clear()
        result = work.setdefault(key, given)()
        if key[0] not in ("prompts", "step", "end"):  # a device would have copied what goes to the host by now
            results[key] = result
        return result

    llm.engine.runner.graphs.run = run
    return work


def spoil(result):
    if isinstance(result, torch.Tensor):
        result.fill_(-(2**20))
    elif isinstance(result, tuple):
        for each in result:
            spoil(each)
    elif is_dataclass(result):
        for field in fields(result):
            if field.name not in ("slots_B", "draft"):  # the slots, and drafts of the host, are in no graph's memory
                spoil(getattr(result, field.name))
