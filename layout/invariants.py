"""What must be true of every layout: operations keep it, and tests hold what they make against it."""

from collections.abc import Iterator, Mapping, Sequence

from layout.errors import InvalidLayout
from layout.ranges import LAST_HASH
from layout.segments import NOT_SEALED, Segment


def check_layout(epoch: int, next_segment_id: int, segments: Mapping[int, Segment]) -> None:
    """Raise `InvalidLayout` with the first rule that is broken."""
    for fault in _faults(epoch, next_segment_id, segments):
        raise InvalidLayout(fault)


def _faults(epoch: int, next_segment_id: int, segments: Mapping[int, Segment]) -> Iterator[str]:
    if epoch < 0:
        yield f"The layout has the epoch {epoch}, but epochs start at 0."
    for key, segment in segments.items():
        if key != segment.segment_id:
            yield f"Segment {segment.segment_id} is filed under the id {key}."
        if not 0 <= key < next_segment_id:
            yield f"Segment {key} must have an id below the next free one, which is {next_segment_id}."
        yield from _seal_faults(segment, epoch)
        yield from _link_faults(segment, segments)
    yield from _tiling_faults(sorted((s for s in segments.values() if s.is_active), key=lambda s: s.range))


def _seal_faults(segment: Segment, epoch: int) -> Iterator[str]:
    name = f"Segment {segment.segment_id}"
    if not 0 <= segment.created_at_epoch <= epoch:
        yield f"{name} was created at epoch {segment.created_at_epoch}, but the layout is at epoch {epoch}."
    if segment.merge_depth < 0:
        yield f"{name} has the merge depth {segment.merge_depth}, but a count is never negative."
    if segment.is_active:
        if segment.sealed_at_epoch != NOT_SEALED or segment.sealed_at_ms != NOT_SEALED:
            yield (
                f"{name} is active but carries the sealing epoch {segment.sealed_at_epoch} and time "
                f"{segment.sealed_at_ms}; both must be {NOT_SEALED}."
            )
        if segment.child_ids:
            yield f"{name} is active but has the children {_ids(segment.child_ids)}; only sealed segments do."
    else:
        if not segment.created_at_epoch <= segment.sealed_at_epoch <= epoch:
            yield (
                f"{name} is sealed at epoch {segment.sealed_at_epoch}, which is not between its creation at "
                f"{segment.created_at_epoch} and the layout's epoch {epoch}."
            )
        if segment.sealed_at_ms < 0:
            yield f"{name} is sealed but carries the sealing time {segment.sealed_at_ms}."


def _link_faults(segment: Segment, segments: Mapping[int, Segment]) -> Iterator[str]:
    own = segment.segment_id
    for title, ids in (("parents", segment.parent_ids), ("children", segment.child_ids)):
        if len(set(ids)) != len(ids):
            yield f"Segment {own} names one of its {title} twice: {_ids(ids)}."
    for parent_id in segment.parent_ids:
        parent = segments.get(parent_id)
        if parent is None:
            yield f"Segment {own} names segment {parent_id} as its parent, which is not in the layout."
        elif own not in parent.child_ids:
            yield f"Segment {own} names segment {parent_id} as its parent, which does not name it as a child."
        # Ids only ever grow, so this one comparison per link is the proof that the links have no cycle.
        if parent_id >= own:
            yield (
                f"Segment {own} names segment {parent_id} as its parent, but a parent is older and has the "
                "lower id: such links can form a cycle."
            )
    for child_id in segment.child_ids:
        child = segments.get(child_id)
        if child is None:
            yield f"Segment {own} names segment {child_id} as its child, which is not in the layout."
        elif own not in child.parent_ids:
            yield f"Segment {own} names segment {child_id} as its child, which does not name it as a parent."


def _tiling_faults(active: Sequence[Segment]) -> Iterator[str]:
    covered = -1
    for segment in active:
        start = segment.range.start
        if start > covered + 1:
            yield f"No active segment covers the hashes {covered + 1:04x} to {start - 1:04x}."
        elif start <= covered:
            yield f"Active segment {segment.segment_id} ({segment.range}) overlaps another active segment."
        covered = max(covered, segment.range.end)
    if covered < LAST_HASH:
        yield f"No active segment covers the hashes {covered + 1:04x} to {LAST_HASH:04x}."


def _ids(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids))
