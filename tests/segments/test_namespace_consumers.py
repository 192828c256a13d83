"""One consumer of many topics, against a real node: topics join, leave, fail and come back while messages flow."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pytest
import trio

from controller.migration import Migrations
from controller.transitions import TopicLimits
from gateway.node import Node
from metadata.registrations import Registrations
from metadata.subscriptions import SubscriptionType
from protocol.client import (
    ClientConnection,
    ConnectionPool,
    Message,
    NamespaceConsumer,
    NamespaceLimits,
    NamespaceStreamConsumer,
    ReceivedMessage,
    RequestTimedOut,
    ServerRefused,
    TooManyTopics,
    TopicEvent,
    TopicFailed,
    TopicJoined,
    TopicLeft,
    open_consumer,
    open_namespace_consumer,
    open_namespace_stream_consumer,
    open_pool,
    open_producer,
    watch_namespace,
)
from protocol.client.receive_buffer import ReceiveBuffer
from protocol.errors import InvalidName
from protocol.names import TopicName
from tests.support.nodes import created_classic, running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

NAMESPACE: Final = "public/default"
BLUE: Final = {"team": "blue"}
RED: Final = {"team": "red"}
# What everything in a test may take together on a busy machine.
LIMIT: Final = 60.0

Consumer: TypeAlias = NamespaceConsumer | NamespaceStreamConsumer
Opener: TypeAlias = Callable[..., AbstractAsyncContextManager[Any]]

both_kinds = pytest.mark.parametrize("opened", [open_namespace_consumer, open_namespace_stream_consumer])


def topic(name: str) -> TopicName:
    return TopicName.scalable("public", "default", name)


@dataclass
class World:
    node: Node
    pool: ConnectionPool

    async def create(self, *names: str, properties: dict[str, str] | None = None, segments: int = 1) -> None:
        for name in names:
            await transitions_of(self.node).create(topic(name), segments, properties or {})
        async with watch_namespace(self.node.pulsar_url, NAMESPACE) as watch:
            while not watch.topics >= {str(topic(name)) for name in names}:
                await anext(watch)

    async def give(self, name: str, properties: dict[str, str]) -> None:
        await transitions_of(self.node).update_properties(topic(name), properties)

    async def delete(self, name: str) -> None:
        await transitions_of(self.node).delete(topic(name))

    async def send(self, name: str, *values: str, key: str | None = None) -> None:
        async with open_producer(self.pool, str(topic(name)), create_if_missing=False) as producer:
            for value in values:
                await producer.send(Message(value.encode(), key))


@pytest.fixture
async def world(valkey: ValkeyProcess) -> AsyncIterator[World]:
    with trio.fail_after(LIMIT):
        async with running_node(valkey.url) as node, open_pool(node.pulsar_url, timeout=10) as pool:
            yield World(node, pool)


class Events(list[TopicEvent]):
    """What was told about topics, by their local names."""

    def __call__(self, event: TopicEvent) -> None:
        self.append(event)

    def of(self, name: str) -> list[type[TopicEvent]]:
        return [type(event) for event in self if event.topic == str(topic(name))]


async def taken(consumer: Consumer, count: int, *, acks: bool = True) -> list[tuple[str, str]]:
    """So many messages, by the local names of their topics, in alphabetical order."""
    found = []
    for _ in range(count):
        message = await consumer.receive()
        found.append(named(message))
        if acks:
            await consumer.ack(message)
    return sorted(found)


def named(message: ReceivedMessage) -> tuple[str, str]:
    return TopicName.parse(message.scalable_topic).local, message.value.decode()


def consumed(consumer: Consumer, names: Iterable[str]) -> bool:
    return consumer.topics == {str(topic(name)) for name in names}


def buffers(consumer: NamespaceConsumer) -> list[ReceiveBuffer]:
    return [segment._buffer for each in consumer._consumers() for segment in each._segments.values()]


@asynccontextmanager
async def nothing_comes(consumer: Consumer) -> AsyncIterator[None]:
    """Nothing may be taken while the body runs."""
    came: list[ReceivedMessage] = []
    async with trio.open_nursery() as nursery:

        async def take() -> None:
            came.append(await consumer.receive())

        nursery.start_soon(take)
        yield
        nursery.cancel_scope.cancel()
    assert came == []


@both_kinds
async def test_messages_of_all_topics_that_match_come_with_the_names_of_their_topics(
    world: World, opened: Opener
) -> None:
    await world.create("a", "b", properties=BLUE, segments=2)
    await world.create("other", properties=RED)
    async with opened(world.pool, NAMESPACE, "s", properties=BLUE) as consumer:
        assert consumed(consumer, "ab")
        for name in ("a", "b", "other"):
            await world.send(name, "1", "2")
        assert await taken(consumer, 4) == [("a", "1"), ("a", "2"), ("b", "1"), ("b", "2")]
        async with nothing_comes(consumer):
            await world.send("other", "3")
            await consumer.flush_acks()


@both_kinds
async def test_a_topic_that_is_created_later_joins_with_all_its_messages(world: World, opened: Opener) -> None:
    events = Events()
    async with opened(world.pool, NAMESPACE, "s", properties=BLUE, on_topic=events) as consumer:
        assert consumed(consumer, "")
        await world.create("late", properties=BLUE)
        await world.send("late", "1", "2")
        assert await taken(consumer, 2) == [("late", "1"), ("late", "2")]
        assert events == [TopicJoined(str(topic("late")))]


async def test_topics_that_are_there_begin_where_it_is_asked_for(world: World) -> None:
    await world.create("a")
    await world.send("a", "before")
    async with open_namespace_consumer(world.pool, NAMESPACE, "new") as consumer:
        await world.send("a", "after")
        assert await taken(consumer, 1) == [("a", "after")]
    async with open_namespace_consumer(world.pool, NAMESPACE, "all", initial_position="earliest") as consumer:
        assert await taken(consumer, 2) == [("a", "after"), ("a", "before")]


@both_kinds
async def test_a_topic_that_gets_other_properties_leaves_and_comes_back_where_it_was(
    world: World, opened: Opener
) -> None:
    events = Events()
    await world.create("a", "b", properties=BLUE)
    async with opened(world.pool, NAMESPACE, "s", properties=BLUE, on_topic=events) as consumer:
        await world.send("a", "1")
        assert await taken(consumer, 1) == [("a", "1")]
        await world.give("a", RED)
        await eventually(lambda: consumed(consumer, "b"), LIMIT)
        await eventually(lambda: events.of("a") == [TopicJoined, TopicLeft], LIMIT)
        async with nothing_comes(consumer):
            await world.send("a", "2")
        await world.send("b", "3")
        assert await taken(consumer, 1) == [("b", "3")]
        await world.give("a", BLUE)
        assert await taken(consumer, 1) == [("a", "2")]
        assert events.of("a") == [TopicJoined, TopicLeft, TopicJoined]
        assert events.of("b") == [TopicJoined]


@both_kinds
async def test_what_was_taken_of_a_topic_that_leaves_can_still_be_acknowledged(world: World, opened: Opener) -> None:
    events = Events()
    await world.create("a", properties=BLUE)
    async with opened(world.pool, NAMESPACE, "s", properties=BLUE, on_topic=events) as consumer:
        await world.send("a", "1", "2", "3")
        message = await consumer.receive()
        await world.give("a", RED)
        await eventually(lambda: consumed(consumer, ""), LIMIT)
        # Nobody has taken these, and nobody will: they are left to others.
        async with nothing_comes(consumer):
            assert events.of("a") == [TopicJoined]
        await consumer.ack(message)
        await eventually(lambda: events.of("a") == [TopicJoined, TopicLeft], LIMIT)
    async with opened(world.pool, NAMESPACE, "s") as consumer:
        assert await taken(consumer, 2) == [("a", "2"), ("a", "3")]


async def test_who_acknowledges_nothing_is_left_after_a_while_and_others_get_it(world: World) -> None:
    events = Events()
    await world.create("a", properties=BLUE)
    limits = NamespaceLimits(leave_timeout=0.01)
    async with open_namespace_consumer(
        world.pool, NAMESPACE, "s", properties=BLUE, limits=limits, on_topic=events
    ) as consumer:
        await world.send("a", "1")
        message = await consumer.receive()
        await world.give("a", RED)
        await eventually(lambda: events.of("a") == [TopicJoined, TopicLeft], LIMIT)
        async with open_consumer(world.pool, str(topic("a")), "s") as other:
            assert (await other.receive()).message_id == message.message_id
        assert consumer.ack_soon(message) is None
        await consumer.ack(message)


@both_kinds
async def test_a_deleted_topic_leaves_while_the_others_go_on(world: World, opened: Opener) -> None:
    events = Events()
    await world.create("a", "b")
    async with opened(world.pool, NAMESPACE, "s", on_topic=events) as consumer:
        await world.send("a", "1", "2")
        message = await consumer.receive()
        await world.delete("a")
        await consumer.ack(message)  # there is nothing to confirm any more
        await eventually(lambda: consumed(consumer, "b"), LIMIT)
        await world.send("b", "1")
        while (message := await consumer.receive()).scalable_topic != str(topic("b")):
            pass  # what had arrived before
        await eventually(lambda: events.of("a")[-1] == TopicLeft, LIMIT)
        assert TopicFailed not in events.of("a")
        assert consumer.failures == {}


@both_kinds
async def test_a_topic_that_is_made_again_under_its_name_is_consumed_from_its_beginning(
    world: World, opened: Opener
) -> None:
    await world.create("a", "b")
    async with opened(world.pool, NAMESPACE, "s") as consumer:
        for generation in range(3):
            await world.send("a", f"{generation}")
            assert await taken(consumer, 1) == [("a", f"{generation}")]
            await world.delete("a")
            await world.create("a")
        await world.send("a", "last")
        assert await taken(consumer, 1) == [("a", "last")]


@both_kinds
async def test_a_lost_connection_loses_nothing_and_topics_that_came_meanwhile_join(
    world: World, opened: Opener
) -> None:
    await world.create("a", "b")
    async with opened(world.pool, NAMESPACE, "s") as consumer, open_pool(world.node.pulsar_url) as another:
        sender = World(world.node, another)
        await sender.send("a", "1")
        assert await taken(consumer, 1) == [("a", "1")]
        for connection in world.pool.connections:
            connection.close()
        await world.create("c")
        await world.delete("b")
        await sender.send("a", "2")
        await sender.send("c", "3")
        await eventually(lambda: consumed(consumer, "ac"), LIMIT)
        seen: set[tuple[str, str]] = set()
        while len(seen) < 2:
            message = await consumer.receive()
            await consumer.ack(message)
            seen.add(named(message))
        assert seen == {("a", "2"), ("c", "3")}


async def test_a_cumulative_acknowledgement_covers_what_was_taken_before_of_all_topics(world: World) -> None:
    await world.create("a", "b", "c", segments=2)
    async with open_namespace_stream_consumer(world.pool, NAMESPACE, "s") as consumer:
        for name in "abc":
            await world.send(name, *(f"{number}" for number in range(10)))
        messages = [await consumer.receive() for _ in range(30)]
        await consumer.ack_cumulative(messages[19])
    left = {named(message) for message in messages[20:]}
    async with open_namespace_stream_consumer(world.pool, NAMESPACE, "s") as consumer:
        assert {named(await consumer.receive()) for _ in range(10)} == left


async def test_a_position_is_acknowledged_for_all_topics_also_when_one_is_gone(world: World) -> None:
    await world.create("a", "b", "c")
    async with open_namespace_stream_consumer(world.pool, NAMESPACE, "s") as consumer:
        for name in "abc":
            await world.send(name, "1")
        await taken(consumer, 3, acks=False)
        position = consumer.position
        await world.delete("c")
        await eventually(lambda: consumed(consumer, "ab"), LIMIT)
        for name in "ab":
            await world.send(name, "2")
        await consumer.ack_position(position)
    async with open_namespace_stream_consumer(world.pool, NAMESPACE, "s") as consumer:
        assert await taken(consumer, 2) == [("a", "2"), ("b", "2")]


async def test_keys_of_each_topic_stay_in_order_through_a_split(world: World) -> None:
    await world.create("a", "b")
    async with open_namespace_stream_consumer(world.pool, NAMESPACE, "s") as consumer:
        for name in "ab":
            await world.send(name, "0", "1", key="k")
            await transitions_of(world.node).split(topic(name), 0)
            await world.send(name, "2", "3", key="k")
        came: dict[str, list[str]] = {"a": [], "b": []}
        for _ in range(8):
            message = await consumer.receive()
            came[named(message)[0]].append(named(message)[1])
            await consumer.ack_cumulative(message)
        assert came == {name: ["0", "1", "2", "3"] for name in "ab"}


@both_kinds
async def test_a_topic_that_cannot_be_consumed_holds_up_nobody_and_joins_once_it_can(
    world: World, opened: Opener
) -> None:
    kind = SubscriptionType.STREAM if opened is open_namespace_consumer else SubscriptionType.QUEUE
    events = Events()
    await world.create("bad", "good")
    registrations = Registrations(world.node.store)
    await registrations.create_subscription(topic("bad"), "s", kind, 0)
    async with opened(world.pool, NAMESPACE, "s", on_topic=events) as consumer:
        assert consumed(consumer, ["good"])
        [(failed, reason)] = consumer.failures.items()
        assert (failed, type(reason)) == (str(topic("bad")), ServerRefused)
        assert events.of("bad") == [TopicFailed]
        await world.send("good", "1")
        assert await taken(consumer, 1) == [("good", "1")]
        await registrations.delete_subscription(topic("bad"), "s")
        await eventually(lambda: consumed(consumer, ["bad", "good"]), LIMIT)
        assert events.of("bad") == [TopicFailed, TopicJoined]  # the attempts in between are no news
        await world.send("bad", "2")
        assert await taken(consumer, 1) == [("bad", "2")]


@both_kinds
async def test_a_topic_that_is_never_answered_for_gives_its_turn_to_the_others(
    world: World, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.create("a", "b")
    async with open_pool(world.node.pulsar_url, timeout=1) as pool:
        answered = trio.Event()
        ask = pool.connection_for

        async def connection_for(name: str) -> ClientConnection:
            if name == str(topic("a")):
                await answered.wait()
            return await ask(name)

        monkeypatch.setattr(pool, "connection_for", connection_for)
        async with opened(pool, NAMESPACE, "s", limits=NamespaceLimits(openings=1)) as consumer:
            await eventually(lambda: isinstance(consumer.failures.get(str(topic("a"))), RequestTimedOut), LIMIT)
            await eventually(lambda: consumed(consumer, "b"), LIMIT)
            answered.set()
            await eventually(lambda: consumed(consumer, "ab"), LIMIT)
            assert consumer.failures == {}


async def test_a_busy_topic_with_many_segments_has_one_turn_like_the_others(world: World) -> None:
    await world.create("busy", segments=4)
    await world.create("quiet")
    async with open_namespace_consumer(world.pool, NAMESPACE, "s") as consumer:
        await world.send("busy", *map(str, range(40)))
        await world.send("quiet", *map(str, range(5)))
        await eventually(lambda: sum(len(buffer) for buffer in buffers(consumer)) == 45, LIMIT)
        came = [named(await consumer.receive())[0] for _ in range(10)]
        assert Counter(came) == {"busy": 5, "quiet": 5}


async def test_messages_that_wait_are_bounded_for_all_topics_together(world: World) -> None:
    names = [f"t{number}" for number in range(5)]
    await world.create(*names)
    limits = NamespaceLimits(queue_size=20, total_queue_size=20)
    async with open_namespace_consumer(world.pool, NAMESPACE, "s", limits=limits) as consumer:
        for name in names:
            await world.send(name, *map(str, range(30)))
        came = Counter(name for name, _ in await taken(consumer, 150))
        assert came == dict.fromkeys(names, 30)
        # All took their turns at giving permits back, each for its share.
        assert sum(buffer._permits for buffer in buffers(consumer)) <= 20


async def test_topics_beyond_the_limit_wait_until_others_leave(world: World) -> None:
    await world.create("a", "b")
    events = Events()
    with pytest.raises(TooManyTopics, match="narrow the filter"):
        async with open_namespace_consumer(world.pool, NAMESPACE, "s", limits=NamespaceLimits(topics=1)):
            pass
    limits = NamespaceLimits(topics=2)
    async with open_namespace_consumer(world.pool, NAMESPACE, "s", limits=limits, on_topic=events) as consumer:
        await world.create("c")
        await world.send("c", "1")
        await eventually(lambda: events.of("c") == [TopicFailed], LIMIT)
        assert isinstance(consumer.failures[str(topic("c"))], TooManyTopics)
        await world.delete("b")
        assert await taken(consumer, 1) == [("c", "1")]
        assert consumed(consumer, "ac")
        assert consumer.failures == {}


@both_kinds
async def test_a_classic_topic_that_becomes_scalable_joins_with_its_old_logs(world: World, opened: Opener) -> None:
    name = TopicName.classic("public", "default", "old")
    classic = await created_classic(world.node, name, 2)
    async with open_producer(world.pool, str(name)) as producer:
        for value in (b"1", b"2"):
            await producer.send(Message(value))
    async with opened(world.pool, NAMESPACE, "s") as consumer:
        assert consumed(consumer, "")
        await Migrations(world.node.store, classic, TopicLimits()).migrate(name, force=True)
        assert await taken(consumer, 2) == [("old", "1"), ("old", "2")]
        await world.send("old", "3")
        assert await taken(consumer, 1) == [("old", "3")]


async def test_a_namespace_that_cannot_be_is_refused_at_once(world: World) -> None:
    with pytest.raises(InvalidName):
        async with open_namespace_consumer(world.pool, "no namespace", "s"):
            pass


@both_kinds
async def test_closing_leaves_every_topic_at_once(world: World, opened: Opener) -> None:
    await world.create("a", "b", segments=2)
    events = Events()
    async with opened(world.pool, NAMESPACE, "s", on_topic=events) as consumer:
        await world.send("a", "1", "2")
        await consumer.receive()
    assert [type(event) for event in events] == [TopicJoined, TopicJoined]
    at_logs = [subscription for log in world.node.data.hosting.logs for subscription in log.subscriptions.values()]
    assert [subscription.consumers for subscription in at_logs] == [[]] * 4
    # Nothing was acknowledged, and nobody has to wait for who has left.
    async with opened(world.pool, NAMESPACE, "s") as consumer:
        assert await taken(consumer, 2) == [("a", "1"), ("a", "2")]
