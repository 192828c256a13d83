"""Consuming one segment: permits, batches, acknowledgements, redelivery, seeks, and what a lost place changes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from protocol import replies
from protocol.client import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    Message,
    MessageId,
    ServerMisbehaved,
    ServerRefused,
    SubscriptionDeleted,
    TopicConsumer,
    UnreadableMessage,
    open_consumer,
    open_pool,
    open_reader,
)
from protocol.framing import encode, encode_payload
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.protocol.client.consumer_scripts import (
    accept_consumer,
    ack_response,
    acked,
    close_consumer,
    confirm_ack,
    message_command,
    message_frame,
    take_consumer,
)
from tests.protocol.client.producer_scripts import LEDGER, SEGMENT, end_politely, lookup_here
from tests.protocol.client.scripted_server import Peer, Script, scripted_server
from tests.support.waiting import eventually

LIMIT = 30.0


@asynccontextmanager
async def consuming(*scripts: Script, **options: Any) -> AsyncIterator[TopicConsumer]:
    """A consumer of one segment on a server that follows these scripts, one for each connection."""
    with trio.fail_after(LIMIT):
        async with (
            scripted_server(*scripts) as server,
            open_pool(server.url) as pool,
            open_consumer(pool, SEGMENT, "s", **{"kind": EXCLUSIVE} | options) as consumer,
        ):
            yield consumer


@asynccontextmanager
async def reading(*scripts: Script, **options: Any) -> AsyncIterator[TopicConsumer]:
    with trio.fail_after(LIMIT):
        async with (
            scripted_server(*scripts) as server,
            open_pool(server.url) as pool,
            open_reader(pool, SEGMENT, **options) as consumer,
        ):
            yield consumer


async def values(consumer: TopicConsumer, count: int) -> list[bytes]:
    return [(await consumer.receive()).value for _ in range(count)]


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED])
async def test_a_consumer_asks_for_its_subscription_and_gets_messages_as_they_were_sent(
    kind: api.CommandSubscribe.SubType.ValueType,
) -> None:
    requests: list[api.CommandSubscribe] = []

    async def script(peer: Peer) -> None:
        await peer.greet()
        requests.append(await accept_consumer(peer, SEGMENT, permits=1_000))
        message = Message(b"v", "k", {"a": "1"}, event_time_ms=5, ordering_key=b"o")
        await peer.send_bytes(message_frame(requests[0], 4, message, redeliveries=2))
        await end_politely(peer)

    async with consuming(script, kind=kind, initial_position="earliest", name="me") as consumer:
        message = await consumer.receive()
    (request,) = requests
    assert (request.subscription, request.subType, request.consumer_name) == ("s", kind, "me")
    assert (request.durable, request.initialPosition) == (True, api.CommandSubscribe.Earliest)
    assert request.HasField("keySharedMeta") == (kind == KEY_SHARED)
    assert message.message_id == MessageId(SEGMENT, LEDGER, 4)
    assert (message.value, message.key, message.properties) == (b"v", "k", {"a": "1"})
    assert (message.event_time_ms, message.ordering_key, message.publish_time_ms) == (5, b"o", 1_004)
    assert (message.producer_name, message.sequence_id, message.redelivery_count) == ("maker", 4, 2)


async def test_permits_are_given_back_when_half_of_them_are_used() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        request = await accept_consumer(peer, permits=10)
        for index in range(10):
            await peer.send_bytes(message_frame(request, index))
        for _ in range(2):
            assert (await peer.expect(BaseCommand.FLOW)).flow.messagePermits == 5
        await end_politely(peer)

    async with consuming(script, queue_size=10) as consumer:
        assert await values(consumer, 10) == [b"%d" % index for index in range(10)]


async def test_a_server_that_sends_more_than_it_may_is_at_fault() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        request = await accept_consumer(peer, permits=2)
        # In one piece, so that nothing can be taken in between.
        await peer.send_bytes(b"".join(message_frame(request, index) for index in range(3)))
        await peer.until_gone()

    async with consuming(script, queue_size=2) as consumer:
        with pytest.raises(ServerMisbehaved, match="no permits"):
            await values(consumer, 3)


async def test_a_batch_comes_as_its_messages_and_costs_as_many_permits() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        request = await accept_consumer(peer, permits=4)
        batch = [Message(b"a", "x"), Message(b"b", "y"), Message(b"c")]
        await peer.send_bytes(message_frame(request, 0, *batch, is_batch=True))
        await peer.send_bytes(message_frame(request, 1, *batch, is_batch=True))  # the last one may be too many
        permits = 0
        while permits < 6:
            permits += (await peer.expect(BaseCommand.FLOW)).flow.messagePermits
        await end_politely(peer)

    async with consuming(script, queue_size=4) as consumer:
        messages = [await consumer.receive() for _ in range(6)]
    assert [message.value for message in messages] == [b"a", b"b", b"c"] * 2
    assert [message.key for message in messages[:3]] == ["x", "y", None]
    assert [str(message.message_id) for message in messages[2:4]] == ["7:0:2", "7:1:0"]


async def test_messages_of_a_batch_that_were_acknowledged_before_are_left_out() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        request = await accept_consumer(peer)
        batch = [Message(b"%d" % index) for index in range(4)]
        await peer.send_bytes(message_frame(request, 0, *batch, is_batch=True, ack_set=[0b1010]))
        first = await confirm_ack(peer)
        assert list(first.message_id[0].ack_set) == [0b1000]
        assert first.message_id[0].batch_size == 4
        last = await confirm_ack(peer)
        assert list(last.message_id[0].ack_set) == []
        await end_politely(peer)

    async with consuming(script) as consumer:
        one, three = [await consumer.receive() for _ in range(2)]
        assert (one.value, three.value) == (b"1", b"3")
        await consumer.ack(one)
        await consumer.ack(three)


async def test_acknowledgements_are_collected_and_wait_until_they_are_confirmed() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        request = await accept_consumer(peer)
        for index in range(4):
            await peer.send_bytes(message_frame(request, index))
        first = (await peer.expect(BaseCommand.ACK)).ack
        assert (acked(first), first.ack_type) == ([0], api.CommandAck.Individual)
        await peer.until_read()
        await peer.send(ack_response(first))
        # Meanwhile the others have come together.
        assert sorted(acked(await confirm_ack(peer))) == [1, 2, 3]
        await end_politely(peer)

    async with consuming(script) as consumer:
        messages = [await consumer.receive() for _ in range(4)]
        first = consumer.ack_soon(messages[0])
        await trio.testing.wait_all_tasks_blocked()
        for message in messages[1:]:
            consumer.ack_soon(message)
        assert first is not None
        await first.wait()
        await consumer.flush_acks()


async def test_without_confirmation_acknowledgements_are_told_without_a_request() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        request = await accept_consumer(peer)
        await peer.send_bytes(message_frame(request, 0))
        assert not (await peer.expect(BaseCommand.ACK)).ack.HasField("request_id")
        await end_politely(peer)

    async with consuming(script, confirm_acks=False) as consumer:
        await consumer.ack(await consumer.receive())


async def test_a_refused_acknowledgement_is_raised() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        request = await accept_consumer(peer)
        await peer.send_bytes(message_frame(request, 0))
        ack = (await peer.expect(BaseCommand.ACK)).ack
        await peer.send(ack_response(ack, api.NotAllowedError))
        await end_politely(peer)

    async with consuming(script) as consumer:
        message = await consumer.receive()
        with pytest.raises(ServerRefused, match="because"):
            await consumer.ack(message)


async def test_after_a_lost_connection_acknowledgements_are_told_before_messages_are_asked_for() -> None:
    async def lost(peer: Peer) -> None:
        await peer.greet()
        request = await accept_consumer(peer)
        for index in range(3):
            await peer.send_bytes(message_frame(request, index))
        await peer.expect(BaseCommand.ACK)  # and no answer

    async def found(peer: Peer) -> None:
        await peer.greet()
        request = await take_consumer(peer, SEGMENT)
        assert request.consumer_name == "me"
        await peer.send(replies.success(request.request_id))
        assert acked(await confirm_ack(peer)) == [0]
        await peer.expect(BaseCommand.FLOW)
        for index in (1, 2):
            await peer.send_bytes(message_frame(request, index, redeliveries=1))
        await end_politely(peer)

    async with consuming(lost, found, name="me") as consumer:
        first = await consumer.receive()
        await consumer.ack(first)
        # What was ready on the old connection is forgotten, and comes once.
        assert await values(consumer, 2) == [b"1", b"2"]
        assert consumer.receive_nowait() is None


async def test_a_consumer_that_the_server_closes_looks_for_the_owner_again() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        request = await accept_consumer(peer)
        await peer.send(close_consumer(request))
        again = await take_consumer(peer, SEGMENT)
        assert again.consumer_id == request.consumer_id
        await peer.send_bytes(message_frame(request, 7))  # comes too late to count
        await peer.send(replies.success(again.request_id))
        await peer.expect(BaseCommand.FLOW)
        await peer.send_bytes(message_frame(again, 0))
        await end_politely(peer)

    async with consuming(script) as consumer:
        assert await values(consumer, 1) == [b"0"]
        assert consumer.attaches == 2


async def test_a_consumer_that_was_closed_and_is_not_let_in_again_ends_because_its_subscription_was_deleted() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        request = await accept_consumer(peer)
        await peer.send(close_consumer(request))
        again = await take_consumer(peer, SEGMENT)
        assert again.consumer_id == request.consumer_id
        # What passes does not make it another one.
        await peer.send(replies.error(again.request_id, api.ServiceNotReady, "busy"))
        again = await take_consumer(peer, SEGMENT)
        assert again.consumer_id == request.consumer_id
        await peer.send(replies.error(again.request_id, api.TopicNotFound, "It was deleted."))
        await lookup_here(peer, SEGMENT)
        await end_politely(peer)

    async with consuming(script) as consumer:
        with pytest.raises(SubscriptionDeleted, match="It was deleted"):
            await consumer.receive()


async def test_a_consumer_that_was_closed_is_not_told_of_a_deleted_subscription_where_its_topic_is_gone() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.send(close_consumer(await accept_consumer(peer)))
        again = await take_consumer(peer, SEGMENT)
        await peer.send(replies.error(again.request_id, api.TopicNotFound, "first"))
        lookup = await peer.expect(BaseCommand.LOOKUP)
        refusal = replies.refusal(lookup, api.TopicNotFound, "gone")
        assert refusal is not None
        await peer.send(refusal)
        await end_politely(peer)

    async with consuming(script) as consumer:
        with pytest.raises(ServerRefused, match="gone") as caught:
            await consumer.receive()
        assert not isinstance(caught.value, SubscriptionDeleted)


async def test_a_busy_subscription_is_waited_for() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        refused = await take_consumer(peer)
        await peer.send(replies.error(refused.request_id, api.ConsumerBusy, "busy"))
        await accept_consumer(peer)
        await end_politely(peer)

    async with consuming(script) as consumer:
        assert consumer.attaches == 1


async def test_a_refused_subscription_is_raised_where_the_consumer_is_opened() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        refused = await take_consumer(peer)
        await peer.send(replies.error(refused.request_id, api.AuthorizationError, "not you"))
        await end_politely(peer)

    async with scripted_server(script) as server, open_pool(server.url) as pool:
        with pytest.raises(ServerRefused, match="not you"):
            async with open_consumer(pool, SEGMENT, "s"):
                pass


async def test_messages_can_be_asked_for_again() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        request = await accept_consumer(peer)
        for index in range(3):
            await peer.send_bytes(message_frame(request, index))
        wanted = (await peer.expect(BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)).redeliverUnacknowledgedMessages
        assert [data.entryId for data in wanted.message_ids] == [1]
        await peer.send_bytes(message_frame(request, 1, redeliveries=1))
        await end_politely(peer)

    async with consuming(script, kind=SHARED) as consumer:
        messages = [await consumer.receive() for _ in range(3)]
        consumer.redeliver([messages[1]])
        again = await consumer.receive()
        assert (again.message_id, again.redelivery_count) == (messages[1].message_id, 1)


async def test_what_was_sent_before_everything_is_asked_for_again_does_not_count() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        request = await accept_consumer(peer)
        for index in range(2):
            await peer.send_bytes(message_frame(request, index, consumer_epoch=0))
        wanted = (await peer.expect(BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)).redeliverUnacknowledgedMessages
        assert (len(wanted.message_ids), wanted.consumer_epoch) == (0, 1)
        await peer.send_bytes(message_frame(request, 2, consumer_epoch=0))
        for index in range(3):
            await peer.send_bytes(message_frame(request, index, consumer_epoch=1, redeliveries=1))
        await end_politely(peer)

    async with consuming(script) as consumer:
        assert (await consumer.receive()).message_id.index == 0
        consumer.redeliver()
        assert [(await consumer.receive()).message_id.index for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("closes", [False, True], ids=["the consumer stays", "the consumer is closed"])
async def test_a_seek_forgets_what_was_received_and_keeps_what_comes_after(closes: bool) -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        request = await accept_consumer(peer)
        for index in range(5, 8):
            await peer.send_bytes(message_frame(request, index))
        seek = (await peer.expect(BaseCommand.SEEK)).seek
        assert seek.message_publish_time == 123
        await peer.send_bytes(message_frame(request, 8))
        if closes:
            await peer.send(close_consumer(request), replies.success(seek.request_id))
            request = await accept_consumer(peer)
            await peer.send_bytes(message_frame(request, 0))
        else:
            # In one piece, so that the client reads them together.
            await peer.send_bytes(encode(replies.success(seek.request_id)) + message_frame(request, 0))
        await end_politely(peer)

    async with consuming(script) as consumer:
        assert await values(consumer, 1) == [b"5"]
        await consumer.seek(123)
        assert await values(consumer, 1) == [b"0"]


async def test_a_seek_is_tried_again_after_a_lost_connection() -> None:
    async def lost(peer: Peer) -> None:
        await peer.greet()
        await accept_consumer(peer)
        await peer.expect(BaseCommand.SEEK)

    async def found(peer: Peer) -> None:
        await peer.greet()
        await accept_consumer(peer)
        seek = (await peer.expect(BaseCommand.SEEK)).seek
        assert (seek.message_id.ledgerId, seek.message_id.entryId) == (LEDGER, 3)
        await peer.send(replies.success(seek.request_id))
        await end_politely(peer)

    async with consuming(lost, found) as consumer:
        await consumer.seek(MessageId(SEGMENT, LEDGER, 3))


@pytest.mark.parametrize("closed_first", [False, True], ids=["before it is told", "after it was told"])
async def test_a_seek_is_tried_again_where_the_segment_has_gone_to(closed_first: bool) -> None:
    """Its old owner refuses it: as one that does not serve it any more, or that does not know the consumer any more."""

    async def script(peer: Peer) -> None:
        await peer.greet()
        request = await accept_consumer(peer)
        seek = (await peer.expect(BaseCommand.SEEK)).seek
        if closed_first:
            await peer.send(close_consumer(request))
            await peer.send(replies.error(seek.request_id, api.ConsumerNotFound, "Who are you?"))
        else:
            await peer.send(replies.error(seek.request_id, api.ServiceNotReady, "It is not served here any more."))
            await peer.send(close_consumer(request))
        await accept_consumer(peer)
        again = (await peer.expect(BaseCommand.SEEK)).seek
        await peer.send(replies.success(again.request_id))
        await end_politely(peer)

    async with consuming(script) as consumer:
        await consumer.seek("earliest")


async def test_a_refused_seek_is_raised_and_nothing_is_forgotten() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        request = await accept_consumer(peer)
        await peer.send_bytes(message_frame(request, 5))
        seek = (await peer.expect(BaseCommand.SEEK)).seek
        await peer.send(replies.error(seek.request_id, api.NotAllowedError, "no"))
        await end_politely(peer)

    async with consuming(script) as consumer:
        with pytest.raises(ServerRefused):
            await consumer.seek("earliest")
        assert await values(consumer, 1) == [b"5"]


async def test_the_last_message_can_be_asked_for() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await accept_consumer(peer)
        request = (await peer.expect(BaseCommand.GET_LAST_MESSAGE_ID)).getLastMessageId
        answer = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
        answer.getLastMessageIdResponse.request_id = request.request_id
        answer.getLastMessageIdResponse.last_message_id.ledgerId = LEDGER
        answer.getLastMessageIdResponse.last_message_id.entryId = 12
        await peer.send(answer)
        await end_politely(peer)

    async with consuming(script) as consumer:
        assert await consumer.last_message_ids() == {SEGMENT: MessageId(SEGMENT, LEDGER, 12)}


async def test_to_unsubscribe_removes_the_subscription_and_ends_the_consumer() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await accept_consumer(peer)
        request = (await peer.expect(BaseCommand.UNSUBSCRIBE)).unsubscribe
        await peer.send(replies.success(request.request_id))
        await end_politely(peer)

    async with consuming(script) as consumer:
        await consumer.unsubscribe()
        assert [message async for message in consumer] == []


async def test_a_damaged_message_is_told_in_its_place_and_can_be_skipped() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        request = await accept_consumer(peer)
        damaged = bytearray(message_frame(request, 0))
        damaged[-1] ^= 1
        await peer.send_bytes(bytes(damaged))
        await peer.send_bytes(encode_payload(message_command(request, 1), b"\xff\xff", b""))
        metadata = api.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0, compression=api.LZ4)
        await peer.send_bytes(encode_payload(message_command(request, 2), metadata.SerializeToString(), b"x"))
        await peer.send_bytes(message_frame(request, 3))
        assert acked(await confirm_ack(peer)) == [0]
        await end_politely(peer)

    async with consuming(script) as consumer:
        for complaint in ("checksum", "metadata", "LZ4"):
            with pytest.raises(UnreadableMessage, match=complaint) as caught:
                await consumer.receive()
            if complaint == "checksum":
                await consumer.ack(caught.value.message_id)
        assert await values(consumer, 1) == [b"3"]


async def test_a_reader_begins_where_it_is_told_and_goes_on_after_the_last_message_that_was_taken() -> None:
    async def lost(peer: Peer) -> None:
        await peer.greet()
        request = await accept_consumer(peer)
        assert not request.durable
        assert (request.start_message_id.ledgerId, request.start_message_id.entryId) == (LEDGER, 4)
        for index in range(4, 8):
            await peer.send_bytes(message_frame(request, index))
        await taken.wait()

    async def found(peer: Peer) -> None:
        await peer.greet()
        request = await accept_consumer(peer)
        assert request.start_message_id.entryId == 6
        for index in range(6, 8):
            await peer.send_bytes(message_frame(request, index))
        await end_politely(peer)

    taken = trio.Event()
    async with reading(lost, found, start=MessageId(SEGMENT, LEDGER, 4)) as reader:
        assert await values(reader, 2) == [b"5", b"6"]
        taken.set()
        assert await values(reader, 1) == [b"7"]


async def test_a_reader_can_begin_inside_of_a_batch() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        request = await accept_consumer(peer)
        assert request.start_message_id.batch_index == 1
        batch = [Message(b"%d" % index) for index in range(4)]
        await peer.send_bytes(message_frame(request, 4, *batch, is_batch=True))
        await end_politely(peer)

    async with reading(script, start=MessageId(SEGMENT, LEDGER, 4, 1), is_inclusive=True) as reader:
        assert await values(reader, 3) == [b"1", b"2", b"3"]


@pytest.mark.parametrize(("edge", "number"), [("earliest", 2**64 - 1), ("latest", 2**63 - 1)])
async def test_the_edges_of_a_topic_are_numbers_that_no_message_has(edge: str, number: int) -> None:
    requests: list[api.CommandSubscribe] = []

    async def script(peer: Peer) -> None:
        await peer.greet()
        requests.append(await accept_consumer(peer))
        await end_politely(peer)

    async with reading(script, start=edge):
        pass
    assert requests[0].start_message_id.ledgerId == requests[0].start_message_id.entryId == number


async def test_a_reader_of_what_comes_next_loses_nothing_that_was_ready_when_its_connection_was_lost() -> None:
    async def lost(peer: Peer) -> None:
        await peer.greet()
        request = await accept_consumer(peer)
        for index in range(5, 7):
            await peer.send_bytes(message_frame(request, index))
        await peer.until_read()

    async def found(peer: Peer) -> None:
        await peer.greet()
        request = await accept_consumer(peer)
        assert request.start_message_id.entryId == 5
        for index in range(5, 7):
            await peer.send_bytes(message_frame(request, index))
        await end_politely(peer)

    async with reading(lost, found, start="latest") as reader:
        await eventually(lambda: reader.attaches == 2)
        assert await values(reader, 2) == [b"5", b"6"]


async def test_a_reader_tells_the_server_from_time_to_time_how_far_it_is() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        request = await accept_consumer(peer)
        for index in range(4):
            await peer.send_bytes(message_frame(request, index))
        for index in (1, 3):
            await peer.expect(BaseCommand.FLOW)
            ack = (await peer.expect(BaseCommand.ACK)).ack
            assert (ack.ack_type, acked(ack)) == (api.CommandAck.Cumulative, [index])
        await end_politely(peer)

    async with reading(script, queue_size=4) as reader:
        await values(reader, 4)


async def test_the_end_of_the_body_confirms_acknowledgements_and_closes_the_consumer() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        request = await accept_consumer(peer)
        await peer.send_bytes(message_frame(request, 0))
        await confirm_ack(peer)
        closed = (await peer.expect(BaseCommand.CLOSE_CONSUMER)).close_consumer
        assert closed.consumer_id == request.consumer_id
        await peer.send(replies.success(closed.request_id))
        assert await end_politely(peer) == []
        ended.set()

    ended = trio.Event()
    async with consuming(script) as consumer:
        consumer.ack_soon(await consumer.receive())
    await ended.wait()


async def test_several_tasks_may_take_messages() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        request = await accept_consumer(peer)
        await peer.until_read()
        for index in range(20):
            await peer.send_bytes(message_frame(request, index))
        await end_politely(peer)

    seen: list[bytes] = []

    async def take(consumer: TopicConsumer) -> None:
        seen.extend(await values(consumer, 5))

    async with consuming(script) as consumer, trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(take, consumer)
    assert sorted(seen, key=int) == [b"%d" % index for index in range(20)]
