"""Tracks the KV cache's pages as integers: who holds which page, and which old pages are reusable."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b


def page_key(previous: bytes, tokens: Sequence[int]) -> bytes:
    """Return the key of a full page: these tokens after the text of `previous`."""
    return blake2b(array("q", tokens).tobytes(), key=previous, digest_size=16).digest()


def root_key(salt: str) -> bytes:
    """Return the key of the empty text, different for each salt."""
    return blake2b(salt.encode(), digest_size=16).digest()


class PagePool:
    """Page ids 0..num_pages-1 with reference counts.

    A full page of final tokens can be published under its key. Once no sequence holds it, it stays available to
    requests with the same prefix, until the pool evicts it (least recently used first).

    Attributes:
        num_pages: size of the pool.
        caching: whether pages can be published.
    """

    def __init__(self, num_pages: int, *, enable_prefix_caching: bool = True) -> None:
        self.num_pages = num_pages
        self.caching = enable_prefix_caching
        self._references = [0] * num_pages
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_pages))
        """Pages nobody holds, in order of re-use: unpublished first, then the longest unused."""
        self._page_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        """Number of pages that `allocate` can return now, including published pages without holders."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of the pool held by sequences, 0..1."""
        return 1 - self.num_free / self.num_pages

    def allocate(self, count: int) -> list[int] | None:
        """Return `count` pages held once; None, without taking any, if fewer are free."""
        if count > len(self._free):
            return None
        pages = [self._free.popitem(last=False)[0] for _ in range(count)]
        for page in pages:
            self._references[page] = 1
            key = self._key_of.pop(page, None)
            if key is not None:
                del self._page_of[key]
        return pages

    def find_prefix(self, keys: Sequence[bytes]) -> list[int]:
        """Return the published pages for the longest run of leading keys. They are not held yet."""
        pages: list[int] = []
        for key in keys:
            page = self._page_of.get(key)
            if page is None:
                break
            pages.append(page)
        return pages

    def hold(self, pages: Sequence[int]) -> None:
        """Take one more reference to each page."""
        for page in pages:
            if self._references[page] == 0:
                del self._free[page]
            self._references[page] += 1

    def publish(self, page: int, key: bytes) -> None:
        """Offer a held, full page to later requests. No effect if the key is published already."""
        assert self._references[page] > 0, "only a held page can be published"
        if self.caching and key not in self._page_of and page not in self._key_of:
            self._page_of[key] = page
            self._key_of[page] = key

    def free(self, pages: Sequence[int]) -> None:
        """Release one reference to each page. The last pages are reused first."""
        for page in reversed(pages):
            assert self._references[page] > 0, f"page {page} is freed twice"
            self._references[page] -= 1
            if self._references[page] == 0:
                self._free[page] = None
                if page not in self._key_of:
                    self._free.move_to_end(page, last=False)

    def check_integrity(self) -> None:
        """Assert that every page is either held or free, and that keys and pages match one to one."""
        assert all((count == 0) == (page in self._free) for page, count in enumerate(self._references))
        assert {page: key for key, page in self._page_of.items()} == self._key_of
