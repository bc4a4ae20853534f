"""Laws of the page pool, as a state machine against nothing but its own promises."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from draftwise.engine.memory.pages import PagePool, page_key

NUM_PAGES = 8


class PagePoolMachine(RuleBasedStateMachine):
    """Random holders allocate, share, publish and free."""

    holders = Bundle("holders")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(NUM_PAGES)
        self.held: Counter[int] = Counter()
        self.published: dict[bytes, int] = {}

    @rule(target=holders, count=st.integers(0, NUM_PAGES + 1))
    def allocate(self, count: int) -> list[int]:
        free = self.pool.num_free
        pages = self.pool.allocate(count)
        if pages is None:
            assert count > free
            assert self.pool.num_free == free
            return []
        assert len(set(pages)) == count
        assert not any(self.held[page] for page in pages)
        self.held.update(pages)
        return pages

    @rule(target=holders, keys=st.lists(st.integers(0, 5), max_size=3))
    def share(self, keys: list[int]) -> list[int]:
        pages = self.pool.find_prefix([page_key(b"", [key]) for key in keys])
        self.pool.hold(pages)
        self.held.update(pages)
        return pages

    @rule(holder=holders, key=st.integers(0, 5))
    def publish(self, holder: list[int], key: int) -> None:
        if holder and self.held[holder[0]]:
            self.pool.publish(holder[0], page_key(b"", [key]))

    @rule(holder=consumes(holders))
    def free(self, holder: list[int]) -> None:
        self.pool.free(holder)
        self.held.subtract(holder)

    @invariant()
    def counts_agree(self) -> None:
        self.pool.check_integrity()
        assert self.pool.num_free == NUM_PAGES - sum(count > 0 for count in self.held.values())


PagePoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPagePool = PagePoolMachine.TestCase


def test_a_prefix_ends_before_the_first_page_that_is_not_there() -> None:
    pool = PagePool(2)
    first, missing, last = (page_key(b"", [token]) for token in range(3))
    pages = pool.allocate(2)
    assert pages is not None
    for page, key in zip(pages, (first, last), strict=True):
        pool.publish(page, key)
    assert pool.find_prefix([first, missing, last]) == pages[:1]
    assert pool.find_prefix([first, last]) == pages


def test_published_pages_survive_until_the_pool_needs_them() -> None:
    pool = PagePool(3)
    key = page_key(b"", [1, 2])
    pages = pool.allocate(1)
    assert pages is not None
    pool.publish(pages[0], key)
    pool.free(pages)
    assert pool.find_prefix([key]) == pages
    others = pool.allocate(2)
    assert others is not None
    assert pages[0] not in others, "unpublished pages are used first"
    assert pool.find_prefix([key]) == pages
    assert pool.allocate(1) == pages
    assert pool.find_prefix([key]) == []


def test_without_caching_nothing_is_found_again() -> None:
    pool = PagePool(2, enable_prefix_caching=False)
    pages = pool.allocate(1)
    assert pages is not None
    pool.publish(pages[0], b"key")
    pool.free(pages)
    assert pool.find_prefix([b"key"]) == []


def test_freeing_twice_is_caught() -> None:
    pool = PagePool(1)
    pages = pool.allocate(1)
    assert pages is not None
    pool.free(pages)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(pages)


def test_keys_depend_on_everything_before() -> None:
    assert page_key(page_key(b"", [1]), [2]) != page_key(page_key(b"", [3]), [2])
    assert page_key(b"", [1, 2]) != page_key(b"", [2, 1])
