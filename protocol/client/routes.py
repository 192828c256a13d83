"""Which segment or partition a message goes to. Pure: made from what the server told, and never changed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from protocol.client.errors import ServerMisbehaved
from protocol.errors import InvalidName
from protocol.names import SegmentName, TopicName
from protocol.wire import pulsar_api_pb2 as api

_POSITIVE = 0x7FFF_FFFF
# Tells a server that a plain topic is used as a segment of a scalable one.
MANAGED: Final[Mapping[str, str]] = {"__pulsar.v5.managed": "true"}


@dataclass(frozen=True, slots=True)
class Route:
    """A topic on the wire and the part of the ring that it serves; both ends belong to it."""

    topic: str
    start: int
    end: int
    segment_id: int | None = None
    is_legacy: bool = False  # it was a topic of its own before it became a segment

    def covers(self, position: int) -> bool:
        return self.start <= position <= self.end


class Routes:
    """The routes of a topic at one time, and where on their ring the hash of a key falls."""

    __slots__ = ("_by_topic", "_position", "_starts", "in_order")

    def __init__(self, routes: Iterable[Route], position: Callable[[int], int]) -> None:
        self.in_order = sorted(routes, key=lambda route: route.start)
        self._starts = [route.start for route in self.in_order]
        self._by_topic = {route.topic for route in self.in_order}
        self._position = position

    def __contains__(self, topic: str) -> bool:
        return topic in self._by_topic

    def position(self, key_hash: int) -> int:
        return self._position(key_hash)

    def at(self, position: int) -> Route | None:
        """The route that serves a position; None where the server left a hole."""
        index = bisect_right(self._starts, position) - 1
        if index < 0 or not self.in_order[index].covers(position):
            return None
        return self.in_order[index]

    @classmethod
    def to_segments(cls, routes: Iterable[Route]) -> Routes:
        """By the high half of the key's hash, as clients of Pulsar 5 route."""
        return cls(routes, lambda key_hash: key_hash >> 16)

    @classmethod
    def to_partitions(cls, topic: str, partitions: int) -> Routes:
        """To the partitions of a plain topic, or to the topic itself if it has none."""
        if partitions == 0:
            return cls([Route(topic, 0, 0)], lambda _: 0)
        routes = [Route(f"{topic}-partition-{index}", index, index) for index in range(partitions)]
        return cls(routes, lambda key_hash: (key_hash & _POSITIVE) % partitions)


def active_routes(update: api.CommandScalableTopicUpdate) -> Routes:
    """To the active segments of a topic as a watch told them."""
    return Routes.to_segments(route for route, state in all_routes(update) if state == api.ACTIVE)


def all_routes(
    update: api.CommandScalableTopicUpdate,
) -> list[tuple[Route, api.SegmentState.ValueType]]:
    """All segments of a topic as a watch told them, each with its state."""
    try:
        topic = TopicName.parse(update.resolved_topic_name)
        return [(_route(topic, segment), segment.state) for segment in update.dag.segments]
    except InvalidName as error:
        raise ServerMisbehaved(f"The server tells of segments that cannot be. {error}") from error


def _route(topic: TopicName, segment: api.SegmentInfoProto) -> Route:
    name = SegmentName(topic, segment.hash_start, segment.hash_end, segment.segment_id)
    return Route(
        segment.legacy_topic_name or str(name),
        name.start,
        name.end,
        name.segment_id,
        bool(segment.legacy_topic_name),
    )
