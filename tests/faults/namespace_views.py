"""Namespace watches as their clients see them: a set that follows every frame, and objects to what cannot be."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

import trio

from gateway.node import Node
from layout import records
from metadata.store import TopicStore
from protocol.client.connection import ClientConnection, connect
from protocol.client.connection_watches import RawNamespaceWatch
from protocol.hashing import topic_set_hash
from protocol.names import NamespaceName, TopicName
from protocol.wire import pulsar_api_pb2 as api
from tests.support.nodes import CONVERGENCE_LIMIT
from tests.support.waiting import eventually

Update = api.CommandWatchScalableTopicsUpdate


class NamespaceView:
    """One watch: what it holds, and every update in order."""

    def __init__(self, namespace: NamespaceName, filters: Mapping[str, str], held: Iterable[str] | None) -> None:
        self.namespace = namespace
        self.filters = filters
        self.held: set[str] | None = None if held is None else set(held)
        self.updates: list[Update] = []
        self.ended = trio.CancelScope()

    @property
    def kinds(self) -> list[str | None]:
        return [update.WhichOneof("event") for update in self.updates]

    @property
    def hash(self) -> str:
        assert self.held is not None
        return topic_set_hash(self.held)

    async def follow(self, watch: RawNamespaceWatch) -> None:
        with self.ended:
            while True:
                for update in await watch.next_all():
                    self.updates.append(update)
                    self._apply(update)

    def _apply(self, update: Update) -> None:
        assert not update.HasField("error"), update
        if update.HasField("snapshot"):
            self.held = set(update.snapshot.topics)
            return
        added, removed = set(update.diff.added), set(update.diff.removed)
        assert added or removed, "an empty diff"
        assert self.held is not None, "a diff before the snapshot"
        assert removed <= self.held, f"removed what was not there: {removed - self.held}"
        self.held -= removed
        assert not added & self.held, f"added what was there: {added & self.held}"
        self.held |= added


class NamespaceViewer:
    """A connection with namespace watches on it."""

    def __init__(self, connection: ClientConnection, nursery: trio.Nursery) -> None:
        self.connection = connection
        self.views: list[NamespaceView] = []
        self._nursery = nursery

    async def watch(
        self,
        namespace: str = "public/default",
        filters: Mapping[str, str] | None = None,
        *,
        held: Iterable[str] | None = None,
        watch_id: int | None = None,
    ) -> NamespaceView:
        """Open a watch, with the hash of what is held already if that is anything."""
        view = NamespaceView(NamespaceName.parse(namespace), filters or {}, held)
        watch = await self.connection.open_namespace_watch(
            namespace, properties=filters, current_hash=None if held is None else view.hash, watch_id=watch_id
        )
        self.views.append(view)
        self._nursery.start_soon(view.follow, watch)
        return view


@asynccontextmanager
async def viewing_namespaces(node: Node) -> AsyncIterator[NamespaceViewer]:
    async with connect(node.pulsar_url) as connection, trio.open_nursery() as nursery:
        yield NamespaceViewer(connection, nursery)
        nursery.cancel_scope.cancel()


async def stored_names(store: TopicStore, view: NamespaceView) -> set[str]:
    """What this watch should hold, by a fresh read of the store."""
    namespace = view.namespace
    names = await store.list_topics(namespace)
    topics = [TopicName.scalable(namespace.tenant, namespace.namespace, name) for name in names]
    if not view.filters:
        return set(map(str, topics))
    found = await store.get_many(topics)
    return {
        str(stored.name)
        for stored in found
        if stored is not None and view.filters.items() <= records.decode(stored.value).properties.items()
    }


async def until_equal(store: TopicStore, views: Sequence[NamespaceView], within: float = CONVERGENCE_LIMIT) -> None:
    """Wait until every view holds what the store says."""

    async def equal() -> bool:
        for view in views:
            expected = await stored_names(store, view)
            assert view.held == expected, f"{view.namespace} {view.filters}: {view.held} instead of {expected}"
        return True

    await eventually(equal, within)
