"""Stream consumers: segments as they are assigned, acknowledged across segments, and left only when that is done."""

from __future__ import annotations

import pytest
import trio.testing

from protocol.client import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    MessageId,
    ServerRefused,
    SubscriptionDeleted,
    open_pool,
    open_stream_consumer,
)
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.protocol.client.consumer_server import ConsumerServer, segment_topic, streaming_from
from tests.protocol.client.producer_scripts import LEDGER, end_politely, watch_layout
from tests.protocol.client.scripted_server import TOPIC, Peer, scripted_server
from tests.support.waiting import eventually


async def test_assigned_segments_are_subscribed_to_exclusively() -> None:
    server = ConsumerServer(1, 2)
    async with streaming_from(server, name="me", initial_position="earliest") as consumer:
        await eventually(lambda: set(server.attached) == {segment_topic(1), segment_topic(2)})
        await server.deliver(2, 0, 1)
        assert [(await consumer.receive()).message_id for _ in range(2)] == [
            MessageId(segment_topic(2), LEDGER, index) for index in range(2)
        ]
    assert server.names == ["me"]
    assert {(request.subType, request.consumer_name) for request in server.subscribed} == {(EXCLUSIVE, "me")}
    assert server.events[0] == "left"
    assert set(server.events[1:]) == {"closed 1", "closed 2"}


async def test_no_segment_at_all_is_an_assignment_too() -> None:
    server = ConsumerServer()
    async with streaming_from(server) as consumer:
        assert consumer.segments == []
        await server.push(4)
        await server.deliver(4, 0)
        assert (await consumer.receive()).topic == segment_topic(4)


async def test_a_refused_registration_is_raised_where_the_consumer_is_opened() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await watch_layout(peer, [(0, 0, 0xFFFF)])
        command = await peer.receive()
        while command is not None and command.type != BaseCommand.SCALABLE_TOPIC_SUBSCRIBE:
            command = await peer.receive()
        assert command is not None
        refusal = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE)
        refusal.scalableTopicSubscribeResponse.request_id = command.scalableTopicSubscribe.request_id
        refusal.scalableTopicSubscribeResponse.error = api.NotAllowedError
        refusal.scalableTopicSubscribeResponse.message = "it is a queue"
        await peer.send(refusal)
        await end_politely(peer)

    async with scripted_server(script) as server, open_pool(server.url) as pool:
        with pytest.raises(ServerRefused, match="it is a queue"):
            async with open_stream_consumer(pool, TOPIC, "s"):
                pass


async def test_a_segment_that_is_taken_away_is_left_once_everything_taken_is_acknowledged() -> None:
    server = ConsumerServer(1, 2)
    async with streaming_from(server) as consumer:
        await server.deliver(1, 0, 1, 2)
        first, second = [await consumer.receive() for _ in range(2)]
        await server.push(2)
        await eventually(lambda: consumer.assignments == 2)
        # The third message is not handed out any more, and the segment is still ours.
        assert consumer.receive_nowait() is None
        await consumer.ack(first)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert segment_topic(1) in server.attached
        await consumer.ack(second)
        await eventually(lambda: server.events == ["closed 1"])
        assert consumer.segments == [segment_topic(2)]
    assert [index for topic, index, _ in server.acks if topic == segment_topic(1)] == [0, 1]


async def test_a_segment_that_is_assigned_again_before_it_is_left_is_kept() -> None:
    server = ConsumerServer(1)
    async with streaming_from(server) as consumer:
        await server.deliver(1, 0, 1)
        first = await consumer.receive()
        await server.push()
        await eventually(lambda: consumer.assignments == 2)
        await server.push(1)
        assert (await consumer.receive()).message_id.index == 1
        await consumer.ack(first)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert server.events == []


async def test_a_segment_whose_old_owner_is_still_attached_is_waited_for() -> None:
    server = ConsumerServer(1)
    server.busy.add(segment_topic(1))
    async with streaming_from(server) as consumer:
        await trio.testing.wait_all_tasks_blocked(0.05)
        server.busy.clear()
        await server.deliver(1, 0)
        assert (await consumer.receive()).message_id.index == 0


async def test_acknowledging_up_to_a_message_concerns_what_was_taken_before_in_every_segment() -> None:
    server = ConsumerServer(1, 2, 3)
    async with streaming_from(server) as consumer:
        await server.deliver(1, 0, 1)
        one = [await consumer.receive() for _ in range(2)]
        await server.deliver(2, 0, 1)
        two = [await consumer.receive() for _ in range(2)]
        assert (one[-1].taken, two[-1].taken) == (2, 4)
        await consumer.ack_cumulative(two[0])
        assert sorted(server.acks) == [(segment_topic(1), 1, True), (segment_topic(2), 0, True)]
        server.acks.clear()
        await consumer.ack_cumulative(two[1])
        # Only what moved is told.
        assert server.acks == [(segment_topic(2), 1, True)]


async def test_a_position_can_be_noted_and_acknowledged_later() -> None:
    server = ConsumerServer(1, 2)
    async with streaming_from(server) as consumer:
        await server.deliver(1, 0, 1)
        await consumer.receive()
        noted = consumer.position
        await consumer.receive()
        await consumer.ack_position(noted)
        assert server.acks == [(segment_topic(1), 0, True)]


async def test_older_layouts_are_ignored_and_the_same_one_is_not() -> None:
    server = ConsumerServer(1, epoch=5)
    async with streaming_from(server) as consumer:
        await server.push(2, epoch=5)
        await eventually(lambda: consumer.assigned == {segment_topic(2)})
        await server.push(3, epoch=4)
        await server.push(2, 4, epoch=6)
        await eventually(lambda: consumer.assigned == {segment_topic(2), segment_topic(4)})
        assert consumer.assignments == 3


async def test_an_update_that_comes_before_the_answer_is_the_newer_one() -> None:
    server = ConsumerServer(1)
    server.push_before_answer = (2,)
    async with streaming_from(server) as consumer:
        assert consumer.assigned == {segment_topic(2)}


async def test_after_a_lost_connection_the_consumer_registers_under_its_name_again() -> None:
    server = ConsumerServer(1)
    async with streaming_from(server, connections=2, name="me") as consumer:
        await server.deliver(1, 0)
        message = await consumer.receive()
        await server.peer.close()
        await eventually(lambda: len(server.names) == 2)
        await consumer.ack(message)
        await server.deliver(1, 1)
        assert (await consumer.receive()).message_id.index == 1
    assert server.names == ["me", "me"]
    assert (segment_topic(1), 0, False) in server.acks


async def test_a_part_of_a_segment_is_shared_by_keys_and_acknowledged_one_by_one() -> None:
    server = ConsumerServer()
    async with streaming_from(server) as consumer:
        await server.push(1, ranges=(0, 0x7FFF))
        await server.deliver(1, 0, 1)
        messages = [await consumer.receive() for _ in range(2)]
        await consumer.ack_cumulative(messages[1])
    (request,) = server.subscribed
    assert (request.subType, request.keySharedMeta.keySharedMode) == (KEY_SHARED, api.STICKY)
    assert request.keySharedMeta.entryBucketDispatch
    assert [(part.start, part.end) for part in request.keySharedMeta.hashRanges] == [(0, 0x7FFF)]
    assert server.acks == [(segment_topic(1), 0, False), (segment_topic(1), 1, False)]


async def test_the_partitions_of_a_plain_topic_are_divided_by_the_server() -> None:
    server = ConsumerServer(partitions=2)
    async with streaming_from(server, "persistent://public/default/p"):
        pass
    assert sorted((request.topic, request.subType) for request in server.subscribed) == [
        (f"persistent://public/default/p-partition-{index}", FAILOVER) for index in range(2)
    ]
    assert server.names == []


async def test_a_consumer_whose_registration_is_closed_ends_because_its_subscription_was_deleted() -> None:
    server = ConsumerServer(1, 2)
    async with streaming_from(server) as consumer:
        await eventually(lambda: len(server.flowing) == 2)
        await server.push()
        await server.close_registration()
        with pytest.raises(SubscriptionDeleted, match="open a new consumer"):
            await consumer.receive()
        assert consumer.segments == []
        await eventually(lambda: not server.attached)
    assert len(server.names) == 1
    assert "left" not in server.events  # there is nothing to leave


async def test_a_consumer_whose_registration_is_closed_is_told_where_it_is_its_topic_that_is_gone() -> None:
    server = ConsumerServer()
    async with streaming_from(server) as consumer:
        server.is_deleted = True
        await server.close_registration()
        with pytest.raises(ServerRefused) as caught:
            await consumer.receive()
        assert caught.value.server_error == api.TopicNotFound
        assert not isinstance(caught.value, SubscriptionDeleted)
    assert len(server.names) == 1


async def test_a_consumer_that_hears_of_the_deletion_at_a_segment_leaves_the_others_and_the_controller() -> None:
    server = ConsumerServer(1, 2)
    async with streaming_from(server) as consumer:
        await eventually(lambda: len(server.flowing) == 2)
        server.missing.add(segment_topic(1))
        await server.close(1)
        with pytest.raises(SubscriptionDeleted):
            await consumer.receive()
        await eventually(lambda: {"left", "closed 2"} <= set(server.events))
        assert consumer.segments == []
    assert len(server.names) == 1
