"""The scheduler as a state machine: whatever arrives, every sequence ends with its tokens and no page is lost."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from draftwise.engine.pages import PagePool
from draftwise.engine.sampling_params import SamplingParams
from draftwise.engine.scheduler import PrefixUse, Scheduler
from draftwise.engine.sequence import Request, Sequence

BLOCK = 4


def make_sequence(name: str, prompt: list[int], *, salt: str = "") -> Sequence:
    request = Request(request_id=name, prompt_token_ids=prompt, params=SamplingParams(), cache_salt=salt)
    return Sequence(request=request, index=0, seed=0, tokens=list(prompt), detokenizer=SimpleNamespace())


def make_scheduler(
    num_pages: int, *, budget: int = 8, caching: bool = True, max_num_seqs: int = 3, **proposer: Any
) -> Scheduler:
    return Scheduler(
        pool=PagePool(num_pages, enable_prefix_caching=caching),
        block_size=BLOCK,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        **proposer,
    )


prompts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=6)


@settings(max_examples=150, deadline=None)
@given(
    prompts=prompts,
    caching=st.booleans(),
    shared=st.booleans(),
    prefix=st.sampled_from(PrefixUse),
    budget=st.integers(2, 12),
    pages=st.integers(6, 10),
    data=st.data(),
)
def test_every_sequence_is_computed_completely_and_in_order(
    prompts: list[list[int]],
    caching: bool,
    shared: bool,
    prefix: PrefixUse,
    budget: int,
    pages: int,
    data: st.DataObject,
) -> None:
    scheduler = make_scheduler(pages, budget=budget, caching=caching, shared_pages=shared, prefix=prefix)
    wanted = 10  # 14 + 10 tokens always fit into six pages of four
    alive = [make_sequence(str(i), prompt) for i, prompt in enumerate(prompts)]
    for sequence in alive:
        scheduler.add(sequence)
    for _ in range(2000):
        if not alive:
            break
        for sequence in scheduler.running:
            if sequence.awaits_token:
                assert not shared or len(sequence.pages) * BLOCK >= len(sequence.tokens)
                num_draft = data.draw(st.integers(0, min(3, wanted - sequence.num_output - 1)))
                sequence.draft = [7] * (scheduler.reserve(sequence, num_draft) if shared else num_draft)
                assert not shared or len(sequence.pages) * BLOCK >= len(sequence.tokens) + len(sequence.draft)
            if shared:
                scheduler.publish(sequence)
        works = scheduler.schedule()
        assert works, "work remains, so something must be scheduled"
        assert sum(work.num_new for work in works) <= budget
        for work in works:
            sequence = work.sequence
            assert work.num_new > work.num_draft >= 0
            assert len(sequence.pages) * BLOCK >= sequence.num_computed + work.num_new
        for work in works:
            sequence = work.sequence
            samples = work.samples
            emitted = [7] * data.draw(st.integers(0, work.num_draft)) + [8] if samples else []
            scheduler.advance(work, emitted)
            assert not samples or sequence.num_computed == len(sequence.tokens) - 1
            if sequence.num_output >= wanted:
                scheduler.remove(sequence)
                alive.remove(sequence)
        scheduler.pool.check_integrity()
    assert not alive
    assert scheduler.pool.usage == 0
    assert not scheduler.running
    assert not scheduler.waiting


def run_prompt(scheduler: Scheduler, sequence: Sequence) -> int:
    """Compute a prompt and its first token; return how many tokens that took."""
    computed = 0
    scheduler.add(sequence)
    while sequence.num_output == 0:
        (work,) = scheduler.schedule()
        computed += work.num_new
        scheduler.advance(work, [9] if work.samples else [])
    return computed


def test_a_second_request_reuses_the_full_pages_of_the_first() -> None:
    scheduler = make_scheduler(10)
    prompt = list(range(10))
    first, second = make_sequence("a", prompt), make_sequence("b", prompt)
    assert run_prompt(scheduler, first) == 10
    scheduler.remove(first)
    assert run_prompt(scheduler, second) == 2
    assert second.num_cached == 8
    assert (scheduler.num_cache_queries, scheduler.num_cache_hits) == (20, 8)


def test_a_proposer_may_need_the_last_page_in_common_again_or_all() -> None:
    prompt = list(range(10))
    for prefix, computed in [(PrefixUse.ALL, 2), (PrefixUse.BUT_LAST, 6), (PrefixUse.NONE, 10)]:
        scheduler = make_scheduler(10, prefix=prefix)
        run_prompt(scheduler, first := make_sequence("a", prompt))
        scheduler.remove(first)
        assert run_prompt(scheduler, make_sequence("b", prompt)) == computed


def test_shared_pages_are_offered_when_they_are_published() -> None:
    scheduler = make_scheduler(10, shared_pages=True)
    prompt = list(range(10))
    first, second, third = (make_sequence(name, prompt) for name in "abc")
    run_prompt(scheduler, first)
    scheduler.remove(first)
    assert run_prompt(scheduler, second) == 10
    scheduler.publish(second)
    scheduler.remove(second)
    assert run_prompt(scheduler, third) == 2


def test_room_for_a_draft_never_costs_another_sequence_its_next_page() -> None:
    scheduler = make_scheduler(5, budget=20, caching=False, shared_pages=True)
    sequences = [make_sequence(name, [1] * 6) for name in "ab"]
    for sequence in sequences:
        scheduler.add(sequence)
    for work in scheduler.schedule():
        scheduler.advance(work, [9])
    assert [len(sequence.pages) for sequence in sequences] == [2, 2]
    assert scheduler.reserve(sequences[0], 4) == 1, "one page is free and two sequences run"
    assert scheduler.pool.num_free == 1


def test_another_salt_shares_nothing() -> None:
    scheduler = make_scheduler(10)
    prompt = list(range(10))
    for salt, computed in [("a", 10), ("b", 10), ("a", 2)]:
        sequence = make_sequence(salt, prompt, salt=salt)
        assert run_prompt(scheduler, sequence) == computed
        scheduler.remove(sequence)


def test_a_fully_cached_prompt_still_computes_one_token() -> None:
    scheduler = make_scheduler(10)
    prompt = list(range(8))
    run_prompt(scheduler, first := make_sequence("a", prompt))
    scheduler.remove(first)
    assert run_prompt(scheduler, make_sequence("b", prompt)) == 4


def test_the_youngest_is_preempted_and_drafts_are_dropped_before_that() -> None:
    scheduler = make_scheduler(4, budget=20, caching=False)
    old, young = make_sequence("old", [1] * 7), make_sequence("young", [2] * 7)
    for sequence in (old, young):
        scheduler.add(sequence)
    for work in scheduler.schedule():
        scheduler.advance(work, [9])
    old.draft = [9, 9, 9]
    works = {work.sequence.request.request_id: work for work in scheduler.schedule()}
    assert works["old"].num_draft == 0, "eight tokens fill two pages; the guesses have none"
    assert scheduler.num_preemptions == 0
    for work in works.values():
        scheduler.advance(work, [9])
    (work,) = scheduler.schedule()
    assert work.sequence is old
    assert scheduler.num_preemptions == 1
    assert young.slot is None
    assert young.tokens == [2] * 7 + [9, 9], "what was said stays said"
