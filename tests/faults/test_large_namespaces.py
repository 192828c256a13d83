"""Very many topics in one namespace: told in pieces that fit, once, and again only where they changed."""

from __future__ import annotations

import logging
import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio

from gateway.node import Node
from layout.layouts import Layout
from layout.records import TopicRecord, encode
from metadata import keys
from metadata.store import open_store
from protocol.client import requests
from protocol.client.connection import connect
from protocol.framing import FRAME_PADDING, Frame, FrameDecoder
from protocol.framing import encode as encode_frame
from protocol.hashing import topic_set_hash
from protocol.names import NamespaceName, TopicName
from protocol.wire import pulsar_api_pb2 as api
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

log = logging.getLogger(__name__)

MANY, MOST = 100_000, 300_000
NAMESPACE = NamespaceName("public", "default")
PREFIX = "topic://public/default/"
# One topic in a hundred is of this team.
PROPERTIES = {"team": "blue"}
SMALL_FRAMES = 100_000
PATIENCE = 60.0
# The node holds up its own loop for longer than the half second that other tests have patience with the store.
STORE_TIMEOUT = 10.0

# The records of one bucket in one go: a pipeline of single commands would take longer than everything else here.
_WRITE_RECORDS = """
for i = 4, #ARGV, 2 do
  redis.call('HSET', KEYS[1] .. ARGV[i], 'value', ARGV[ARGV[i + 1] == 'blue' and 2 or 1],
             'incarnation', ARGV[3], 'version', 0, 'ctime', 0, 'mtime', 0)
end
"""


def write_topics(server: ValkeyProcess, names: Sequence[str]) -> None:
    """All topics, as if they had been created long ago: their change logs are trimmed."""
    buckets: list[list[int]] = [[] for _ in range(keys.BUCKETS)]
    for number, name in enumerate(names):
        buckets[keys.bucket_of(f"{NAMESPACE}/{name}")].append(number)
    layout = Layout.create(1, 0)
    plain, blue = encode(TopicRecord(layout)), encode(TopicRecord(layout, PROPERTIES))
    incarnation = "0" * 16
    with server.client().pipeline(transaction=False) as pipeline:
        for bucket, numbers in enumerate(buckets):
            pipeline.hset(
                keys.index_key(bucket, NAMESPACE), mapping=dict.fromkeys((names[n] for n in numbers), incarnation)
            )
            path = f"{NAMESPACE}/{names[numbers[0]]}"
            prefix = keys.record_key(path).removesuffix(names[numbers[0]].encode())
            teams = (word for n in numbers for word in (names[n], "blue" if n % 100 == 0 else ""))
            pipeline.eval(_WRITE_RECORDS, 1, prefix, plain, blue, incarnation, *teams)
        pipeline.execute()


@dataclass(frozen=True)
class Crowd:
    """A store with nothing but these topics."""

    url: str
    names: Sequence[str]

    @property
    def least(self) -> int:
        """What the names of the whole set add up to: fewer bytes than any way to tell them."""
        return sum(len(PREFIX) + len(name) + 2 for name in self.names)


@pytest.fixture(scope="module", params=[MANY, pytest.param(MOST, marks=pytest.mark.soak)])
def crowd(request: pytest.FixtureRequest) -> Iterator[Crowd]:
    with ValkeyProcess().start() as server:
        trio.run(_make_ours, server.url)
        names = [f"topic-{number:06d}" for number in range(request.param)]
        write_topics(server, names)
        yield Crowd(server.url, names)


async def _make_ours(url: str) -> None:
    async with open_store(url):
        pass


@dataclass
class Stalls:
    """How late the loop was for a task that wants to run every other millisecond."""

    worst: float = 0.0
    noted: dict[str, float] = field(default_factory=dict)

    async def note(self, what: str) -> None:
        await trio.sleep(0.02)  # the measuring task is late by as much, and has yet to say so
        self.noted[what] = round(self.worst, 3)
        self.worst = 0.0


@asynccontextmanager
async def measured_stalls() -> AsyncIterator[Stalls]:
    stalls = Stalls()

    async def measure() -> None:
        while True:
            due = trio.current_time() + 0.002
            await trio.sleep_until(due)
            stalls.worst = max(stalls.worst, trio.current_time() - due)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(measure)
        yield stalls
        nursery.cancel_scope.cancel()
    log.warning("loop stalls in seconds: %s", stalls.noted)


class Listener:
    """A client that takes bytes and looks at nothing but sizes, so that it does not hold up the node's loop itself."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self._sock = sock
        self._buffer = bytearray()
        self.sizes: list[int] = []

    async def send(self, command: api.BaseCommand) -> None:
        data = encode_frame(command)
        while data:
            data = data[await self._sock.send(data) :]

    async def frames(self, until: int) -> list[bytes]:
        """Whole frames, until they add up to so many bytes at least."""
        frames: list[bytes] = []
        with trio.fail_after(PATIENCE):
            while sum(map(len, frames)) < until:
                while len(self._buffer) < 4 or len(self._buffer) < 4 + struct.unpack_from(">I", self._buffer)[0]:
                    data = await self._sock.recv(1 << 20)
                    assert data, "the node hung up"
                    self._buffer += data
                end = 4 + struct.unpack_from(">I", self._buffer)[0]
                frames.append(bytes(self._buffer[:end]))
                del self._buffer[:end]
        return frames

    async def silence(self) -> bool:
        with trio.move_on_after(0.5):
            return not self._buffer and not await self._sock.recv(1)
        return not self._buffer


@asynccontextmanager
async def listening(node: Node) -> AsyncIterator[Listener]:
    host, port = node.pulsar_url.removeprefix("pulsar://").split(":")
    with trio.socket.socket() as sock:
        await sock.connect((host, int(port)))
        listener = Listener(sock)
        await listener.send(requests.connect("test"))
        await listener.frames(1)
        yield listener


def updates_of(frames: list[bytes]) -> list[api.CommandWatchScalableTopicsUpdate]:
    decoder = FrameDecoder()
    decoded = [frame for data in frames for frame in decoder.receive(data)]
    return [frame.command.watchScalableTopicsUpdate for frame in decoded if isinstance(frame, Frame)]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("frame_limit", [SMALL_FRAMES, 5 * 1024 * 1024])
async def test_hundreds_of_thousands_of_topics_are_told_in_frames_that_fit(crowd: Crowd, frame_limit: int) -> None:
    least = crowd.least
    async with (
        measured_stalls() as stalls,
        running_node(crowd.url, max_message_size=frame_limit, store_timeout=STORE_TIMEOUT) as node,
        listening(node) as first,
        listening(node) as second,
        listening(node) as back,
    ):
        stalls.worst = 0.0
        listed = node.namespaces.counters.listings
        await first.send(requests.open_namespace_watch(1, str(NAMESPACE), {}, None))
        frames = await first.frames(least)
        await stalls.note("first watch: listing and snapshot")
        assert node.namespaces.counters.listings - listed == keys.BUCKETS
        assert max(map(len, frames)) <= frame_limit + FRAME_PADDING
        assert max(len(frame) - 4 for frame in frames) <= frame_limit
        await second.send(requests.open_namespace_watch(1, str(NAMESPACE), {}, None))
        assert await second.frames(least) == frames
        await stalls.note("second watch: the same snapshot")
        updates = updates_of(frames)
        assert [update.WhichOneof("event") for update in updates] == ["snapshot"] + ["diff"] * (len(updates) - 1)
        assert len(updates) >= least // frame_limit
        told = [*updates[0].snapshot.topics, *(name for update in updates[1:] for name in update.diff.added)]
        assert len(told) == len(crowd.names)
        assert set(told) == {PREFIX + name for name in crowd.names}
        told_hash = topic_set_hash(told)
        stalls.worst = 0.0

        await back.send(requests.open_namespace_watch(1, str(NAMESPACE), {}, told_hash))
        await eventually(lambda: node.namespaces.counters.hash_matches == 1)
        await stalls.note("a hash to compare")
        assert await back.silence()

        topic = TopicName.scalable("public", "default", f"new-{frame_limit}")
        await transitions_of(node).create(topic, 1)
        for listener in (first, second, back):
            [update] = updates_of(await listener.frames(1))
            assert (list(update.diff.added), list(update.diff.removed)) == ([str(topic)], [])
        await stalls.note("one topic more")
        await back.send(requests.open_namespace_watch(2, str(NAMESPACE), {}, None))
        await back.frames(least)
        await stalls.note("a watch after a change: snapshot anew")
        await transitions_of(node).delete(topic)
        for listener in (first, second):
            [update] = updates_of(await listener.frames(1))
            assert (list(update.diff.added), list(update.diff.removed)) == ([], [str(topic)])
        assert node.namespaces.counters.listings - listed == keys.BUCKETS


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_a_dag_watch_is_answered_while_hundreds_of_thousands_of_records_are_filtered(crowd: Crowd) -> None:
    topics = len(crowd.names)
    async with (
        measured_stalls() as stalls,
        running_node(crowd.url, store_timeout=STORE_TIMEOUT) as node,
        listening(node) as listener,
        connect(node.pulsar_url) as connection,
    ):
        stalls.worst = 0.0
        asked_at = trio.current_time()
        await listener.send(requests.open_namespace_watch(1, str(NAMESPACE), PROPERTIES, None))
        await eventually(lambda: node.namespaces.counters.evaluations > 0, within=PATIENCE)
        watch = await connection.open_watch(f"{PREFIX}topic-000007", create_if_missing=False)
        assert (await watch.next()).HasField("dag")
        answered_at = trio.current_time()
        assert node.namespaces.counters.evaluations < topics, "it waited for the whole listing"
        [update] = updates_of(await listener.frames(1))
        await stalls.note("a filtered listing")
        log.warning("answered after %.1f of %.1f s", answered_at - asked_at, trio.current_time() - asked_at)
        assert set(update.snapshot.topics) == {PREFIX + name for name in crowd.names[::100]}
        # The topic of the lookup was read for it, too, and again when the listing of its bucket was through.
        assert topics < node.namespaces.counters.evaluations <= topics + 2
