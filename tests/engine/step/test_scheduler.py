"""The scheduler as a state machine: whatever arrives, every sequence ends with its tokens and no page is lost."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwise.engine.memory.pages import PagePool
from draftwise.engine.sampling.params import SamplingParams
from draftwise.engine.step.scheduler import EngineRequest, PrefixUse, Scheduler, Sequence, StepSchedule

BLOCK = 4


def make_sequence(name: str, prompt: list[int], *, salt: str = "", max_tokens: int = 1000, **params: Any) -> Sequence:
    request = EngineRequest(request_id=name, prompt_token_ids=prompt, params=SamplingParams(**params), cache_salt=salt)
    return Sequence(
        request=request, index=0, seed=0, max_tokens=max_tokens, tokens=list(prompt), detokenizer=SimpleNamespace()
    )


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


class Device:
    """Computes what is scheduled, like the engine: perhaps a step behind, and with tokens that only it knows."""

    def __init__(self, scheduler: Scheduler, *, lags: bool, k: int) -> None:
        self.scheduler, self.lags, self.k = scheduler, lags, k
        self.underway: list[tuple[Sequence, int, int]] = []
        self.tables: dict[int, dict[int, int]] = {}

    def step(self, draw: Callable[[int], int]) -> bool:
        """Schedule and launch; collect what was launched before, or all of it. Say whether anything was launched."""
        schedule = self.scheduler.schedule(self.k)
        if schedule is None:
            self.collect(len(self.underway), draw)
            schedule = self.scheduler.schedule(self.k)
        assert schedule is not None
        before = len(self.underway)
        self._update_tables(schedule)
        for chunk in schedule.chunks:
            assert chunk.length > 0
            self._check_pages(chunk.sequence, chunk.end)
            if chunk.is_last:
                self.underway.append((chunk.sequence, chunk.sequence.life, 1))
        for sequence in schedule.decodes:
            self._check_pages(sequence, sequence.longest)
            self.underway.append((sequence, sequence.life, self.k + 1))
        self.scheduler.launch(schedule)
        for chunk in schedule.chunks:
            self.scheduler.publish(chunk.sequence, chunk.end)
        self.collect(before if self.lags and schedule else len(self.underway), draw)
        return bool(schedule)

    def collect(self, count: int, draw: Callable[[int], int]) -> None:
        for sequence, life, bound in self.underway[:count]:
            if sequence.life == life:
                emitted = [8] * draw(bound)
                emitted = emitted[: sequence.num_left]
                self.scheduler.advance(sequence, emitted, bound=bound)
                self.scheduler.publish(sequence, sequence.num_computed)
                if sequence.num_left == 0:
                    self.scheduler.remove(sequence)
        del self.underway[:count]

    def _update_tables(self, schedule: StepSchedule) -> None:
        for slot in schedule.released_slots:
            self.tables.pop(slot, None)
        for change in schedule.page_changes:
            self.tables.setdefault(change.slot, {})[change.index] = change.page

    def _check_pages(self, sequence: Sequence, num_tokens: int) -> None:
        """The device's table names the sequence's pages, and they have room for so many tokens."""
        table = self.tables.get(sequence.row, {})
        assert [table[index] for index in range(len(sequence.pages))] == sequence.pages
        assert len(table) == len(sequence.pages)
        assert len(sequence.pages) * BLOCK >= min(num_tokens, sequence.max_tokens)


prompts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=6)


@settings(max_examples=200, deadline=None)
@given(
    prompts=prompts,
    caching=st.booleans(),
    lags=st.booleans(),
    prefix=st.sampled_from(PrefixUse),
    budget=st.integers(2, 12),
    pages=st.integers(6, 10),
    k=st.integers(0, 3),
    data=st.data(),
)
def test_every_sequence_is_computed_completely_and_in_order(
    prompts: list[list[int]],
    caching: bool,
    lags: bool,
    prefix: PrefixUse,
    budget: int,
    pages: int,
    k: int,
    data: st.DataObject,
) -> None:
    scheduler = make_scheduler(pages, budget=budget, caching=caching, prefix=prefix)
    device = Device(scheduler, lags=lags, k=k)
    # 14 + 10 tokens always fit into six pages of four.
    alive = [make_sequence(str(i), prompt, max_tokens=len(prompt) + 10) for i, prompt in enumerate(prompts)]
    for sequence in alive:
        scheduler.add(sequence)
    for _ in range(3000):
        if not any(sequence.num_left for sequence in alive):
            break
        launched = device.step(lambda bound: data.draw(st.integers(1, bound)))
        assert launched or not device.underway, "work remains, so something is scheduled or was just collected"
        for sequence in scheduler.running:
            assert sequence.num_computed <= sequence.longest
            assert not sequence.is_decoding or sequence.num_computed >= len(sequence.tokens) - 1
        scheduler.pool.check_integrity()
    device.collect(len(device.underway), lambda bound: 1)
    assert not any(sequence.num_left for sequence in alive)
    assert scheduler.pool.usage == 0
    assert not scheduler.running
    assert not scheduler.waiting


def run_prompt(scheduler: Scheduler, sequence: Sequence) -> int:
    """Compute a prompt and its first token; return how many tokens that took."""
    scheduler.add(sequence)
    device = Device(scheduler, lags=False, k=0)
    while sequence.num_output == 0:
        device.step(lambda bound: 1)
    return len(sequence.tokens) - 1 - sequence.num_prefix_cached


def test_a_second_request_reuses_the_full_pages_of_the_first() -> None:
    scheduler = make_scheduler(10)
    prompt = list(range(10))
    first, second = make_sequence("a", prompt), make_sequence("b", prompt)
    assert run_prompt(scheduler, first) == 10
    assert not scheduler.has_unpublished(first)
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


def test_log_probabilities_of_a_prompt_need_all_of_it() -> None:
    scheduler = make_scheduler(10)
    run_prompt(scheduler, first := make_sequence("a", list(range(10))))
    scheduler.remove(first)
    assert run_prompt(scheduler, make_sequence("b", list(range(10)), prompt_logprobs=0)) == 10


def launch_next(scheduler: Scheduler, *, k: int = 0) -> dict[str, int]:
    """Launch a step; return how many tokens of which prompts it computes."""
    schedule = scheduler.schedule(k)
    assert schedule is not None
    scheduler.launch(schedule)
    return {chunk.sequence.request.request_id: chunk.length for chunk in schedule.chunks}


def test_prompts_share_the_tokens_of_a_step() -> None:
    scheduler = make_scheduler(20, budget=10)
    for name, length in [("a", 6), ("b", 8), ("c", 20)]:
        scheduler.add(make_sequence(name, [1] * length))
    assert launch_next(scheduler) == {"a": 6, "b": 4}
    assert launch_next(scheduler) == {"b": 4, "c": 5}, "one of the ten is the next token of a"


def test_what_decoding_leaves_of_a_step_goes_to_prompts_and_at_least_a_page() -> None:
    for budget, left in [(20, 12), (8, BLOCK)]:  # two sequences decode, each a token and a draft of three
        scheduler = make_scheduler(20, budget=budget)
        start(scheduler, [[1] * 4] * 2)
        scheduler.add(make_sequence("long", [1] * 30))
        assert launch_next(scheduler, k=3) == {"long": left}


def test_some_wait_before_others() -> None:
    scheduler = make_scheduler(10, max_num_seqs=1)
    scheduler.add(make_sequence("early", [1]))
    scheduler.add(make_sequence("urgent", [1]), first=True)
    assert launch_next(scheduler) == {"urgent": 1}


def start(scheduler: Scheduler, prompts: list[list[int]]) -> list[Sequence]:
    """Return sequences whose prompts are computed, all in one step."""
    sequences = [make_sequence(str(i), prompt) for i, prompt in enumerate(prompts)]
    for sequence in sequences:
        scheduler.add(sequence)
    Device(scheduler, lags=False, k=0).step(lambda bound: 1)
    return sequences


def test_room_for_a_draft_never_costs_another_sequence_its_next_page() -> None:
    scheduler = make_scheduler(5, budget=20, caching=False)
    sequences = start(scheduler, [[1] * 6] * 2)
    assert [len(sequence.pages) for sequence in sequences] == [2, 2]
    scheduler.schedule(4)
    assert [len(sequence.pages) for sequence in sequences] == [2, 2], "one page is free and two sequences run"
    assert scheduler.pool.num_free == 1


def test_pages_are_held_for_the_most_tokens_that_are_under_way() -> None:
    scheduler = make_scheduler(12, budget=20, caching=False)
    (sequence,) = start(scheduler, [[1] * 6])
    for num_pages in (3, 4):  # 7 tokens and a draft of 4; then perhaps 12 tokens and a draft of 4
        schedule = scheduler.schedule(4)
        assert schedule is not None
        scheduler.launch(schedule)
        assert len(sequence.pages) == num_pages


def test_no_pages_are_held_beyond_the_last_token_that_it_may_have() -> None:
    scheduler = make_scheduler(10, budget=20)
    scheduler.add(sequence := make_sequence("a", [1] * 5, max_tokens=8))
    Device(scheduler, lags=False, k=0).step(lambda bound: 1)
    launch_next(scheduler, k=8)
    assert len(sequence.pages) == 2


def test_a_sequence_that_is_about_to_end_is_not_scheduled_again() -> None:
    scheduler = make_scheduler(10, budget=20)
    sequence = make_sequence("a", [1] * 5, max_tokens=7)
    scheduler.add(sequence)
    Device(scheduler, lags=False, k=0).step(lambda bound: 1)
    schedule = scheduler.schedule(0)
    assert schedule is not None
    assert schedule.decodes == [sequence]
    scheduler.launch(schedule)
    assert not scheduler.schedule(0), "what is under way gives it its last token"


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


def test_the_youngest_is_preempted_once_nothing_is_under_way() -> None:
    scheduler = make_scheduler(4, budget=20, caching=False)
    old, young = (make_sequence(name, [1] * 7) for name in ("old", "young"))
    device = Device(scheduler, lags=True, k=3)
    for sequence in (old, young):
        scheduler.add(sequence)
    device.step(lambda bound: 1)
    device.step(lambda bound: 1)
    assert [len(sequence.pages) for sequence in (old, young)] == [2, 2], "the drafts have no pages"
    assert scheduler.schedule(3) is None, "two tokens more may be there already, and pages for them are not"
    device.collect(2, lambda bound: 1)
    schedule = scheduler.schedule(3)
    assert schedule is not None
    assert schedule.decodes == [old]
    assert scheduler.num_preemptions == 1
    assert young.slot is None
    assert young.tokens == [1] * 7 + [8, 8], "what was said stays said"


def test_a_slot_keeps_no_page_of_a_sequence_that_ended_before_the_device_had_the_page() -> None:
    """The next sequence in the slot would write there, into pages of another."""
    scheduler = make_scheduler(5, budget=20, caching=False, max_num_seqs=2)
    ending, other = make_sequence("ending", [1] * 7, max_tokens=10), make_sequence("other", [1] * 7)
    device = Device(scheduler, lags=True, k=3)
    for sequence in (ending, other):
        scheduler.add(sequence)
    device.step(lambda bound: 1)
    device.step(lambda bound: 1)
    slot = ending.row
    assert scheduler.schedule(3) is None, "one page is left, and both need one"
    assert len(ending.pages) == 3
    device.collect(2, lambda bound: 2)
    scheduler.add(following := make_sequence("following", [1] * 2))
    device.step(lambda bound: 1)
    assert (ending.slot, following.slot) == (None, slot)
    assert list(device.tables[slot]) == [0]


def test_a_preempted_sequence_comes_back_a_step_later_and_before_others() -> None:
    scheduler = make_scheduler(10, budget=20)
    old, young = start(scheduler, [[1] * 4] * 2)
    young.prompt_ranks.append(None)
    for of_old in (9, 9, 2):
        assert launch_next(scheduler, k=8) == {}
        assert len(young.pages) == 4, "a draft has its pages while some are free"
        scheduler.advance(old, [8] * of_old, bound=9)
        scheduler.advance(young, [8], bound=9)
    scheduler.add(make_sequence("late", [1] * 30))
    queries = scheduler.num_cache_queries
    assert launch_next(scheduler) == {}, "its pages would last: it held some for a draft"
    assert (scheduler.num_preemptions, young.slot, young.prompt_ranks) == (1, None, [])
    assert launch_next(scheduler) == {"1": 4}, "its other page was kept"
    assert scheduler.num_cache_queries == queries, "what is computed again was asked for once"


def test_prompts_are_short_only_between_the_steps_of_others() -> None:
    scheduler = make_scheduler(64, budget=64, caching=False, max_num_seqs=4)
    scheduler.most_rows_between, scheduler.ranked_row = 8, 3.5
    for name, params in (("stream", {}), ("ranked", {"prompt_logprobs": 1}), ("plain", {})):
        scheduler.add(make_sequence(name, list(range(40)), **params))
        schedule = scheduler.schedule(0)
        assert schedule is not None
        scheduler.launch(schedule)
        lengths = [chunk.length for chunk in schedule.chunks]
        if name == "stream":
            assert lengths == [40], "nobody waits for it"
            scheduler.advance(schedule.chunks[0].sequence, [8], bound=1)
        elif name == "ranked":
            assert lengths == [3], "its rows count several times"
            scheduler.advance(schedule.decodes[0], [8], bound=1)
        else:
            assert lengths == [3], "the older one goes on and takes all"


@pytest.mark.parametrize(
    ("may", "shared", "has"),
    [(6, 32, 6), (40, 32, 31), (62, 32, 31), (63, 32, 63), (2, 4, 2), (2, 1, 4), (2, 0, 4)],
)
def test_prompts_share_a_pass_unless_one_of_their_own_pays(may: int, shared: int, has: int) -> None:
    """One row decodes, and a page has 4."""
    scheduler = make_scheduler(64, budget=128, caching=False, max_num_seqs=4)
    scheduler.most_rows_between, scheduler.most_shared_rows = may, shared
    for name in ("stream", "prompt"):
        scheduler.add(make_sequence(name, list(range(100))))
        schedule = scheduler.schedule(0)
        assert schedule is not None
        scheduler.launch(schedule)
        if name == "stream":
            scheduler.advance(schedule.chunks[0].sequence, [8], bound=1)
    assert [chunk.length for chunk in schedule.chunks] == [has]


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(st.integers(1, 40), min_size=2, max_size=12),
    arrivals=st.lists(st.integers(0, 3), min_size=12, max_size=12),
    lags=st.booleans(),
    budget=st.integers(2, 24),
    k=st.integers(0, 3),
    data=st.data(),
)
def test_every_step_decodes_for_all_that_can_beside_one_budget_of_prompts(
    prompts: list[int], arrivals: list[int], lags: bool, budget: int, k: int, data: st.DataObject
) -> None:
    """So a reader waits for one pass over prompts, whatever arrives."""
    scheduler = make_scheduler(400, budget=budget, max_num_seqs=12)
    device = Device(scheduler, lags=lags, k=k)
    late = [make_sequence(str(i), [i] * n, max_tokens=n + 12) for i, n in enumerate(prompts)]
    alive = list(late)
    schedule_once, schedules = scheduler.schedule, list[StepSchedule]()

    def schedule(k: int) -> StepSchedule | None:
        able = [s for s in scheduler.running if s.is_decoding and s.num_left > s.num_underway]
        found = schedule_once(k)
        assert found is not None, "pages last"
        assert found.decodes == able
        schedules.append(found)
        return found

    scheduler.schedule = schedule  # type: ignore[method-assign]
    for step in range(2000):
        for _ in range(min(len(late), max(arrivals[step % 12], not scheduler.running))):
            scheduler.add(late.pop(0))
        device.step(lambda bound: data.draw(st.integers(1, bound)))
        rows = sum(chunk.length for chunk in schedules[-1].chunks)
        assert rows <= max(budget - len(schedules[-1].decodes) * (k + 1), BLOCK)
        if not late and not any(sequence.num_left for sequence in alive):
            break
    assert not any(sequence.num_left for sequence in alive)
