"""Which batch sizes are captured, and what is said about the others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwise.engine.step.capture import capture_sizes, plan_capture
from draftwise.engine.step.passes import bucket_of
from draftwise.engine.step.prompt_passes import PromptSize

PLAIN = {"ks": (0,), "kernels_per_graph": 300, "activation_bytes_per_seq": 2**20}


def test_sizes_as_documented():
    assert capture_sizes(1) == (1,)
    assert capture_sizes(40) == (1, 2, 4, 8, 12, 16, 24, 32, 40)
    assert capture_sizes(20)[-2:] == (16, 20)


@given(st.integers(1, 2000))
def test_every_batch_has_a_bucket_that_wastes_little(most):
    sizes = capture_sizes(most)
    assert sizes == tuple(sorted(set(sizes)))
    assert (sizes[0], sizes[-1]) == (1, most)
    for batch in range(1, most + 1):
        bucket = bucket_of(batch, sizes)
        assert batch <= bucket
        assert bucket - batch < max(4, 0.42 * batch)
    assert bucket_of(most + 1, sizes) is None


def test_the_whole_range_is_covered_unless_something_is_in_the_way():
    plan = plan_capture(256, **PLAIN)
    assert (plan.sizes, plan.findings) == (capture_sizes(256), ())


def test_sizes_that_end_early_are_a_finding_with_the_consequence_and_the_fix():
    plan = plan_capture(64, **PLAIN | {"ks": (3,)}, given=(1, 8, 32))
    assert plan.sizes == (1, 8, 32)
    (finding,) = plan.findings
    assert finding.code == "graphs-not-covering"
    assert "33 to 64 sequences (64 x (k + 1) = 256 rows) run eagerly" in finding.message
    assert finding.fix == "Add 64 to cudagraph_capture_sizes or leave it out, or lower max_num_seqs to 32."


def test_a_size_beyond_max_num_seqs_covers_it():
    plan = plan_capture(20, **PLAIN, given=(1, 16, 32, 48))
    assert (plan.sizes, plan.findings) == ((1, 16, 20), ())


def test_what_does_not_fit_is_left_out_from_the_top():
    whole = plan_capture(64, **PLAIN)
    budget = whole.num_bytes // 2
    plan = plan_capture(64, **PLAIN, budget_bytes=budget)
    assert plan.sizes == whole.sizes[: len(plan.sizes)]
    assert 0 < plan.num_bytes <= budget < whole.num_bytes
    (finding,) = plan.findings
    assert finding.where == "max_num_seqs"
    assert f"{(whole.num_bytes - budget) / 2**30:.2f} GiB short" in finding.message
    assert "Raise gpu_memory_utilization" in finding.fix


def test_no_memory_at_all_captures_nothing_and_says_so():
    plan = plan_capture(4, **PLAIN, budget_bytes=0)
    assert (plan.sizes, plan.num_bytes) == ((), 0)
    assert "steps of 1 to 4 sequences run eagerly" in plan.findings[0].message


@pytest.mark.parametrize("ks", [(3,), (0, 2, 3)])
def test_each_number_of_draft_tokens_has_graphs_of_its_own(ks):
    one, several = (plan_capture(8, **PLAIN | {"ks": each}).num_bytes - 8 * 2**20 for each in ((0,), ks))
    assert several == len(ks) * one


def test_passes_over_prompts_get_what_decoding_leaves():
    """All of them or none, and none where decoding is not captured."""
    sizes = (PromptSize(16, 1), PromptSize(64, 1))
    decoding = plan_capture(8, **PLAIN)
    pass_of = {"kernels_per_graph": 300, "bytes_per_row": 2**10}
    plan = decoding.with_prompts(sizes, **pass_of, budget_bytes=None)
    assert plan.prompts == sizes
    added = plan.num_bytes - decoding.num_bytes
    assert added > 64 * 2**10
    assert decoding.with_prompts(sizes, **pass_of, budget_bytes=plan.num_bytes) == plan
    assert decoding.with_prompts(sizes, **pass_of, budget_bytes=plan.num_bytes - 1) == decoding
    nothing = plan_capture(4, **PLAIN, budget_bytes=0)
    assert nothing.with_prompts(sizes, **pass_of, budget_bytes=None) == nothing
