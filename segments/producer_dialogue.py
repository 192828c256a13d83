"""What one client says as a producer: it opens producers, sends messages, and closes them."""

from __future__ import annotations

import os
import time
from typing import Final

import trio
from google.protobuf.message import DecodeError

from protocol import data_replies, replies
from protocol.framing import BadFrame, ChecksumMismatch, check_payload, parse_payload
from protocol.names import TopicName
from protocol.schemas import Schema
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from segments.appending import Chunk
from segments.bounds import check_producer
from segments.conversation import Conversation, is_managed
from segments.cursors import LARGEST_BATCH
from segments.errors import DataRefusal, NotAllowed
from segments.open_log import OpenLog
from segments.producers import Mode, Producer
from segments.sending import Sending

# Sequence numbers have a sign where clients are told the last one.
_LARGEST_LONG: Final = 2**63 - 1
_TOO_LARGE: Final = f"Sequence numbers go up to {_LARGEST_LONG}, and a batch has {LARGEST_BATCH} messages at most."


class ProducerDialogue:
    def __init__(self, talk: Conversation) -> None:
        self._talk = talk
        self._producers: dict[int, tuple[OpenLog, Producer]] = {}
        self._congested: Sending | None = None

    @property
    def congested(self) -> bool:
        """Whether so much that it sent waits to be stored that it should be left unread."""
        return self._congested is not None and self._congested.is_congested

    async def wait_relaxed(self) -> None:
        if self._congested is not None:
            await self._congested.wait_room()
            self._congested = None

    def end(self) -> None:
        """The connection is gone."""
        producers, self._producers = self._producers, {}
        self._talk.clients -= len(producers)
        # The last first: else each would hand the log to one who waits for it, and goes as well.
        for log_, producer in reversed(producers.values()):
            log_.sending.drop(producer)

    def producer(self, command: BaseCommand, body: bytes) -> None:
        request = command.producer
        check_producer(request)
        if request.producer_id not in self._producers:
            self._talk.check_room()
        self._talk.start(command, lambda: self._open_producer(request), ("producer", request.producer_id), self.end)

    async def _open_producer(self, request: api.CommandProducer) -> None:
        request_id = request.request_id  # a producer outlives its request, and must not keep it
        log_ = await self._talk.around.hosting.open(request.topic)
        await self._talk.take_turn()
        schema = Schema.from_wire(request.schema) if request.HasField("schema") else None
        version = await self._talk.around.schemas.get_or_create(TopicName.parse(request.topic), schema)
        named = request.HasField("producer_name") and bool(request.producer_name)
        producer = Producer(
            self._talk.peer,
            request.producer_id,
            request.producer_name if named else f"vela-{os.urandom(6).hex()}",
            Mode(request.producer_access_mode),
            request.epoch,
            named and request.user_provided_producer_name,
            # They hold neither the producer, which holds them, nor the request, which may be large.
            begin=lambda begun: self._welcome(request_id, log_, begun, version, True),
            refuse=lambda refused, error: self._turn_away(request_id, refused, error),
            address=self._talk.address,
            client_version=self._talk.client_version,
            is_managed=is_managed(request.metadata),
            since_ms=time.time_ns() // 1_000_000,
            since=trio.current_time(),
        )
        ready = await log_.join(producer, request.topic_epoch if request.HasField("topic_epoch") else None)
        try:
            if request.initial_subscription_name:
                await self._talk.around.starting.provide(log_, request.initial_subscription_name)
        except BaseException:
            log_.sending.drop(producer)
            raise
        if producer.waits and producer.broken:
            return  # it has been refused meanwhile
        before = self._producers.get(request.producer_id)
        if before is None:
            self._talk.clients += 1
        elif before[1] is not producer:
            before[0].sending.drop(before[1])
        self._producers[request.producer_id] = log_, producer
        self._welcome(request_id, log_, producer, version, ready)

    def _turn_away(self, request_id: int, producer: Producer, error: DataRefusal) -> None:
        """A producer that has waited is refused: the client forgets it, and does not close it."""
        found = self._producers.get(producer.producer_id)
        if found is not None and found[1] is producer:
            del self._producers[producer.producer_id]
            self._talk.clients -= 1
        self._talk.reply(replies.error(request_id, error.server_error, str(error)))

    def _welcome(self, request_id: int, log_: OpenLog, producer: Producer, version: bytes, ready: bool) -> None:
        last = log_.sending.last_sequence(producer)
        self._talk.reply(
            data_replies.producer_success(request_id, producer.name, last, version, producer.topic_epoch, ready)
        )

    def send(self, command: BaseCommand, body: bytes) -> None:
        request = command.send
        found = self._producers.get(request.producer_id)
        if found is None:
            return  # closed by us, and the client does not know yet: it sends again when it has come back
        log_, producer = found
        try:
            check_payload(body)
            chunk = _chunk(parse_payload(body).metadata) if request.is_chunk else None
        except (BadFrame, ChecksumMismatch, DecodeError) as error:
            code = getattr(error, "server_error", api.ChecksumError)
            log_.sending.refuse_damaged(producer, request.sequence_id, code, str(error))
            return
        if request.txnid_most_bits or request.txnid_least_bits:
            raise NotAllowed("This server has no transactions yet: send without one.")
        if not log_.is_open:
            return  # as above
        sending = log_.sending
        sequence, highest, messages = request.sequence_id, request.highest_sequence_id, max(1, request.num_messages)
        if sequence > _LARGEST_LONG or highest > _LARGEST_LONG or messages > LARGEST_BATCH:
            sending.refuse_damaged(producer, sequence & _LARGEST_LONG, api.NotAllowedError, _TOO_LARGE)
            return
        sending.send(producer, sequence, highest, messages, body, chunk)
        if sending.is_congested:
            self._congested = sending

    def close_producer(self, command: BaseCommand, body: bytes) -> None:
        request = command.close_producer
        self._talk.give_up(("producer", request.producer_id))
        found = self._producers.pop(request.producer_id, None)
        if found is not None:
            self._talk.clients -= 1

        async def close() -> None:
            if found is not None:
                await found[0].sending.leave(found[1], for_good=True)
            self._talk.reply(replies.success(request.request_id))

        self._talk.start(command, close)


def _chunk(metadata: bytes) -> Chunk | None:
    """Which chunk of its message this is; None if the message has no others."""
    found = api.MessageMetadata.FromString(metadata)
    return Chunk(found.chunk_id, found.num_chunks_from_msg) if found.num_chunks_from_msg > 1 else None
