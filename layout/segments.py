"""One segment of a topic: the range it owns, when it was created and sealed, and whom it replaced."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from layout.ranges import HashRange

# What Pulsar writes into `sealedAtEpoch` and `sealedAtMs` of a segment that is not sealed.
NOT_SEALED = -1

NO_UNKNOWN_FIELDS: Mapping[str, bytes] = MappingProxyType({})


class SegmentState(StrEnum):
    ACTIVE = "ACTIVE"
    SEALED = "SEALED"


class Segment(Struct, frozen=True):
    """A node of the DAG.

    `merge_depth` is how many merges lie behind the segment, itself included. It stands here, and is not
    counted on demand, because pruning removes the ancestors that it counts: see `layout.merge_depths`.
    `unknown_fields` are fields of the stored JSON that this version does not know, each as its JSON text.
    """

    segment_id: int
    range: HashRange
    state: SegmentState
    parent_ids: tuple[int, ...] = ()
    child_ids: tuple[int, ...] = ()
    created_at_epoch: int = 0
    sealed_at_epoch: int = NOT_SEALED
    created_at_ms: int = 0
    sealed_at_ms: int = NOT_SEALED
    legacy_topic_name: str | None = None
    entry_bucket_splits: tuple[int, ...] = ()
    merge_depth: int = 0
    unknown_fields: Mapping[str, bytes] = NO_UNKNOWN_FIELDS

    @property
    def is_active(self) -> bool:
        return self.state is SegmentState.ACTIVE

    @property
    def is_merge(self) -> bool:
        return len(self.parent_ids) >= 2

    @property
    def is_legacy(self) -> bool:
        """Whether the messages are in a topic from before the migration; Pulsar reads an empty name as no."""
        return bool(self.legacy_topic_name)

    @property
    def descriptor(self) -> str:
        """The last part of the segment's topic name, as in `0000-ffff-0`."""
        return f"{self.range}-{self.segment_id}"

    def sealed(self, epoch: int, now_ms: int, child_ids: tuple[int, ...]) -> Self:
        return replace(self, state=SegmentState.SEALED, sealed_at_epoch=epoch, sealed_at_ms=now_ms, child_ids=child_ids)
