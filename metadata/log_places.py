"""Where a log lives in the store: the keys of a segment, or of a classic topic, with its storage."""

from __future__ import annotations

from dataclasses import dataclass

from metadata import keys
from protocol.names import SEGMENT, TopicName


@dataclass(frozen=True, slots=True)
class LogPlace:
    """One log: a segment of a scalable topic, or a classic topic, of which every partition is one."""

    name: str  # as clients say it
    bucket: int
    path: str  # of the topic
    key: bytes  # of the hash that says who owns it and how far it reaches
    segment_id: int | None  # None for a classic topic

    @classmethod
    def of_segment(cls, topic: TopicName, descriptor: str) -> LogPlace:
        """The segment with this descriptor, like `0000-7fff-1`, of a scalable topic."""
        path = keys.path_of(topic)
        return cls(
            f"{SEGMENT}://{topic.tenant}/{topic.namespace}/{topic.local}/{descriptor}",
            keys.bucket_of(path),
            path,
            keys.segment_key(path, descriptor),
            int(descriptor.rpartition("-")[2]),
        )

    @classmethod
    def of_classic(cls, topic: TopicName) -> LogPlace:
        path = keys.path_of(topic)
        return cls(str(topic), keys.bucket_of(path), path, keys.classic_key(path), None)

    @property
    def topic_path(self) -> str:
        """Of the scalable topic that it belongs to, or would if it became one: that of a partition is its topic's."""
        return self.path if self.segment_id is not None else keys.path_of(TopicName.parse(self.name).base)

    @property
    def partition(self) -> int | None:
        """Its number among the partitions of a classic topic; None for any other log."""
        return None if self.segment_id is not None else TopicName.parse(self.name).partition

    @property
    def slot(self) -> int:
        return keys.BUCKET_SLOTS[self.bucket]

    def log(self, incarnation: str) -> bytes:
        return keys.log_key(self.key, incarnation)

    def cursors(self, incarnation: str) -> bytes:
        return keys.cursors_key(self.key, incarnation)

    def producers(self, incarnation: str) -> bytes:
        return keys.producers_key(self.key, incarnation)
