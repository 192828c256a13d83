"""The namespace watches: which groups there are, and which of them a topic concerns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol
from urllib.parse import unquote

import trio

from layout import records
from layout.errors import LayoutError
from metadata import keys
from metadata.complaints import complain
from metadata.errors import RecordDamaged, StoreLost, StoreUnavailable
from metadata.lanes import Lane
from metadata.records import StoredTopic
from metadata.store import TopicStore
from metadata.tasks import Tasks
from protocol.names import NamespaceName, TopicName
from sessions.groups import Filters, Group, NamespaceWatch, Surroundings
from sessions.outbox import Outbox
from sessions.readback import Found, ReadBack
from sessions.turns import end_in_turns

log = logging.getLogger(__name__)

_SLICE: Final = 256
# Topics compared with filters before other tasks run, at about a microsecond each; one that finds none costs as 20 do.
_EVALUATED_PER_TURN: Final = 2_048
_NO_FILTERS: Final[Filters] = frozenset()
# Listings share a connection with the reads that follow changes, which must not queue behind all of a large namespace.
_LISTINGS_AT_ONCE: Final = 4


@dataclass(slots=True)
class NamespaceCounters:
    watches: int = 0
    groups: int = 0
    listings: int = 0  # of one bucket each
    evaluations: int = 0  # of a group's filters on one topic
    hash_matches: int = 0  # reconnects that needed no snapshot


class Listing(Protocol):
    """How a group learns what buckets hold for it."""

    async def members(self, buckets: Sequence[int], group: Group) -> Mapping[int, Mapping[str, str]]:
        """Names and incarnations by bucket, without the buckets that cannot be trusted to tell."""

    def note_hash_match(self) -> None: ...


class _Listed(NamedTuple):
    name: str
    incarnation: str
    properties: Mapping[str, str] | None


class _SharedListing:
    """One listing for all who waited for it when it began; without a result it has failed."""

    def __init__(self) -> None:
        self.waiting = trio.lowlevel.ParkingLot()
        self.listed: Mapping[int, Sequence[_Listed]] | None = None


class NamespaceWatches:
    """Namespace and filters to group to sessions. A listener of the read-back."""

    def __init__(
        self,
        *,
        nursery: Tasks,
        readback: ReadBack,
        store: TopicStore,
        lane: Callable[[], Lane],
        whole: Callable[[], bool],
        window: float,
        frame_limit: int,
    ) -> None:
        self.counters = NamespaceCounters()
        self._store = store
        self._lane = lane
        self._around = Surroundings(nursery, readback, self, whole, window, frame_limit)
        self._waiting: dict[tuple[NamespaceName, tuple[int, ...]], _SharedListing] = {}
        self._listing_slots = trio.CapacityLimiter(_LISTINGS_AT_ONCE)
        self._groups: dict[str, dict[Filters, Group]] = {}  # by the path of their namespace
        self._joinable: dict[tuple[NamespaceName, Filters], Group] = {}  # the same, to be found at once
        readback.add(self)

    # What the dialogue calls.

    def open(
        self,
        outbox: Outbox,
        registry: dict[int, NamespaceWatch],
        watch_id: int,
        namespace: NamespaceName,
        filters: Mapping[str, str],
        current_hash: str | None,
    ) -> None:
        """Watch a namespace under this id, in place of a watch with the same; the answer goes to the outbox."""
        if watch_id in registry:
            # A diff of the watch that is replaced may still be on its way, which the hash cannot know of.
            current_hash = None
            self.close(registry, watch_id)
        wanted = frozenset(filters.items()) if filters else _NO_FILTERS
        group = self._joinable.get((namespace, wanted))
        if group is None:
            group = self._joinable[namespace, wanted] = Group(namespace, wanted, self._around)
            self._groups.setdefault(keys.namespace_path(namespace), {})[wanted] = group
            self.counters.groups += 1
        watch = registry[watch_id] = NamespaceWatch(outbox, registry, watch_id, current_hash, group)
        self.counters.watches += 1
        group.join(watch)

    def close(self, registry: dict[int, NamespaceWatch], watch_id: int) -> None:
        """End a watch without a word; unknown ids are fine."""
        watch = registry.pop(watch_id, None)
        if watch is not None:
            self._detach(watch)
            watch.outbox.drop(watch.key)

    def drop_all(self, registry: dict[int, NamespaceWatch]) -> None:
        """The connection is gone."""
        watches = list(registry.values())
        registry.clear()
        end_in_turns(self._around.nursery, watches, self._detach)

    # What the read-back calls.

    def wants(self, bucket: int, path: str) -> bool:
        return path.rpartition("/")[0] in self._groups

    def patience(self, bucket: int, path: str) -> float:
        groups = self._groups[path.rpartition("/")[0]]
        return min(group.read_at for group in groups.values())

    def apply(self, bucket: int, path: str, found: Found) -> None:
        namespace, _, last = path.rpartition("/")
        name = unquote(last)
        groups = list(self._groups[namespace].values())
        if isinstance(found, RecordDamaged):
            complain(log, "the record of %s cannot be filtered: %s", name, found)
            for group in groups:
                group.skip()
            return
        # A classic topic is none of these.
        record = found if isinstance(found, StoredTopic) else None
        # Decoded once, and only if somebody filters.
        properties = _properties(record) if record is not None and any(group.filters for group in groups) else None
        for group in groups:
            is_in = record is not None and self._belongs(group, properties)
            group.update(bucket, path, name, record.version.incarnation if record is not None and is_in else None)

    def gap(self, buckets: Collection[int]) -> None:
        for groups in self._groups.values():
            for group in groups.values():
                group.list_again(buckets)

    # What a group calls.

    async def members(self, buckets: Sequence[int], group: Group) -> dict[int, dict[str, str]]:
        if not group.filters:
            self.counters.listings += len(buckets)
            async with self._listing_slots:
                return await self._store.list_buckets(self._lane(), buckets, group.namespace)
        listed = await self._with_properties(group.namespace, tuple(buckets))
        return {
            bucket: {topic.name: topic.incarnation for topic in topics if self._belongs(group, topic.properties)}
            for bucket, topics in listed.items()
        }

    async def _with_properties(
        self, namespace: NamespaceName, buckets: tuple[int, ...]
    ) -> Mapping[int, Sequence[_Listed]]:
        """The topics of some buckets with their properties, read once for all groups that wait to read them."""
        key = (namespace, buckets)
        shared = self._waiting.get(key)
        if shared is not None:
            # It has not begun, so it will see everything that whoever joins it now could see.
            await shared.waiting.park()
            if shared.listed is None:
                raise StoreUnavailable("A listing that was waited for has failed.")
            return shared.listed
        shared = self._waiting[key] = _SharedListing()
        try:
            async with self._listing_slots:
                del self._waiting[key]
                shared.listed = await self._read_listed(namespace, buckets)
            await _wake_in_turns(shared.waiting, sum(map(len, shared.listed.values())))
            return shared.listed
        finally:
            if self._waiting.get(key) is shared:
                del self._waiting[key]
            shared.waiting.unpark_all()

    async def _read_listed(self, namespace: NamespaceName, buckets: Sequence[int]) -> dict[int, list[_Listed]]:
        self.counters.listings += len(buckets)
        indexed = await self._store.list_buckets(self._lane(), buckets, namespace)
        topics = [
            (bucket, TopicName.scalable(namespace.tenant, namespace.namespace, name))
            for bucket, names in indexed.items()
            for name in names
        ]
        listed: dict[int, list[_Listed]] = {bucket: [] for bucket in indexed}
        for start in range(0, len(topics), _SLICE):
            part = topics[start : start + _SLICE]
            records_found = await self._store.read(self._lane(), [topic for _, topic in part])
            for (bucket, topic), found in zip(part, records_found, strict=True):
                if isinstance(found, StoreLost):
                    listed.pop(bucket, None)
                elif bucket in listed and isinstance(found, StoredTopic):
                    listed[bucket].append(_Listed(topic.local, found.version.incarnation, _properties(found)))
        return listed

    def note_hash_match(self) -> None:
        self.counters.hash_matches += 1

    def _belongs(self, group: Group, properties: Mapping[str, str] | None) -> bool:
        """Whether a topic with these properties is a group's; None stands for properties that cannot be read."""
        if not group.filters:
            return True
        self.counters.evaluations += 1
        return properties is not None and group.matches(properties)

    def _detach(self, watch: NamespaceWatch) -> None:
        group = watch.group
        group.leave(watch)
        self.counters.watches -= 1
        if group.closed and self._joinable.get((group.namespace, group.filters)) is group:
            del self._joinable[group.namespace, group.filters]
            namespace = keys.namespace_path(group.namespace)
            del self._groups[namespace][group.filters]
            if not self._groups[namespace]:
                del self._groups[namespace]
            self.counters.groups -= 1


async def _wake_in_turns(waiting: trio.lowlevel.ParkingLot, topics: int) -> None:
    """Whoever is woken compares all of these topics with its filters at once, so few are woken at a time."""
    while waiting:
        waiting.unpark(count=max(1, _EVALUATED_PER_TURN // (topics + 20)))
        await trio.lowlevel.checkpoint()


def _properties(found: StoredTopic) -> Mapping[str, str] | None:
    try:
        return records.decode_properties(found.value)
    except LayoutError as error:
        complain(log, "the record of %s cannot be filtered: %s", found.name, error)
        return None
