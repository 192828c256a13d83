"""What clients ask about classic topics beside producing and consuming: how many partitions, which topics, what is new.

One conversation per connection that asks any of it. Whatever has to be read is answered later, through the outbox.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import trio

from metadata.classic_records import PartitionedTopic
from metadata.classic_topics import ClassicTopics
from metadata.errors import StoreError, TopicMissing
from metadata.store import TopicStore
from metadata.tasks import Tasks
from protocol import replies
from protocol.errors import ProtocolError
from protocol.framing import encode
from protocol.hashing import topic_set_hash
from protocol.names import PERSISTENT, NamespaceName, TopicName
from protocol.turns import SlowTurns
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from sessions.errors import LongQuestion, TooManyRequests, TooManyTopics, WatchRefused
from sessions.outbox import Outbox
from sessions.patterns import TopicPattern
from sessions.topic_lists import ListWatch, TopicLists

log = logging.getLogger(__name__)

# Questions of one connection that are not answered yet. Clients ask one per topic that they open.
_MOST_ASKED: Final = 1_000
# Bytes of one of them: it is kept until it is answered, with whatever else it carries.
MAX_QUESTION_SIZE: Final = 16 * 1024
# Listings at the same time, of all connections; each is one read of every bucket.
_LISTINGS_AT_ONCE: Final = 4
# Names that are matched between two yields.
_MATCHED_PER_TURN: Final = 256
# What a frame needs beside the names of its topics, for all of them and for each.
_FRAME_OVERHEAD: Final = 128
_NAME_OVERHEAD: Final = 8


@dataclass(slots=True)
class ClassicCounters:
    asked: int = 0  # how many partitions, and which topics
    listings: int = 0  # of a namespace, shared by those who waited for it
    refused: int = 0


class _SharedListing:
    """One listing for all who waited for it when it began; without a result it has failed."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.names: list[str] | None = None
        self.error: StoreError | None = None


class ClassicService:
    """The classic topics as the dialogue sees them: it starts a conversation for a connection that needs one."""

    def __init__(
        self,
        *,
        nursery: Tasks,
        store: TopicStore,
        topics: ClassicTopics,
        lists: TopicLists,
        auto_create: bool,
        frame_limit: int,
        turns: SlowTurns | None = None,
    ) -> None:
        self.counters = ClassicCounters()
        self.turns = turns or SlowTurns()
        self.lists = lists
        self.nursery = nursery
        self.frame_limit = frame_limit
        self._store = store
        self._topics = topics
        self._auto_create = auto_create
        self._waiting: dict[NamespaceName, _SharedListing] = {}
        self._listing_slots = trio.CapacityLimiter(_LISTINGS_AT_ONCE)

    def converse(self, outbox: Outbox, address: str) -> ClassicConversation:
        return ClassicConversation(self, outbox, address)

    async def partitions(self, topic: TopicName, *, may_create: bool) -> int:
        """How many partitions a topic has, none if it has no such thing; TopicMissing where it is not and cannot be.

        Nothing is created by asking: a topic is when somebody produces to it or consumes from it.
        """
        found = await self._topics.get(topic)
        if found is None and topic.partition is not None:
            base = await self._topics.get(topic.base)
            if isinstance(base, PartitionedTopic) and topic.partition < base.partitions and not base.is_going:
                return 0
        elif found is not None and not found.is_going:
            return found.partitions
        elif await self._store.get(topic.canonical) is not None:
            # Its segments are where clients go, and whoever opens it as a classic topic is told so there.
            return 0
        elif found is None and may_create and self._auto_create:
            topic.check_creatable()
            return 0
        raise TopicMissing(f"Topic not found: {topic}. Check its name, or create it.")

    async def names(self, namespace: NamespaceName) -> list[str]:
        """The local names of a namespace's logs, read after this was called; those who wait for it share one read."""
        shared = self._waiting.get(namespace)
        if shared is not None:
            await shared.done.wait()
        else:
            shared = self._waiting[namespace] = _SharedListing()
            try:
                async with self._listing_slots:
                    # From here on others would be told what was true before they asked.
                    del self._waiting[namespace]
                    self.counters.listings += 1
                    shared.names = await self._topics.list_logs(namespace)
            except StoreError as error:
                shared.error = error
            finally:
                if self._waiting.get(namespace) is shared:
                    del self._waiting[namespace]
                shared.done.set()
        if shared.names is None:
            raise shared.error or StoreError("A listing that was waited for has failed.")
        return shared.names


class ClassicConversation:
    """One connection's questions and watches."""

    __slots__ = ("_address", "_asked", "_outbox", "_service", "_turn", "_watches")

    def __init__(self, service: ClassicService, outbox: Outbox, address: str) -> None:
        self._service = service
        self._outbox = outbox
        self._address = address
        self._watches: dict[int, ListWatch] = {}
        self._asked = 0
        self._turn = trio.Lock()

    @property
    def held(self) -> int:
        return len(self._watches)

    def holds(self, watcher_id: int) -> bool:
        return watcher_id in self._watches

    def receive(self, command: BaseCommand) -> None:
        """Answer one of the commands in the table below, at once or later."""
        try:
            _HANDLERS[command.type](self, command)
        except ProtocolError as error:
            self._refuse(command, error.server_error, str(error))

    def end(self) -> None:
        """The connection is gone."""
        self._service.lists.drop_all(self._watches)

    def _partitioned_metadata(self, command: BaseCommand) -> None:
        request = command.partitionMetadata
        topic = TopicName.parse(request.topic)
        if topic.domain != PERSISTENT:
            # Scalable topics and their segments have none, and others are not served.
            self._outbox.reply(encode(replies.partitioned_metadata(request.request_id)))
            return

        async def answer() -> BaseCommand:
            may_create = request.metadata_auto_creation_enabled
            count = await self._service.partitions(topic, may_create=may_create)
            return replies.partitioned_metadata(request.request_id, count)

        self._ask(command, answer)

    def _topics_of_namespace(self, command: BaseCommand) -> None:
        request = command.getTopicsOfNamespace
        namespace = NamespaceName.parse(request.namespace)
        pattern: TopicPattern | None = None
        if request.HasField("topics_pattern"):
            try:
                pattern = TopicPattern(namespace, request.topics_pattern)
            except WatchRefused:
                pass  # the client gets all topics, is told so, and chooses by itself

        async def answer() -> BaseCommand:
            names: list[str] = []
            if request.mode != api.CommandGetTopicsOfNamespace.NON_PERSISTENT:
                names = await self._service.names(namespace)
            if pattern is not None:
                names = await _matching(pattern, names)
            # All who waited for one listing go on together, and a frame may be large: one is made in a turn of the
            # loop, and none before the last one is gone.
            async with self._turn:
                await self._outbox.wait_drained()
                full = [f"{PERSISTENT}://{namespace}/{name}" for name in names]
                told = topic_set_hash(full)
                changed = not request.HasField("topics_hash") or request.topics_hash != told
                self._check_size(full if changed else [])
                return replies.topics_of_namespace(
                    request.request_id, full if changed else (), told, filtered=pattern is not None, changed=changed
                )

        self._ask(command, answer)

    def _watch(self, command: BaseCommand) -> None:
        request = command.watchTopicList
        namespace = NamespaceName.parse(request.namespace)
        pattern = TopicPattern(namespace, request.topics_pattern)
        self._service.lists.open(self._outbox, self._watches, request, namespace, pattern)

    def _close_watch(self, command: BaseCommand) -> None:
        request = command.watchTopicListClose
        self._service.lists.close(self._watches, request.watcher_id)
        self._outbox.reply(encode(replies.success(request.request_id)))

    def _ask(self, command: BaseCommand, answer: Callable[[], Awaitable[BaseCommand]]) -> None:
        if self._asked >= _MOST_ASKED:
            raise TooManyRequests(f"{self._asked} questions of this connection wait for answers: ask fewer at a time.")
        if (size := command.ByteSize()) > MAX_QUESTION_SIZE:
            raise LongQuestion(f"A question has at most {MAX_QUESTION_SIZE} bytes, not {size}: leave properties out.")
        self._asked += 1
        self._service.counters.asked += 1
        self._service.nursery.start_soon(self._answer, command, answer)

    async def _answer(self, command: BaseCommand, answer: Callable[[], Awaitable[BaseCommand]]) -> None:
        try:
            name, whose = BaseCommand.Type.Name(command.type), f"from {self._address}"
            self._outbox.reply(encode(await self._service.turns.timed(name, whose, answer())))
        except (ProtocolError, StoreError) as error:
            self._refuse(command, error.server_error, str(error))
        except Exception:
            # The nursery is the whole server's: one question must not reach it.
            log.exception("answering %s failed", BaseCommand.Type.Name(command.type))
            self._refuse(command, api.UnknownError, "Something went wrong in the server; its log has more.")
        finally:
            self._asked -= 1

    def _refuse(self, command: BaseCommand, server_error: int, message: str) -> None:
        self._service.counters.refused += 1
        reply = replies.refusal(command, server_error, message)
        assert reply is not None, "all of them are requests"
        self._outbox.reply(encode(reply))

    def _check_size(self, names: list[str]) -> None:
        size = sum(len(name.encode()) + _NAME_OVERHEAD for name in names)
        if size + _FRAME_OVERHEAD > self._service.frame_limit:
            raise TooManyTopics(f"{len(names)} topics are more than a frame holds: ask for fewer, by a pattern.")


_HANDLERS: Mapping[int, Callable[[ClassicConversation, BaseCommand], None]] = {
    BaseCommand.PARTITIONED_METADATA: ClassicConversation._partitioned_metadata,
    BaseCommand.GET_TOPICS_OF_NAMESPACE: ClassicConversation._topics_of_namespace,
    BaseCommand.WATCH_TOPIC_LIST: ClassicConversation._watch,
    BaseCommand.WATCH_TOPIC_LIST_CLOSE: ClassicConversation._close_watch,
}


async def _matching(pattern: TopicPattern, names: list[str]) -> list[str]:
    found: list[str] = []
    for start in range(0, len(names), _MATCHED_PER_TURN):
        found += filter(pattern.matches, names[start : start + _MATCHED_PER_TURN])
        await trio.lowlevel.checkpoint()
    return found
