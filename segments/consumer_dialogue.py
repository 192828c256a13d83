"""What one client says as a consumer: it subscribes, takes messages, acknowledges them, and goes."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Final

import trio

from metadata.errors import StoreError
from protocol import data_replies, replies
from protocol.names import TopicName
from protocol.schemas import Schema
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from segments.bounds import check_subscribe
from segments.consumers import Consumer
from segments.conversation import Conversation, is_managed
from segments.cursor_keeper import Told
from segments.dispatch.key_owners import KeySharing
from segments.dispatch.receivers import Kind
from segments.entry_metadata import last_batch_index
from segments.errors import NoLog, NoSuchConsumer, NotAllowed, NotHere, TooMany
from segments.frames import MessageFrames
from segments.hosting import place_of
from segments.open_log import OpenLog
from segments.subscription import LogSubscription

log = logging.getLogger(__name__)

_KINDS: Final[Mapping[int, Kind]] = {
    api.CommandSubscribe.Exclusive: Kind.EXCLUSIVE,
    api.CommandSubscribe.Shared: Kind.SHARED,
    api.CommandSubscribe.Failover: Kind.FAILOVER,
    api.CommandSubscribe.Key_Shared: Kind.KEY_SHARED,
}
# The earliest of all message ids is -1, in a field without a sign.
_EARLIEST: Final = 2**63
# Acknowledgements of one connection that are to be answered: seconds of them while a store rests.
_MOST_ACKS: Final = 100_000
# Ids of messages that are looked at before others are served: some milliseconds.
WORK_PER_TURN: Final = 1_000
# So many words of the messages of a batch are about as much work as one id.
_WORDS_PER_ID: Final = 16
# Consumers of a connection that leave in one step when it ends. Under Key_Shared, where it takes longest: milliseconds.
_LEAVING: Final = 100


@dataclass(frozen=True, slots=True)
class _Open:
    """A consumer with where it is."""

    log: OpenLog
    subscription: LogSubscription
    consumer: Consumer
    # Not durable: the index of a time that the client has sought. It comes back without a position of its own until
    # something of that has been received, and means this one.
    sought: int | None = None

    @property
    def is_seated(self) -> bool:
        """Whether it may act. If it was sent away, the client may not have heard of it yet."""
        return self.subscription.has(self.consumer)

    def is_dismissed_from(self, request: api.CommandSubscribe) -> bool:
        """Whether it was attached when the subscription was deleted that it asks for. Clients come back by themselves
        with the same id, and end only if they are told that there is nothing to come back to.
        """
        is_same = self.subscription.name == request.subscription and self.log.name == place_of(request.topic).name
        return is_same and self.consumer.is_dismissed


class ConsumerDialogue:
    def __init__(self, talk: Conversation) -> None:
        self._talk = talk
        self._consumers: dict[int, _Open] = {}
        self._acks = 0  # to be answered when they are stored
        self.work = 0  # ids that were looked at since others were served; whoever serves them sets it back

    def end(self) -> None:
        """The connection is gone. Thousands of consumers leave in steps, between which others are served."""
        consumers, self._consumers = list(self._consumers.values()), {}
        self._talk.clients -= len(consumers)
        _leave(consumers[:_LEAVING])
        if len(consumers) > _LEAVING:
            self._talk.around.nursery.start_soon(_leave_in_steps, consumers[_LEAVING:])

    def subscribe(self, command: BaseCommand, body: bytes) -> None:
        request = command.subscribe
        check_subscribe(request)
        if (known := self._consumers.get(request.consumer_id)) is None:
            self._talk.check_room()
        elif known.is_dismissed_from(request):
            raise NoLog(
                f"Subscription {request.subscription} was deleted, and its consumers with it: open a new consumer to"
                " begin it anew."
            )
        self._talk.start(command, lambda: self._open_consumer(request), ("consumer", request.consumer_id), self.end)

    async def _open_consumer(self, request: api.CommandSubscribe) -> None:
        before = self._gone(request.consumer_id)
        if before is not None:
            before.log.unsubscribe(before.consumer, before.subscription)
        log_ = await self._talk.around.hosting.open(request.topic, surely=True)
        await self._talk.take_turn()
        if request.HasField("schema"):
            schema = Schema.from_wire(request.schema)
            await self._talk.around.schemas.check_consumer(TopicName.parse(request.topic), schema)
        partition = log_.place.partition
        sharing = _sharing(request)
        ranges = tuple((r.start, r.end) for r in request.keySharedMeta.hashRanges)
        consumer = Consumer(
            self._talk.peer,
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
            address=self._talk.address,
            client_version=self._talk.client_version,
            is_managed=is_managed(request.metadata),
            since_ms=time.time_ns() // 1_000_000,
            since=trio.current_time(),
        )
        kind = _KINDS[request.subType]
        sought = _sought(before, log_, request)
        start = await self._talk.around.starting.of(log_, request)
        await self._talk.take_turn()
        begins = start.index if sought is None else partial(log_.within, sought)
        # A classic log is sealed by its migration, and by nothing else.
        is_segment = log_.place.segment_id is not None or log_.sealed
        subscription = await self._talk.around.seats.take(
            log_,
            request.subscription,
            kind,
            consumer,
            lambda: log_.subscribe(
                request.subscription,
                kind,
                consumer,
                start=begins,
                durable=request.durable,
                sharing=sharing,
                identity=start.identity,
            ),
            durable=request.durable,
        )
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            if request.durable:
                await self._confirm(log_, is_segment)
        except (trio.Cancelled, NotHere, StoreError):
            # The client closed it while it was let in, and was told so: nobody would close it again.
            log_.unsubscribe(consumer, subscription)
            raise
        self._consumers[request.consumer_id] = _Open(log_, subscription, consumer, sought)
        self._talk.clients += 1
        self._talk.reply(replies.success(request.request_id))
        subscription.joined(consumer)

    async def _confirm(self, log_: OpenLog, is_segment: bool) -> None:
        """See that the topic knows a subscription to which somebody was just let in."""
        hosting = self._talk.around.hosting
        if not is_segment and await hosting.is_sealed(log_):
            # Migrated meanwhile, perhaps before the subscription stood there to be taken along: it is registered by
            # whoever comes back.
            log_.note_sealed()
            raise NotHere(f"{log_.name} belongs to a scalable topic by now: subscribe again.")
        # It may have been deleted while this consumer waited to be let in.
        hosting.check_soon(log_)

    def flow(self, command: BaseCommand, body: bytes) -> None:
        opened = self._seated(command.flow.consumer_id)
        if opened is not None:
            opened.subscription.flow(opened.consumer, command.flow.messagePermits)

    def ack(self, command: BaseCommand, body: bytes) -> None:
        request = command.ack
        self.work += len(request.message_id)
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
        self.work += sum([len(ack_set) for _, ack_set in positions]) // _WORDS_PER_ID
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
                self._talk.reply(data_replies.ack_response(consumer_id, request_id))
            else:
                why = "The log is not served here any more: subscribe again."
                self._talk.reply(data_replies.ack_response(consumer_id, request_id, NotHere.server_error, why))

        return told

    def redeliver(self, command: BaseCommand, body: bytes) -> None:
        request = command.redeliverUnacknowledgedMessages
        self.work += len(request.message_ids)
        opened = self._seated(request.consumer_id)
        if opened is not None:
            if request.HasField("consumer_epoch"):
                opened.consumer.frames.begin_epoch(request.consumer_epoch)
            ids = [m.entryId for m in request.message_ids if m.ledgerId == opened.log.ledger]
            opened.subscription.redeliver(opened.consumer, ids if request.message_ids else None)

    def close_consumer(self, command: BaseCommand, body: bytes) -> None:
        request = command.close_consumer
        self._talk.give_up(("consumer", request.consumer_id))
        opened = self._gone(request.consumer_id)
        if opened is not None:
            opened.log.unsubscribe(opened.consumer, opened.subscription)
        self._talk.reply(replies.success(request.request_id))

    def unsubscribe(self, command: BaseCommand, body: bytes) -> None:
        request = command.unsubscribe
        opened = self._seated(request.consumer_id)
        if opened is None:
            raise _no_such_consumer()
        if len(opened.subscription.consumers) > 1 and not request.force:
            raise NotAllowed("The subscription has other consumers: close them first, or use force.")

        async def remove() -> None:
            self._gone(request.consumer_id)
            opened.log.unsubscribe(opened.consumer, opened.subscription)
            await opened.log.remove(opened.subscription.name)
            self._talk.reply(replies.success(request.request_id))

        self._talk.start(command, remove)

    def seek(self, command: BaseCommand, body: bytes) -> None:
        request = command.seek
        opened = self._seated(request.consumer_id)
        if opened is None:
            raise _no_such_consumer()

        async def seek() -> None:
            sought = None
            if request.HasField("message_id"):
                index = opened.log.index_of(request.message_id.ledgerId, request.message_id.entryId)
            else:
                index = sought = await opened.log.index_at(request.message_publish_time)
            if self._consumers.get(request.consumer_id) is opened:
                self._consumers[request.consumer_id] = replace(opened, sought=sought)
            await opened.log.seek(opened.subscription, index)
            self._talk.reply(replies.success(request.request_id))

        self._talk.start(command, seek)

    def last_message_id(self, command: BaseCommand, body: bytes) -> None:
        request = command.getLastMessageId
        opened = self._opened(request.consumer_id)
        log_, partition = opened.log, opened.consumer.frames.partition

        async def answer() -> None:
            last = await log_.last_entry()
            index, batch_index = (-1, -1) if last is None else (last.index, last_batch_index(last))
            mark = opened.subscription.cursor.mark
            self._talk.reply(
                data_replies.last_message_id(request.request_id, log_.ledger, index, batch_index, partition, mark)
            )

        self._talk.start(command, answer)

    def consumer_stats(self, command: BaseCommand, body: bytes) -> None:
        request = command.consumerStats
        opened = self._opened(request.consumer_id)
        subscription, consumer = opened.subscription, opened.consumer
        self._talk.reply(
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

    def _gone(self, consumer_id: int) -> _Open | None:
        """Forget a consumer, if there is one."""
        opened = self._consumers.pop(consumer_id, None)
        if opened is not None:
            self._talk.clients -= 1
        return opened

    def _opened(self, consumer_id: int) -> _Open:
        opened = self._consumers.get(consumer_id)
        if opened is None:
            raise _no_such_consumer()
        return opened

    def _seated(self, consumer_id: int) -> _Open | None:
        opened = self._consumers.get(consumer_id)
        return opened if opened is not None and opened.is_seated else None


def _leave(consumers: Sequence[_Open]) -> None:
    """Those of one subscription together, or each would make it look at all the others."""
    parties: dict[LogSubscription, tuple[OpenLog, list[Consumer]]] = {}
    for opened in consumers:
        parties.setdefault(opened.subscription, (opened.log, []))[1].append(opened.consumer)
    for subscription, (log_, party) in parties.items():
        try:
            log_.unsubscribe_all(party, subscription)
        except Exception:
            log.exception("consumers of %s are gone, and their subscription could not be told", log_.name)


async def _leave_in_steps(consumers: Sequence[_Open]) -> None:
    for start in range(0, len(consumers), _LEAVING):
        await trio.lowlevel.cancel_shielded_checkpoint()
        _leave(consumers[start : start + _LEAVING])


def _no_such_consumer() -> NoSuchConsumer:
    return NoSuchConsumer("There is no consumer of that id on this connection: subscribe again.")


def _sought(before: _Open | None, log_: OpenLog, request: api.CommandSubscribe) -> int | None:
    """Where a reader goes on that has sought a time, and comes back because of that."""
    if before is None or request.durable or request.subscription != before.subscription.name:
        return None
    has_own = request.HasField("start_message_id") and request.start_message_id.ledgerId < _EARLIEST
    return None if has_own or before.log.ledger != log_.ledger else before.sought


def _sharing(request: api.CommandSubscribe) -> KeySharing:
    """How the consumers of a Key_Shared subscription divide the keys."""
    asked = request.keySharedMeta
    if request.subType != api.CommandSubscribe.Key_Shared or not request.HasField("keySharedMeta"):
        return KeySharing.AUTO_SPLIT
    if asked.entryBucketDispatch:
        return KeySharing.ENTRY_BUCKETS
    return KeySharing.STICKY if asked.keySharedMode == api.STICKY else KeySharing.AUTO_SPLIT
