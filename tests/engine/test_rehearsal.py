"""A rehearsal goes through what requests will need, and leaves no trace."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.support.every_method import make_config

from draftwise import LLM, SamplingParams

PROMPTS = [[5, 7, 9, 5, 7, 9, 5, 7], [3] * 11, [8, 6, 4, 2]]
KINDS = (
    SamplingParams(temperature=0, max_tokens=6, ignore_eos=True),
    SamplingParams(temperature=1, max_tokens=6, ignore_eos=True, seed=4),
    SamplingParams(temperature=1, top_p=0.8, max_tokens=6, ignore_eos=True, seed=4),
)


class Graphs:
    """Stands for CUDA graphs: counts what would be captured."""

    enabled = True

    def __init__(self):
        self.counts = Counter()

    def run(self, key, work):
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
    llm.engine.rehearsal().run(briefly=True)
    llm.engine.rehearsal().run()
    assert generate(llm) == expected


@pytest.mark.parametrize("spec", [None, {"method": "ngram", "num_speculative_tokens": 2}])
def test_every_step_of_plain_requests_has_been_run_often_enough_to_be_captured(spec, tiny_target):
    llm = open_llm(tiny_target, spec)
    graphs = llm.engine.runner.graphs = Graphs()
    llm.engine.rehearsal().run()
    rehearsed, graphs.counts = graphs.counts, Counter()
    for count in range(1, 6):
        for params in KINDS:
            llm.generate([[count]] * count, params)
    llm.generate([[1]] * 3, list(KINDS))
    assert len(graphs.counts) > len(KINDS)
    assert {key for key in graphs.counts if rehearsed[key] < 2} == set()


def test_a_brief_one_captures_nothing(tiny_target):
    llm = open_llm(tiny_target)
    graphs = llm.engine.runner.graphs = Graphs()
    llm.engine.rehearsal().run(briefly=True)
    assert not graphs.counts
    assert llm.engine.runner.graphs is graphs


@pytest.mark.parametrize("settings", [{"max_model_len": 2}, {"max_num_seqs": 1}, {"max_num_batched_tokens": 1}])
def test_the_smallest_engines(settings, tiny_target):
    llm = open_llm(tiny_target, **settings)
    llm.engine.rehearsal().run()
    assert len(llm.generate([[5]], SamplingParams(max_tokens=1))[0].outputs[0].token_ids) == 1


def test_log_probabilities_have_few_kinds_of_graphs(tiny_target):
    """One for up to 5 and one for up to 20; steps that rank more share the one of requests on the host."""
    llm = open_llm(tiny_target)
    graphs = llm.engine.runner.graphs = Graphs()
    for logprobs in (0, 1, 5, 6, 20, 21, 30):
        llm.generate([[1]], SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, logprobs=logprobs))
    kinds = {(key[0], key[1].num_ranked) for key in graphs.counts if key[0] != "prompts"}
    assert kinds == {("step", 5), ("step", 20), ("pass", None)}
