"""A server for consumers: layouts and assignments that the test decides, and segments that deliver."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from protocol import data_replies, replies
from protocol.client import StreamConsumer, open_pool, open_stream_consumer
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.protocol.client.consumer_scripts import ack_response, message_frame
from tests.protocol.client.producer_scripts import layout_of
from tests.protocol.client.scripted_server import TOPIC, Peer, deleted, scripted_server
from tests.support.waiting import eventually

LIMIT = 30.0


def segment_topic(segment_id: int) -> str:
    return f"segment://public/default/t/0000-ffff-{segment_id}"


class ConsumerServer:
    """Answers everything at once; remembers who registered, who is attached, and what was acknowledged."""

    def __init__(self, *assigned: int, epoch: int = 0, partitions: int = 0) -> None:
        self.assigned = assigned
        self.epoch = epoch
        self.partitions = partitions
        self.push_before_answer: tuple[int, ...] | None = None
        self.segments: Sequence[Sequence[int]] = [(0, 0, 0xFFFF)]
        self.busy: set[str] = set()
        self.missing: set[str] = set()
        self.is_deleted = False  # the whole topic
        self.names: list[str] = []
        self.attached: dict[str, api.CommandSubscribe] = {}
        self.subscribed: list[api.CommandSubscribe] = []
        self.acks: list[tuple[str, int, bool]] = []  # topic, index, whether cumulative
        self.events: list[str] = []
        self.flowing: set[str] = set()
        self._peer: Peer | None = None
        self._registered = 0
        self._session = 0
        self._topics: dict[int, str] = {}

    @property
    def peer(self) -> Peer:
        assert self._peer is not None, "nobody has connected yet"
        return self._peer

    async def run(self, peer: Peer) -> None:
        self._peer = peer
        await peer.greet()
        while (command := await peer.receive()) is not None:
            await self._answer(peer, command)
        self.attached.clear()
        self.flowing.clear()

    async def push(self, *assigned: int, epoch: int = 0, ranges: tuple[int, int] | None = None) -> None:
        assignment = self._assignment(assigned, epoch)
        if ranges is not None:
            for segment in assignment.segments:
                segment.bucket_ranges.add(start=ranges[0], end=ranges[1])
        await self.peer.send(replies.assignment_update(self._registered, assignment))

    async def push_layout(self, *segments: Sequence[int]) -> None:
        self.segments = segments
        self.epoch += 1
        await self.peer.send(layout_of(segments, self.epoch, self._session))

    async def close_registration(self) -> None:
        await self.peer.send(data_replies.close_consumer(self._registered))

    async def close(self, segment_id: int) -> None:
        request = self.attached.pop(segment_topic(segment_id))
        await self.peer.send(data_replies.close_consumer(request.consumer_id))

    async def delete(self) -> None:
        await self.peer.send(deleted(self._session))

    async def deliver(self, segment_id: int, *indexes: int) -> None:
        topic = segment_topic(segment_id)
        await eventually(lambda: topic in self.flowing)
        await self.peer.send_bytes(b"".join(message_frame(self.attached[topic], index) for index in indexes))

    async def _answer(self, peer: Peer, command: BaseCommand) -> None:
        match command.type:
            case BaseCommand.LOOKUP:
                await peer.send(replies.lookup_connect(command.lookupTopic.request_id, peer.server.url))
            case BaseCommand.PARTITIONED_METADATA:
                await peer.send(replies.partitioned_metadata(command.partitionMetadata.request_id, self.partitions))
            case BaseCommand.SCALABLE_TOPIC_LOOKUP:
                self._session = command.scalableTopicLookup.session_id
                if self.is_deleted:
                    assert not command.scalableTopicLookup.create_if_missing
                    await self.delete()
                    return
                layout = layout_of(self.segments, self.epoch, self._session)
                layout.scalableTopicUpdate.dag.controller_broker_url = peer.server.url
                await peer.send(layout)
            case BaseCommand.SCALABLE_TOPIC_SUBSCRIBE:
                await self._register(peer, command.scalableTopicSubscribe)
            case BaseCommand.SCALABLE_TOPIC_UNSUBSCRIBE:
                self.events.append("left")
                await peer.send(replies.success(command.scalableTopicUnsubscribe.request_id))
            case BaseCommand.SUBSCRIBE:
                await self._subscribe(peer, command.subscribe)
            case BaseCommand.FLOW:
                self.flowing.add(self._topics[command.flow.consumer_id])
            case BaseCommand.ACK:
                topic = self._topics[command.ack.consumer_id]
                is_cumulative = command.ack.ack_type == api.CommandAck.Cumulative
                self.acks += [(topic, data.entryId, is_cumulative) for data in command.ack.message_id]
                await peer.send(ack_response(command.ack))
            case BaseCommand.CLOSE_CONSUMER:
                topic = self._topics[command.close_consumer.consumer_id]
                self.events.append(f"closed {topic.rpartition('-')[2]}")
                self.attached.pop(topic, None)
                self.flowing.discard(topic)
                await peer.send(replies.success(command.close_consumer.request_id))

    async def _register(self, peer: Peer, request: api.CommandScalableTopicSubscribe) -> None:
        self.names.append(request.consumer_name)
        self._registered = request.consumer_id
        if self.push_before_answer is not None:
            await self.push(*self.push_before_answer, epoch=self.epoch)
        await peer.send(replies.subscribed(request.request_id, self._assignment(self.assigned, self.epoch)))

    async def _subscribe(self, peer: Peer, request: api.CommandSubscribe) -> None:
        if request.topic in self.busy:
            await peer.send(replies.error(request.request_id, api.ConsumerBusy, "busy"))
            return
        if request.topic in self.missing:
            self.events.append(f"missed {request.topic.rpartition('-')[2]}")
            await peer.send(replies.error(request.request_id, api.TopicNotFound, "not there"))
            return
        self.subscribed.append(request)
        self.attached[request.topic] = request
        self._topics[request.consumer_id] = request.topic
        await peer.send(replies.success(request.request_id))

    def _assignment(self, segment_ids: tuple[int, ...], epoch: int) -> api.ScalableConsumerAssignment:
        assignment = api.ScalableConsumerAssignment(layout_epoch=epoch)
        for segment_id in segment_ids:
            assignment.segments.add(
                segment_id=segment_id, hash_start=0, hash_end=0xFFFF, segment_topic=segment_topic(segment_id)
            )
        return assignment


@asynccontextmanager
async def streaming_from(
    consumer_server: ConsumerServer, topic: str = TOPIC, *, connections: int = 1, **options: Any
) -> AsyncIterator[StreamConsumer]:
    with trio.fail_after(LIMIT):
        async with (
            scripted_server(*[consumer_server.run] * connections) as server,
            open_pool(server.url) as pool,
            open_stream_consumer(pool, topic, "s", **options) as consumer,
        ):
            yield consumer
