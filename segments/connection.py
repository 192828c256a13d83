"""What one client says to the data plane: its producers and consumers, from their requests to their end.

Never awaits: what takes time runs in a task of its own and answers through the peer. What follows an answer comes after
it by the protocol itself; messages of a producer and acknowledgements are acted on in the order in which they come.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import trio
from google.protobuf.message import DecodeError

from metadata.errors import StoreError
from protocol import data_replies, replies
from protocol.errors import ProtocolError
from protocol.framing import BadFrame, ChecksumMismatch, check_payload, encode, parse_payload
from protocol.names import TopicName
from protocol.schemas import Schema
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from segments.appending import Chunk
from segments.consumers import Consumer
from segments.cursor_keeper import Told
from segments.cursors import LARGEST_BATCH
from segments.dispatch.errors import ConsumerBusy, DispatchRefusal
from segments.dispatch.key_owners import KeySharing
from segments.dispatch.receivers import Kind
from segments.errors import NoLog, NoSuchConsumer, NotAllowed, NotHere, TooMany
from segments.frames import MessageFrames
from segments.hosting import Hosting, place_of
from segments.open_log import OpenLog
from segments.ports import Peer
from segments.producers import Mode, Producer
from segments.schemas import SchemaRegistry, name_of
from segments.sending import Sending
from segments.starting import Starting
from segments.subscription import LogSubscription

log = logging.getLogger(__name__)

_KINDS: Final[Mapping[int, Kind]] = {
    api.CommandSubscribe.Exclusive: Kind.EXCLUSIVE,
    api.CommandSubscribe.Shared: Kind.SHARED,
    api.CommandSubscribe.Failover: Kind.FAILOVER,
    api.CommandSubscribe.Key_Shared: Kind.KEY_SHARED,
}
# Sequence numbers have a sign where clients are told the last one.
_LARGEST_LONG: Final = 2**63 - 1
_TOO_LARGE: Final = f"Sequence numbers go up to {_LARGEST_LONG}, and a batch has {LARGEST_BATCH} messages at most."
# What refuses a request without being a fault of ours.
_REFUSALS: Final = (ProtocolError, StoreError, DispatchRefusal)
# How long the subscribe of a segment's next consumer is held while the one before lets go of it: clients give up after
# 30 s, and some never try again after a refusal.
_HANDOVER: Final = 25.0
# Of one connection. Producers and consumers: as many as one log takes. Requests under way: as many lookups as Java's
# client has at once unless it is told otherwise. Acknowledgements to be answered: seconds of them while a store rests.
_MOST_CLIENTS: Final = 10_000
_MOST_REQUESTS: Final = 5_000
_MOST_ACKS: Final = 100_000


@dataclass(frozen=True, slots=True)
class DataPlane:
    """What all connections share."""

    hosting: Hosting
    starting: Starting
    nursery: trio.Nursery
    schemas: SchemaRegistry

    def connect(self, peer: Peer, address: str) -> DataDialogue:
        return DataDialogue(self, peer, address)


@dataclass(frozen=True, slots=True)
class _Open:
    """A consumer with where it is."""

    log: OpenLog
    subscription: LogSubscription
    consumer: Consumer

    @property
    def is_seated(self) -> bool:
        """Whether it may act. If it was sent away, the client may not have heard of it yet."""
        return self.subscription.has(self.consumer)


class DataDialogue:
    """The producers and consumers of one connection."""

    def __init__(self, plane: DataPlane, peer: Peer, address: str) -> None:
        self._plane = plane
        self._peer = peer
        self._address = address
        self._producers: dict[int, tuple[OpenLog, Producer]] = {}
        self._consumers: dict[int, _Open] = {}
        self._opening: dict[tuple[str, int], trio.CancelScope] = {}
        self._requests = 0  # under way
        self._acks = 0  # to be answered when they are stored
        self._congested: Sending | None = None
        self._ended = False

    @property
    def congested(self) -> bool:
        """Whether so much that it sent waits to be stored that it should be left unread."""
        return self._congested is not None and self._congested.is_congested

    async def wait_relaxed(self) -> None:
        if self._congested is not None:
            await self._congested.wait_room()
            self._congested = None

    def receive(self, command: BaseCommand, body: bytes) -> None:
        handler = _HANDLERS[command.type]
        try:
            handler(self, command, body)
        except _REFUSALS as error:
            self._refuse(command, error)

    def end(self) -> None:
        """The connection is gone."""
        self._ended = True
        for scope in self._opening.values():
            scope.cancel()
        producers, self._producers = self._producers, {}
        consumers, self._consumers = self._consumers, {}
        for opened in consumers.values():
            try:
                opened.log.unsubscribe(opened.consumer, opened.subscription)
            except Exception:
                log.exception("a consumer of %s is gone, and its subscription could not be told", opened.log.name)
        for log_, producer in producers.values():
            log_.sending.drop(producer)

    # Lookup.

    def _lookup(self, command: BaseCommand, body: bytes) -> None:
        request = command.lookupTopic
        place_of(request.topic)

        async def answer() -> None:
            url = await self._plane.hosting.url_of(request.topic)
            if url.startswith("pulsar+ssl:"):
                self._reply(replies.lookup_connect(request.request_id, None, url))
            else:
                self._reply(replies.lookup_connect(request.request_id, url))

        self._start(command, answer)

    # Producers.

    def _producer(self, command: BaseCommand, body: bytes) -> None:
        request = command.producer
        if request.producer_id not in self._producers:
            self._check_room()
        self._start(command, lambda: self._open_producer(request), ("producer", request.producer_id))

    async def _open_producer(self, request: api.CommandProducer) -> None:
        log_ = await self._plane.hosting.open(request.topic)
        schema = Schema.from_wire(request.schema) if request.HasField("schema") else None
        version = await self._plane.schemas.get_or_create(TopicName.parse(request.topic), schema)
        named = request.HasField("producer_name") and bool(request.producer_name)
        producer = Producer(
            self._peer,
            request.producer_id,
            request.producer_name if named else f"vela-{os.urandom(6).hex()}",
            Mode(request.producer_access_mode),
            request.epoch,
            named and request.user_provided_producer_name,
            begin=lambda: self._welcome(request.request_id, log_, producer, version, True),
            address=self._address,
            since_ms=time.time_ns() // 1_000_000,
            since=trio.current_time(),
        )
        ready = await log_.join(producer, request.topic_epoch if request.HasField("topic_epoch") else None)
        try:
            if request.initial_subscription_name:
                await log_.ensure_subscription(request.initial_subscription_name)
        except BaseException:
            log_.sending.drop(producer)
            raise
        before = self._producers.pop(request.producer_id, None)
        if before is not None and before[1] is not producer:
            before[0].sending.drop(before[1])
        self._producers[request.producer_id] = log_, producer
        self._welcome(request.request_id, log_, producer, version, ready)

    def _welcome(self, request_id: int, log_: OpenLog, producer: Producer, version: bytes, ready: bool) -> None:
        last = log_.sending.last_sequence(producer)
        self._reply(
            data_replies.producer_success(request_id, producer.name, last, version, producer.topic_epoch, ready)
        )

    def _send(self, command: BaseCommand, body: bytes) -> None:
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

    def _close_producer(self, command: BaseCommand, body: bytes) -> None:
        request = command.close_producer
        self._give_up(("producer", request.producer_id))
        found = self._producers.pop(request.producer_id, None)

        async def close() -> None:
            if found is not None:
                await found[0].sending.leave(found[1], for_good=True)
            self._reply(replies.success(request.request_id))

        self._start(command, close)

    # Consumers.

    def _subscribe(self, command: BaseCommand, body: bytes) -> None:
        request = command.subscribe
        if not request.subscription.strip():
            raise NotAllowed("The subscription has no name: give it one.")
        if request.consumer_id not in self._consumers:
            self._check_room()
        self._start(command, lambda: self._open_consumer(request), ("consumer", request.consumer_id))

    async def _open_consumer(self, request: api.CommandSubscribe) -> None:
        before = self._consumers.pop(request.consumer_id, None)
        if before is not None:
            before.log.unsubscribe(before.consumer, before.subscription)
        log_ = await self._plane.hosting.open(request.topic)
        if request.HasField("schema"):
            schema = Schema.from_wire(request.schema)
            await self._plane.schemas.check_consumer(TopicName.parse(request.topic), schema)
        partition = TopicName.parse(request.topic).partition if log_.place.segment_id is None else None
        sharing = _sharing(request)
        ranges = tuple((r.start, r.end) for r in request.keySharedMeta.hashRanges)
        consumer = Consumer(
            self._peer,
            request.consumer_id,
            request.consumer_name or os.urandom(5).hex(),
            MessageFrames(
                request.consumer_id,
                log_.ledger,
                -1 if partition is None else partition,
                request.consumer_epoch if request.HasField("consumer_epoch") else None,
            ),
            priority=request.priority_level,
            key_ranges=() if sharing is KeySharing.AUTO_SPLIT else ranges,
            address=self._address,
            since_ms=time.time_ns() // 1_000_000,
            since=trio.current_time(),
        )
        kind = _KINDS[request.subType]
        start = await self._plane.starting.of(log_, request)
        give_up_at = trio.current_time() + (_HANDOVER if log_.place.segment_id is not None else 0)
        while True:
            try:
                subscription = await log_.subscribe(
                    request.subscription, kind, consumer, start=start, durable=request.durable, sharing=sharing
                )
                break
            except ConsumerBusy:
                if trio.current_time() >= give_up_at:
                    raise
                with trio.move_on_at(give_up_at):
                    await log_.somebody_left(request.subscription)
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:
            # The client closed it while it was let in, and was told so: nobody would close it again.
            log_.unsubscribe(consumer, subscription)
            raise
        self._consumers[request.consumer_id] = _Open(log_, subscription, consumer)
        self._reply(replies.success(request.request_id))
        subscription.joined(consumer)

    def _flow(self, command: BaseCommand, body: bytes) -> None:
        opened = self._seated(command.flow.consumer_id)
        if opened is not None:
            opened.subscription.flow(opened.consumer, command.flow.messagePermits)

    def _ack(self, command: BaseCommand, body: bytes) -> None:
        request = command.ack
        opened = self._seated(request.consumer_id)
        if opened is None:
            raise _no_such_consumer()
        if request.txnid_most_bits or request.txnid_least_bits:
            raise NotAllowed("This server has no transactions yet: acknowledge without one.")
        is_cumulative = request.ack_type == api.CommandAck.Cumulative
        if is_cumulative and not opened.subscription.is_ordered:
            kind = opened.subscription.kind.value
            raise NotAllowed(f"A {kind} subscription has no cumulative acknowledgements: send single ones.")
        told = self._answer_to(request) if request.HasField("request_id") else None
        ledger = opened.log.ledger
        positions = [(m.entryId, tuple(m.ack_set)) for m in request.message_id if m.ledgerId == ledger]
        if is_cumulative:
            for index, ack_set in positions[:1]:
                opened.subscription.ack_cumulative(opened.consumer, index, ack_set, told)
                return
            if told is not None:
                told(True)
        else:
            opened.subscription.ack(opened.consumer, positions, told)

    def _answer_to(self, request: api.CommandAck) -> Told:
        """What answers an acknowledgement when it is stored, or cannot be."""
        if self._acks >= _MOST_ACKS:
            raise TooMany(f"{self._acks} acknowledgements of this connection wait for answers: wait for some of them.")
        self._acks += 1
        consumer_id, request_id = request.consumer_id, request.request_id

        def told(is_written: bool) -> None:
            self._acks -= 1
            if is_written:
                self._reply(data_replies.ack_response(consumer_id, request_id))
            else:
                why = "The log is not served here any more: subscribe again."
                self._reply(data_replies.ack_response(consumer_id, request_id, NotHere.server_error, why))

        return told

    def _redeliver(self, command: BaseCommand, body: bytes) -> None:
        request = command.redeliverUnacknowledgedMessages
        opened = self._seated(request.consumer_id)
        if opened is not None:
            if request.HasField("consumer_epoch"):
                opened.consumer.frames.begin_epoch(request.consumer_epoch)
            ids = [m.entryId for m in request.message_ids if m.ledgerId == opened.log.ledger]
            opened.subscription.redeliver(opened.consumer, ids if request.message_ids else None)

    def _close_consumer(self, command: BaseCommand, body: bytes) -> None:
        request = command.close_consumer
        self._give_up(("consumer", request.consumer_id))
        opened = self._consumers.pop(request.consumer_id, None)
        if opened is not None:
            opened.log.unsubscribe(opened.consumer, opened.subscription)
        self._reply(replies.success(request.request_id))

    def _unsubscribe(self, command: BaseCommand, body: bytes) -> None:
        request = command.unsubscribe
        opened = self._seated(request.consumer_id)
        if opened is None:
            raise _no_such_consumer()
        if len(opened.subscription.consumers) > 1 and not request.force:
            raise NotAllowed("The subscription has other consumers: close them first, or use force.")

        async def remove() -> None:
            self._consumers.pop(request.consumer_id, None)
            opened.log.unsubscribe(opened.consumer, opened.subscription)
            await opened.log.remove(opened.subscription.name)
            self._reply(replies.success(request.request_id))

        self._start(command, remove)

    def _seek(self, command: BaseCommand, body: bytes) -> None:
        request = command.seek
        opened = self._seated(request.consumer_id)
        if opened is None:
            raise _no_such_consumer()

        async def seek() -> None:
            if request.HasField("message_id"):
                index = opened.log.index_of(request.message_id.ledgerId, request.message_id.entryId)
            else:
                index = await opened.log.index_at(request.message_publish_time)
            await opened.log.seek(opened.subscription, index)
            self._reply(replies.success(request.request_id))

        self._start(command, seek)

    def _last_message_id(self, command: BaseCommand, body: bytes) -> None:
        request = command.getLastMessageId
        opened = self._opened(request.consumer_id)
        log_ = opened.log
        mark = opened.subscription.cursor.mark
        partition = opened.consumer.frames.partition
        # Readers ask whether there is more: of what is trimmed, nothing comes.
        last = log_.next - 1 if log_.first < log_.next else -1
        self._reply(data_replies.last_message_id(request.request_id, log_.ledger, last, partition, mark))

    def _consumer_stats(self, command: BaseCommand, body: bytes) -> None:
        request = command.consumerStats
        opened = self._opened(request.consumer_id)
        subscription, consumer = opened.subscription, opened.consumer
        self._reply(
            data_replies.consumer_stats(
                request.request_id,
                data_replies.ConsumerFigures(
                    consumer.name,
                    consumer.address,
                    datetime.fromtimestamp(consumer.since_ms / 1000, UTC).isoformat(),
                    subscription.kind.value,
                    subscription.dispatcher.permits(consumer),
                    subscription.dispatcher.unacked(consumer),
                    subscription.backlog,
                ),
            )
        )

    # Schemas.

    def _get_schema(self, command: BaseCommand, body: bytes) -> None:
        request = command.getSchema
        topic = TopicName.parse(request.topic)

        async def get() -> None:
            version = request.schema_version if request.HasField("schema_version") else None
            found = await self._plane.schemas.get(topic, version)
            if found is None:
                raise NoLog(f"{topic} has no such schema: ask for one that it has.")
            schema, number = found
            self._reply(replies.got_schema(request.request_id, schema.to_wire(name_of(topic)), number))

        self._start(command, get)

    def _get_or_create_schema(self, command: BaseCommand, body: bytes) -> None:
        request = command.getOrCreateSchema
        topic = TopicName.parse(request.topic)

        async def get_or_create() -> None:
            version = await self._plane.schemas.get_or_create(topic, Schema.from_wire(request.schema))
            self._reply(replies.schema_registered(request.request_id, version))

        self._start(command, get_or_create)

    def _opened(self, consumer_id: int) -> _Open:
        opened = self._consumers.get(consumer_id)
        if opened is None:
            raise _no_such_consumer()
        return opened

    def _seated(self, consumer_id: int) -> _Open | None:
        opened = self._consumers.get(consumer_id)
        return opened if opened is not None and opened.is_seated else None

    def _check_room(self) -> None:
        """For another producer or consumer."""
        if len(self._producers) + len(self._consumers) + len(self._opening) >= _MOST_CLIENTS:
            raise TooMany(
                f"This connection has {_MOST_CLIENTS} producers and consumers, which is the limit:"
                " close some, or use another connection."
            )

    # Tasks.

    def _start(
        self, command: BaseCommand, work: Callable[[], Awaitable[None]], key: tuple[str, int] | None = None
    ) -> None:
        """Do what takes time; a refusal goes to the client. Under a key it can be given up."""
        # What is closed is gone already, and there is no more of it than was open.
        if self._requests >= _MOST_REQUESTS and command.type != BaseCommand.CLOSE_PRODUCER:
            raise TooMany(f"{self._requests} requests of this connection are under way: wait for some of them.")
        self._requests += 1
        scope = trio.CancelScope()
        if key is not None:
            self._give_up(key)
            self._opening[key] = scope
        self._plane.nursery.start_soon(self._run, command, work, scope, key)

    async def _run(
        self,
        command: BaseCommand,
        work: Callable[[], Awaitable[None]],
        scope: trio.CancelScope,
        key: tuple[str, int] | None,
    ) -> None:
        try:
            with scope:
                await work()
        except _REFUSALS as error:
            self._refuse(command, error)
        except Exception:
            log.exception("%s of a client failed", BaseCommand.Type.Name(command.type))
            self._refuse(command, StoreError("The server failed; its log has more. Try again."))
        finally:
            self._requests -= 1
            if key is not None and self._opening.get(key) is scope:
                del self._opening[key]
            if self._ended:
                # What was opened after the connection had gone has nobody to close it.
                self.end()

    def _give_up(self, key: tuple[str, int]) -> None:
        scope = self._opening.pop(key, None)
        if scope is not None:
            scope.cancel()

    def _refuse(self, command: BaseCommand, error: Exception) -> None:
        code = getattr(error, "server_error", api.UnknownError)
        # Texts quote what clients sent, and JSON can spell what UTF-8 cannot.
        text = str(error).encode(errors="replace").decode()
        reply = replies.refusal(command, code, text)
        if reply is not None:
            self._reply(reply)

    def _reply(self, command: BaseCommand) -> None:
        self._peer.reply(encode(command))


def _no_such_consumer() -> NoSuchConsumer:
    return NoSuchConsumer("There is no consumer of that id on this connection: subscribe again.")


def _sharing(request: api.CommandSubscribe) -> KeySharing:
    """How the consumers of a Key_Shared subscription divide the keys."""
    asked = request.keySharedMeta
    if request.subType != api.CommandSubscribe.Key_Shared or not request.HasField("keySharedMeta"):
        return KeySharing.AUTO_SPLIT
    if asked.entryBucketDispatch:
        return KeySharing.ENTRY_BUCKETS
    return KeySharing.STICKY if asked.keySharedMode == api.STICKY else KeySharing.AUTO_SPLIT


def _chunk(metadata: bytes) -> Chunk | None:
    """Which chunk of its message this is; None if the message has no others."""
    found = api.MessageMetadata.FromString(metadata)
    return Chunk(found.chunk_id, found.num_chunks_from_msg) if found.num_chunks_from_msg > 1 else None


_Handler = Callable[[DataDialogue, BaseCommand, bytes], None]
_HANDLERS: Final[Mapping[int, _Handler]] = {
    BaseCommand.LOOKUP: DataDialogue._lookup,
    BaseCommand.PRODUCER: DataDialogue._producer,
    BaseCommand.SEND: DataDialogue._send,
    BaseCommand.CLOSE_PRODUCER: DataDialogue._close_producer,
    BaseCommand.SUBSCRIBE: DataDialogue._subscribe,
    BaseCommand.FLOW: DataDialogue._flow,
    BaseCommand.ACK: DataDialogue._ack,
    BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: DataDialogue._redeliver,
    BaseCommand.CLOSE_CONSUMER: DataDialogue._close_consumer,
    BaseCommand.UNSUBSCRIBE: DataDialogue._unsubscribe,
    BaseCommand.SEEK: DataDialogue._seek,
    BaseCommand.GET_LAST_MESSAGE_ID: DataDialogue._last_message_id,
    BaseCommand.CONSUMER_STATS: DataDialogue._consumer_stats,
    BaseCommand.GET_SCHEMA: DataDialogue._get_schema,
    BaseCommand.GET_OR_CREATE_SCHEMA: DataDialogue._get_or_create_schema,
}
COMMANDS: Final = frozenset(_HANDLERS)
