"""Moving cursors: which segment goes where, and what becomes of the facts about drained segments."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from controller import seeking
from controller.leader import Around, LeaderCounters, LeaderSettings, TopicLeader
from controller.retention import Retention
from controller.seeking import Access, Move, move_to
from controller.segment_port import Claim
from controller.transitions import TopicLimits, Transitions
from layout.errors import SegmentNotFound
from layout.ranges import HashRange
from layout.segments import NOT_SEALED, Segment, SegmentState
from metadata.errors import Fenced, SubscriptionMismatch, SubscriptionMissing, TopicMissing, VersionConflict
from metadata.leadership import Leaderships
from metadata.node_sessions import NodeRecord, NodeSession
from metadata.peers import Peers
from metadata.records import StoredTopic
from metadata.registrations import Registrations
from metadata.store import TopicStore, open_store
from metadata.subscriptions import Attachment, Subscription, SubscriptionType
from protocol.names import TopicName
from tests.support.processes import ValkeyProcess
from tests.support.unwritten_segments import UnwrittenSegments

TOPIC = TopicName.scalable("public", "default", "t")
NODE = NodeRecord("node", "pulsar://here.example:6650", "http://here.example:8080")
OTHER = NodeRecord("other", "pulsar://there.example:6650", "http://there.example:8080")


def segment(created: int, sealed: int | None) -> Segment:
    state = SegmentState.ACTIVE if sealed is None else SegmentState.SEALED
    return Segment(
        0, HashRange.full(), state, created_at_ms=created, sealed_at_ms=NOT_SEALED if sealed is None else sealed
    )


@pytest.mark.parametrize(
    ("created", "sealed", "timestamp", "to_ms"),
    [
        (100, None, 50, 0),
        (100, None, 100, 0),
        (100, None, 101, 101),
        (100, 200, 50, 0),
        (100, 200, 100, 0),
        (100, 200, 150, 150),
        (100, 200, 199, 199),
        (100, 200, 200, None),
        (100, 200, 500, None),
        (100, 100, 100, None),
        # Nobody knows when it was sealed.
        (0, 0, 0, 0),
        (0, 0, 500, 500),
    ],
)
def test_segment_is_skipped_if_it_was_sealed_by_then_and_read_from_its_start_if_it_came_later(
    created: int, sealed: int | None, timestamp: int, to_ms: int | None
) -> None:
    moved = segment(created, sealed)
    assert move_to(moved, timestamp) == Move(moved, to_ms)


class Cursors(UnwrittenSegments):
    """Segments with a cursor of one subscription each: at the end, or not."""

    def __init__(self) -> None:
        self.at_end = {0, 1, 2, 3}
        self.moves: list[tuple[int, int | None]] = []
        self.fail_at: int | None = None

    async def drained(self, topic: TopicName, subscription: str, segments: Sequence[Segment]) -> frozenset[int]:
        return frozenset(s.segment_id for s in segments if s.segment_id in self.at_end)

    async def still_open(self, topic: TopicName, subscription: str, claims: Collection[Claim]) -> frozenset[Claim]:
        return frozenset()

    async def request_move(
        self, topic: TopicName, incarnation: str, subscription: str, segment: Segment, to_ms: int | None
    ) -> None:
        if segment.segment_id == self.fail_at:
            raise ConnectionError
        self.moves.append((segment.segment_id, to_ms))
        if to_ms is None:
            self.at_end.add(segment.segment_id)
        else:
            self.at_end.discard(segment.segment_id)


class Clock:
    now = 1_000

    def __call__(self) -> int:
        return self.now


@dataclass
class Scene:
    """A topic whose segment 0 was sealed at 2000 and 1 at 3000: 2, 3 and 4 are active. Its leader does not run."""

    store: TopicStore
    registrations: Registrations
    leaderships: Leaderships
    cursors: Cursors
    access: Access
    leader: TopicLeader

    async def stored(self) -> StoredTopic:
        found = await self.store.get(TOPIC)
        assert found is not None
        return found

    async def subscription(self, name: str = "s") -> Subscription:
        state = await self.registrations.state(self.store.commands, TOPIC)
        assert state is not None
        return state.subscriptions[name]

    async def note_drained(self, *segment_ids: int) -> None:
        """As a round of the leader does it."""
        found = await self.subscription()
        await self.registrations.assign(await self.stored(), self.leader.leader, found, {}, drained=segment_ids)


@asynccontextmanager
async def staged(url: str) -> AsyncIterator[Scene]:
    async with open_store(url) as store:
        clock = Clock()
        transitions = Transitions(store, TopicLimits(), now_ms=clock)
        registrations, leaderships = Registrations(store), Leaderships(store)
        cursors = Cursors()
        session = NodeSession(store, lease=10, pulsar_url=NODE.pulsar_url, http_url=NODE.http_url)
        around = Around(
            registrations=registrations,
            leaderships=leaderships,
            transitions=transitions,
            segments=cursors,
            peers=Peers(store, session, lease=10, on_death=lambda _: None),
            lane=lambda: store.commands,
            followed_since=lambda _: float("-inf"),
            retention=Retention(store, default=3600),
            settings=LeaderSettings(),
            counters=LeaderCounters(),
        )
        await transitions.create(TOPIC, 1)
        clock.now = 2_000
        await transitions.split(TOPIC, 0)
        clock.now = 3_000
        split = await transitions.split(TOPIC, 1)
        await registrations.create_subscription(TOPIC, "s", SubscriptionType.STREAM, 0)
        lead = await leaderships.take(split, NODE)
        assert lead is not None
        leader = TopicLeader(TOPIC, split.version.incarnation, lead, around)
        access = Access(registrations, cursors, store.commands)
        yield Scene(store, registrations, leaderships, cursors, access, leader)


@pytest.fixture
async def scene(valkey: ValkeyProcess) -> AsyncIterator[Scene]:
    async with staged(valkey.url) as scene:
        yield scene


@pytest.mark.parametrize(
    ("timestamp", "moves", "drained"),
    [
        (0, {0: 0, 1: 0, 2: 0, 3: 0, 4: 0}, set()),
        (1_500, {0: 1_500, 1: 0, 2: 0, 3: 0, 4: 0}, set()),
        (2_000, {0: None, 1: 0, 2: 0, 3: 0, 4: 0}, {0}),
        (2_500, {0: None, 1: 2_500, 2: 2_500, 3: 0, 4: 0}, {0}),
        (3_000, {0: None, 1: None, 2: 3_000, 3: 0, 4: 0}, {0, 1}),
        (9_000, {0: None, 1: None, 2: 9_000, 3: 9_000, 4: 9_000}, {0, 1}),
    ],
)
async def test_seek_moves_every_segment_and_forgets_that_those_not_skipped_are_drained(
    scene: Scene, timestamp: int, moves: dict[int, int | None], drained: set[int]
) -> None:
    await scene.note_drained(0, 1)
    await seeking.seek(scene.access, scene.leader, "s", timestamp)
    assert dict(scene.cursors.moves) == moves
    assert (await scene.subscription()).drained == drained


async def test_skip_all_leaves_the_facts_to_the_next_look(scene: Scene) -> None:
    await scene.note_drained(0)
    before = (await scene.subscription()).generation
    await seeking.skip_all(scene.access, scene.leader, "s")
    assert scene.cursors.moves == [(segment_id, None) for segment_id in range(5)]
    after = await scene.subscription()
    assert after.drained == {0}
    assert after.generation == before


async def test_single_segment_is_moved_alone(scene: Scene) -> None:
    await scene.note_drained(0, 1)
    await seeking.seek_segment(scene.access, scene.leader, "s", "0000-7fff-1", 77)
    assert scene.cursors.moves == [(1, 77)]
    assert (await scene.subscription()).drained == {0}
    await seeking.skip_segment(scene.access, scene.leader, "s", "0000-7fff-1")
    assert scene.cursors.moves == [(1, 77), (1, None)]
    for descriptor in ("0000-7fff-9", "0000-ffff-1"):
        with pytest.raises(SegmentNotFound):
            await seeking.seek_segment(scene.access, scene.leader, "s", descriptor, 77)


async def test_assignments_and_consumers_stay(scene: Scene) -> None:
    await scene.registrations.attach(TOPIC, "s", SubscriptionType.STREAM, "c", Attachment("node", "nonce"))
    before = (await scene.subscription()).consumers
    await seeking.seek(scene.access, scene.leader, "s", 0)
    assert (await scene.subscription()).consumers == before


async def test_round_that_asked_before_the_seek_cannot_write_what_it_heard(scene: Scene) -> None:
    """Even where nothing had been noted as drained yet."""
    overtaken = await scene.subscription()
    await seeking.seek(scene.access, scene.leader, "s", 0)
    with pytest.raises(VersionConflict):
        await scene.registrations.assign(await scene.stored(), scene.leader.leader, overtaken, {}, drained=[0, 1])
    assert (await scene.subscription()).drained == frozenset()


async def test_round_that_writes_during_the_seek_is_corrected(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    assign = scene.registrations.assign

    async def assign_second(*args: object, **kwargs: object) -> int:
        monkeypatch.undo()
        await scene.note_drained(0, 1)
        return await assign(*args, **kwargs)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(scene.registrations, "assign", assign_second)
    await seeking.seek(scene.access, scene.leader, "s", 2_500)
    assert (await scene.subscription()).drained == {0}


async def test_subscription_that_never_stands_still_is_a_conflict(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose(*_: object, **__: object) -> None:
        raise VersionConflict("changed")

    monkeypatch.setattr(scene.registrations, "assign", lose)
    with pytest.raises(VersionConflict, match="try again"):
        await seeking.seek(scene.access, scene.leader, "s", 0)


async def test_seek_that_broke_off_can_be_repeated(scene: Scene) -> None:
    await scene.note_drained(0, 1)
    scene.cursors.fail_at = 1
    with pytest.raises(ConnectionError):
        await seeking.seek(scene.access, scene.leader, "s", 0)
    scene.cursors.fail_at = None
    await seeking.seek(scene.access, scene.leader, "s", 0)
    assert (await scene.subscription()).drained == frozenset()


async def test_deposed_leader_moves_nothing(scene: Scene) -> None:
    await scene.note_drained(0, 1)
    assert await scene.leaderships.take(await scene.stored(), OTHER) is not None
    for attempt in (
        seeking.seek(scene.access, scene.leader, "s", 0),
        seeking.skip_all(scene.access, scene.leader, "s"),
    ):
        with pytest.raises(Fenced):
            await attempt
    assert scene.cursors.moves == []


async def test_leader_deposed_in_the_middle_writes_no_facts(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await scene.note_drained(0, 1)
    assign = scene.registrations.assign

    async def assign_too_late(*args: object, **kwargs: object) -> int:
        assert await scene.leaderships.take(await scene.stored(), OTHER) is not None
        return await assign(*args, **kwargs)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(scene.registrations, "assign", assign_too_late)
    with pytest.raises(Fenced):
        await seeking.seek(scene.access, scene.leader, "s", 0)
    assert (await scene.subscription()).drained == {0, 1}


async def test_what_cannot_be_moved_is_refused(scene: Scene) -> None:
    await scene.registrations.attach(TOPIC, "group", SubscriptionType.CHECKPOINT, "c", Attachment("node", "nonce"))
    with pytest.raises(SubscriptionMissing):
        await seeking.seek(scene.access, scene.leader, "unknown", 0)
    with pytest.raises(SubscriptionMismatch):
        await seeking.skip_all(scene.access, scene.leader, "group")
    stored = await scene.stored()
    await scene.store.delete(TOPIC, stored.version, [], ["group", "s"])
    with pytest.raises(TopicMissing):
        await seeking.skip_all(scene.access, scene.leader, "s")
    assert scene.cursors.moves == []
