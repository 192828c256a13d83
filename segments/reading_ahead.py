"""Reads a log page by page for one subscription: while one page is handed out, the next is on its way."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import trio

from metadata.errors import StoreError
from metadata.log_entries import StoredEntry
from metadata.tasks import Tasks

log = logging.getLogger(__name__)

Fetch = Callable[[Sequence[int]], Awaitable[list[StoredEntry]]]


class _Page:
    __slots__ = ("entries", "here", "indexes")

    def __init__(self, indexes: range) -> None:
        self.indexes = indexes
        self.entries: list[StoredEntry] | None = None  # stays so where the store could not be read
        self.here = trio.Event()


class ReadingAhead:
    """Never more than one page ahead, and only behind a whole one: who takes little, soon has what there is."""

    def __init__(self, fetch: Fetch, nursery: Tasks, page: int) -> None:
        self._fetch = fetch
        self._nursery = nursery
        self._size = page
        self._next: _Page | None = None

    async def get(self, wanted: Sequence[int], end: int) -> list[StoredEntry]:
        """What there is of these entries, as the log gives them; `end` is where it ends. Raises StoreError."""
        page, self._next = self._next, None
        found = None
        if page is not None and page.indexes[: len(wanted)] == wanted:
            await page.here.wait()
            found = page.entries
        if found is None:
            found = await self._fetch(wanted)
        elif len(found) > len(wanted):
            found = found[: len(wanted)]
        if isinstance(wanted, range) and len(wanted) == len(found) == self._size and wanted.stop < end:
            self._next = _Page(range(wanted.stop, min(end, wanted.stop + self._size)))
            self._nursery.start_soon(self._load, self._next)
        return found

    async def _load(self, page: _Page) -> None:
        try:
            page.entries = await self._fetch(page.indexes)
        except StoreError:
            pass  # who wants the page asks again, and hears of it
        except Exception:
            log.exception("reading ahead failed")  # as above
        finally:
            page.here.set()
