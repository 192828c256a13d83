"""Orders of events in the hub that real parts produce once in a thousand times, forced by a store that waits."""

import socket
from collections.abc import Sequence

import trio
import trio.testing

from layout.layouts import Layout
from layout.records import TopicRecord, encode
from metadata import keys
from metadata.errors import RecordDamaged
from metadata.records import StoredTopic, Version
from protocol.framing import Frame, FrameDecoder
from protocol.names import TopicName
from sessions.counters import Counters
from sessions.hub import Hub
from sessions.outbox import Outbox, OutboxLimits
from sessions.points import Watch
from sessions.readback import ReadBack
from tests.support.waiting import eventually

WANTED = TopicName.parse("topic://public/default/orders")
BUCKET = keys.bucket_of(keys.path_of(WANTED))


class WaitingStore:
    """Reads and creations that end when they are let go."""

    def __init__(self) -> None:
        self.topics: dict[TopicName, StoredTopic] = {}
        self.reading = trio.Event()
        self.creating = trio.Event()
        self.creations = 0

    def put(self, topic: TopicName) -> None:
        value = encode(TopicRecord(Layout.create(1, 0)))
        self.topics[topic] = StoredTopic(topic, value, Version("a" * 16, 0), 0, 0)

    async def read(self, topics: Sequence[TopicName]) -> list[StoredTopic | RecordDamaged | None]:
        await self.reading.wait()
        return [self.topics.get(topic) for topic in topics]

    async def create(self, topic: TopicName) -> None:
        """Finds that somebody else was faster, whose change was heard of long ago."""
        self.creations += 1
        await self.creating.wait()


def neighbour() -> TopicName:
    """Another topic of the same bucket."""
    names = (TopicName("topic", "public", "default", f"topic-{number}") for number in range(10_000))
    return next(name for name in names if keys.bucket_of(keys.path_of(name)) == BUCKET)


async def test_a_lookup_is_answered_though_the_creation_for_an_earlier_one_ends_while_it_waits() -> None:
    store = WaitingStore()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    async with trio.open_nursery() as nursery:
        hub = Hub(
            nursery=nursery,
            readback=ReadBack(nursery=nursery, read=store.read, trusted=lambda bucket: True),
            create=store.create,
            owner_url="pulsar://127.0.0.1:6650",
            auto_create=True,
            deletion_notice=5.0,
        )
        outbox = Outbox(ours, nursery, OutboxLimits(), Counters(), set())
        registry: dict[int, Watch] = {}
        store.reading.set()
        hub.open(outbox, registry, 1, WANTED, create_as="topic")
        await eventually(lambda: store.creations == 1)
        hub.close(registry, 1)

        store.reading = trio.Event()
        hub.open(outbox, registry, 2, neighbour(), create_as=None)
        await trio.testing.wait_all_tasks_blocked()
        hub.open(outbox, registry, 3, WANTED, create_as="topic")
        store.put(WANTED)
        store.creating.set()
        await trio.testing.wait_all_tasks_blocked()
        store.reading.set()

        answered: list[int] = []
        decoder = FrameDecoder()

        def has_answer() -> bool:
            try:
                frames = decoder.receive(theirs.recv(65_536))
            except BlockingIOError:
                frames = []
            answered.extend(
                frame.command.scalableTopicUpdate.session_id for frame in frames if isinstance(frame, Frame)
            )
            return 3 in answered

        await eventually(has_answer)
        nursery.cancel_scope.cancel()
    ours.close()
    theirs.close()
