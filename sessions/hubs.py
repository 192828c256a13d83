"""What a client's conversation can reach: where watches, consumers and classic topics are kept, and the logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from protocol.names import NamespaceName, TopicName
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from sessions.outbox import Outbox

W = TypeVar("W")
N = TypeVar("N")
C = TypeVar("C")


class Watches(Protocol[W]):
    """The hub as the dialogue sees it. A registry holds the open watches of one connection by session id."""

    def open(
        self,
        outbox: Outbox,
        registry: dict[int, W],
        session_id: int,
        topic: TopicName,
        create_as: str | None,
    ) -> None:
        """Enter a watch of this `topic://` name, in place of one with the same id; answer through the outbox.

        If there is no such topic, one is created in the domain `create_as`, or none.
        """

    def close(self, registry: dict[int, W], session_id: int) -> None:
        """End a watch without a word; unknown ids are fine."""

    def drop_all(self, registry: dict[int, W]) -> None:
        """The connection is gone."""


class NamespaceWatching(Protocol[N]):
    """The namespace watches as the dialogue sees them, with a registry of their own."""

    def open(
        self,
        outbox: Outbox,
        registry: dict[int, N],
        watch_id: int,
        namespace: NamespaceName,
        filters: Mapping[str, str],
        current_hash: str | None,
    ) -> None:
        """Enter a watch, in place of one with the same id; answer through the outbox."""

    def close(self, registry: dict[int, N], watch_id: int) -> None:
        """End a watch without a word; unknown ids are fine."""

    def drop_all(self, registry: dict[int, N]) -> None:
        """The connection is gone."""


class ConsumerRegistry(Protocol[C]):
    """The registered consumers as the dialogue sees them, with a registry by consumer id."""

    def subscribe(
        self,
        outbox: Outbox,
        registry: dict[int, C],
        request: api.CommandScalableTopicSubscribe,
        topic: TopicName,
        address: str,
    ) -> None:
        """Register a consumer, in place of one with the same id; answer through the outbox."""

    def unsubscribe(self, outbox: Outbox, registry: dict[int, C], request_id: int, consumer_id: int) -> None:
        """A consumer leaves for good; unknown ids are fine."""

    def drop(self, registry: dict[int, C], consumer_id: int) -> None:
        """Forget a consumer's connection; unknown ids are fine."""

    def drop_all(self, registry: dict[int, C]) -> None:
        """The connection is gone."""


class ClassicConversation(Protocol):
    """What one connection asks about classic topics, and the watches of them that it holds."""

    @property
    def held(self) -> int: ...

    def holds(self, watcher_id: int) -> bool: ...

    def receive(self, command: BaseCommand) -> None:
        """Answer PARTITIONED_METADATA and the commands about lists of topics, at once or through the outbox."""

    def end(self) -> None:
        """The connection is gone."""


class ClassicTopics(Protocol):
    """The classic topics as the dialogue sees them."""

    def converse(self, outbox: Outbox, address: str) -> ClassicConversation: ...


class DataConnection(Protocol):
    """The producers and consumers of one connection."""

    @property
    def congested(self) -> bool:
        """Whether so much of what it sent is not stored yet that its next commands should be left unread."""

    async def wait_relaxed(self) -> None: ...

    def receive(self, command: BaseCommand, body: bytes) -> None:
        """Act on one of the DATA_COMMANDS; `body` is what follows it in its frame."""

    def end(self) -> None:
        """The connection is gone."""


class DataPlane(Protocol):
    """The logs as the dialogue sees them."""

    def connect(self, peer: Outbox, address: str, client_version: str) -> DataConnection: ...


@dataclass(frozen=True, slots=True)
class Hubs(Generic[W, N, C]):
    """Where watches of each kind are kept, and consumers; and the logs, on a node that has them."""

    topics: Watches[W]
    namespaces: NamespaceWatching[N]
    consumers: ConsumerRegistry[C]
    classic: ClassicTopics
    data: DataPlane | None = None
