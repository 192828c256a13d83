"""How long a topic keeps what was consumed: its own word, else its namespace's, else the server's."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import msgspec

from layout import records
from layout.errors import LayoutError
from metadata.errors import RecordDamaged
from metadata.records import StoredTopic
from metadata.store import TopicStore
from metadata.stored_values import UNREADABLE
from protocol.names import NamespaceName

NO_LIMIT: Final = -1
_MEGABYTE: Final = 1024 * 1024
_MOST: Final = 2**40


@dataclass(frozen=True, slots=True)
class Kept:
    """What was consumed goes once it is past either of these; negative: no limit."""

    ms: int
    bytes: int = NO_LIMIT  # of one log

    def segments_ms(self, at_least_ms: int) -> int:
        """How long segments stay once they are sealed; negative: for ever.

        They go whole, and their youngest message may be as young as the seal: so not before that is past what every
        message stays at least.
        """
        ms = 0 if self.bytes == 0 else self.ms
        return ms if ms < 0 else max(ms, at_least_ms)


FOR_EVER: Final = Kept(NO_LIMIT)


class RetentionPolicy(msgspec.Struct, frozen=True):
    """As Pulsar writes it; negative means that there is no limit."""

    retentionTimeInMinutes: int  # noqa: N815  # a name of Pulsar's API
    retentionSizeInMB: int = NO_LIMIT  # noqa: N815

    @property
    def kept(self) -> Kept:
        minutes, megabytes = self.retentionTimeInMinutes, self.retentionSizeInMB
        # What is stored may be any number: beyond these it makes no difference.
        ms = NO_LIMIT if minutes < 0 else min(minutes, _MOST) * 60_000
        return Kept(ms, NO_LIMIT if megabytes < 0 else min(megabytes, _MOST) * _MEGABYTE)


class NamespacePolicies(msgspec.Struct, frozen=True):
    """The part of a namespace's policies that is known here."""

    retention_policies: RetentionPolicy | None = None


class Retention:
    def __init__(self, store: TopicStore, *, default: float) -> None:
        self._store = store
        self._default = Kept(int(default * 1000))
        self._seen: dict[NamespaceName, bytes | None] = {}

    async def of(self, topic: StoredTopic) -> Kept:
        try:
            record = records.decode(topic.value)
        except LayoutError as error:
            raise RecordDamaged(f"The record of {topic.name} is damaged ({error}): restore it.") from error
        if record.retention_minutes is not None:
            return RetentionPolicy(record.retention_minutes, record.retention_megabytes).kept
        return await self.of_namespace(topic.name.namespace_name)

    async def of_namespace(self, namespace: NamespaceName) -> Kept:
        """The same where a topic says nothing, as classic ones do."""
        try:
            policies = await self._store.get_namespace(namespace)
            chosen = msgspec.json.decode(
                b"{}" if policies is None else policies, type=NamespacePolicies
            ).retention_policies
        except (RecordDamaged, *UNREADABLE):
            # Nobody can tell what was meant: what is kept can still be pruned later.
            return FOR_EVER
        return self._default if chosen is None else chosen.kept

    async def changed(self, namespaces: Collection[NamespaceName]) -> list[NamespaceName]:
        """Those of these whose policies are not what they were at the last call; the others are forgotten."""
        try:
            policies = await self._store.get_namespaces(namespaces)
        except RecordDamaged:
            return []  # nobody can tell, and whoever waits for more than this is not held up by it
        changed = [name for name, found in policies.items() if self._seen.get(name, found) != found]
        self._seen = policies
        return changed
