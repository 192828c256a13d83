"""What is written for a change: the recorded value, or a record made for its epoch where the trace holds none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from layout import records
from layout.errors import InvalidRecord
from layout.layouts import Layout
from layout.ranges import HashRange
from layout.segments import Segment, SegmentState

# Five transitions that lead from one segment to one segment: split, forget the parent, merge, forget both halves.
_CYCLE: Final = 5
_IDS_PER_CYCLE: Final = 3
_EPOCHS_SINCE_MERGE: Final = 2
# Stands for the time of creation in the templates, and for nothing else: no other number of theirs is as long.
_STAMP_MS: Final = 1_000_000_000_000
_STAMP: Final = str(_STAMP_MS).encode()


@dataclass(frozen=True, slots=True)
class Record:
    """A value for the store, with what the store is told beside it."""

    value: bytes
    epoch: int
    descriptors: tuple[str, ...]  # of its segments


def recorded(value: bytes) -> Record | None:
    """The record that a trace holds, None if it is none."""
    try:
        layout = records.decode_layout(value)
    except InvalidRecord:
        return None
    return Record(value, layout.epoch, _descriptors(layout))


def made(epoch: int, created_ms: int) -> Record:
    """A record at this epoch of a topic that was created then.

    The time is the same in all records of an incarnation and differs from that of the others, so that a watcher can
    tell an old layout from a topic made anew.
    """
    template = _template(epoch)
    return Record(template.value.replace(_STAMP, b"%d" % created_ms), epoch, template.descriptors)


def made_layout(epoch: int, created_ms: int) -> Layout:
    """The layout after `epoch` transitions, without going through all of them: it repeats, except for the numbers."""
    cycle, step = divmod(epoch, _CYCLE)
    first = cycle * _IDS_PER_CYCLE
    start = epoch - step
    whole = Segment(
        first,
        HashRange.full(),
        SegmentState.ACTIVE,
        created_at_epoch=start - _EPOCHS_SINCE_MERGE if cycle else 0,
        created_at_ms=created_ms,
        merge_depth=cycle,
    )
    layout = Layout(start, first + 1, {first: whole})
    transitions: tuple[Callable[[Layout], Layout], ...] = (
        lambda before: before.split(first, created_ms),
        lambda before: before.prune(first),
        lambda before: before.merge(first + 1, first + 2, created_ms),
        lambda before: before.prune(first + 1),
    )
    for transition in transitions[:step]:
        layout = transition(layout)
    return layout


@lru_cache(maxsize=4_096)
def _template(epoch: int) -> Record:
    layout = made_layout(epoch, _STAMP_MS)
    return Record(records.encode(records.TopicRecord(layout)), epoch, _descriptors(layout))


def _descriptors(layout: Layout) -> tuple[str, ...]:
    return tuple(segment.descriptor for segment in layout.segments.values())
