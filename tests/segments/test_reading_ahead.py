"""Pages of a log that are read before they are wanted."""

from collections.abc import Sequence

import pytest
import trio
import trio.testing

from metadata.errors import StoreUnavailable
from metadata.log_entries import StoredEntry
from segments.reading_ahead import ReadingAhead

PAGE = 4


class Shelf:
    """A log of twenty entries, whose reads are remembered and can be held up."""

    def __init__(self) -> None:
        self.asked: list[Sequence[int]] = []
        self.failures = 0

    async def fetch(self, indexes: Sequence[int]) -> list[StoredEntry]:
        self.asked.append(indexes)
        await trio.lowlevel.checkpoint()
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("The store does not answer now.")
        return [StoredEntry(index, 0, 1, b"") for index in indexes if index < 20]


def indexes(found: Sequence[StoredEntry]) -> list[int]:
    return [entry.index for entry in found]


async def test_next_page_is_on_its_way_while_one_is_handed_out(nursery: trio.Nursery) -> None:
    shelf = Shelf()
    pages = ReadingAhead(shelf.fetch, nursery, PAGE)
    assert indexes(await pages.get(range(4), 20)) == [0, 1, 2, 3]
    await trio.testing.wait_all_tasks_blocked()
    assert shelf.asked == [range(4), range(4, 8)]
    assert indexes(await pages.get(range(4, 8), 20)) == [4, 5, 6, 7]
    await trio.testing.wait_all_tasks_blocked()
    assert shelf.asked == [range(4), range(4, 8), range(8, 12)], "each is read once"


async def test_who_can_take_less_gets_less(nursery: trio.Nursery) -> None:
    shelf = Shelf()
    pages = ReadingAhead(shelf.fetch, nursery, PAGE)
    await pages.get(range(4), 20)
    assert indexes(await pages.get(range(4, 6), 20)) == [4, 5]
    await trio.testing.wait_all_tasks_blocked()
    assert shelf.asked == [range(4), range(4, 8)], "and nothing is read for somebody who takes little"


@pytest.mark.parametrize("wanted", [range(4), range(12, 16), [5, 7]])
async def test_what_else_is_wanted_is_read(nursery: trio.Nursery, wanted: Sequence[int]) -> None:
    shelf = Shelf()
    pages = ReadingAhead(shelf.fetch, nursery, PAGE)
    await pages.get(range(4), 20)
    assert indexes(await pages.get(wanted, 20)) == list(wanted)


async def test_nothing_is_read_beyond_the_end(nursery: trio.Nursery) -> None:
    shelf = Shelf()
    pages = ReadingAhead(shelf.fetch, nursery, PAGE)
    await pages.get(range(4), 4)
    await pages.get(range(4), 6)
    await trio.testing.wait_all_tasks_blocked()
    assert shelf.asked == [range(4), range(4), range(4, 6)]


async def test_page_that_could_not_be_read_is_asked_for_again(nursery: trio.Nursery) -> None:
    shelf = Shelf()
    pages = ReadingAhead(shelf.fetch, nursery, PAGE)
    await pages.get(range(4), 20)
    shelf.failures = 2
    with pytest.raises(StoreUnavailable):
        await pages.get(range(4, 8), 20)
    assert indexes(await pages.get(range(4, 8), 20)) == [4, 5, 6, 7]
