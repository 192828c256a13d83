"""What the data plane needs of the rest of a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from layout.segments import Segment
from metadata.log_places import LogPlace
from metadata.subscriptions import InitialPosition, Registration
from protocol.names import TopicName


class Peer(Protocol):
    """The write side of a client's connection."""

    @property
    def closed(self) -> bool: ...

    @property
    def queued_bytes(self) -> int: ...

    def reply(self, frame: bytes) -> None:
        """One frame, or several in a row."""

    def send(self, parts: tuple[bytes, ...]) -> None:
        """The parts of one frame, or of several in a row."""

    def when_sent(self, call: Callable[[], None]) -> None: ...


class Node(Protocol):
    @property
    def session(self) -> str: ...

    @property
    def pulsar_url(self) -> str: ...


class Nodes(Protocol):
    """The living nodes of the cluster."""

    @property
    def nodes(self) -> Sequence[Node]:
        """This node first."""

    async def is_alive(self, session: str) -> bool: ...


class Layouts(Protocol):
    """The watches of layouts on this node."""

    async def refreshed(self, topic: TopicName) -> None:
        """Read a layout, and return when all who watch it here have been sent it."""


class Topics(Protocol):
    """What stands about topics in the store."""

    async def segment(self, topic: TopicName, place: LogPlace) -> Segment | None:
        """The segment whose log is there, as the layout has it; None if the topic or the segment is not there."""

    async def register(
        self, topic: TopicName, subscription: str, *, ordered: bool | None, position: InitialPosition, segment_id: int
    ) -> Registration:
        """The registration of a subscription, made if there is none, with where it begins in a segment.

        `ordered` says of which type it has to be, None that any will do.
        """

    async def provide_subscription(self, topic: TopicName, subscription: str) -> str:
        """See that a topic has this subscription, of whichever type; a new one has everything unread. Its id."""
