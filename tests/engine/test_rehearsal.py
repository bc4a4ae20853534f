"""A rehearsal goes through what requests will need, and leaves no trace."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from tests.support.every_method import make_config
from tests.support.tiny_models import write_checkpoint

from draftwise import LLM, SamplingParams
from draftwise.engine.rehearsal import Rehearsal

PROMPTS = [[5, 7, 9, 5, 7, 9, 5, 7], [3] * 11, [8, 6, 4, 2]]
KINDS = (
    SamplingParams(temperature=0, max_tokens=6, ignore_eos=True),
    SamplingParams(temperature=1, max_tokens=6, ignore_eos=True, seed=4),
    SamplingParams(temperature=1, top_p=0.8, max_tokens=6, ignore_eos=True, seed=4),
)


class Graphs:
    """Stands for CUDA graphs: counts what is run, and the layers of what would be captured."""

    enabled = True
    paused = False

    def __init__(self, model):
        self.counts, self.captured, self.model = Counter(), {}, model

    def run(self, key, work):
        if self.counts[key] and not self.paused:
            self.captured.setdefault(key, len(self.model.weights.layers))
        self.counts[key] += 1
        return work()


def open_llm(target, spec=None, **settings):
    """Open an engine whose steps are padded and uniform, as on a GPU."""
    settings = {"max_model_len": 96, "max_num_seqs": 5, "max_num_batched_tokens": 64} | settings
    return LLM(str(target), speculative_config=spec, lag=1, dtype="float32", device="cpu", **settings)


def generate(llm):
    outputs = [llm.generate(PROMPTS, params) for params in KINDS]
    return [output.outputs[0].token_ids for each in outputs for output in each], llm.get_metrics()


@pytest.mark.parametrize("method", [None, "ngram", "suffix", "draft_model", "eagle3", "medusa", "dflash"])
def test_answers_and_counters_are_those_without_it(method, tiny_target, tiny_draft, tmp_path):
    spec = make_config(method, tiny_target, tiny_draft, tmp_path / "drafter") if method else None
    expected = generate(open_llm(tiny_target, spec))
    llm = open_llm(tiny_target, spec)
    Rehearsal(llm.engine).run(briefly=True)
    Rehearsal(llm.engine).run()
    assert generate(llm) == expected


@pytest.mark.parametrize("spec", [None, {"method": "ngram", "num_speculative_tokens": 2}])
def test_every_step_of_plain_requests_has_been_captured_with_all_layers(spec, tmp_path):
    llm = open_llm(write_checkpoint(tmp_path / "target", seed=1, num_layers=4), spec)
    graphs = llm.engine.runner.graphs = Graphs(llm.engine.runner.model)
    Rehearsal(llm.engine).run()
    rehearsed, graphs.counts = dict(graphs.captured), Counter()
    for count in range(1, 6):
        for params in KINDS:
            llm.generate([[count]] * count, params)
    llm.generate([[1]] * 3, list(KINDS))
    for params in (*KINDS, KINDS):  # some start while others decode
        kinds = params if isinstance(params, tuple) else (params,)
        llm.generate([[1]] * 12, [replace(kinds[i % len(kinds)], max_tokens=2 + i % 5) for i in range(12)])
    assert {key[0] for key in graphs.counts} == {"step", "prompts", "draft", "end"}
    assert set(graphs.counts) <= set(rehearsed)
    assert set(rehearsed.values()) == {4}


def test_what_surrounds_large_passes_has_been_captured(tiny_target, monkeypatch):
    """More sequences share these than share a captured one."""
    monkeypatch.setattr("draftwise.engine.step.prompt_passes._MOST_DECODE_ROWS", 2)
    llm = open_llm(tiny_target, max_model_len=128, max_num_batched_tokens=100)
    runner = llm.engine.runner
    assert max(size.num_decodes for size in runner.prompt_sizes) == 2
    graphs = runner.graphs = Graphs(runner.model)
    Rehearsal(llm.engine).run()
    rehearsed, graphs.counts = set(graphs.captured), Counter()
    params = [SamplingParams(temperature=0, max_tokens=2 + i, ignore_eos=True) for i in range(8)]
    llm.generate([[1 + i] * 96 if i > 3 else [1 + i] for i in range(8)], params)
    drafted = {key[1].size for key in graphs.counts if key[0] == "draft"}
    assert max(drafted) > 2
    assert set(graphs.counts) <= rehearsed


def test_a_brief_one_captures_nothing(tiny_target):
    llm = open_llm(tiny_target)
    graphs = llm.engine.runner.graphs = Graphs(llm.engine.runner.model)
    Rehearsal(llm.engine).run(briefly=True)
    assert not graphs.counts
    assert llm.engine.runner.graphs is graphs


@pytest.mark.parametrize("settings", [{"max_model_len": 2}, {"max_num_seqs": 1}, {"max_num_batched_tokens": 1}])
def test_the_smallest_engines(settings, tiny_target):
    llm = open_llm(tiny_target, **settings)
    Rehearsal(llm.engine).run()
    assert len(llm.generate([[5]], SamplingParams(max_tokens=1))[0].outputs[0].token_ids) == 1


def test_log_probabilities_have_few_kinds_of_graphs(tiny_target):
    """One for up to 5 and one for up to 20; steps that rank more share the one of requests on the host."""
    llm = open_llm(tiny_target)
    graphs = llm.engine.runner.graphs = Graphs(llm.engine.runner.model)
    for logprobs in (0, 1, 5, 6, 20, 21, 30):
        llm.generate([[1]], SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, logprobs=logprobs))
    kinds = {(key[0], key[1].num_ranked) for key in graphs.counts if key[0] != "prompts"}
    assert kinds == {("step", 5), ("step", 20), ("pass", None)}


@pytest.mark.parametrize(("dtype", "pads"), [("float32", True), ("float64", False)])
def test_passes_over_prompts_are_captured_only_where_a_kernel_attends(dtype, pads, tiny_target):
    """Torch, which attends in float64, would repeat the lengths of the prompts at the capture."""
    llm = LLM(str(tiny_target), lag=1, dtype=dtype, device="cpu", max_model_len=96)
    assert bool(llm.engine.runner.prompt_sizes) == pads


@pytest.mark.parametrize(("draft_sample_method", "shares"), [("greedy", True), ("probabilistic", False)])
def test_drafts_with_distributions_share_no_pass_with_prompts(draft_sample_method, shares, tiny_target, tiny_draft):
    spec = {"method": "draft_model", "model": str(tiny_draft), "num_speculative_tokens": 2}
    runner = open_llm(tiny_target, spec | {"draft_sample_method": draft_sample_method}).engine.runner
    assert any(size.num_decodes for size in runner.prompt_sizes) == shares
    assert bool(runner.max_num_rows) == shares
