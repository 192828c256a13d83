"""Nodes inside the test process, with intervals small enough to wait for, and viewers that remember every frame."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, Final
from urllib.parse import urlsplit

import trio

from controller.classic import ClassicTransitions
from controller.transitions import TopicLimits, Transitions
from gateway.node import Node, start_node
from gateway.quantities import HostPort
from gateway.settings import Settings
from layout import records
from metadata import keys
from metadata.store import TopicStore
from protocol import replies
from protocol.client import requests
from protocol.framing import Frame, FrameDecoder, encode
from protocol.names import TopicName
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from sessions.dag import encode_tail
from sessions.splice import frame_head, id_field
from tests.support.ports import HOST
from tests.support.waiting import eventually

Update = api.CommandScalableTopicUpdate

PROBE_INTERVAL: Final = 0.2
DELETION_NOTICE: Final = 0.5
# So long that a busy machine is not taken for a store that went away. Tests in which it does go away set less.
STORE_TIMEOUT: Final = 5.0
# What a read-back, a reconnect and a creation may add up to on a busy machine, each after its longest pause.
CONVERGENCE_LIMIT: Final = 30.0

_SETTINGS: Final = Settings(
    listen=HostPort(HOST, 0),
    http=HostPort(HOST, 0),
    store_timeout=STORE_TIMEOUT,
    store_connect_timeout=STORE_TIMEOUT,
    probe_interval=PROBE_INTERVAL,
    session_lease=5.0,
    deletion_notice=DELETION_NOTICE,
    shutdown_grace=0.5,
    # The loop is looked at twice in this time, and tests wait until nothing moves any more.
    slow_turn=3_600.0,
)


@asynccontextmanager
async def started_node(store_url: str, **changes: Any) -> AsyncIterator[Node]:
    """A node on free ports, ready or not; `changes` are settings that differ from the small ones above."""
    async with start_node(dataclasses.replace(_SETTINGS, **changes), store_url) as node:
        yield node


@asynccontextmanager
async def running_node(store_url: str, **changes: Any) -> AsyncIterator[Node]:
    """The same, once it is ready."""
    async with started_node(store_url, **changes) as node:
        await eventually(lambda: not node.readiness(), within=CONVERGENCE_LIMIT)
        yield node


def transitions_of(node: Node) -> Transitions:
    """What the admin API of this node changes topics with."""
    return Transitions(node.store, TopicLimits())


async def created_classic(node: Node, topic: TopicName, partitions: int = 0) -> ClassicTransitions:
    """Create a classic topic, without partitions if it has none, with what is returned."""
    classic = ClassicTransitions(node.store, TopicLimits())
    await (classic.create_partitioned(topic, partitions) if partitions else classic.create(topic))
    return classic


class View:
    """One watch as its client sees it: every update that came, in order."""

    def __init__(self, node: Node, topic: TopicName, session_id: int) -> None:
        self.topic = topic
        self.session_id = session_id
        self.updates: list[Update] = []
        self._node_url = node.pulsar_url

    @property
    def last(self) -> Update:
        assert self.updates, f"nothing was told about {self.topic}"
        return self.updates[-1]

    @property
    def errors(self) -> list[int]:
        return [update.error for update in self.updates if update.HasField("error")]

    @property
    def epochs(self) -> list[int]:
        """As they were told, but for updates that say of the same layout where it is served now."""
        told = [update.dag for update in self.updates if update.HasField("dag")]
        moved = [dag.epoch == before.epoch and dag != before for before, dag in pairwise(told)]
        return [dag.epoch for dag, has_moved in zip(told, [False, *moved], strict=False) if not has_moved]

    def expected(self, value: bytes) -> Update:
        """The update that says what this stored record says, whoever leads the topic."""
        url = self.last.dag.controller_broker_url
        # Whichever of the nodes a segment belongs to.
        owners = {broker.segment_id: broker.broker_url for broker in self.last.dag.segment_brokers}
        layout = records.decode(value).layout
        tail = encode_tail(
            layout,
            name=str(self.topic),
            owner_url=lambda segment: owners.get(segment.segment_id, self._node_url),
            controller_url=url,
        )
        field = id_field(self.session_id)
        [frame] = FrameDecoder().receive(
            frame_head(api.BaseCommand.SCALABLE_TOPIC_UPDATE, len(field), tail) + field + tail
        )
        assert isinstance(frame, Frame)
        return frame.command.scalableTopicUpdate


class Viewer:
    """A client connection that only reads, and can stop reading."""

    def __init__(self, node: Node, sock: trio.socket.SocketType) -> None:
        self.views: dict[int, View] = {}
        self.hung_up = False
        self._node = node
        self._sock = sock
        self._decoder = FrameDecoder()
        self._connected = trio.Event()
        self._reading = trio.Event()
        self._reading.set()

    async def watch(self, topic: TopicName, *, create: bool = True) -> View:
        """Send a lookup; its answer and all that follows is in the view, which is returned at once."""
        session_id = len(self.views) + 1
        view = self.views[session_id] = View(self._node, topic, session_id)
        await self._send(requests.open_topic_watch(session_id, str(topic), create))
        return view

    def stop_reading(self) -> None:
        # A second one must not take the place of the event that the reader waits for.
        if self._reading.is_set():
            self._reading = trio.Event()

    def read_on(self) -> None:
        self._reading.set()

    async def shake_hands(self) -> None:
        await self._send(requests.connect("test"))
        await self._connected.wait()

    async def run(self) -> None:
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
        self.hung_up = True

    async def _take(self, command: BaseCommand) -> None:
        match command.type:
            case BaseCommand.SCALABLE_TOPIC_UPDATE:
                update = command.scalableTopicUpdate
                self.views[update.session_id].updates.append(update)
            case BaseCommand.CONNECTED:
                self._connected.set()
            case BaseCommand.PING:
                await self._send(replies.pong())
            case other:
                raise AssertionError(f"a viewer was sent {BaseCommand.Type.Name(other)}")

    async def _send(self, command: BaseCommand) -> None:
        data = encode(command)
        while data:
            data = data[await self._sock.send(data) :]


@asynccontextmanager
async def viewing(node: Node, *, receive_buffer: int | None = None) -> AsyncIterator[Viewer]:
    """A connection that has shaken hands; at the end of the block it must not have been cut by the node."""
    address = urlsplit(node.pulsar_url)
    with trio.socket.socket() as sock:
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await sock.connect((address.hostname, address.port))
        viewer = Viewer(node, sock)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(viewer.run)
            await viewer.shake_hands()
            yield viewer
            assert not viewer.hung_up, "the node hung up"
            nursery.cancel_scope.cancel()


async def assert_in_step(store: TopicStore, views: Iterable[View]) -> None:
    """The last frame of every view is what a fresh read of the store says."""
    views = list(views)
    topics = list({view.topic: None for view in views})
    found = dict(zip(topics, await store.get_many(topics), strict=True))
    for view in views:
        stored = found[view.topic]
        assert stored is not None, f"{view.topic} is not in the store"
        assert view.last == view.expected(stored.value), f"{view.topic}: told {view.epochs[-3:]}"


async def until_in_step(store: TopicStore, views: Sequence[View], within: float = CONVERGENCE_LIMIT) -> None:
    """Wait until every view shows what the store says; nobody was told an error on the way."""

    async def in_step() -> bool:
        await assert_in_step(store, views)
        return True

    await eventually(in_step, within)
    assert not [view.topic for view in views if view.errors]


async def until_at_epoch(epoch: int, views: Sequence[View]) -> None:
    await eventually(lambda: all(view.last.dag.epoch == epoch for view in views))


def topics_in_buckets(buckets: Iterable[int]) -> list[TopicName]:
    """One topic name for each of these buckets."""
    wanted = set(buckets)
    found: dict[int, TopicName] = {}
    number = 0
    while len(found) < len(wanted):
        topic = TopicName("topic", "public", "default", f"topic-{number}")
        number += 1
        bucket = keys.bucket_of(keys.path_of(topic))
        if bucket in wanted:
            found.setdefault(bucket, topic)
    return [found[bucket] for bucket in sorted(found)]
