"""What changes a topic: create, split, merge, delete, new properties.

Each is a read, a pure function of `layout`, and one compare-and-set write that the store does whole or not at all. Who
loses a race decides anew on what the winner wrote, so two splits of one segment end in one split and one refusal.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from controller.leftovers import leftovers
from layout.errors import LayoutError
from layout.layouts import Layout
from layout.records import TopicRecord, decode, encode
from metadata.errors import NamespaceMissing, TopicMissing, VersionConflict
from metadata.records import StoredTopic, Version
from metadata.registrations import Registrations
from metadata.store import TopicStore
from protocol.names import TopicName

log = logging.getLogger(__name__)
Outcome = TypeVar("Outcome")

# Every lost round is somebody else's success, so a caller that loses this often stands behind as many others.
ATTEMPTS = 20
_LONGEST_RETENTION = 2**31 - 1
_LARGEST_RETENTION = 2**63 - 1


class TransitionError(Exception):
    """Base of the refusals that are decided here rather than by the layout or the store."""

    http_status = 412


class PreconditionFailed(TransitionError):
    """The caller named the version it saw, and the record has moved on."""


class TooManySegments(TransitionError):
    """The record would grow past its bound."""


class InvalidProperties(TransitionError):
    """Properties past their bounds."""


class InvalidRetention(TransitionError):
    """A time that sealed segments cannot be kept for."""


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """What one topic's record may hold.

    Sealed segments count: they stay in the record until they are pruned, and it is the record that every transition
    rewrites and every watcher is sent.
    """

    max_segments: int = 1024
    max_properties: int = 64
    max_property_size: int = 1024
    max_partitions: int = 512  # of a classic topic, which has twice as many segments once it is migrated

    def checked(self, properties: Mapping[str, str]) -> dict[str, str]:
        if len(properties) > self.max_properties:
            raise InvalidProperties(
                f"A topic has at most {self.max_properties} properties, got {len(properties)}: leave some out."
            )
        for key, value in properties.items():
            if not key:
                raise InvalidProperties("A property needs a name: the empty one cannot be used.")
            size = len(key.encode()) + len(value.encode())
            if size > self.max_property_size:
                raise InvalidProperties(
                    f"Property {key[:64]!r} takes {size} bytes with its value, and the limit is"
                    f" {self.max_property_size}: make it shorter."
                )
        return dict(properties)


def check_retention(minutes: int, megabytes: int) -> None:
    """What Pulsar keeps in an int and a long; -1: no limit."""
    if not -1 <= minutes <= _LONGEST_RETENTION:
        raise InvalidRetention(
            f"retentionTimeInMinutes cannot be {minutes}: give minutes up to {_LONGEST_RETENTION}, or -1 for ever."
        )
    if not -1 <= megabytes <= _LARGEST_RETENTION:
        raise InvalidRetention(f"retentionSizeInMB cannot be {megabytes}: give -1 for no limit, or more.")


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


async def provide_namespace(store: TopicStore, topic: TopicName, *, auto_create: bool) -> None:
    """See that the namespace of a topic is there before the topic is."""
    namespace = topic.namespace_name
    if auto_create:
        await store.ensure_namespace(namespace)
    elif await store.get_namespace(namespace) is None:
        raise NamespaceMissing(f"Namespace does not exist: {namespace}. Create it first.")


class Transitions:
    """The writers of topic records, safe to call from many tasks and many nodes at once."""

    def __init__(
        self,
        store: TopicStore,
        limits: TopicLimits,
        *,
        auto_create: bool = True,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._store = store
        self._registrations = Registrations(store)
        self._limits = limits
        self._auto_create = auto_create
        self._now_ms = now_ms

    async def create(self, topic: TopicName, segments: int, properties: Mapping[str, str] | None = None) -> StoredTopic:
        """Make a topic of so many equal segments; its namespace too, unless auto-creation is off."""
        topic.check_creatable()
        self._check_segments(topic, segments)
        chosen = self._limits.checked(properties or {})
        now_ms = self._now_ms()
        layout = Layout.create(segments, now_ms)
        value = encode(TopicRecord(layout=layout, properties=chosen))
        await provide_namespace(self._store, topic, auto_create=self._auto_create)
        version = await self._store.create(topic, value, _descriptors(layout))
        return StoredTopic(topic, value, version, ctime_ms=now_ms, mtime_ms=now_ms)

    async def split(
        self, topic: TopicName, segment_id: int, if_match: Version | None = None, *, fence: bytes = b""
    ) -> StoredTopic:
        """Seal one active segment and put two in its place; with a fence, as in the others, only as the leader."""
        return await self._rewrite(topic, if_match, fence, lambda layout, now: layout.split(segment_id, now))

    async def merge(
        self, topic: TopicName, first: int, second: int, if_match: Version | None = None, *, fence: bytes = b""
    ) -> StoredTopic:
        """Seal two adjacent active segments and put one in their place."""
        return await self._rewrite(topic, if_match, fence, lambda layout, now: layout.merge(first, second, now))

    async def prune(self, seen: StoredTopic, segment_ids: Collection[int], *, fence: bytes = b"") -> StoredTopic:
        """Forget sealed segments of a topic that nobody has changed or registered with since it was seen."""
        record = decode(seen.value)
        layout = record.layout
        for segment_id in sorted(segment_ids):
            layout = layout.prune(segment_id)
        value = encode(record.with_layout(layout))
        _, _, removed = _difference(record.layout, layout)
        version = await self._store.replace(
            seen.name, seen.version, value, removed=removed, fence=fence, activity=seen.activity
        )
        return replace(seen, value=value, version=version, mtime_ms=self._now_ms())

    async def update_properties(
        self, topic: TopicName, properties: Mapping[str, str], if_match: Version | None = None
    ) -> StoredTopic:
        """Replace all properties; the layout and its epoch stay."""
        chosen = self._limits.checked(properties)
        return await self._amend(topic, if_match, lambda record: record.with_properties(chosen))

    async def update_retention(
        self, topic: TopicName, minutes: int | None, if_match: Version | None = None, *, megabytes: int = -1
    ) -> StoredTopic:
        """How long what was consumed stays, -1 for ever, None as the namespace says; the layout and its epoch stay."""
        if minutes is not None:
            check_retention(minutes, megabytes)
        return await self._amend(topic, if_match, lambda record: record.with_retention(minutes, megabytes))

    async def _amend(
        self, topic: TopicName, if_match: Version | None, change: Callable[[TopicRecord], TopicRecord]
    ) -> StoredTopic:
        """Write another record around the same layout."""

        async def write(stored: StoredTopic) -> StoredTopic:
            value = encode(change(decode(stored.value)))
            version = await self._store.replace(topic, stored.version, value)
            return replace(stored, value=value, version=version, mtime_ms=self._now_ms())

        return await self._contend(topic, if_match, write)

    async def delete(self, topic: TopicName, if_match: Version | None = None) -> None:
        """Remove the record, and with it the states of its segments."""

        async def write(stored: StoredTopic) -> None:
            try:
                layout = decode(stored.value).layout
                segments = leftovers(layout.segments.values(), layout.segments)
            except LayoutError as error:
                # A record that nobody can read must not be one that nobody can remove.
                log.warning("deleting %s without its segments, its record is damaged: %s", topic, error)
                segments = ()
            await self._store.delete(topic, stored.version, segments, await self._registrations.names(topic))

        await self._contend(topic, if_match, write)

    async def _rewrite(
        self, topic: TopicName, if_match: Version | None, fence: bytes, change: Callable[[Layout, int], Layout]
    ) -> StoredTopic:
        now_ms = self._now_ms()

        async def write(stored: StoredTopic) -> StoredTopic:
            record = decode(stored.value)
            layout = change(record.layout, now_ms)
            if len(layout.segments) > len(record.layout.segments):
                self._check_segments(topic, len(layout.segments))
            value = encode(record.with_layout(layout))
            created, sealed, _ = _difference(record.layout, layout)
            version = await self._store.replace(
                topic, stored.version, value, created=created, sealed=sealed, fence=fence
            )
            return replace(stored, value=value, version=version, mtime_ms=now_ms)

        return await self._contend(topic, if_match, write)

    async def _contend(
        self,
        topic: TopicName,
        if_match: Version | None,
        write: Callable[[StoredTopic], Awaitable[Outcome]],
    ) -> Outcome:
        """Read and write until nobody was faster; a caller that named its version gets one try."""
        first: Version | None = None
        for _ in range(ATTEMPTS):
            stored = await self._store.get(topic)
            if stored is None:
                raise TopicMissing(f"Scalable topic not found: {topic}. Check its name, or create it.")
            if if_match is not None and stored.version != if_match:
                raise PreconditionFailed(
                    f"{topic} is at version {stored.version.etag}, not {if_match.etag}: read it again."
                )
            first = first or stored.version
            if stored.version.incarnation != first.incarnation:
                # The segment ids that the caller meant belong to the topic that is gone.
                raise VersionConflict(f"{topic} was deleted and created again meanwhile: look at it, then retry.")
            try:
                return await write(stored)
            except VersionConflict:
                continue
        raise VersionConflict(f"{topic} was changed by others {ATTEMPTS} times meanwhile: try again.")

    def _check_segments(self, topic: TopicName, count: int) -> None:
        limit = self._limits.max_segments
        if count > limit:
            raise TooManySegments(
                f"{topic} would have {count} segments, sealed ones included, and the limit is {limit}:"
                " merge some and wait until those are pruned, or raise the server's max_segments."
            )


def _descriptors(layout: Layout) -> tuple[str, ...]:
    return tuple(segment.descriptor for segment in layout.segments.values())


def _difference(before: Layout, after: Layout) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The descriptors of the segments that a transition made and of those that it sealed, and what it leaves behind."""
    created = tuple(s.descriptor for i, s in after.segments.items() if i not in before.segments)
    removed = leftovers((s for i, s in before.segments.items() if i not in after.segments), before.segments)
    left = (s for i, s in before.segments.items() if i in after.segments)
    sealed = tuple(s.descriptor for s in left if s.is_active and not after.segments[s.segment_id].is_active)
    return created, sealed, removed
