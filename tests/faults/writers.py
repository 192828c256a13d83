"""Writers that go on changing topics whatever happens to the store, as impatient users would."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from controller.transitions import Transitions
from layout import records
from layout.errors import LayoutError
from metadata.errors import StoreError, TopicMissing
from metadata.records import StoredTopic
from metadata.store import TopicStore
from protocol.names import TopicName
from tests.support.waiting import eventually

# More active segments than this are merged, so that records stay small however long a writer runs.
MANY_SEGMENTS = 6
PACE = 0.01


def a_split(stored: StoredTopic) -> int:
    """The widest active segment: splitting it always works."""
    return max(records.decode(stored.value).layout.active, key=lambda segment: segment.range.size).segment_id


async def change(store: TopicStore, transitions: Transitions, topic: TopicName, chance: random.Random) -> StoredTopic:
    """Split a segment, or merge two if there are many."""
    stored = await store.get(topic)
    if stored is None:
        raise TopicMissing(f"{topic} is not there")
    active = records.decode(stored.value).layout.active
    if len(active) <= MANY_SEGMENTS:
        return await transitions.split(topic, a_split(stored))
    left = chance.randrange(len(active) - 1)
    return await transitions.merge(topic, active[left].segment_id, active[left + 1].segment_id)


class Writing:
    """What a writer got done so far."""

    def __init__(self) -> None:
        self.done: Counter[TopicName] = Counter()
        self.refused = 0

    async def until_more(self, count: int, topics: Sequence[TopicName], within: float = 30) -> None:
        """Wait until so many further writes to these topics have succeeded."""
        goal = sum(self.done[topic] for topic in topics) + count
        await eventually(lambda: sum(self.done[topic] for topic in topics) >= goal, within)


@asynccontextmanager
async def keep_changing(
    store: TopicStore, transitions: Transitions, topics: Sequence[TopicName]
) -> AsyncIterator[Writing]:
    """Change the topics in turn while the block runs; a refusal or an unknown outcome is followed by another try."""
    writing = Writing()
    chance = random.Random(7)

    async def write() -> None:
        while True:
            for topic in topics:
                try:
                    await change(store, transitions, topic, chance)
                    writing.done[topic] += 1
                except (StoreError, LayoutError):
                    writing.refused += 1
                await trio.sleep(PACE)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        yield writing
        nursery.cancel_scope.cancel()
