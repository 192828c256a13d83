"""What stands in the garbage list for segments that are gone, and for the classic topics that some of them were.

A legacy segment has no log of its own but that of a classic topic, which may lie in another bucket. So its entry names
that topic in front of the descriptor, and one without a descriptor stands for the topic that they were partitions of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple
from urllib.parse import unquote

from layout.segments import Segment
from metadata import keys
from protocol.errors import InvalidName
from protocol.names import TopicName

# Names are URL-encoded, so it is in none of them.
_SEPARATOR = ":"


class Leftover(NamedTuple):
    """A classic topic that had become a part of a scalable one of this incarnation: a log, or a partitioned topic."""

    topic: TopicName
    incarnation: str
    is_log: bool


def leftovers(gone: Iterable[Segment], before: Mapping[int, Segment]) -> tuple[str, ...]:
    """What is listed when these segments go from a layout, behind the incarnation and the path of its topic."""
    removed = {segment.segment_id: segment for segment in gone}
    entries = [_entry(segment) for segment in removed.values()]
    if all(segment.segment_id in removed for segment in before.values() if segment.is_legacy):
        # With the last of its partitions, the partitioned topic.
        entries += sorted({_encoded(name.base) + _SEPARATOR for name in _partitions(removed.values())})
    return tuple(entries)


def leftover_at(entry: bytes) -> Leftover | None:
    """The classic topic that an entry of the list stands for, None for any other entry."""
    try:
        incarnation, tenant, namespace, _, rest = entry.decode().split("/")
        local, separator, descriptor = rest.partition(_SEPARATOR)
        if not (local and separator):
            return None
        topic = TopicName.classic(unquote(tenant), unquote(namespace), unquote(local))
        return Leftover(topic, incarnation, bool(descriptor))
    except (ValueError, InvalidName):
        return None


def _entry(segment: Segment) -> str:
    name = _legacy(segment)
    return segment.descriptor if name is None else _encoded(name) + _SEPARATOR + segment.descriptor


def _partitions(segments: Collection[Segment]) -> list[TopicName]:
    names = (_legacy(segment) for segment in segments)
    return [name for name in names if name is not None and name.partition is not None]


def _legacy(segment: Segment) -> TopicName | None:
    """The classic topic whose log a segment is. A record from elsewhere may name anything, and can be removed too."""
    try:
        return TopicName.parse(segment.legacy_topic_name) if segment.legacy_topic_name else None
    except InvalidName:
        return None


def _encoded(topic: TopicName) -> str:
    return keys.path_of(topic).rpartition("/")[2]
