"""Who leads which topic: taken by compare-and-set, dropped, and listed."""

from __future__ import annotations

import os
import time
from typing import Final

from metadata import keys, scripts
from metadata.errors import StoreError, StoreUnavailable
from metadata.node_sessions import NodeRecord
from metadata.records import Leader, StoredTopic
from metadata.store import TopicStore, operation_id

# Topics without a leader that need one stand in the list with this instead of a session.
NOBODY: Final = ""
# Of a part of the store, in seconds: the rest must not wait for a server that is down.
_LIST_LIMIT: Final = 5.0


class Leaderships:
    """Writes and lists leaders. Whether one is alive is for `Peers` to say."""

    def __init__(self, store: TopicStore) -> None:
        self._store = store

    async def take(self, topic: StoredTopic, node: NodeRecord) -> Leader | None:
        """Put this node in the place of the leader that was seen; None if somebody was faster or the topic is gone."""
        before = topic.leader
        # The clock lets terms grow even where the last one was lost, the nonce tells two of the same number apart.
        term = max(time.time_ns() // 1_000_000, before.term + 1 if before is not None else 0)
        mine = Leader(node.session, term, os.urandom(8).hex(), node.pulsar_url, node.http_url)
        path = keys.path_of(topic.name)
        bucket = keys.bucket_of(path)
        outcome, _ = await self._store.commands.script(
            keys.BUCKET_SLOTS[bucket],
            scripts.TAKE_LEAD,
            [keys.record_key(path), keys.leaders_key(bucket), keys.changes_key(bucket)],
            [
                topic.version.incarnation,
                topic.leader_entry,
                mine.fence,
                node.session,
                path,
                self._store.change_log_length,
                operation_id(),
            ],
            repeatable=True,
        )
        return mine if outcome == b"done" else None

    async def drop(self, topic: StoredTopic, leader: Leader, *, idle: bool) -> bool:
        """End a leadership: `idle` if the topic needs no leader, unless somebody has registered since it was read."""
        path = keys.path_of(topic.name)
        bucket = keys.bucket_of(path)
        dropped = await self._store.commands.script(
            keys.BUCKET_SLOTS[bucket],
            scripts.DROP_LEAD,
            [keys.record_key(path), keys.leaders_key(bucket), keys.changes_key(bucket)],
            [
                topic.version.incarnation,
                leader.fence,
                str(topic.activity) if idle else "",
                path,
                self._store.change_log_length,
                operation_id(),
            ],
            repeatable=True,
        )
        return bool(dropped)

    async def listed(self) -> dict[str, str]:
        """The topics that need a leader, by path, each with the session of the one it has, or `NOBODY`."""
        found, complete = await self.listed_where_possible()
        if not complete:
            raise StoreUnavailable("A part of the store does not answer: it cannot be told who leads its topics.")
        return found

    async def listed_where_possible(self) -> tuple[dict[str, str], bool]:
        """Those in the part of the store that answers, and whether that is all of it."""
        replies = await self._store.bulk.gather_available(
            [(keys.BUCKET_SLOTS[bucket], ("HGETALL", keys.leaders_key(bucket))) for bucket in range(keys.BUCKETS)],
            limit=_LIST_LIMIT,
        )
        found = {
            path.decode(errors="replace"): session.decode(errors="replace")
            for reply in replies
            if not isinstance(reply, StoreError)
            for path, session in reply.items()
        }
        return found, not any(isinstance(reply, StoreUnavailable) for reply in replies)
