"""Namespace watches as their clients see them: sets kept from frames, each of which is checked before it is applied."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from protocol.hashing import topic_set_hash
from protocol.names import NamespaceName
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.properties.truth import Filters


class Diff(NamedTuple):
    added: frozenset[str]
    removed: frozenset[str]


class Mirror:
    """One watch. `base` is the set whose hash it was opened with, if it was opened with a right one.

    `named` holds the topics in diffs since the last `anchor`, None once a snapshot has made the question moot.
    """

    def __init__(
        self,
        watch_id: int,
        namespace: NamespaceName,
        filters: Filters = (),
        *,
        base: Iterable[str] | None = None,
        wrong_hash: str | None = None,
        silent: bool = False,
    ) -> None:
        self.watch_id = watch_id
        self.namespace = namespace
        self.filters = filters
        self.topics: set[str] = set(base or ())
        self.known = base is not None
        self.silent = silent  # nothing at all may be told
        self.current_hash = topic_set_hash(self.topics) if base is not None else wrong_hash
        self.snapshots = 0
        self.diffs: list[Diff] = []
        self.named: set[str] | None = None

    def __str__(self) -> str:
        return f"watch {self.watch_id} of {self.namespace} {dict(self.filters)}"

    @property
    def hash(self) -> str:
        return topic_set_hash(self.topics)

    def anchor(self) -> None:
        """From here on it is remembered which topics are named."""
        self.named = set()

    def opening(self) -> BaseCommand:
        command = BaseCommand(type=BaseCommand.WATCH_SCALABLE_TOPICS)
        request = command.watchScalableTopics
        request.watch_id = self.watch_id
        request.namespace = str(self.namespace)
        for key, value in self.filters:
            request.property_filters.add(key=key, value=value)
        if self.current_hash is not None:
            request.current_hash = self.current_hash
        return command

    def take(self, update: api.CommandWatchScalableTopicsUpdate) -> None:
        assert not update.HasField("error"), f"{self} was told {update.error}: {update.message}"
        assert not self.silent, f"{self} knew everything already and was told {str(update)[:200]}"
        match update.WhichOneof("event"):
            case "snapshot":
                self._replace(update.snapshot.topics)
            case "diff":
                self._change(update.diff.added, update.diff.removed)
            case other:
                raise AssertionError(f"{self} was told {other}")

    def _replace(self, topics: Iterable[str]) -> None:
        names = list(topics)
        self.topics = set(names)
        assert len(names) == len(self.topics), f"{self}: a snapshot names a topic twice"
        self.known = True
        self.snapshots += 1
        self.named = None

    def _change(self, added: Iterable[str], removed: Iterable[str]) -> None:
        come, gone = list(added), list(removed)
        assert self.known, f"{self}: a diff before the snapshot"
        assert come or gone, f"{self}: an empty diff"
        assert len(come) == len(set(come)), f"{self}: added twice in one diff: {come}"
        assert len(gone) == len(set(gone)), f"{self}: removed twice in one diff: {gone}"
        assert self.topics.issuperset(gone), f"{self}: removed what was not there: {set(gone) - self.topics}"
        self.topics.difference_update(gone)
        assert self.topics.isdisjoint(come), f"{self}: added what was there: {self.topics & set(come)}"
        self.topics.update(come)
        self.diffs.append(Diff(frozenset(come), frozenset(gone)))
        if self.named is not None:
            self.named.update(gone, come)
