"""The writer against a real store: what a trace says becomes true, whatever was known before."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
import trio

from layout import records as stored
from layout.layouts import Layout
from metadata.lanes import Timeouts
from metadata.store import TopicStore, open_store
from protocol.names import NamespaceName, TopicName
from spark.errors import JobError
from spark.replay.clock import Offset, StoreClock, wall_clock
from spark.replay.observing import Observations, WriteSeen
from spark.replay.plans import ReplayPlan
from spark.replay.writing import Change, Writer
from tests.spark.replay.replays import NAMESPACE, plan_for
from tests.support.processes import ValkeyProcess

IN_STORE = NamespaceName("public", "replay-r1-shop")


def change(
    op: str, topic: str, incarnation: str = "a", *, at_ms: int = 0, epoch: int | None = 0, **more: bytes
) -> Change:
    return Change(at_ms * 1_000, NAMESPACE, topic, op, incarnation, epoch, more.get("value"))


async def slices(changes: Sequence[Change]) -> AsyncIterator[Sequence[Change]]:
    yield changes


class Writing:
    """A writer with what it needs, and what came of it."""

    def __init__(self, store: TopicStore, observations: Observations, plan: ReplayPlan) -> None:
        self.store = store
        self.clock = StoreClock(Offset(0, 0), wall_clock())
        self.writer = Writer(store, plan, self.clock, observations)
        self.seen: list[WriteSeen] = observations.writes

    async def seed(self, *changes: Change) -> None:
        await self.writer.seed(slices(changes))

    async def replay(self, *changes: Change) -> None:
        await self.writer.replay(slices(changes), self.clock.now_us())

    async def layout(self, topic: str) -> Layout:
        found = await self.store.get(TopicName.scalable("public", IN_STORE.namespace, topic))
        assert found is not None
        return stored.decode(found.value).layout

    @property
    def done(self) -> list[tuple[str, str, str | None]]:
        """Topic, operation and error of each write, in order."""
        return [(topic, op, error) for _, topic, op, *_, error in self.seen]


@pytest.fixture
async def writing(valkey: ValkeyProcess) -> AsyncIterator[Writing]:
    async with open_store(valkey.url) as store:
        with Observations(0) as observations:
            yield Writing(store, observations, plan_for("pulsar://nowhere", valkey.url))


async def test_topic_goes_through_its_life(writing: Writing) -> None:
    await writing.seed(change("seed", "old", epoch=3))
    await writing.replay(
        change("create", "new"),
        change("change", "new", epoch=1),
        change("change", "old", epoch=4),
        change("delete", "old"),
    )
    assert sorted(writing.done) == [
        ("new", "change", None),
        ("new", "create", None),
        ("old", "change", None),
        ("old", "delete", None),
    ]
    assert await writing.store.list_topics(IN_STORE) == ["new"]
    assert (await writing.layout("new")).epoch == 1
    assert (writing.writer.counts.seeded, writing.writer.counts.written) == (1, 4)


async def test_writes_of_a_topic_keep_their_order(writing: Writing) -> None:
    epochs = list(range(1, 200))
    await writing.replay(change("create", "busy"), *(change("change", "busy", epoch=epoch) for epoch in epochs))
    assert [epoch for *_, epoch, error in writing.seen if error is None] == [0, *epochs]
    assert (await writing.layout("busy")).epoch == epochs[-1]


async def test_write_is_timed_from_when_it_was_due(writing: Writing) -> None:
    await writing.replay(change("create", "first"), change("create", "second", at_ms=60))
    first, second = writing.seen
    assert second[3] - first[3] == 60_000
    for _, _, _, due_us, sent_us, done_us, *_ in writing.seen:
        assert due_us <= sent_us <= done_us


async def test_late_write_keeps_its_due_time(writing: Writing) -> None:
    start_us = writing.clock.now_us() - 5_000_000
    await writing.writer.replay(slices([change("create", "late", at_ms=100)]), start_us)
    [(_, _, _, due_us, sent_us, *_)] = writing.seen
    assert due_us == start_us + 100_000
    assert sent_us - due_us > 4_000_000


async def test_speed_divides_the_times(valkey: ValkeyProcess) -> None:
    async with open_store(valkey.url) as store:
        with Observations(0) as observations:
            writing = Writing(store, observations, plan_for("pulsar://nowhere", valkey.url, speed=100.0))
            await writing.replay(change("create", "a"), change("create", "b", at_ms=5_000))
            assert writing.seen[1][3] - writing.seen[0][3] == 50_000


async def test_change_of_an_unknown_topic_creates_it(writing: Writing) -> None:
    await writing.replay(change("change", "surprise", epoch=7))
    assert writing.done == [("surprise", "create", None)]
    assert (await writing.layout("surprise")).epoch == 7


async def test_delete_of_an_unknown_topic_is_skipped_and_noted(writing: Writing) -> None:
    await writing.replay(change("delete", "nobody"))
    assert writing.done == [("nobody", "delete", "unknown")]
    assert writing.writer.counts.failed == 1


async def test_new_incarnation_of_a_known_topic_deletes_the_old_one_first(writing: Writing) -> None:
    await writing.seed(change("seed", "phoenix", "a", epoch=9))
    await writing.replay(change("create", "phoenix", "b"))
    assert writing.done == [("phoenix", "delete", None), ("phoenix", "create", None)]
    assert writing.seen[0][6] != writing.seen[1][6]


async def test_create_of_the_known_incarnation_is_a_change(writing: Writing) -> None:
    await writing.seed(change("seed", "twice"))
    await writing.replay(change("create", "twice"))
    assert writing.done == [("twice", "touch", None)]


async def test_topic_that_somebody_else_made_is_taken_over(writing: Writing) -> None:
    topic = TopicName.scalable("public", IN_STORE.namespace, "theirs")
    value = stored.encode(stored.TopicRecord(Layout.create(1, 1)))
    await writing.store.create(topic, value, ["0000-ffff-0"])
    await writing.replay(change("create", "theirs", epoch=2), change("delete", "theirs"))
    assert writing.done == [("theirs", "change", None), ("theirs", "delete", None)]


async def test_topic_that_somebody_else_deleted_is_made_again(writing: Writing) -> None:
    await writing.seed(change("seed", "stolen"))
    topic = TopicName.scalable("public", IN_STORE.namespace, "stolen")
    found = await writing.store.get(topic)
    assert found is not None
    await writing.store.delete(topic, found.version, ["0000-ffff-0"])
    await writing.replay(change("change", "stolen", epoch=1))
    assert writing.done == [("stolen", "create", None)]


async def test_recorded_values_are_written_where_there_are_any(writing: Writing) -> None:
    value = stored.encode(stored.TopicRecord(Layout.create(4, 1), {"team": "blue"}))
    await writing.replay(change("create", "real", value=value), change("create", "broken", value=b"{"))
    found = await writing.store.get(TopicName.scalable("public", IN_STORE.namespace, "real"))
    assert found is not None
    assert found.value == value
    assert writing.writer.counts.unreadable == 1
    assert (await writing.layout("broken")).epoch == 0


async def test_recorded_values_can_be_left_out(valkey: ValkeyProcess) -> None:
    async with open_store(valkey.url) as store:
        with Observations(0) as observations:
            writing = Writing(store, observations, plan_for("pulsar://nowhere", valkey.url, values=False))
            value = stored.encode(stored.TopicRecord(Layout.create(4, 1)))
            await writing.replay(change("create", "real", value=value))
            assert len((await writing.layout("real")).segments) == 1


async def test_name_that_no_topic_can_have_is_a_row_with_its_error(writing: Writing) -> None:
    await writing.replay(change("create", "n" * 2_000), change("create", "fine"))
    errors = {topic[:4]: error for topic, _, error in writing.done}
    assert errors["fine"] is None
    assert errors["nnnn"]


async def test_store_that_is_gone_ends_the_replay_with_the_reason() -> None:
    own = ValkeyProcess().start()
    try:
        with trio.fail_after(60):
            plan = plan_for("pulsar://nowhere", own.url, patience_s=0.5)
            async with open_store(own.url, timeouts=Timeouts(0.2, 0.2, 0.5)) as store:
                with Observations(0) as observations:
                    writing = Writing(store, observations, plan)
                    await writing.seed(change("seed", "here"))
                    own.kill()
                    rows = [change("create", f"t{number}", at_ms=number * 100) for number in range(100)]
                    with pytest.raises(JobError, match=r"^The store has taken no write for more than 0.5 s: "):
                        await writing.replay(*rows)
                    assert all(error for *_, error in writing.seen)
    finally:
        own.close()


async def test_seed_that_cannot_be_made_is_said(writing: Writing) -> None:
    with pytest.raises(JobError, match="could not be created at the start"):
        await writing.seed(change("seed", "n" * 2_000))
