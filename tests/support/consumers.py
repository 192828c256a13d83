"""Consumers as a server sees them: a plain connection that registers them and remembers every word about each.

Works on anything that listens at a `pulsar://` URL, nodes in the test process and server processes alike. What no
client should ever be sent (a push before the answer, a second answer, an epoch that goes back, a segment twice) is a
complaint, and the block that opened the connection fails with it.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

import trio

from protocol import replies
from protocol.client import requests
from protocol.framing import Frame, FrameDecoder, encode
from protocol.names import TopicName
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.support.waiting import eventually

Response = api.CommandScalableTopicSubscribeResponse
Update = api.CommandScalableTopicAssignmentUpdate
Assignment = api.ScalableConsumerAssignment

STREAM: Final = api.STREAM
CHECKPOINT: Final = api.CHECKPOINT
# A registration, a decision, a read-back and a few pauses in between, on a busy machine.
LIMIT: Final = 30.0


class RegisteredConsumer:
    """One consumer of one connection, with all that it was told, in order."""

    def __init__(self, request_id: int, consumer_id: int, name: str) -> None:
        self.request_id = request_id
        self.consumer_id = consumer_id
        self.name = name
        self.events: list[Response | Update] = []
        self.closed = False

    @property
    def response(self) -> Response:
        for event in self.events:
            if isinstance(event, Response):
                return event
        raise AssertionError(f"{self.name} was not answered")

    @property
    def answered(self) -> bool:
        return any(isinstance(event, Response) for event in self.events)

    @property
    def error(self) -> int | None:
        """The code of the refusal, None where the consumer was accepted."""
        return self.response.error if self.response.HasField("error") else None

    @property
    def updates(self) -> list[Update]:
        return [event for event in self.events if isinstance(event, Update)]

    @property
    def assignments(self) -> list[Assignment]:
        return [event.assignment for event in self.events if event.HasField("assignment")]

    @property
    def last(self) -> Assignment:
        assert self.assignments, f"{self.name} was not told any assignment"
        return self.assignments[-1]

    @property
    def ids(self) -> set[int]:
        """The segments of its last assignment."""
        return _ids(self.last)

    @property
    def history(self) -> list[set[int]]:
        """The segments of every assignment so far."""
        return [_ids(assignment) for assignment in self.assignments]

    def __repr__(self) -> str:
        if not self.events:
            return f"<{self.name} unanswered>"
        if self.answered and self.error is not None:
            return f"<{self.name} refused: {self.response.message}>"
        return f"<{self.name} {' then '.join(map(shown, self.history))}>"


class ConsumerConnection:
    """A connection with any number of consumers. It can stop reading, and can be gone without a word."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self.consumers: list[RegisteredConsumer] = []  # in the order in which they were registered
        self.complaints: list[str] = []
        self.successes: list[int] = []  # request ids
        self.errors: dict[int, api.CommandError] = {}  # by request id
        self.hung_up = False
        self._sock = sock
        self._decoder = FrameDecoder()
        self._by_request: dict[int, RegisteredConsumer] = {}
        self._by_id: dict[int, RegisteredConsumer] = {}
        self._request_ids = 0
        self._pongs = 0
        self._connected = trio.Event()
        self._reading = trio.Event()
        self._reading.set()
        self._scope = trio.CancelScope()

    async def subscribe(
        self,
        topic: TopicName | str,
        subscription: str,
        name: str,
        *,
        kind: api.ScalableConsumerType.ValueType = STREAM,
        consumer_id: int | None = None,
    ) -> RegisteredConsumer:
        """Register a consumer; returns at once, the answer and all that follows is in what is returned."""
        consumer, command = self.subscription(topic, subscription, name, kind=kind, consumer_id=consumer_id)
        await self.send(command)
        return consumer

    async def subscribed(
        self,
        topic: TopicName | str,
        subscription: str,
        name: str,
        *,
        kind: api.ScalableConsumerType.ValueType = STREAM,
    ) -> RegisteredConsumer:
        """Register a consumer and wait until it is answered."""
        consumer = await self.subscribe(topic, subscription, name, kind=kind)
        await eventually(lambda: consumer.answered, within=LIMIT)
        return consumer

    def subscription(
        self,
        topic: TopicName | str,
        subscription: str,
        name: str,
        *,
        kind: api.ScalableConsumerType.ValueType = STREAM,
        consumer_id: int | None = None,
    ) -> tuple[RegisteredConsumer, BaseCommand]:
        """The command that registers a consumer, to be sent by the caller, who expects the answer from now on."""
        request_id = self._next_request()
        consumer_id = request_id if consumer_id is None else consumer_id
        consumer = RegisteredConsumer(request_id, consumer_id, name)
        self.consumers.append(consumer)
        self._by_request[request_id] = self._by_id[consumer_id] = consumer
        return consumer, subscribe_command(request_id, topic, subscription, name, consumer_id, kind)

    async def unsubscribe(self, consumer_id: int) -> int:
        """Let a consumer leave for good; the request id, which `successes` has once it is done."""
        request_id = self._next_request()
        await self.send(unsubscribe_command(request_id, consumer_id))
        return request_id

    async def leave(self, consumer: RegisteredConsumer) -> None:
        """Let a consumer leave for good, and wait until that is confirmed."""
        await self.until_confirmed(await self.unsubscribe(consumer.consumer_id))

    async def until_confirmed(self, request_id: int, within: float = LIMIT) -> None:
        await eventually(lambda: request_id in self.successes, within)

    async def round_trip(self) -> None:
        """Return when everything that the server sent before has been taken in."""
        seen = self._pongs
        await self.send(replies.ping())
        await eventually(lambda: self._pongs > seen, within=LIMIT)

    async def send(self, *commands: BaseCommand) -> None:
        """In one piece: what the server reads at once it handles without anything in between."""
        data = b"".join(map(encode, commands))
        while data:
            data = data[await self._sock.send(data) :]

    def stop_reading(self) -> None:
        # A second one must not take the place of the event that the reader waits for.
        if self._reading.is_set():
            self._reading = trio.Event()

    def read_on(self) -> None:
        self._reading.set()

    def disconnect(self) -> None:
        """Be gone without a word; consumers stay registered until their grace ends."""
        self._scope.cancel()
        self._sock.close()

    async def shake_hands(self) -> None:
        await self.send(requests.connect("test"))
        await self._connected.wait()

    async def run(self) -> None:
        with self._scope:
            try:
                while True:
                    await self._reading.wait()
                    data = await self._sock.recv(65_536)
                    if not data:
                        break
                    for frame in self._decoder.receive(data):
                        assert isinstance(frame, Frame)
                        await self._take(frame.command)
            except OSError:
                pass
            self.hung_up = not self._scope.cancel_called

    def _next_request(self) -> int:
        self._request_ids += 1
        return self._request_ids

    async def _take(self, command: BaseCommand) -> None:
        match command.type:
            case BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE:
                self._take_response(command.scalableTopicSubscribeResponse)
            case BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE:
                self._take_update(command.scalableTopicAssignmentUpdate)
            case BaseCommand.CLOSE_CONSUMER:
                self._take_close(command.close_consumer.consumer_id)
            case BaseCommand.SUCCESS:
                self.successes.append(command.success.request_id)
            case BaseCommand.ERROR:
                self.errors[command.error.request_id] = command.error
            case BaseCommand.CONNECTED:
                self._decoder.max_message_size = command.connected.max_message_size
                self._connected.set()
            case BaseCommand.PING:
                await self.send(replies.pong())
            case BaseCommand.PONG:
                self._pongs += 1
            case other:
                self.complaints.append(f"sent {BaseCommand.Type.Name(other)}")

    def _take_response(self, response: Response) -> None:
        consumer = self._by_request.get(response.request_id)
        if consumer is None:
            self.complaints.append(f"an answer to request {response.request_id}, which nobody made")
            return
        if any(isinstance(event, Response) for event in consumer.events):
            self.complaints.append(f"{consumer} was answered again")
        if response.HasField("error") == response.HasField("assignment"):
            self.complaints.append(f"{consumer} was answered neither yes nor no: {response}")
        self._take_event(consumer, response)

    def _take_update(self, update: Update) -> None:
        consumer = self._by_id.get(update.consumer_id)
        if consumer is None:
            self.complaints.append(f"an assignment for consumer {update.consumer_id}, which is nobody's")
            return
        if not consumer.answered:
            self.complaints.append(f"{consumer.name} was pushed an assignment before it was answered")
        if consumer.assignments and _ids(update.assignment) == consumer.ids:
            self.complaints.append(f"{consumer} was told the same again")
        self._take_event(consumer, update)

    def _take_close(self, consumer_id: int) -> None:
        consumer = self._by_id.get(consumer_id)
        if consumer is None or not consumer.answered or consumer.closed:
            self.complaints.append(f"consumer {consumer_id} was closed, which is not open")
        elif consumer.ids:
            self.complaints.append(f"{consumer} was closed before its segments were taken from it")
        else:
            consumer.closed = True

    def _take_event(self, consumer: RegisteredConsumer, event: Response | Update) -> None:
        if consumer.closed:
            self.complaints.append(f"{consumer} was told something after it was closed")
        if event.HasField("assignment"):
            listed = [segment.segment_id for segment in event.assignment.segments]
            if len(listed) > len(set(listed)):
                self.complaints.append(f"{consumer.name} was assigned a segment twice: {listed}")
            # A client drops what is older than what it knows, and would not hear this.
            if consumer.assignments and event.assignment.layout_epoch < consumer.last.layout_epoch:
                self.complaints.append(f"{consumer.name} was told an older epoch than before")
        consumer.events.append(event)


@asynccontextmanager
async def registering(
    pulsar_url: str, *, receive_buffer: int | None = None, may_be_cut: bool = False
) -> AsyncIterator[ConsumerConnection]:
    """A connection for the length of the block, at the end of which there must be nothing to complain about."""
    async with trio.open_nursery() as nursery:
        connection = await connect_consumers(nursery, pulsar_url, receive_buffer=receive_buffer)
        try:
            yield connection
            assert may_be_cut or not connection.hung_up, "the server hung up"
            assert not connection.complaints, connection.complaints
        finally:
            connection.disconnect()
            nursery.cancel_scope.cancel()


async def connect_consumers(
    nursery: trio.Nursery, pulsar_url: str, *, receive_buffer: int | None = None
) -> ConsumerConnection:
    """A connection that has shaken hands, read in the nursery until it is disconnected; look at its complaints."""
    address = urlsplit(pulsar_url)
    sock = trio.socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    await sock.connect((address.hostname, address.port))
    connection = ConsumerConnection(sock)
    nursery.start_soon(connection.run)
    await connection.shake_hands()
    return connection


def is_shared(consumers: Iterable[RegisteredConsumer], segment_ids: Collection[int]) -> bool:
    """Whether all were answered and have these segments between them, each exactly one of them."""
    consumers = list(consumers)
    if not all(consumer.answered and consumer.error is None for consumer in consumers):
        return False
    owned = Counter(segment_id for consumer in consumers for segment_id in consumer.ids)
    return owned == Counter(set(segment_ids))


async def until_shared(
    consumers: Iterable[RegisteredConsumer], segment_ids: Collection[int], within: float = LIMIT
) -> None:
    """Wait until these consumers have these segments between them, each exactly one of them."""
    consumers = list(consumers)
    try:
        await eventually(lambda: is_shared(consumers, segment_ids), within)
    except AssertionError as error:
        raise AssertionError(f"{shown(segment_ids)} not shared within {within:g} s: {consumers}") from error


async def stays(holds: Callable[[], object], seconds: float) -> None:
    """Something is true, and stays so for a while: for what must not happen, of which nothing can tell the end."""
    until = trio.current_time() + seconds
    while trio.current_time() < until:
        assert holds()
        await trio.sleep(0.02)
    assert holds()


def subscribe_command(
    request_id: int,
    topic: TopicName | str,
    subscription: str,
    name: str,
    consumer_id: int,
    kind: api.ScalableConsumerType.ValueType = STREAM,
) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_SUBSCRIBE)
    request = command.scalableTopicSubscribe
    request.request_id = request_id
    request.topic = str(topic)
    request.subscription = subscription
    request.consumer_name = name
    request.consumer_id = consumer_id
    request.consumer_type = kind
    return command


def unsubscribe_command(request_id: int, consumer_id: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_UNSUBSCRIBE)
    command.scalableTopicUnsubscribe.request_id = request_id
    command.scalableTopicUnsubscribe.consumer_id = consumer_id
    return command


def shown(segment_ids: Iterable[int]) -> str:
    """Segment ids as messages of failures name them: short, however many they are."""
    ids = sorted(segment_ids)
    named = ", ".join(map(str, ids if len(ids) <= 12 else ids[:10]))
    return f"{{{named}}}" if len(ids) <= 12 else f"{{{named} and {len(ids) - 10} more}}"


def _ids(assignment: Assignment) -> set[int]:
    return {segment.segment_id for segment in assignment.segments}
