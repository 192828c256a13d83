"""What the store holds, as the watchers of a task should show it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from layout import records
from layout.errors import InvalidRecord
from metadata.store import TopicStore
from protocol.hashing import topic_set_hash
from protocol.names import NamespaceName, TopicName
from spark.replay.views import NamespaceView, Segments, TopicView, View


@dataclass(frozen=True, slots=True)
class NamespaceState:
    names: frozenset[str]  # full ones
    hash: str
    topics: tuple[str, ...]  # local ones, in order


@dataclass(frozen=True, slots=True)
class TopicState:
    epoch: int
    segments: Segments
    created_us: int


@dataclass(frozen=True, slots=True)
class Expected:
    """For each watcher its namespace or its topic; a topic that is not in here is not in the store."""

    namespaces: Mapping[NamespaceName, NamespaceState]
    topics: Mapping[str, TopicState]  # by full name

    def is_shown_by(self, view: View) -> bool:
        if isinstance(view, NamespaceView):
            state = self.namespaces[view.in_store]
            return view.is_known and len(view.names) == len(state.names) and view.hash == state.hash
        return not self.missing_from(view)

    def missing_from(self, view: View) -> int:
        """How many states of the store a watcher does not show; names that it shows and should not count as well."""
        if isinstance(view, NamespaceView):
            # At least one: without it a hash that differs for whatever reason would pass.
            return 0 if self.is_shown_by(view) else max(1, len(view.names ^ self.namespaces[view.in_store].names))
        assert isinstance(view, TopicView)
        state = self.topics.get(view.name)
        if state is None:
            return int(not view.gone)
        return int(view.gone or view.epoch != state.epoch or view.segments != state.segments)

    def was_recreated(self, view: TopicView) -> bool:
        """Whether there is a topic which is not the one that the watcher was shown at first."""
        state = self.topics.get(view.name)
        return state is not None and state.created_us > view.shown_us


async def read_namespaces(
    store: TopicStore, namespaces: Iterable[NamespaceName]
) -> Mapping[NamespaceName, NamespaceState]:
    found = {}
    for namespace in dict.fromkeys(namespaces):
        topics = await store.list_topics(namespace)
        names = frozenset(f"topic://{namespace}/{topic}" for topic in topics)
        found[namespace] = NamespaceState(names, topic_set_hash(names), tuple(topics))
    return found


async def read_topics(store: TopicStore, views: Iterable[View]) -> Mapping[str, TopicState]:
    """The topics that are watched by themselves, without those that are not there."""
    names = {view.name: TopicName.parse(view.name) for view in views if isinstance(view, TopicView)}
    found = {}
    for name, stored in zip(names, await store.get_many(list(names.values())), strict=True):
        if stored is None:
            continue
        try:
            layout = records.decode_layout(stored.value)
        except InvalidRecord:
            continue  # nothing can be shown of it
        # With times, as the wire tells them: a topic made anew may have the segments of the one before.
        segments = {
            number: (segment.range.start, segment.range.end, max(0, segment.created_at_ms))
            for number, segment in layout.segments.items()
        }
        found[name] = TopicState(layout.epoch, segments, stored.ctime_ms * 1_000)
    return found
