"""Registered consumers of the connections here: attached in the store, told what their topic's leader assigns them.

This node does not decide anything about them. Whatever they are told was read from the store, where only the leader of
the topic writes it, so it does not matter which node that is.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from metadata import keys
from metadata.complaints import note_waiting
from metadata.errors import RecordDamaged, RegistrationsFull, StoreError, SubscriptionMismatch, TopicMissing
from metadata.lanes import Lane
from metadata.node_sessions import NodeSession
from metadata.records import Leader
from metadata.registrations import Registrations
from metadata.subscriptions import Assignment, Consumer
from metadata.tasks import Tasks
from protocol import data_replies, replies
from protocol.backoff import Backoff
from protocol.framing import encode
from protocol.names import TopicName
from protocol.wire import pulsar_api_pb2 as api
from sessions.consumer_sessions import ConsumerSession, assigned
from sessions.departures import LONGEST_FEED_LAG, Departure, Departures
from sessions.outbox import Outbox
from sessions.turns import ENDED_PER_TURN, Turns

log = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 0.5
# What a registered consumer takes beside its names.
_CONSUMER_COST: Final = 2_048
# Between two reads of one subscription.
_READ_INTERVAL: Final = 0.02

# Tells that somebody should lead a topic, given what was read of its leader last.
EnsureLed = Callable[[TopicName, Leader | None], Awaitable[None]]


@dataclass(slots=True)
class ConsumerCounters:
    consumers: int = 0
    attached: int = 0
    pushes: int = 0
    refused: int = 0


# All consumers here of one subscription: by path and subscription.
_GroupKey = tuple[str, str]


class ConsumerHub:
    def __init__(
        self,
        *,
        nursery: Tasks,
        registrations: Registrations,
        lane: Callable[[], Lane],
        session: NodeSession,
        trusted: Callable[[int], bool],
        ensure_led: EnsureLed,
    ) -> None:
        self.counters = ConsumerCounters()
        self._nursery = nursery
        self._registrations = registrations
        self._lane = lane
        self._session = session
        self._trusted = trusted
        self._ensure_led = ensure_led
        self._groups: dict[_GroupKey, dict[ConsumerSession, None]] = {}
        self._by_path: dict[str, set[str]] = {}
        self._registering: dict[tuple[str, str, str], trio.Event] = {}  # the last of each name
        self._marked: set[_GroupKey] = set()
        self._reading: set[_GroupKey] = set()
        self._departures = Departures(nursery, registrations, session)

    # What the dialogue calls.

    def subscribe(
        self,
        outbox: Outbox,
        registry: dict[int, ConsumerSession],
        request: api.CommandScalableTopicSubscribe,
        topic: TopicName,
        address: str = "",
    ) -> None:
        """Register a consumer under its id, in place of one with the same; the answer goes to the outbox."""
        self.drop(registry, request.consumer_id)
        since_ms = self._session.store_ms()
        session = registry[request.consumer_id] = ConsumerSession(outbox, registry, request, topic, address, since_ms)
        path = keys.path_of(topic)
        self._groups.setdefault((path, session.subscription), {})[session] = None
        self._by_path.setdefault(path, set()).add(session.subscription)
        self.counters.consumers += 1
        outbox.hold(_cost(session))
        self._register(session)

    def unsubscribe(
        self, outbox: Outbox, registry: dict[int, ConsumerSession], request_id: int, consumer_id: int
    ) -> None:
        """A consumer leaves for good; one that is not known has left already."""
        session = registry.pop(consumer_id, None)
        if session is None:
            outbox.reply(encode(replies.success(request_id)))
            return
        session.leaving = True
        self._forget(session)
        if session.told is None:
            self.counters.refused += 1
            message = f"Consumer {session.name} left before it was assigned anything."
            outbox.reply(encode(replies.subscribe_refused(session.request_id, api.ConsumerNotFound, message)))
        self._nursery.start_soon(self._leave, session, request_id)

    def drop(self, registry: dict[int, ConsumerSession], consumer_id: int) -> None:
        session = registry.pop(consumer_id, None)
        if session is not None:
            self._forget(session)
            self._nursery.start_soon(self._detach, session)

    def drop_all(self, registry: dict[int, ConsumerSession]) -> None:
        """The connection is gone. Its consumers stay registered for a while, and may come back by another one."""
        gone = list(registry.values())
        registry.clear()
        for session in gone:
            # At once, so that nobody tells or registers one of them any more.
            session.closed = True
        if gone:
            self._nursery.start_soon(self._detach_all, gone)

    # What the feed calls.

    def changed(self, bucket: int, path: str) -> None:
        for subscription in self._by_path.get(path, ()):
            self._mark((path, subscription))

    def registered(self, bucket: int, path: str) -> None:
        self.changed(bucket, path)

    def orphaned(self, bucket: int, path: str) -> None:
        """Whoever leads next is found in the record."""

    def classic(self, bucket: int, path: str) -> None:
        """Nobody registers at a classic topic."""

    def rolled_back(self, buckets: Collection[int]) -> None:
        """The store went back to an earlier state: what is missing there was not deleted. A gap follows."""
        self._doubt(set(buckets), registered_after=float("-inf"))

    def gap(self, buckets: Collection[int]) -> None:
        affected = set(buckets)
        # What the feed had not read yet can be lost without a trace.
        self._doubt(affected, registered_after=trio.current_time() - LONGEST_FEED_LAG)
        for path in self._by_path:
            if (bucket := keys.bucket_of(path)) in affected:
                self.changed(bucket, path)
        self._departures.tell_again(affected)

    def _doubt(self, buckets: set[int], *, registered_after: float) -> None:
        for (path, _), group in self._groups.items():
            if keys.bucket_of(path) in buckets:
                for session in group:
                    session.doubted |= session.attached_at > registered_after

    async def run(self) -> None:
        """When the node's session is lost, attach everybody anew: others think that their connections are gone."""
        while True:
            await self._session.wait_lost()
            turns = Turns(ENDED_PER_TURN)
            for session in [session for group in self._groups.values() for session in group]:
                if not session.closed:
                    self._register(session)
                await turns.spend()

    # Attaching.

    def _register(self, session: ConsumerSession) -> None:
        """Who comes later under a name has it: so they are registered one by one, in the order in which they came."""
        key = (keys.path_of(session.topic), session.subscription, session.name)
        before, mine = self._registering.get(key), trio.Event()
        self._registering[key] = mine
        session.registering += 1
        self._nursery.start_soon(self._attach_in_turn, session, before, mine)

    async def _attach_in_turn(self, session: ConsumerSession, before: trio.Event | None, done: trio.Event) -> None:
        path, subscription = keys.path_of(session.topic), session.subscription
        try:
            if before is not None:
                await before.wait()
            await self._attach(session)
        finally:
            done.set()
            session.registering -= 1
            if self._registering.get((path, subscription, session.name)) is done:
                del self._registering[path, subscription, session.name]
        # What was read meanwhile did not count.
        self._mark((path, subscription))

    async def _attach(self, session: ConsumerSession) -> None:
        """Register until it is done, or refused for good. Trouble with the store only delays the answer."""
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        said = False
        op = os.urandom(8).hex()
        while not session.closed:
            try:
                await self._try_attach(session, op, doubtful=said)
                return
            except (TopicMissing, SubscriptionMismatch, RegistrationsFull) as refusal:
                self._refuse(session, refusal.server_error, str(refusal))
                return
            except StoreError as error:
                if isinstance(error, RecordDamaged) and session.told is None and not session.attached_as:
                    # Who has an assignment keeps it. Who comes is told, and may come again when it is restored.
                    self._refuse(session, error.server_error, str(error))
                    if not said:
                        return  # nothing was written, so there is nothing to take back
                    break
                if not said:
                    note_waiting(log, error, "registering %s of %s waits", session.name, session.topic)
                said = True
            except Exception:
                log.exception("registering %s of %s failed", session.name, session.topic)
                said = True
            await trio.sleep(backoff.next())
        # An attempt that nobody heard of may have happened all the same.
        await self._detach(session)

    async def _try_attach(self, session: ConsumerSession, op: str, *, doubtful: bool) -> None:
        node = session.tried_as = self._session.record.session
        attached = await self._registrations.attach(
            session.topic,
            session.subscription,
            session.kind,
            session.name,
            session.attachment(node),
            incarnation=session.incarnation,
            again=bool(session.attached_as),
            op=op,
            doubtful=doubtful,
        )
        if attached is None:
            # Another connection has the consumer: a later one, or an earlier one that came late. Reading tells.
            if not session.incarnation:
                self._supersede(session)
            return
        self.counters.attached += 1
        session.attached_as = node
        session.attached_at = trio.current_time()
        session.incarnation = attached.incarnation
        session.subscription_id = attached.subscription_id
        if session.closed:
            # Gone while this was on its way: nobody else would notice.
            await self._detach(session)
            return
        if attached.assignment is not None:
            self._tell(session, attached.assignment)
        await self._ensure_led(session.topic, attached.leader)

    async def _leave(self, session: ConsumerSession, request_id: int) -> None:
        await self._detach(session)
        session.outbox.reply(encode(replies.success(request_id)))

    async def _detach(self, session: ConsumerSession) -> None:
        """Tell the store that the connection is gone, or the consumer with it."""
        if session.tried_as:
            await self._departures.tell(_departure(session))

    async def _detach_all(self, gone: Sequence[ConsumerSession]) -> None:
        """The same of all consumers of a connection: there may be thousands, so by one task that gives way."""
        turns = Turns(ENDED_PER_TURN)
        for session in gone:
            self._forget(session)
            await turns.spend()
        await self._departures.tell_all([_departure(session) for session in gone if session.tried_as])

    # Reading what the leader wrote.

    def _mark(self, key: _GroupKey) -> None:
        if key not in self._groups:
            return
        self._marked.add(key)
        if key not in self._reading:
            self._reading.add(key)
            self._nursery.start_soon(self._read, key)

    async def _read(self, key: _GroupKey) -> None:
        path, subscription = key
        bucket = keys.bucket_of(path)
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        try:
            # While the bucket cannot be trusted the mark waits: the gap that ends it calls again.
            while key in self._marked and self._trusted(bucket) and (group := self._groups.get(key)):
                self._marked.discard(key)
                sessions = [session for session in group if session.attached_as]
                if not sessions:
                    continue
                names = [session.name for session in sessions]
                try:
                    incarnation, subscription_id, found = await self._registrations.consumers(
                        self._lane(), keys.topic_at(path), subscription, names
                    )
                except Exception as error:
                    if not isinstance(error, StoreError):
                        log.exception("reading the consumers of %s failed", path)
                    self._marked.add(key)
                    await trio.sleep(backoff.next())
                    continue
                backoff.reset()
                if self._trusted(bucket):
                    for session, consumer in zip(sessions, found, strict=True):
                        if not session.closed:
                            self._take(session, incarnation, subscription_id, consumer)
                else:
                    self._marked.add(key)
                # Consumers tend to come in crowds: what changes meanwhile is read together.
                await trio.sleep(_READ_INTERVAL)
        finally:
            self._reading.discard(key)
            if key in self._marked and key in self._groups and self._trusted(bucket):
                self._mark(key)

    def _come_back(self, session: ConsumerSession) -> None:
        """The connection is there, so its consumer is registered once more, whoever has it now."""
        session.attached_as = ""
        self._register(session)

    def _take(
        self, session: ConsumerSession, incarnation: str | None, subscription_id: str | None, consumer: Consumer | None
    ) -> None:
        if session.registering:
            return
        doubted, session.doubted = session.doubted, False
        # A subscription of the same name may have been made anew, by a consumer of a single segment for example.
        is_another = (
            None not in (subscription_id, session.subscription_id) and subscription_id != session.subscription_id
        )
        if incarnation != session.incarnation or is_another:
            if doubted or not session.kind.is_durable:
                # Deleted, or lost by the store in a fail-over, or a group that went with its last member while we were
                # cut off: registering anew tells.
                self._come_back(session)
            else:
                self._refuse(session, api.TopicNotFound, f"{session.topic} or its subscription was deleted.")
        elif consumer is None:
            # Evicted while we were cut off from the store, or lost by it.
            self._come_back(session)
        elif consumer.attachment.nonce != session.nonce:
            if not consumer.attachment.node or consumer.attachment.since_ms < session.since_ms:
                # Not a later connection, but an earlier one that arrived late or that the store has gone back to.
                self._come_back(session)
            else:
                self._supersede(session)
        elif consumer.attachment.node != self._session.record.session:
            # By a session of this node that has ended: nobody believes in that connection any more.
            self._come_back(session)
        elif consumer.assignment is not None:
            self._tell(session, consumer.assignment)

    # Telling.

    def _tell(self, session: ConsumerSession, assignment: Assignment) -> None:
        """Answer the request, or push what differs from the last word."""
        first = session.told is None
        if session.told == assignment.segments:
            return
        session.told = assignment.segments
        # Clients ignore what is older than what they know, and after a fail-over the store may have gone back.
        session.epoch = max(session.epoch, assignment.epoch)
        content = assigned(session.topic, session.epoch, assignment.segments)
        if first:
            session.outbox.reply(encode(replies.subscribed(session.request_id, content)))
        else:
            self.counters.pushes += 1
            session.outbox.push((encode(replies.assignment_update(session.consumer_id, content)),), session.key)

    def _refuse(self, session: ConsumerSession, server_error: int, message: str) -> None:
        """The last word: an error to who waits for an answer, an empty assignment to who has one.

        That alone may mean that there are more consumers than segments, so those whose topic or subscription was
        deleted are closed as well. Pulsar's clients know no such command for a registered consumer, and ignore it.
        """
        if session.closed:
            return
        # First, because it takes back what is still queued for this consumer.
        self._end(session)
        if session.told is None:
            self.counters.refused += 1
            session.outbox.reply(encode(replies.subscribe_refused(session.request_id, server_error, message)))
            return
        if session.told:
            self.counters.pushes += 1
            nothing = assigned(session.topic, session.epoch, ())
            session.outbox.reply(encode(replies.assignment_update(session.consumer_id, nothing)))
        if server_error == api.TopicNotFound:
            session.outbox.reply(encode(data_replies.close_consumer(session.consumer_id)))

    def _supersede(self, session: ConsumerSession) -> None:
        """Another connection has the consumer now. If two clients use one name, this one has to stop."""
        self._refuse(session, api.ConsumerBusy, f"Consumer {session.name} was registered by another connection.")

    # Forgetting.

    def _end(self, session: ConsumerSession) -> None:
        if not session.closed:
            if session.registry.get(session.consumer_id) is session:
                del session.registry[session.consumer_id]
            self._forget(session)

    def _forget(self, session: ConsumerSession) -> None:
        session.closed = True
        # A queued push would keep its place, before the answer to whoever takes the id next.
        session.outbox.drop(session.key)
        self.counters.consumers -= 1
        session.outbox.hold(-_cost(session))
        path = keys.path_of(session.topic)
        key = (path, session.subscription)
        group = self._groups[key]
        del group[session]
        if not group:
            del self._groups[key]
            self._marked.discard(key)
            subscriptions = self._by_path[path]
            subscriptions.discard(session.subscription)
            if not subscriptions:
                del self._by_path[path]


def _departure(session: ConsumerSession) -> Departure:
    attachment = session.attachment(session.tried_as)
    return Departure(session.topic, session.subscription, session.name, attachment, session.leaving)


def _cost(session: ConsumerSession) -> int:
    return _CONSUMER_COST + len(session.subscription) + len(session.name) + len(session.topic.local)
