"""Puts the data plane of a node together, and lends it what it needs of the rest."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import trio

from controller.retention import Retention
from gateway.settings import Settings
from layout.segments import Segment
from metadata import keys
from metadata.errors import StoreError
from metadata.lanes import Lane
from metadata.log_directory import logs_in
from metadata.log_places import LogPlace
from metadata.peers import Peers
from metadata.records import layout_of
from metadata.registrations import Registrations
from metadata.segment_holders import SegmentHolders
from metadata.segment_logs import SegmentLogs
from metadata.store import TopicStore
from metadata.subscriptions import InitialPosition, Registration, SubscriptionType
from metadata.tasks import Tasks
from protocol.names import TopicName
from protocol.turns import SlowTurns
from segments import placement
from segments.around import Around, DataCounters, LogLimits
from segments.caretaking import Caretaker
from segments.connection import DataPlane
from segments.cursor_moves import CursorMoves
from segments.hosting import ClassicLogs, Hosting
from segments.keeping import Keeping, OverQuota, Quota
from segments.port import LogsOfTopics, place_of
from segments.schemas import SchemaRegistry
from segments.seats import Seats
from segments.starting import Starting
from segments.tail import Budget
from segments.upkeep import Upkeep
from sessions.hub import Hub

# For how long a producer of a partition that was sealed waits for its topic to be scalable: a few writes, unless who
# migrates it has died.
_LONGEST_MIGRATION: Final = 0.4
_MIGRATION_PAUSE: Final = 0.02


@dataclass(frozen=True, slots=True)
class DataParts:
    """What the node keeps of its data plane."""

    plane: DataPlane
    hosting: Hosting
    upkeep: Upkeep
    caretaker: Caretaker
    port: LogsOfTopics
    counters: DataCounters


class StoredTopics:
    """What the data plane asks about topics."""

    def __init__(self, store: TopicStore, registrations: Registrations) -> None:
        self._store = store
        self._registrations = registrations

    async def segment(self, topic: TopicName, place: LogPlace) -> Segment | None:
        stored = await self._store.get(topic)
        if stored is None:
            return None
        segments = layout_of(stored).segments
        if place.segment_id is not None:
            # Consumers ask for each of a thousand segments: a look at all of them for each is a second of nothing else.
            found = segments.get(place.segment_id)
            return found if found is not None and place_of(topic, found) == place else None
        legacy = (segment for segment in segments.values() if segment.legacy_topic_name)
        return next((segment for segment in legacy if place_of(topic, segment) == place), None)

    async def register(
        self, topic: TopicName, subscription: str, *, ordered: bool | None, position: InitialPosition, segment_id: int
    ) -> Registration:
        kind = None if ordered is None else SubscriptionType.STREAM if ordered else SubscriptionType.QUEUE
        now_ms = time.time_ns() // 1_000_000
        return await self._registrations.register(
            topic, subscription, kind, now_ms, position=position, segment_id=segment_id
        )

    async def provide_subscription(self, topic: TopicName, subscription: str) -> str:
        now_ms = time.time_ns() // 1_000_000
        return (await self._registrations.provide_subscription(topic, subscription, now_ms)).id


def build_data_plane(
    settings: Settings,
    *,
    store: TopicStore,
    registrations: Registrations,
    peers: Peers,
    hub: Callable[[], Hub],
    lane: Callable[[], Lane],
    classic: ClassicLogs,
    schemas: SchemaRegistry,
    retention: Retention,
    session_held: Callable[[], bool],
    followed_since: Callable[[int], float],
    turns: SlowTurns,
    nursery: Tasks,
) -> DataParts:
    logs = SegmentLogs(store)
    counters = DataCounters()

    async def layout_told(place: LogPlace) -> None:
        if place.segment_id is not None:
            await hub().refreshed(keys.topic_at(place.path))
        else:
            await _migration_told(hub(), store, TopicName.parse(place.name).canonical)

    async def keeping(place: LogPlace) -> Keeping:
        # A classic log is that of a scalable topic once it was migrated.
        topic = keys.topic_at(place.topic_path)
        stored = await store.get(topic)
        chosen = await (retention.of_namespace(topic.namespace_name) if stored is None else retention.of(stored))
        # Readers keep no place that the server knows of: what is young may be read by one that comes back.
        return Keeping(chosen.ms, chosen.bytes, at_least_ms=round(settings.message_age * 1000))

    around = Around(
        logs=logs,
        nursery=nursery,
        limits=LogLimits(
            replicas=settings.ack_replicas, quota=Quota(settings.backlog_quota, OverQuota(settings.backlog_policy))
        ),
        counters=counters,
        tails=Budget(settings.tail_memory),
        layout_told=layout_told,
    )
    hosting = Hosting(
        around,
        peers,
        classic,
        registrations.identities,
        deleted=registrations.deleted,
        session_held=session_held,
    )
    interval = settings.rebalance_interval
    upkeep = Upkeep(hosting, peers, registrations.identities, keeping, interval=interval)
    topics = StoredTopics(store, registrations)
    caretaker = Caretaker(
        hosting,
        logs,
        lambda bucket: logs_in(store, bucket),
        registrations.identities,
        keeping,
        quota=around.limits.quota,
        interval=interval,
        start=secrets.randbelow(keys.BUCKETS),
    )
    seats = Seats(SegmentHolders(store), nursery, handover=settings.handover, followed_since=followed_since)
    plane = DataPlane(hosting, Starting(topics), nursery, schemas, seats, turns)
    # An owner that died is seen to be dead after its lease.
    moves = CursorMoves(logs, hosting, patience=2 * settings.session_lease)
    port = LogsOfTopics(store, logs, registrations, hosting, moves, lane)
    return DataParts(plane, hosting, upkeep, caretaker, port, counters)


async def _migration_told(hub: Hub, store: TopicStore, topic: TopicName) -> None:
    """Return when those who watch a topic know its layout as a scalable one, or after a moment.

    The partitions of a classic topic are sealed before it is scalable.
    """
    path = keys.path_of(topic)
    with trio.move_on_after(_LONGEST_MIGRATION):
        while hub.wants(keys.bucket_of(path), path):
            try:
                is_scalable = await store.get(topic) is not None
            except StoreError:
                return  # nobody can tell, and the producer should not wait for it
            # After that look, so that what it found is told.
            await hub.refreshed(topic)
            if is_scalable:
                return
            await trio.sleep(_MIGRATION_PAUSE)


def segment_url(peers: Peers) -> Callable[[str, str], str]:
    """Where the log of a segment is served whose owner has this session, or should be if it has none."""

    def url(log: str, owner: str) -> str:
        if owner:
            peers.heard_of(owner)
        return placement.url_of(log, owner, peers.nodes)

    return url
