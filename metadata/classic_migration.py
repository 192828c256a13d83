"""The writes that turn a classic topic into a scalable one: its logs are sealed, and its record is made.

The scalable topic has the incarnation of the classic one, and so have all of its logs: what was stored under it,
messages, cursors and schemas, is found under it as before.
"""

from __future__ import annotations

from collections.abc import Sequence

from metadata import keys, scripts
from metadata.classic_records import ClassicTopic, PartitionedTopic
from metadata.errors import StoreLost, TopicExists, TopicMissing, VersionConflict
from metadata.log_places import LogPlace
from metadata.log_states import named
from metadata.records import Version
from metadata.store import TopicStore, epoch_of
from protocol.names import TopicName


async def seal_partition(store: TopicStore, topic: TopicName, incarnation: str) -> None:
    """Seal a partition of a topic that is being migrated; VersionConflict if it belongs to another topic."""
    path = keys.path_of(topic)
    bucket = keys.bucket_of(path)
    outcome, _ = await store.write(
        path,
        scripts.SEAL_CLASSIC,
        [
            keys.classic_key(path),
            keys.classic_index_key(bucket, topic.namespace_name),
            keys.changes_key(bucket),
            keys.marker_key(bucket),
        ],
        [incarnation, topic.local, path, store.change_log_length, store.identity.mark],
        written=Version(incarnation, 0),
    )
    if outcome == b"lost":
        raise StoreLost("The store has lost its identity (flushed, or another data set): restore it or restart Vela.")
    if outcome == b"conflict":
        raise VersionConflict(f"{topic} is left of another topic of that name: delete it first.")


async def _subscriptions_of_partitions(store: TopicStore, seen: PartitionedTopic) -> list[str]:
    """The names of the subscriptions that stand in any of the partitions, which are sealed.

    Whoever comes to one of them from now on waits for the topic to be scalable, and registers there.
    """
    places = [LogPlace.of_classic(log) for log in seen.logs]
    found = await store.bulk.gather(
        [(place.slot, ("HKEYS", place.cursors(seen.version.incarnation))) for place in places]
    )
    return sorted(
        {name for place, names in zip(places, found, strict=True) for name in named(place, dict.fromkeys(names, b""))}
    )


async def make_scalable(
    store: TopicStore,
    seen: ClassicTopic,
    value: bytes,
    segments: Sequence[str],
    subscription: bytes,
) -> Version:
    """Write the record of the scalable topic if the classic one is still as seen, and all that belongs to it.

    `subscription` is the entry that each subscription of the classic topic gets.
    """
    topic = seen.name.canonical
    path = keys.path_of(topic)
    bucket = keys.bucket_of(path)
    base = seen.version
    # Higher than any of the classic topic's: to who compares versions it is a later state of the same thing.
    version = Version(base.incarnation, base.number + 1)
    is_partitioned = isinstance(seen, PartitionedTopic)
    classic = keys.partitioned_key(path) if is_partitioned else keys.classic_key(path)
    names = await _subscriptions_of_partitions(store, seen) if isinstance(seen, PartitionedTopic) else ()
    outcome, version = await store.write(
        path,
        scripts.MIGRATE_TOPIC,
        [
            keys.record_key(path),
            keys.index_key(bucket, topic.namespace_name),
            keys.changes_key(bucket),
            keys.marker_key(bucket),
            keys.closed_key(bucket, topic.namespace_name),
            keys.leaders_key(bucket),
            keys.subscriptions_key(path),
            classic,
            keys.cursors_key(classic, base.incarnation),
            *(keys.segment_key(path, descriptor) for descriptor in segments),
        ],
        [
            base.incarnation,
            version.number,
            value,
            topic.local,
            path,
            store.change_log_length,
            store.identity.mark,
            epoch_of(value),
            base.number if is_partitioned else "",
            subscription,
            *names,
        ],
        written=version,
    )
    store.check_creation(topic, outcome)
    if outcome == b"exists":
        raise TopicExists(f"Topic is already scalable: {topic}.")
    if outcome == b"missing":
        raise TopicMissing(f"Topic does not exist: {seen.name}. Check its name, or create it.")
    if outcome == b"conflict":
        raise VersionConflict(f"{seen.name} was changed by somebody else meanwhile: try again.")
    return version
