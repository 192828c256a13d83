"""A server of one topic for producers, whose layout and sealed segments the test changes while it runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio
import trio.testing

from protocol import replies
from protocol.client import TopicProducer, open_pool, open_producer
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.protocol.client.producer_scripts import Sent, layout_of, producer_success, receipt, send_error, sent
from tests.protocol.client.scripted_server import TOPIC, Peer, scripted_server
from tests.support.waiting import eventually

LIMIT = 30.0


class ProducerServer:
    """Answers everything at once, except for SENDs of segments that are held: those wait until they are let go."""

    def __init__(self, *segments: Sequence[int], partitions: int = 0) -> None:
        self.segments: Sequence[Sequence[int]] = segments
        self.partitions = partitions
        self.stored: dict[str, list[bytes]] = defaultdict(list)  # what was accepted, by the last part of the topic
        self.waiting: dict[str, list[Sent]] = defaultdict(list)  # what was sent to held segments
        self.held: set[str] = set()
        self.sealed: set[str] = set()
        self.requests: list[api.CommandProducer] = []
        self.closed: list[str] = []
        self._epoch = 0
        self._peer: Peer | None = None
        self._session = 0
        self._pongs = 0
        self._topics: dict[int, str] = {}

    async def run(self, peer: Peer) -> None:
        """One connection, to the end."""
        self._peer = peer
        self._topics.clear()
        await peer.greet()
        while (frame := await peer.receive_frame()) is not None:
            command = frame.command
            match command.type:
                case BaseCommand.LOOKUP:
                    await peer.send(replies.lookup_connect(command.lookupTopic.request_id, peer.server.url))
                case BaseCommand.PARTITIONED_METADATA:
                    request_id = command.partitionMetadata.request_id
                    await peer.send(replies.partitioned_metadata(request_id, self.partitions))
                case BaseCommand.SCALABLE_TOPIC_LOOKUP:
                    self._session = command.scalableTopicLookup.session_id
                    await peer.send(layout_of(self.segments, self._epoch, self._session))
                case BaseCommand.PRODUCER:
                    await self._attach(peer, command.producer)
                case BaseCommand.CLOSE_PRODUCER:
                    # A client that gives up while it opens a producer may close it twice.
                    if (topic := self._topics.pop(command.close_producer.producer_id, None)) is not None:
                        self.closed.append(topic)
                    await peer.send(replies.success(command.close_producer.request_id))
                case BaseCommand.SEND:
                    await self._take(peer, sent(frame))
                case BaseCommand.PONG:
                    self._pongs += 1

    async def push(self, *segments: Sequence[int]) -> None:
        """Change the layout, and tell about it."""
        self.segments = segments
        self._epoch += 1
        await self.peer.send(layout_of(segments, self._epoch, self._session))
        # The answer shows that the client has read what came before, and then it needs a moment to act on it.
        before = self._pongs
        await self.peer.send(replies.ping())
        await eventually(lambda: self._pongs > before)
        await trio.testing.wait_all_tasks_blocked()

    async def delete(self) -> None:
        command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_UPDATE)
        command.scalableTopicUpdate.session_id = self._session
        command.scalableTopicUpdate.error = api.TopicNotFound
        command.scalableTopicUpdate.message = "The topic was deleted."
        await self.peer.send(command)

    async def let_go(self, name: str, count: int | None = None) -> None:
        """Answer what was sent to a held segment: so many are stored, and the others too or refused if it is sealed."""
        self.held.discard(name)
        messages = self.waiting.pop(name, [])
        count = len(messages) if count is None else count
        for number, message in enumerate(messages):
            if number < count:
                await self._store(self.peer, name, message)
            else:
                await self.peer.send(send_error(message, api.TopicTerminatedError))

    async def cut(self) -> None:
        """Lose the connection."""
        await self.peer.close()

    @property
    def peer(self) -> Peer:
        assert self._peer is not None, "nobody has connected yet"
        return self._peer

    async def _attach(self, peer: Peer, request: api.CommandProducer) -> None:
        name = request.topic.rpartition("/")[2]
        if name in self.sealed:
            await peer.send(replies.error(request.request_id, api.TopicTerminatedError, "sealed"))
        else:
            self.requests.append(request)
            self._topics[request.producer_id] = name
            await peer.send(producer_success(request))

    async def _take(self, peer: Peer, message: Sent) -> None:
        name = self._topics[message.producer_id]
        if name in self.held:
            self.waiting[name].append(message)
        elif name in self.sealed:
            await peer.send(send_error(message, api.TopicTerminatedError))
        else:
            await self._store(peer, name, message)

    async def _store(self, peer: Peer, name: str, message: Sent) -> None:
        self.stored[name].append(message.value)
        await peer.send(receipt(message, len(self.stored[name]) - 1))


@asynccontextmanager
async def producing_to(
    topic_server: ProducerServer, topic: str = TOPIC, *, connections: int = 1, send_timeout: float = 30.0
) -> AsyncIterator[TopicProducer]:
    with trio.fail_after(LIMIT):
        async with (
            scripted_server(*[topic_server.run] * connections) as server,
            open_pool(server.url) as pool,
            open_producer(pool, topic, send_timeout=send_timeout) as producer,
        ):
            yield producer
