"""How long a topic keeps what was consumed: its own word, else its namespace's, else the server's."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from layout import records
from metadata.records import StoredTopic
from metadata.store import TopicStore
from protocol.names import NamespaceName

FOR_EVER = -1


class RetentionPolicy(msgspec.Struct, frozen=True):
    """As Pulsar writes it. The size is kept and not acted on: segments are pruned whole, by age."""

    retentionTimeInMinutes: int  # noqa: N815  # a name of Pulsar's API; negative means for ever
    retentionSizeInMB: int = -1  # noqa: N815

    @property
    def ms(self) -> int:
        return FOR_EVER if self.retentionTimeInMinutes < 0 else self.retentionTimeInMinutes * 60_000


class NamespacePolicies(msgspec.Struct, frozen=True):
    """The part of a namespace's policies that is known here."""

    retention_policies: RetentionPolicy | None = None


class Retention:
    def __init__(self, store: TopicStore, *, default: float) -> None:
        self._store = store
        self._default_ms = int(default * 1000)
        self._seen: dict[NamespaceName, bytes | None] = {}

    async def of(self, topic: StoredTopic) -> int:
        """In milliseconds; negative: for ever."""
        own = records.decode(topic.value).retention_minutes
        if own is not None:
            return RetentionPolicy(own).ms
        return await self.of_namespace(topic.name.namespace_name)

    async def of_namespace(self, namespace: NamespaceName) -> int:
        """The same where a topic says nothing, as classic ones do."""
        policies = await self._store.get_namespace(namespace)
        try:
            chosen = msgspec.json.decode(policies or b"{}", type=NamespacePolicies).retention_policies
        except msgspec.DecodeError:
            # Nobody can tell what was meant: what is kept can still be pruned later.
            return FOR_EVER
        return self._default_ms if chosen is None else chosen.ms

    async def changed(self, namespaces: Collection[NamespaceName]) -> list[NamespaceName]:
        """Those of these whose policies are not what they were at the last call; the others are forgotten."""
        policies = await self._store.get_namespaces(namespaces)
        changed = [name for name, found in policies.items() if self._seen.get(name, found) != found]
        self._seen = policies
        return changed
