"""Producing to one segment: sequence ids, receipts in order, and what happens when the place at the server is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from protocol import replies
from protocol.client import (
    ConnectionLost,
    Message,
    MessageId,
    MessageTooLarge,
    MixedBatch,
    SendTimedOut,
    ServerMisbehaved,
    ServerRefused,
    TopicProducer,
    open_pool,
    open_producer,
)
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.protocol.client.producer_scripts import (
    LEDGER,
    SEGMENT,
    Sent,
    accept_producer,
    close_producer,
    end_politely,
    next_sent,
    producer_success,
    receipt,
    send_error,
    take_producer,
)
from tests.protocol.client.scripted_server import Peer, Script, scripted_server

LIMIT = 30.0


@asynccontextmanager
async def producing(*scripts: Script, **options: Any) -> AsyncIterator[TopicProducer]:
    """A producer of one segment on a server that follows these scripts, one for each connection."""
    with trio.fail_after(LIMIT):
        async with (
            scripted_server(*scripts) as server,
            open_pool(server.url) as pool,
            open_producer(pool, SEGMENT, **options) as producer,
        ):
            yield producer


async def test_a_message_is_sent_as_it_was_given_and_its_place_returned() -> None:
    arrived: list[Sent] = []

    async def script(peer: Peer) -> None:
        await peer.greet()
        request = await accept_producer(peer, SEGMENT)
        assert not request.HasField("producer_name")
        assert not request.user_provided_producer_name
        arrived.append(await next_sent(peer))
        await peer.send(receipt(arrived[0], 0))
        await end_politely(peer)

    async with producing(script) as producer:
        message = Message(b"value", "key", {"a": "1"}, event_time_ms=5, ordering_key=b"o")
        assert await producer.send(message) == MessageId(SEGMENT, LEDGER, 0)
    (sent,) = arrived
    assert sent.value == b"value"
    assert (sent.metadata.partition_key, sent.metadata.ordering_key) == ("key", b"o")
    assert (sent.metadata.event_time, sent.metadata.producer_name) == (5, "given")
    assert {pair.key: pair.value for pair in sent.metadata.properties} == {"a": "1"}
    assert sent.metadata.publish_time > 1_700_000_000_000


async def test_messages_are_pipelined_and_confirmed_in_order() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await accept_producer(peer)
        # All of them come before the first is confirmed.
        sent = [await next_sent(peer) for _ in range(100)]
        assert [message.sequence_id for message in sent] == list(range(100))
        assert [message.value for message in sent] == [b"%d" % number for number in range(100)]
        await peer.send(*(receipt(message, index) for index, message in enumerate(sent)))
        await end_politely(peer)

    async with producing(script) as producer:
        sendings = [await producer.post(b"%d" % number) for number in range(100)]
        assert [(await sending.wait()).index for sending in sendings] == list(range(100))
        assert producer.pending == 0


async def test_a_named_producer_goes_on_where_the_server_says_that_it_stopped() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        request = await accept_producer(peer, last_sequence_id=41)
        assert (request.producer_name, request.user_provided_producer_name) == ("mine", True)
        sent = await next_sent(peer)
        assert sent.sequence_id == 42
        await peer.send(receipt(sent, 3))
        await end_politely(peer)

    async with producing(script, name="mine") as producer:
        await producer.send(b"x")


async def test_what_is_not_confirmed_is_sent_again_with_the_same_ids_after_a_lost_connection() -> None:
    first: list[Sent] = []

    async def lost(peer: Peer) -> None:
        await peer.greet()
        assert (await accept_producer(peer)).epoch == 0
        first.extend([await next_sent(peer) for _ in range(3)])
        await peer.send(receipt(first[0], 0))
        await peer.until_read()

    async def found(peer: Peer) -> None:
        await peer.greet()
        request = await accept_producer(peer, last_sequence_id=2)
        assert (request.producer_name, request.epoch) == ("given", 1)
        again = [await next_sent(peer) for _ in range(2)]
        assert [message.sequence_id for message in again] == [1, 2]
        assert [message.metadata for message in again] == [message.metadata for message in first[1:]]
        await peer.send(*(receipt(message, index) for index, message in enumerate(again, 1)))
        await end_politely(peer)

    async with producing(lost, found) as producer:
        sendings = [await producer.post(b"%d" % number) for number in range(3)]
        assert [(await sending.wait()).index for sending in sendings] == [0, 1, 2]
        assert (producer.resent, producer.possible_duplicates) == (2, 0)


async def test_a_message_that_the_server_has_had_already_is_confirmed_without_a_place() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await accept_producer(peer)
        confirmed = receipt(await next_sent(peer), 0)
        confirmed.send_receipt.message_id.ledgerId = confirmed.send_receipt.message_id.entryId = 2**64 - 1
        await peer.send(confirmed)
        await end_politely(peer)

    async with producing(script) as producer:
        message_id = await producer.send(b"x")
    assert not message_id.is_known
    assert (message_id.ledger, message_id.index) == (-1, -1)


async def test_a_producer_that_the_server_closes_looks_for_the_owner_again() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        request = await accept_producer(peer)
        waiting = await next_sent(peer)
        await peer.send(close_producer(request))
        # On the same connection, because the lookup still points here.
        again = await accept_producer(peer, SEGMENT)
        assert again.producer_id != request.producer_id
        repeated = await next_sent(peer)
        assert (repeated.sequence_id, repeated.value) == (waiting.sequence_id, waiting.value)
        await peer.send(receipt(waiting, 99))  # comes too late to count
        await peer.send(receipt(repeated, 0))
        await end_politely(peer)

    async with producing(script) as producer:
        assert (await producer.send(b"x")).index == 0


async def test_the_owner_may_be_another_server() -> None:
    async def owner(peer: Peer) -> None:
        await peer.greet()
        request = (await peer.expect(BaseCommand.PRODUCER)).producer
        await peer.send(producer_success(request))
        await peer.send(receipt(await next_sent(peer), 5))
        await end_politely(peer)

    async with scripted_server(owner) as elsewhere:

        async def pointer(peer: Peer) -> None:
            await peer.greet()
            await peer.point_to(elsewhere.url)
            await peer.until_gone()

        async with producing(pointer) as producer:
            assert (await producer.send(b"x")).index == 5


async def test_passing_trouble_with_attaching_is_waited_out() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        refused = await take_producer(peer)
        await peer.send(replies.error(refused.request_id, api.ServiceNotReady, "not yet"))
        await accept_producer(peer)
        await peer.send(receipt(await next_sent(peer), 0))
        await end_politely(peer)

    async with producing(script) as producer:
        await producer.send(b"x")


@pytest.mark.parametrize("code", [api.TopicTerminatedError, api.ProducerFenced, api.AuthorizationError])
async def test_a_final_refusal_fails_what_is_waiting_and_all_that_follows(code: api.ServerError.ValueType) -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        refused = await take_producer(peer)
        await peer.send(replies.error(refused.request_id, code, "no"))
        await end_politely(peer)

    async with producing(script) as producer:
        for _ in range(2):
            with pytest.raises(ServerRefused, match="no ") as caught:
                await producer.send(b"x")
            assert caught.value.server_error == code


async def test_a_message_that_is_not_allowed_fails_alone() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await accept_producer(peer)
        sent = [await next_sent(peer) for _ in range(3)]
        await peer.send(receipt(sent[0], 0), send_error(sent[1], api.NotAllowedError), receipt(sent[2], 1))
        await end_politely(peer)

    async with producing(script) as producer:
        first, second, third = [await producer.post(b"%d" % number) for number in range(3)]
        assert (await first.wait()).index == 0
        with pytest.raises(ServerRefused, match="because"):
            await second.wait()
        assert (await third.wait()).index == 1


async def test_another_error_of_a_message_makes_the_producer_come_back_and_send_it_again() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        request = await accept_producer(peer)
        refused = await next_sent(peer)
        await peer.send(send_error(refused, api.PersistenceError))
        closed = (await peer.expect(BaseCommand.CLOSE_PRODUCER)).close_producer
        assert closed.producer_id == request.producer_id
        await accept_producer(peer)
        again = await next_sent(peer)
        assert again.sequence_id == refused.sequence_id
        await peer.send(receipt(again, 0))
        await end_politely(peer)

    async with producing(script) as producer:
        await producer.send(b"x")


async def test_a_receipt_out_of_order_is_the_servers_fault() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await accept_producer(peer)
        sent = [await next_sent(peer) for _ in range(2)]
        await peer.send(receipt(sent[1], 0))
        await peer.until_gone()

    async with producing(script) as producer:
        sendings = [await producer.post(b"x") for _ in range(2)]
        for sending in sendings:
            with pytest.raises(ServerMisbehaved, match=r"spoke of message 1 of .* before 0"):
                await sending.wait()


async def test_there_are_never_more_messages_on_their_way_than_allowed() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await accept_producer(peer)
        for index in range(0, 10, 2):
            sent = [await next_sent(peer) for _ in range(2)]
            await peer.until_read()  # and nothing more was sent
            await peer.send(*(receipt(message, index + place) for place, message in enumerate(sent)))
        await end_politely(peer)

    async with producing(script, max_pending=2) as producer:
        for number in range(10):
            await producer.post(b"%d" % number)
            assert producer.pending <= 2


async def test_bytes_are_bounded_too_but_one_large_message_always_passes() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await accept_producer(peer)
        for index in range(3):
            sent = await next_sent(peer)
            await peer.until_read()
            await peer.send(receipt(sent, index))
        await end_politely(peer)

    async with producing(script, max_pending_bytes=1_000) as producer:
        for _ in range(3):
            await producer.post(bytes(5_000))
            assert producer.pending == 1


async def test_a_message_that_is_never_confirmed_fails_and_a_late_receipt_does_no_harm() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await accept_producer(peer)
        forgotten = await next_sent(peer)
        await peer.expect(BaseCommand.CLOSE_PRODUCER)
        await peer.send(receipt(forgotten, 0))
        await accept_producer(peer)
        await peer.send(receipt(await next_sent(peer), 1))
        await end_politely(peer)

    async with producing(script, send_timeout=0.2) as producer:
        with pytest.raises(SendTimedOut, match=r"not confirmed within 0.2 s"):
            await producer.send(b"forgotten")
        assert producer.pending == 0
        # What failed is not sent again.
        assert (await producer.send(b"x")).index == 1


async def test_messages_wait_for_a_place_or_for_room_only_as_long_as_they_may_and_say_why() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        while (command := await peer.receive()) is not None:
            if command.type == BaseCommand.LOOKUP:
                await peer.send(replies.lookup_connect(command.lookupTopic.request_id, peer.server.url))
            else:
                await peer.send(replies.error(command.producer.request_id, api.ServiceNotReady, "never ready"))

    async with producing(script, send_timeout=0.3, max_pending=1) as producer:
        waiting = await producer.post(b"x")
        for send in (waiting.wait, partial(producer.send, b"y")):
            with pytest.raises(SendTimedOut, match="never ready"):
                await send()


async def test_who_stops_waiting_does_not_take_the_message_back() -> None:
    stopped = trio.Event()

    async def script(peer: Peer) -> None:
        await peer.greet()
        await accept_producer(peer)
        sent = await next_sent(peer)
        await stopped.wait()
        await peer.send(receipt(sent, 0))
        await end_politely(peer)

    async with producing(script) as producer:
        sending = await producer.post(b"x")
        with trio.move_on_after(0.01):
            await sending.wait()
        stopped.set()
        assert (await sending.wait()).index == 0


async def test_a_batch_is_one_entry_with_a_sequence_id_for_each_message() -> None:
    arrived: list[Sent] = []

    async def script(peer: Peer) -> None:
        await peer.greet()
        await accept_producer(peer)
        for index in range(2):
            arrived.append(await next_sent(peer))
            await peer.send(receipt(arrived[-1], index))
        await end_politely(peer)

    async with producing(script) as producer:
        await producer.post_batch([Message(b"a", "k"), Message(b"b", "k")])
        await producer.send(b"c")
    batch, single = arrived
    assert (batch.sequence_id, single.sequence_id) == (1, 2)
    assert (batch.metadata.num_messages_in_batch, batch.metadata.uncompressed_size) == (2, len(batch.value))
    assert batch.metadata.entry_hash_min == batch.metadata.entry_hash_max == Message(b"", "k").bucket_hash
    assert not single.metadata.HasField("num_messages_in_batch")


async def test_a_batch_of_different_keys_is_refused_here() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.until_gone()

    async with producing(script) as producer:
        for messages in ([Message(b"a", "k"), Message(b"b", "l")], []):
            with pytest.raises(MixedBatch):
                await producer.post_batch(messages)


async def test_a_message_that_is_too_large_for_the_server_fails_alone() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet(max_message_size=100_000)
        await accept_producer(peer)
        await peer.send(receipt(await next_sent(peer), 0))
        await end_politely(peer)

    async with producing(script) as producer:
        with pytest.raises(MessageTooLarge, match="the server accepts 100000"):
            await producer.send(bytes(200_000))
        await producer.send(b"x")


async def test_who_waits_for_exclusive_access_is_attached_when_it_is_his_turn() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        request = await take_producer(peer)
        assert request.producer_access_mode == api.WaitForExclusive
        await peer.send(producer_success(request, is_ready=False))
        await peer.until_read()
        await peer.send(producer_success(request))
        await peer.send(receipt(await next_sent(peer), 0))
        await end_politely(peer)

    async with producing(script, access_mode=api.WaitForExclusive) as producer:
        await producer.send(b"x")


async def test_the_end_of_the_body_waits_for_receipts_and_closes_the_producer() -> None:
    said: list[BaseCommand] = []

    async def script(peer: Peer) -> None:
        await peer.greet()
        request = await accept_producer(peer)
        sent = await next_sent(peer)
        await peer.until_read()
        await peer.send(receipt(sent, 0))
        closed = (await peer.expect(BaseCommand.CLOSE_PRODUCER)).close_producer
        assert closed.producer_id == request.producer_id
        await peer.send(replies.success(closed.request_id))
        said.extend(await end_politely(peer))

    async with producing(script) as producer:
        sending = await producer.post(b"x")
    assert sending.message_id is not None
    assert said == []


async def test_a_server_that_is_not_there_is_noticed_when_the_pool_opens() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    url = f"pulsar://127.0.0.1:{listener.socket.getsockname()[1]}"
    await listener.aclose()
    with pytest.raises(ConnectionLost, match="Nothing answers"):
        async with open_pool(url):
            pass


async def test_a_pool_goes_to_the_next_address_when_one_does_not_answer() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.point_to(peer.server.url)
        await peer.until_gone()

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    dead = f"pulsar://127.0.0.1:{listener.socket.getsockname()[1]}"
    await listener.aclose()
    async with scripted_server(script) as server, open_pool([dead, server.url]) as pool:
        connection = await pool.connection_for(SEGMENT)
        assert str(connection.address) == server.url
        assert await pool.service() is connection
