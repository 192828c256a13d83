"""A consumer of one segment, one partition or one plain topic: messages, permits, acknowledgements and seeks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import trio

from protocol.backoff import Backoff
from protocol.client import requests
from protocol.client.acks import AckGroup, AckQueue
from protocol.client.attaching import Attached
from protocol.client.attachments import Kind
from protocol.client.connection import ClientConnection
from protocol.client.entries import Item, ReceivedEntry, ReceivedMessage, parse_entry
from protocol.client.errors import ServerMisbehaved, ServerRefused, SubscriptionDeleted, is_passing
from protocol.client.inbox import Intake
from protocol.client.message_ids import Edge, MessageId, edge_to_wire
from protocol.client.pool import ConnectionPool
from protocol.client.receive_buffer import ReceiveBuffer
from protocol.client.subscriptions import Start, Subscription
from protocol.errors import ProtocolError
from protocol.framing import encode
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand

# As in Pulsar's own clients.
QUEUE_SIZE = 1_000


class SegmentConsumer(Attached):
    """Puts messages into an inbox, up to the queue size of its intake ahead of who takes them.

    What nobody has taken when the place is lost is forgotten, since the server delivers it again, and so are messages
    that were taken and not acknowledged. Acknowledgements are told again until they are confirmed, and at a new place
    before anything is delivered; without `confirm_acks` they count as confirmed once they are written.
    """

    kind = Kind.CONSUMER

    def __init__(
        self,
        pool: ConnectionPool,
        topic: str,
        subscription: Subscription,
        intake: Intake,
        on_end: Callable[[SegmentConsumer, ProtocolError], None],
        *,
        confirm_acks: bool = True,
    ) -> None:
        super().__init__(pool, topic)
        self.subscription = subscription
        self.reached_end = False  # the topic is sealed and everything in it was delivered
        self.is_active: bool | None = None  # of a Failover subscription, once the server has said so
        self._inbox = intake.inbox
        self._on_end = on_end
        self._confirm_acks = confirm_acks
        self._buffer = ReceiveBuffer(intake.queue_size)
        self._epoch = 0  # tells what was sent before a redelivery from what comes again
        self.last_taken: MessageId | None = None
        self._tracks_unacked = intake.tracks_unacked
        self._unacked: OrderedDict[tuple[int, int, int], tuple[int, MessageId]] = OrderedDict()  # taken, with the order
        self._all_acked = trio.lowlevel.ParkingLot()
        self._acks = AckQueue()
        self._telling: trio.CancelScope | None = None
        self._is_paused = False
        self._seeking: trio.Event | None = None

    # Taking

    @property
    def has_messages(self) -> bool:
        return len(self._buffer) > 0 and not self._is_paused

    def take(self, order: int) -> Item:
        item = self._buffer.take()
        message_id = self.last_taken = item.message_id
        if isinstance(item, ReceivedMessage):
            item.taken = order
        if self._tracks_unacked:
            self._unacked[message_id.position] = order, message_id
        self._give_back_permits()
        return item

    def pause(self) -> None:
        """Let nobody take what is here until `resume`."""
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        if self.has_messages:
            self._inbox.announce(self)

    # Acknowledging

    def ack(self, message_id: MessageId) -> AckGroup:
        """Acknowledge one message; `wait()` of what is returned says when it is confirmed."""
        group = self._acks.add(message_id)
        self._forget(message_id.position)
        return group

    def ack_through(self, message_id: MessageId) -> AckGroup | None:
        """Acknowledge a message and all before it; None if that was done already."""
        if self.subscription.keeps_order:
            group = self._acks.add_cumulative(message_id)
        else:
            # Those before it may be others' messages.
            group = None
            for position, (_, taken) in list(self._unacked.items()):
                if position <= message_id.position:
                    group = self._acks.add(taken)
        while self._unacked and next(iter(self._unacked)) <= message_id.position:
            self._forget(next(iter(self._unacked)))
        return group

    def taken_through(self, order: int) -> MessageId | None:
        """The last message not acknowledged among those that were taken no later than that."""
        last = None
        for taken, message_id in self._unacked.values():
            if taken > order:
                break
            last = message_id
        return last

    @property
    def unacked(self) -> int:
        """How many messages were taken and not acknowledged, where that is tracked."""
        return len(self._unacked)

    async def wait_all_acked(self) -> None:
        while self._unacked:
            await self._all_acked.park()

    async def flush_acks(self) -> None:
        """Until everything that was acknowledged is confirmed, or was refused: that is raised for the last group."""
        if (newest := self._acks.newest) is not None:
            await newest.wait()

    def redeliver(self, message_ids: Sequence[MessageId] | None = None) -> None:
        """Ask for messages again that were taken: some, or all that were not acknowledged."""
        if message_ids is None:
            self._buffer.clear()
            self._forget_all()
            if self.subscription.keeps_order:
                self._epoch += 1
        for message_id in message_ids or ():
            self._forget(message_id.position)
        if self._connection is not None:  # or the next place gets them anyway
            entries = {message_id.entry for message_id in message_ids or ()}
            data = [api.MessageIdData(ledgerId=ledger, entryId=index) for ledger, index in sorted(entries)]
            epoch = self._epoch if self.subscription.keeps_order else None
            self._write(self._connection, requests.redeliver(self._number, data, epoch))
            self._give_back_permits()

    # Moving, and asking

    async def seek(self, to: Edge | MessageId | int) -> None:
        """Move the subscription to an edge, a message, or a time in milliseconds, and forget what was received."""
        if isinstance(to, MessageId):
            target: api.MessageIdData | int = to.to_wire()
        else:
            target = to if isinstance(to, int) else edge_to_wire(to)
        # Where a time is, only the server knows: a reader takes what comes from there.
        start = Start("earliest") if isinstance(to, int) else Start(to, is_inclusive=True)

        async def attempt(connection: ClientConnection, number: int) -> None:
            # A server may close the consumer first: a new place is taken only when it is known where to read on.
            self._seeking = trio.Event()
            try:
                await connection.request(
                    lambda request_id: requests.seek(request_id, number, target),
                    BaseCommand.SUCCESS,
                    on_answer=lambda _: self._start_anew(start),
                )
            finally:
                self._seeking.set()
                self._seeking = None

        await self.retry(attempt, "moved")

    def _start_anew(self, start: Start) -> None:
        """The subscription has moved, and what was received before is void."""
        if self.subscription.start is not None:
            self.subscription = self.subscription.starting(start)
        self._acks.forget()
        self._forget_all()
        self.last_taken = None
        self._buffer.clear()
        self._give_back_permits()

    async def last_message_id(self) -> MessageId:
        """The last message of the topic; its index is -1 if there is none."""

        async def attempt(connection: ClientConnection, number: int) -> BaseCommand:
            return await connection.request(
                lambda request_id: requests.last_message_id(request_id, number),
                BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE,
            )

        reply = await self.retry(attempt, "asked for its last message")
        return MessageId.from_wire(self.topic, reply.getLastMessageIdResponse.last_message_id)

    async def unsubscribe(self) -> None:
        """Remove the subscription itself from the topic, and with it this consumer."""

        async def attempt(connection: ClientConnection, number: int) -> None:
            await connection.request(lambda request_id: requests.unsubscribe(request_id, number), BaseCommand.SUCCESS)

        try:
            await self.retry(attempt, "unsubscribed from")
        except SubscriptionDeleted:
            pass  # by somebody else, or by a request whose answer was lost
        await self.close()

    # Staying attached

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_telling_acks)
            await super().run()
            nursery.cancel_scope.cancel()

    def receive(self, command: BaseCommand, body: bytes) -> None:
        match command.type:
            case BaseCommand.MESSAGE if self._connection is None:
                pass  # of an earlier stay under the same number
            case BaseCommand.MESSAGE:
                try:
                    self._take_in(command.message, body)
                except ServerMisbehaved as error:
                    self._fail(error)
                    raise
            case BaseCommand.CLOSE_CONSUMER:
                self._dismiss()
            case BaseCommand.REACHED_END_OF_TOPIC:
                self.reached_end = True
            case BaseCommand.ACTIVE_CONSUMER_CHANGE:
                self.is_active = command.active_consumer_change.is_active

    def _take_in(self, message: api.CommandMessage, body: bytes) -> None:
        entry = parse_entry(self.topic, message, body)
        is_of_before = message.HasField("consumer_epoch") and message.consumer_epoch < self._epoch
        if is_of_before:
            self._buffer.drop(entry)
            self._give_back_permits()
            return
        start = self._resume_at()
        if start is not None:
            entry = ReceivedEntry([item for item in entry.items if start.precedes(item.message_id)], entry.cost)
        elif entry.left is not None and entry.items:
            self._acks.note_batch(entry.items[0].message_id, entry.left)
        self._buffer.put(entry)
        self._give_back_permits()
        if self.has_messages:
            self._inbox.announce(self)

    def _resume_at(self) -> Start | None:
        """Where a reader goes on."""
        if self.subscription.start is None or self.last_taken is None:
            return self.subscription.start
        return Start(self.last_taken)

    async def _attach(self, connection: ClientConnection, number: int) -> None:
        if self._seeking is not None:
            await self._seeking.wait()
        start = self._resume_at()
        subscription = self.subscription if start is None else self.subscription.starting(start)
        try:
            await connection.request(
                lambda request_id: subscription.command(request_id, self.topic, number, self._epoch),
                BaseCommand.SUCCESS,
            )
        except ServerRefused as error:
            if error.server_error == api.TopicNotFound and number == self._former_number(connection):
                # Where the topic is gone, looking it up says so and raises that.
                await self._pool.connection_for(self.topic)
                if subscription.is_durable:
                    raise SubscriptionDeleted(error.message) from error
            raise
        for group in self._acks:
            await self._tell(connection, number, group)

    def _close_command(self, request_id: int, number: int) -> BaseCommand:
        return requests.close_consumer(request_id, number)

    def _attached(self, connection: ClientConnection) -> None:
        self._write(connection, requests.flow(self._number, self._buffer.open()))

    def _detached(self) -> None:
        if self.subscription.start is not None and self.last_taken is None and self._buffer:
            # Before anything was taken only the server knew where the reader stands.
            first = next(iter(self._buffer)).message_id
            self.subscription = self.subscription.starting(Start(first, is_inclusive=True))
        self._buffer.close()
        self.is_active = None
        if self._telling is not None:
            self._telling.cancel()

    def _ended(self, error: ProtocolError) -> None:
        self._acks.fail(error)
        self._forget_all()
        self._on_end(self, error)

    async def _keep_telling_acks(self) -> None:
        backoff = Backoff()
        while True:
            await self._acks.wait_head()
            try:
                connection, number = await self.wait_attached(), self._number
            except ProtocolError:
                return
            if (group := self._acks.head) is None:
                continue  # told before this place was taken
            with trio.CancelScope() as self._telling:
                try:
                    await self._tell(connection, number, group)
                    backoff.reset()
                except ProtocolError:
                    await trio.sleep(backoff.next())

    async def _tell(self, connection: ClientConnection, number: int, group: AckGroup) -> None:
        """Tell a group, as one command of each kind; raises what may pass, and then the group stays where it is."""
        group.is_sent = True
        try:
            if group.individual:
                ids = list(group.individual.values())
                await self._tell_ack(connection, number, api.CommandAck.Individual, ids)
            if group.cumulative is not None:
                await self._tell_ack(connection, number, api.CommandAck.Cumulative, [group.cumulative])
        except ProtocolError as error:
            if is_passing(error) or not connection.is_open:
                raise
            self._acks.settle(group, error)
        else:
            self._acks.settle(group)

    async def _tell_ack(
        self, connection: ClientConnection, number: int, kind: requests.AckType, ids: list[api.MessageIdData]
    ) -> None:
        if not self._confirm_acks:
            await connection.send(requests.ack(number, kind, ids))
            return
        reply = await connection.request(
            lambda request_id: requests.ack(number, kind, ids, request_id), BaseCommand.ACK_RESPONSE
        )
        if reply.ackResponse.HasField("error"):
            raise ServerRefused(reply.ackResponse.error, reply.ackResponse.message)

    def _give_back_permits(self) -> None:
        if self._connection is not None and (permits := self._buffer.give_back()):
            self._write(self._connection, requests.flow(self._number, permits))
            if self.subscription.start is not None and self.last_taken is not None:
                # So that the server need not keep account of what a reader has behind it.
                ids = [self.last_taken.to_wire()]
                self._write(self._connection, requests.ack(self._number, api.CommandAck.Cumulative, ids))

    def _write(self, connection: ClientConnection, command: BaseCommand) -> None:
        """Bounded by what is received: one for half of what may wait here, or for what somebody asked for."""
        if connection.is_open:  # or this stay is about to end
            connection.write(encode(command))

    def _forget(self, position: tuple[int, int, int]) -> None:
        if self._unacked.pop(position, None) is not None and not self._unacked:
            self._all_acked.unpark_all()

    def _forget_all(self) -> None:
        self._unacked.clear()
        self._all_acked.unpark_all()
