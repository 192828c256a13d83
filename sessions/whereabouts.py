"""Where the segments of watched topics are served, told anew when a node that comes or goes changes it.

What a point was told last has all that is needed for that: the store is not asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import trio

from layout.segments import Segment
from protocol.names import SegmentName, TopicName
from protocol.wire import pulsar_api_pb2 as api
from sessions.dag import with_brokers
from sessions.points import Point

# Segments looked at and frames sent between two yields: so many stall other tasks for 1 to 2 ms.
_STEPS_PER_TURN: Final = 128
# Between two questions whether somebody can tell again.
_PAUSE: Final = 0.5

# A log by its name, and the session of its owner, which is empty if it has none.
LogUrl = Callable[[str, str], str]


class Whereabouts:
    def __init__(
        self, points: Sequence[Mapping[str, Point]], log_url: LogUrl, publish: Callable[[Point], None]
    ) -> None:
        """`publish` tells the content of a point to all who were not told it."""
        self._points = points
        self._log_url = log_url
        self._publish = publish
        self._changed = trio.Event()

    def of(self, topic: TopicName, segment: Segment, owner: str) -> str:
        """Where a segment is served; the owner is a session, or empty."""
        return self._url(topic, segment.range.start, segment.range.end, segment, owner)

    def nodes_changed(self) -> None:
        """Look at all that is watched, once more if that is under way."""
        self._changed.set()

    async def run(self, nobody_can_tell: Callable[[], bool] = lambda: False) -> None:
        """`nobody_can_tell`: a store that was flushed has lost who is there, and that says nothing about them."""
        while True:
            await self._changed.wait()
            if nobody_can_tell():
                await trio.sleep(_PAUSE)
                continue
            self._changed = trio.Event()
            steps = 0
            for point in self._all():
                steps += self._look(point)
                if steps >= _STEPS_PER_TURN:
                    steps = 0
                    await trio.lowlevel.checkpoint()

    def _all(self) -> Iterator[Point]:
        for points in self._points:
            # Others come and go meanwhile: who comes is told where things are now.
            yield from list(points.values())

    def _look(self, point: Point) -> int:
        """Tell of a topic whose segments have moved; how much work that was."""
        before = point.tail
        if before is None or not point.watched:
            return 1
        topic, owners, steps = point.topic, point.owners, 1

        def url(segment: api.SegmentInfoProto) -> str:
            nonlocal steps
            steps += 1
            return self._url(topic, segment.hash_start, segment.hash_end, segment, owners.get(segment.segment_id, ""))

        point.tail = with_brokers(before, url)
        if point.tail is not before:
            self._publish(point)
            steps += min(point.watched, _STEPS_PER_TURN)
        return steps

    def _url(self, topic: TopicName, start: int, end: int, segment: Segment | api.SegmentInfoProto, owner: str) -> str:
        log = segment.legacy_topic_name or str(SegmentName(topic, start, end, segment.segment_id))
        return self._log_url(log, owner)
