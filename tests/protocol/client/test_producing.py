"""Producing to whole topics: which segment a message goes to, and that its key stays in order whatever happens."""

from __future__ import annotations

import pytest
import trio.testing

from protocol.client import Message, Sending, SendTimedOut, ServerRefused, TopicProducer
from protocol.hashing import segment_hash
from protocol.wire import pulsar_api_pb2 as api
from tests.protocol.client.producer_server import ProducerServer, producing_to
from tests.support.waiting import eventually

WHOLE = (0, 0x0000, 0xFFFF)
LOW, HIGH = (1, 0x0000, 0x7FFF), (2, 0x8000, 0xFFFF)
# One key for each half of the ring.
LOW_KEY, HIGH_KEY = "a", "key-0"
PARENT, LOW_CHILD, HIGH_CHILD = "0000-ffff-0", "0000-7fff-1", "8000-ffff-2"


def test_the_keys_of_these_tests_are_on_the_sides_that_their_names_say() -> None:
    assert segment_hash(LOW_KEY.encode()) < 0x8000 <= segment_hash(HIGH_KEY.encode())


async def post(producer: TopicProducer, *values: str, key: str | None = LOW_KEY) -> list[Sending]:
    return [await producer.post(Message(value.encode(), key)) for value in values]


async def test_a_key_decides_for_a_segment_by_the_high_half_of_its_hash() -> None:
    server = ProducerServer(LOW, HIGH)
    async with producing_to(server) as producer:
        low = await producer.send(Message(b"x", LOW_KEY))
        high = await producer.send(Message(b"y", HIGH_KEY))
    assert low.topic == f"segment://public/default/t/{LOW_CHILD}"
    assert high.topic == f"segment://public/default/t/{HIGH_CHILD}"
    assert server.stored == {LOW_CHILD: [b"x"], HIGH_CHILD: [b"y"]}


async def test_messages_without_a_key_take_turns() -> None:
    server = ProducerServer(LOW, HIGH)
    async with producing_to(server) as producer:
        await post(producer, *map(str, range(10)), key=None)
    assert [len(server.stored[name]) for name in (LOW_CHILD, HIGH_CHILD)] == [5, 5]


async def test_sealed_segments_get_nothing_and_are_not_even_asked() -> None:
    server = ProducerServer((*WHOLE, "sealed"), LOW, HIGH)  # type: ignore[arg-type]  # any fourth value means sealed
    async with producing_to(server) as producer:
        await post(producer, *map(str, range(4)), key=None)
    assert {request.topic.rpartition("/")[2] for request in server.requests} == {LOW_CHILD, HIGH_CHILD}


async def test_what_a_split_segment_did_not_take_goes_to_its_children_before_anything_newer() -> None:
    server = ProducerServer(WHOLE)
    server.held.add(PARENT)
    async with producing_to(server) as producer:
        sendings = await post(producer, "1", "2", "3")
        await eventually(lambda: len(server.waiting[PARENT]) == 3)
        server.sealed.add(PARENT)
        await server.let_go(PARENT, count=1)
        await eventually(lambda: producer.rerouted == 2)
        # The layout has not come yet: nobody knows where to.
        sendings += await post(producer, "4")
        assert producer.pending == 3
        await server.push(LOW, HIGH)
        assert [(await sending.wait()).index for sending in sendings] == [0, 0, 1, 2]
        assert producer.possible_duplicates == 0
    assert server.stored == {PARENT: [b"1"], LOW_CHILD: [b"2", b"3", b"4"]}


async def test_newer_messages_wait_for_older_ones_that_a_sealed_segment_still_has() -> None:
    server = ProducerServer(WHOLE)
    server.held.add(PARENT)
    async with producing_to(server) as producer:
        await post(producer, "1", "2")
        await eventually(lambda: len(server.waiting[PARENT]) == 2)
        server.sealed.add(PARENT)
        await server.push(LOW, HIGH)
        await post(producer, "3")
        await post(producer, "other", key=HIGH_KEY)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert (server.stored, producer.pending) == ({}, 4)
        await server.let_go(PARENT, count=1)
        await producer.flush()
    assert server.stored == {PARENT: [b"1"], LOW_CHILD: [b"2", b"3"], HIGH_CHILD: [b"other"]}


async def test_messages_without_a_key_wait_for_nobody() -> None:
    server = ProducerServer(WHOLE)
    server.held.add(PARENT)
    async with producing_to(server) as producer:
        await post(producer, "1")
        await eventually(lambda: len(server.waiting[PARENT]) == 1)
        await server.push(LOW, HIGH)
        await eventually(lambda: len(producer._routes.in_order) == 2)
        assert (await producer.send(b"2")).topic.endswith((LOW_CHILD, HIGH_CHILD))
        assert producer.pending == 1
        await server.let_go(PARENT)


async def test_a_merged_segment_gets_what_both_of_its_parents_did_not_take() -> None:
    server = ProducerServer(LOW, HIGH)
    server.held |= {LOW_CHILD, HIGH_CHILD}
    merged = "0000-ffff-3"
    async with producing_to(server) as producer:
        await post(producer, "a1", "a2")
        await post(producer, "b1", "b2", key=HIGH_KEY)
        await eventually(lambda: [len(server.waiting[name]) for name in (LOW_CHILD, HIGH_CHILD)] == [2, 2])
        server.sealed |= {LOW_CHILD, HIGH_CHILD}
        await server.push((3, 0, 0xFFFF))
        await server.let_go(HIGH_CHILD, count=0)
        await post(producer, "b3", key=HIGH_KEY)
        await post(producer, "a3")
        await eventually(lambda: len(server.stored[merged]) == 3)
        await server.let_go(LOW_CHILD, count=1)
        await producer.flush()
    assert server.stored[LOW_CHILD] == [b"a1"]
    assert server.stored[merged] == [b"b1", b"b2", b"b3", b"a2", b"a3"]


async def test_a_segment_that_refuses_is_asked_again_if_no_layout_comes() -> None:
    server = ProducerServer(WHOLE)
    server.sealed.add(PARENT)
    async with producing_to(server) as producer:
        (sending,) = await post(producer, "1")
        await eventually(lambda: producer.rerouted >= 2)
        server.sealed.clear()  # as after the topic was deleted and created again
        await sending.wait()
    assert server.stored == {PARENT: [b"1"]}


async def test_a_message_that_finds_no_segment_in_time_fails() -> None:
    server = ProducerServer(WHOLE)
    server.sealed.add(PARENT)
    async with producing_to(server, send_timeout=2.0) as producer:
        with pytest.raises(SendTimedOut, match=r"not confirmed within 2 s.*(sealed|a new layout was waited for)"):
            await producer.send(Message(b"x", LOW_KEY))
        assert producer.pending == 0


async def test_what_may_be_stored_in_a_segment_that_was_sealed_meanwhile_is_counted() -> None:
    server = ProducerServer(WHOLE)
    server.held.add(PARENT)
    async with producing_to(server, connections=2) as producer:
        sendings = await post(producer, "1", "2")
        await eventually(lambda: len(server.waiting[PARENT]) == 2)
        server.held.clear()
        server.sealed.add(PARENT)
        server.segments = (LOW, HIGH)
        await server.cut()
        for sending in sendings:
            await sending.wait()
        assert producer.possible_duplicates == 2
    assert server.stored == {LOW_CHILD: [b"1", b"2"]}


async def test_producers_of_segments_that_are_gone_are_closed() -> None:
    server = ProducerServer(WHOLE)
    async with producing_to(server) as producer:
        await producer.send(Message(b"x", LOW_KEY))
        await server.push(LOW, HIGH)
        await eventually(lambda: server.closed == [PARENT])
        await producer.send(Message(b"y", LOW_KEY))
    assert server.closed == [PARENT, LOW_CHILD]


async def test_a_deleted_topic_fails_what_is_on_its_way_and_all_that_follows() -> None:
    server = ProducerServer(WHOLE)
    server.held.add(PARENT)
    async with producing_to(server) as producer:
        (sending,) = await post(producer, "1")
        await server.delete()
        with pytest.raises(ServerRefused, match="The topic was deleted"):
            await sending.wait()
        with pytest.raises(ServerRefused, match="The topic was deleted") as caught:
            await producer.send(b"x")
        assert caught.value.server_error == api.TopicNotFound


async def test_a_lost_connection_is_replaced_for_the_layout_and_the_segments() -> None:
    server = ProducerServer(LOW, HIGH)
    async with producing_to(server, connections=2) as producer:
        await post(producer, "1", "2")
        await producer.flush()
        await server.cut()
        await post(producer, "3", "4")
        await post(producer, "5", key=HIGH_KEY)
    assert server.stored == {LOW_CHILD: [b"1", b"2", b"3", b"4"], HIGH_CHILD: [b"5"]}


async def test_a_plain_topic_is_one_log() -> None:
    server = ProducerServer()
    async with producing_to(server, "persistent://public/default/plain") as producer:
        await post(producer, "1", "2", key=None)
        await post(producer, "3")
    assert server.stored == {"plain": [b"1", b"2", b"3"]}


async def test_a_partitioned_topic_spreads_messages_and_keeps_keys_together() -> None:
    server = ProducerServer(partitions=3)
    async with producing_to(server, "persistent://public/default/parted") as producer:
        await post(producer, *map(str, range(6)), key=None)
        first = await producer.send(Message(b"x", LOW_KEY))
        second = await producer.send(Message(b"y", LOW_KEY))
    assert first.topic == second.topic
    assert sorted(map(len, server.stored.values())) == [2, 2, 4]
    assert set(server.stored) == {f"parted-partition-{index}" for index in range(3)}
