"""A hub that answers every open watch at once with an empty DAG, and remembers what it was told."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol import replies
from protocol.framing import encode
from protocol.names import NamespaceName, TopicName
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from sessions.outbox import Outbox


@dataclass(eq=False, slots=True)
class StubWatch:
    outbox: Outbox
    session_id: int
    resolved: str

    def tell(self, epoch: int, padding: int = 0) -> None:
        self.outbox.push(update_frame(self.session_id, self.resolved, epoch, padding), self.session_id)


@dataclass(eq=False)
class StubHub:
    opened: list[tuple[int, str, str | None]] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)
    watches: set[StubWatch] = field(default_factory=set)
    fault: Exception | None = None  # raised by every call that names the topic "faulty" and by drop_all

    def open(
        self,
        outbox: Outbox,
        registry: dict[int, StubWatch],
        session_id: int,
        topic: TopicName,
        create_as: str | None,
    ) -> None:
        if self.fault is not None and topic.local == "faulty":
            raise self.fault
        self.close(registry, session_id)
        self.opened.append((session_id, str(topic), create_as))
        watch = registry[session_id] = StubWatch(outbox, session_id, str(topic))
        self.watches.add(watch)
        watch.tell(epoch=0)

    def close(self, registry: dict[int, StubWatch], session_id: int) -> None:
        watch = registry.pop(session_id, None)
        if watch is not None:
            self.watches.discard(watch)
            self.closed.append(session_id)
            watch.outbox.drop(session_id)

    def drop_all(self, registry: dict[int, StubWatch]) -> None:
        for watch in registry.values():
            self.watches.discard(watch)
        registry.clear()
        if self.fault is not None:
            raise self.fault


def update_frame(session_id: int, resolved: str, epoch: int, padding: int = 0) -> tuple[bytes, ...]:
    command = api.BaseCommand(type=api.BaseCommand.SCALABLE_TOPIC_UPDATE)
    update = command.scalableTopicUpdate
    update.session_id = session_id
    update.dag.epoch = epoch
    update.dag.controller_broker_url = "x" * padding
    update.resolved_topic_name = resolved
    frame = encode(command)
    return frame[:12], frame[12:]


@dataclass(eq=False)
class StubNamespaces:
    """Remembers what was opened and closed, and answers nothing."""

    opened: list[tuple[int, str, dict[str, str], str | None]] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)

    def open(
        self,
        outbox: Outbox,
        registry: dict[int, None],
        watch_id: int,
        namespace: NamespaceName,
        filters: Mapping[str, str],
        current_hash: str | None,
    ) -> None:
        registry[watch_id] = None
        self.opened.append((watch_id, str(namespace), dict(filters), current_hash))

    def close(self, registry: dict[int, None], watch_id: int) -> None:
        if watch_id in registry:
            del registry[watch_id]
            self.closed.append(watch_id)

    def drop_all(self, registry: dict[int, None]) -> None:
        self.closed += registry
        registry.clear()


class StubConsumers:
    """Remembers who registered and left, and answers nothing."""

    def __init__(self) -> None:
        self.subscribed: list[tuple[str, str, str]] = []
        self.left: list[int] = []
        self.dropped: list[str] = []

    def subscribe(
        self,
        outbox: Outbox,
        registry: dict[int, str],
        request: api.CommandScalableTopicSubscribe,
        topic: TopicName,
        address: str,
    ) -> None:
        registry[request.consumer_id] = request.consumer_name
        self.subscribed.append((str(topic), request.subscription, request.consumer_name))

    def unsubscribe(self, outbox: Outbox, registry: dict[int, str], request_id: int, consumer_id: int) -> None:
        registry.pop(consumer_id, None)
        self.left.append(consumer_id)

    def drop(self, registry: dict[int, str], consumer_id: int) -> None:
        if consumer_id in registry:
            self.dropped.append(registry.pop(consumer_id))

    def drop_all(self, registry: dict[int, str]) -> None:
        for consumer_id in list(registry):
            self.drop(registry, consumer_id)


class StubConversation:
    """Remembers what it was asked, and says that no topic has partitions."""

    def __init__(self, outbox: Outbox) -> None:
        self.watches: set[int] = set()
        self.received: list[BaseCommand] = []
        self.ended = False
        self._outbox = outbox

    @property
    def held(self) -> int:
        return len(self.watches)

    def holds(self, watcher_id: int) -> bool:
        return watcher_id in self.watches

    def receive(self, command: BaseCommand) -> None:
        self.received.append(command)
        match command.type:
            case BaseCommand.PARTITIONED_METADATA:
                self._outbox.reply(encode(replies.partitioned_metadata(command.partitionMetadata.request_id)))
            case BaseCommand.WATCH_TOPIC_LIST:
                self.watches.add(command.watchTopicList.watcher_id)

    def end(self) -> None:
        self.ended = True


class StubClassic:
    def __init__(self) -> None:
        self.conversations: list[StubConversation] = []

    def converse(self, outbox: Outbox, address: str) -> StubConversation:
        self.conversations.append(StubConversation(outbox))
        return self.conversations[-1]
