"""Which consumer of a subscription gets which segments: first what can be given out at all, then who gets it.

Active segments carry the traffic and sealed ones only what is left of it, so each kind is shared out evenly by
itself. Where that and staying put leave a choice, it goes to whoever has less of the other kind.

Today a segment has exactly one owner, and surplus consumers wait with nothing. Letting several share one segment
by its entry buckets would be a step of its own after the deal: see the mark SHARING in `assign`.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from layout.layouts import Layout
from layout.segments import Segment


def assignable(layout: Layout, drained: Collection[int], *, ordered: bool) -> list[Segment]:
    """The segments that consumers should have now, by range and then id.

    A sealed segment that is drained takes no slot. With `ordered` (STREAM) a segment, active or sealed, waits
    until all its ancestors in the layout are drained; pruned ones count as drained. Without it (CHECKPOINT) nothing
    waits, and since such a group has no cursors that could be drained, its `drained` is empty.
    """
    done = frozenset(drained)
    waiting = _waiting(layout, done) if ordered else frozenset[int]()
    given = (
        segment
        for key, segment in layout.segments.items()
        if key not in waiting and (segment.is_active or key not in done)
    )
    return sorted(given, key=lambda segment: (segment.range, segment.segment_id))


def assign(segments: Sequence[Segment], held: Mapping[str, Collection[int]]) -> dict[str, tuple[int, ...]]:
    """Who gets what: for each name in `held`, segment ids in the order of `segments`.

    `held` is what each consumer has now. It may name segments that are not to be given out, and two consumers may
    claim the same one: it is rightfully the smaller name's. Of all ways to give every segment one owner so that
    neither the active nor the sealed counts of two consumers differ by more than one, this is one where the fewest
    segments leave their rightful owner, and among those, one with the most even sums. It depends on the values
    alone, and assigning again what came out changes nothing.
    """
    if not held:
        return {}
    names = sorted(held)
    owners = _owners(held)
    active, sealed = _kinds(segments)
    of_active, of_sealed = _Portions.of(active, names, owners), _Portions.of(sealed, names, owners)
    # Rather one more to those who cannot get one more of the sealed than to those who may, or surely will. The
    # second choice then passes by whom the first has chosen, and so the fewest consumers get one more of both.
    more_active = of_active.larger(lambda name: (name in of_sealed.certain, name in of_sealed.candidates))
    more_sealed = of_sealed.larger(lambda name: (name in more_active,))
    dealt = _deal(active, names, owners, of_active.size, more_active)
    dealt |= _deal(sealed, names, owners, of_sealed.size, more_sealed)
    given: dict[str, list[int]] = {name: [] for name in names}
    for segment in segments:
        given[dealt[segment.segment_id]].append(segment.segment_id)
    # SHARING: who has nothing here could join the owner of a segment with `entry_bucket_splits`. Every segment has
    # its first owner by now, so that step only adds further ones and moves nothing.
    return {name: tuple(ids) for name, ids in given.items()}


def moved(before: Mapping[str, Collection[int]], after: Mapping[str, Collection[int]]) -> frozenset[int]:
    """The segments that had an owner before and have another one after; without an owner on one side, none moved."""
    then, now = _owners(before), _owners(after)
    return frozenset(key for key, owner in then.items() if now.get(key, owner) != owner)


def fewest_moves(segments: Sequence[Segment], held: Mapping[str, Collection[int]]) -> int:
    """How many segments must leave their rightful owner, whoever assigns them, for the counts to be even.

    Everybody can keep as many as all get. One more can be kept by those who have more, but only by as many
    consumers as there are segments left over.
    """
    if not held:
        return 0
    owners = _owners(held)
    moves = 0
    for ids in _kinds(segments):
        size, left_over = divmod(len(ids), len(held))
        counts = Counter(owners[key] for key in ids if key in owners).values()
        kept = sum(min(count, size) for count in counts) + min(left_over, sum(count > size for count in counts))
        moves += sum(counts) - kept
    return moves


@dataclass(frozen=True, slots=True)
class _Portions:
    """How many segments of one kind the consumers get: all of them `size`, some of them one more.

    To move the fewest segments, the ones more go to consumers that hold more than `size`. If these are too few, all
    of them are `certain` and `open` of the others are free to choose; if too many, `open` of them are.
    """

    size: int
    certain: frozenset[str]
    candidates: frozenset[str]
    open: int

    @classmethod
    def of(cls, ids: Sequence[int], names: Sequence[str], owners: Mapping[int, str]) -> "_Portions":
        size, left_over = divmod(len(ids), len(names))
        counts = Counter(owners[key] for key in ids if key in owners)
        holding_more = frozenset(name for name, count in counts.items() if count > size)
        if len(holding_more) > left_over:
            return cls(size, frozenset(), holding_more, left_over)
        return cls(size, holding_more, frozenset(names) - holding_more, left_over - len(holding_more))

    def larger(self, reluctance: Callable[[str], tuple[bool, ...]]) -> frozenset[str]:
        """Who gets one more: of the candidates those with the least reluctance, then the smallest names."""
        ranked = sorted(self.candidates, key=lambda name: (reluctance(name), name))
        return self.certain.union(ranked[: self.open])


def _deal(
    ids: Sequence[int], names: Sequence[str], owners: Mapping[int, str], size: int, larger: Collection[str]
) -> dict[int, str]:
    """Give the segments of one kind out: owners keep theirs as far as their portion goes, the rest goes round."""
    room = {name: size + (name in larger) for name in names}
    dealt: dict[int, str] = {}
    loose: list[int] = []
    for key in ids:
        owner = owners.get(key)
        if owner is not None and room[owner]:
            room[owner] -= 1
            dealt[key] = owner
        else:
            loose.append(key)
    # One each per round: neighbours on the ring, such as the halves of a busy range, go to different consumers.
    hungry = deque(name for name in names if room[name])
    for key in loose:
        name = hungry.popleft()
        dealt[key] = name
        room[name] -= 1
        if room[name]:
            hungry.append(name)
    return dealt


def _waiting(layout: Layout, drained: frozenset[int]) -> frozenset[int]:
    """The segments with an undrained ancestor, however far up.

    A parent has a lower id than its children, so going by id meets the parents first, and a segment that waits
    makes its children wait even if it is drained itself. The parents are looked up as a whole because a migrated
    topic links every segment to every old partition.
    """
    waiting: set[int] = set()
    in_the_way = layout.segments.keys() - drained
    for key in sorted(layout.segments):
        if not in_the_way.isdisjoint(layout.segments[key].parent_ids):
            waiting.add(key)
            in_the_way.add(key)
    return frozenset(waiting)


def _kinds(segments: Sequence[Segment]) -> tuple[list[int], list[int]]:
    """The ids of the active segments and those of the sealed ones, in their order."""
    active = [segment.segment_id for segment in segments if segment.is_active]
    sealed = [segment.segment_id for segment in segments if not segment.is_active]
    return active, sealed


def _owners(held: Mapping[str, Collection[int]]) -> dict[int, str]:
    """The rightful owner of each segment that somebody has."""
    owners: dict[int, str] = {}
    for name in sorted(held, reverse=True):
        # The smaller name comes later and takes it over.
        owners.update(dict.fromkeys(held[name], name))
    return owners
