"""Watches and the points they share: plain data, kept small because there is one of each per open watch and topic."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

from metadata import keys
from protocol.names import TopicName
from sessions.outbox import Outbox
from sessions.splice import id_field

_NOBODY: Mapping[int, str] = {}


class FanOut(Enum):
    NONE = auto()
    RUNNING = auto()
    AGAIN = auto()  # to be begun, or once more when the running one is through


class Watch:
    """One session of one connection on one topic, and a link in the list of its point's watches."""

    __slots__ = ("create_as", "field", "following", "outbox", "point", "preceding", "registry", "session_id", "told")

    def __init__(
        self,
        outbox: Outbox,
        registry: dict[int, Watch],
        session_id: int,
        create_as: str | None,
        point: Point,
    ) -> None:
        self.outbox = outbox
        self.registry = registry
        self.session_id = session_id
        self.field = id_field(session_id)
        self.create_as = create_as  # the domain of the topic that is created if there is none
        self.point: Point | None = point  # None once closed
        self.told: bytes | None = None  # the tail of the last frame; None until the first
        self.preceding: Watch | None = None
        self.following: Watch | None = None


class Point:
    """What all watches of one topic share.

    There is one for every watched topic, most of them with a single watch: hence the linked list instead of a dict, and
    a path from which the name is made when it is wanted.
    """

    __slots__ = (
        "creating",
        "fan_out",
        "first",
        "incarnation",
        "leader_entry",
        "missing_since",
        "number",
        "owners",
        "path",
        "read_at",
        "tail",
        "watched",
    )

    def __init__(self, path: str) -> None:
        self.path = path
        self.first: Watch | None = None
        self.watched = 0
        self.tail: bytes | None = None  # as of the last completed read that found the topic
        self.incarnation = ""  # of that read
        self.number = 0
        self.read_at = 0  # the moment when it began
        self.leader_entry = b""
        self.owners: Mapping[int, str] = _NOBODY  # the nodes of its segments
        self.fan_out = FanOut.NONE
        self.creating = False
        self.missing_since: float | None = None

    @property
    def topic(self) -> TopicName:
        return keys.topic_at(self.path)

    def watches(self) -> list[Watch]:
        """Those there are now; the list is the caller's."""
        found = []
        watch = self.first
        while watch is not None:
            found.append(watch)
            watch = watch.following
        return found

    def add(self, watch: Watch) -> None:
        watch.following = self.first
        if self.first is not None:
            self.first.preceding = watch
        self.first = watch
        self.watched += 1

    def remove(self, watch: Watch) -> None:
        if watch.preceding is None:
            self.first = watch.following
        else:
            watch.preceding.following = watch.following
        if watch.following is not None:
            watch.following.preceding = watch.preceding
        watch.preceding = watch.following = watch.point = None
        self.watched -= 1

    def forget(self) -> None:
        """What was read last no longer says anything."""
        self.tail = None
        self.incarnation = ""
