"""Topic records and namespaces in the store: read, list, and compare-and-set writes that know their own outcome."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import trio

from metadata import keys, scripts
from metadata.directory import Directory
from metadata.errors import (
    NamespaceExists,
    NamespaceMissing,
    NamespaceNotEmpty,
    StoreRefused,
    TopicExists,
    TopicMissing,
    VersionConflict,
)
from metadata.lanes import Lane, Timeouts
from metadata.link import Reply
from metadata.records import StoredTopic, Version
from metadata.unwrap import unwrapped
from metadata.urls import StoreUrl
from protocol.names import NamespaceName, TopicName

log = logging.getLogger(__name__)

FORMAT: Final = 1
# `#!lua` scripts, which refuse keys of a foreign slot, came with Redis 7.
_OLDEST_SERVER: Final = 7
# One reply of a listing: small enough that nobody on the bulk lane waits long, large enough to pipeline well.
_SLICE: Final = 256
# How far back the change log is searched for an operation whose reply was lost.
_SETTLE_DEPTH: Final = 1_000


class StoreIdentity(msgspec.Struct, frozen=True):
    """The content of `/store`: written once, by the first node that ever saw the store."""

    id: str
    format: int
    buckets: int


class TopicStore:
    """The lanes to the store and what is done on them. `open_store` makes one."""

    def __init__(self, url: StoreUrl, timeouts: Timeouts, *, change_log_length: int) -> None:
        self.url = url
        self.timeouts = timeouts
        self.directory = Directory(url, connect_timeout=timeouts.connect)
        self.commands = Lane("commands", self.directory, timeouts, scripts=scripts.ALL)
        self.bulk = Lane("bulk", self.directory, timeouts)
        self.leases = Lane("leases", self.directory, timeouts, scripts=scripts.ALL)
        self.identity = StoreIdentity("", FORMAT, keys.BUCKETS)
        self._change_log_length = change_log_length

    @property
    def lanes(self) -> tuple[Lane, ...]:
        return self.commands, self.bulk, self.leases

    async def initialise(self) -> None:
        """Find or found the store: refuse what cannot carry Vela, and learn its identity."""
        await self.directory.refresh()
        await self._check_server()
        founding = StoreIdentity(os.urandom(8).hex(), FORMAT, keys.BUCKETS)
        await self.commands.call(keys.STORE_SLOT, "SET", keys.STORE, msgspec.json.encode(founding), "NX")
        self.identity = _identity(await self.commands.call(keys.STORE_SLOT, "GET", keys.STORE))
        if self.identity.format > FORMAT:
            raise StoreRefused(
                f"the store has format {self.identity.format}, this Vela knows {FORMAT}: run a newer Vela on it"
            )
        if self.identity.buckets != keys.BUCKETS:
            raise StoreRefused(
                f"the store has {self.identity.buckets} buckets, this Vela works with {keys.BUCKETS}: use another store"
            )
        await self._mark_buckets(fresh=self.identity.id == founding.id)

    async def create(self, topic: TopicName, value: bytes, segments: Sequence[str]) -> Version:
        """Write a topic that must not exist, with the states of its first segments."""
        path = keys.path_of(topic)
        bucket = keys.bucket_of(path)
        op, incarnation = _operation_id(), _operation_id()
        outcome, version, interrupted = await self._write(
            bucket,
            scripts.CREATE_TOPIC,
            [
                keys.record_key(path),
                keys.index_key(bucket, topic.namespace_name),
                keys.changes_key(bucket),
                *(keys.segment_key(path, descriptor) for descriptor in segments),
            ],
            [op, incarnation, value, topic.local, path, self._change_log_length],
        )
        if outcome == b"done" or (interrupted and await self._settled(bucket, op)):
            return version if outcome == b"done" else Version(incarnation, 0)
        raise TopicExists(f"Scalable topic already exists: {topic}. Delete it first or choose another name.")

    async def replace(
        self,
        topic: TopicName,
        expected: Version,
        value: bytes,
        *,
        created: Sequence[str] = (),
        sealed: Sequence[str] = (),
        removed: Sequence[str] = (),
    ) -> Version:
        """Write a record if it is still the expected one, together with the segment states that change with it."""
        path = keys.path_of(topic)
        bucket = keys.bucket_of(path)
        op = _operation_id()
        outcome, version, interrupted = await self._write(
            bucket,
            scripts.REPLACE_TOPIC,
            [
                keys.record_key(path),
                keys.changes_key(bucket),
                *(keys.segment_key(path, descriptor) for descriptor in (*created, *sealed, *removed)),
            ],
            [
                op,
                expected.incarnation,
                expected.number,
                value,
                path,
                self._change_log_length,
                len(created),
                len(sealed),
            ],
        )
        if outcome == b"done":
            return version
        if interrupted and await self._settled(bucket, op):
            return Version(expected.incarnation, expected.number + 1)
        if outcome == b"missing":
            raise TopicMissing(f"Scalable topic not found: {topic}.")
        raise VersionConflict(f"{topic} was changed by somebody else meanwhile: read it again.")

    async def delete(self, topic: TopicName, expected: Version, segments: Sequence[str]) -> None:
        path = keys.path_of(topic)
        bucket = keys.bucket_of(path)
        op = _operation_id()
        outcome, _, interrupted = await self._write(
            bucket,
            scripts.DELETE_TOPIC,
            [
                keys.record_key(path),
                keys.index_key(bucket, topic.namespace_name),
                keys.changes_key(bucket),
                *(keys.segment_key(path, descriptor) for descriptor in segments),
            ],
            [op, expected.incarnation, expected.number, topic.local, path, self._change_log_length],
        )
        if outcome == b"done" or (interrupted and await self._settled(bucket, op)):
            return
        if outcome == b"missing":
            raise TopicMissing(f"Scalable topic not found: {topic}.")
        raise VersionConflict(f"{topic} was changed by somebody else meanwhile: read it again.")

    async def get(self, topic: TopicName) -> StoredTopic | None:
        [stored] = await read_topics(self.commands, [topic])
        return stored

    async def get_many(self, topics: Sequence[TopicName]) -> list[StoredTopic | None]:
        """Many records on the bulk lane, in slices, so that nobody else waits for all of them."""
        found: list[StoredTopic | None] = []
        for start in range(0, len(topics), _SLICE):
            found += await read_topics(self.bulk, topics[start : start + _SLICE])
        return found

    async def list_topics(self, namespace: NamespaceName) -> list[str]:
        """The local names of a namespace's topics, sorted: one exact read of each bucket's index."""
        replies = await self.bulk.gather(
            [
                (keys.BUCKET_SLOTS[bucket], ("HKEYS", keys.index_key(bucket, namespace)))
                for bucket in range(keys.BUCKETS)
            ]
        )
        return sorted(name.decode() for reply in replies for name in reply)

    async def create_namespace(self, namespace: NamespaceName, policies: bytes = b"{}") -> None:
        op = _operation_id()
        reply, _ = await self.commands.script(
            keys.NAMESPACES_SLOT, scripts.CREATE_NAMESPACE, [keys.NAMESPACES], [op, str(namespace), policies]
        )
        if reply != b"done":
            raise NamespaceExists(f"Namespace already exists: {namespace}.")

    async def ensure_namespace(self, namespace: NamespaceName) -> None:
        try:
            await self.create_namespace(namespace)
        except NamespaceExists:
            pass

    async def get_namespace(self, namespace: NamespaceName) -> bytes | None:
        """The namespace's policies as JSON, None where it does not exist."""
        value: bytes | None = await self.commands.call(keys.NAMESPACES_SLOT, "HGET", keys.NAMESPACES, str(namespace))
        return None if value is None else value[17:]

    async def delete_namespace(self, namespace: NamespaceName) -> None:
        if await self.get_namespace(namespace) is None:
            raise NamespaceMissing(f"Namespace does not exist: {namespace}.")
        if await self.list_topics(namespace):
            raise NamespaceNotEmpty(f"Namespace {namespace} still has topics: delete them first, or use force.")
        await self.commands.call(keys.NAMESPACES_SLOT, "HDEL", keys.NAMESPACES, str(namespace))

    async def list_namespaces(self, tenant: str | None = None) -> list[NamespaceName]:
        names: list[bytes] = await self.commands.call(keys.NAMESPACES_SLOT, "HKEYS", keys.NAMESPACES)
        found = (NamespaceName.parse(name.decode()) for name in sorted(names))
        return [name for name in found if tenant is None or name.tenant == tenant]

    async def _write(
        self,
        bucket: int,
        script: scripts.Script,
        script_keys: Sequence[bytes],
        args: Sequence[bytes | str | int],
    ) -> tuple[bytes, Version, bool]:
        reply, interrupted = await self.commands.script(keys.BUCKET_SLOTS[bucket], script, script_keys, args)
        outcome, incarnation, number = reply
        return outcome, Version(incarnation.decode(), int(number or 0)), interrupted

    async def _settled(self, bucket: int, op: str) -> bool:
        """Whether an operation whose reply was lost did happen: then the bucket's change log names it."""
        entries: list[Reply] = await self.commands.call(
            keys.BUCKET_SLOTS[bucket], "XREVRANGE", keys.changes_key(bucket), "+", "-", "COUNT", _SETTLE_DEPTH
        )
        wanted = op.encode()
        return any(wanted in fields for _, fields in entries)

    async def _check_server(self) -> None:
        for endpoint in self.directory.primaries():
            slot = next(s for s in range(16_384) if self.directory.owner(s) == endpoint)
            info = _info(await self.commands.call(slot, "INFO", "server", "memory"))
            version = info.get("redis_version", "0")
            if int(version.split(".")[0]) < _OLDEST_SERVER:
                raise StoreRefused(f"{endpoint} is version {version}: Vela needs Redis 7, Valkey 7.2 or newer")
            policy = info.get("maxmemory_policy", "noeviction")
            if policy != "noeviction":
                raise StoreRefused(
                    f"{endpoint} may evict topics under its maxmemory-policy {policy}: set it to noeviction"
                )

    async def _mark_buckets(self, *, fresh: bool) -> None:
        slots = keys.BUCKET_SLOTS
        mine = self.identity.id.encode()
        made: list[Reply] = await self.bulk.gather(
            [(slots[b], ("SET", keys.marker_key(b), mine, "NX")) for b in range(keys.BUCKETS)]
        )
        found = await self.bulk.gather([(slots[b], ("GET", keys.marker_key(b))) for b in range(keys.BUCKETS)])
        foreign = [b for b, marker in enumerate(found) if marker != mine]
        if foreign:
            raise StoreRefused(
                f"{len(foreign)} of the store's buckets belong to another Vela store: "
                "this is a mixture of two data sets; restore one of them"
            )
        missing = sum(1 for reply in made if reply is not None)
        if missing and not fresh:
            log.warning("%d of %d buckets carried no mark of this store and were marked now", missing, keys.BUCKETS)


@asynccontextmanager
async def open_store(
    url: str | StoreUrl, *, timeouts: Timeouts | None = None, change_log_length: int = 10_000
) -> AsyncIterator[TopicStore]:
    """A store that is connected, checked and ready for use inside the block."""
    store = TopicStore(
        StoreUrl.parse(url) if isinstance(url, str) else url,
        timeouts or Timeouts(),
        change_log_length=change_log_length,
    )
    with unwrapped():
        async with trio.open_nursery() as nursery:
            for lane in store.lanes:
                await nursery.start(lane.run)
            await store.initialise()
            yield store
            nursery.cancel_scope.cancel()


async def read_topics(lane: Lane, topics: Sequence[TopicName]) -> list[StoredTopic | None]:
    """The records of these topics as they are now, None where there is none."""
    paths = [keys.path_of(topic) for topic in topics]
    replies = await lane.gather(
        [
            (
                keys.BUCKET_SLOTS[keys.bucket_of(path)],
                ("HMGET", keys.record_key(path), "value", "incarnation", "version", "ctime", "mtime"),
            )
            for path in paths
        ]
    )
    return [_stored(topic, reply) for topic, reply in zip(topics, replies, strict=True)]


def _stored(topic: TopicName, reply: Reply) -> StoredTopic | None:
    value, incarnation, version, ctime, mtime = reply
    if incarnation is None:
        return None
    return StoredTopic(topic, value, Version(incarnation.decode(), int(version)), int(ctime), int(mtime))


def _operation_id() -> str:
    return os.urandom(8).hex()


def _identity(data: bytes | None) -> StoreIdentity:
    try:
        return msgspec.json.decode(data or b"", type=StoreIdentity)
    except msgspec.DecodeError:
        raise StoreRefused(
            f"the key {keys.STORE.decode()} of the store holds something else: {json.dumps(repr(data))[:80]}"
        ) from None


def _info(text: bytes | str) -> dict[str, str]:
    lines = (text.decode() if isinstance(text, bytes) else text).splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)
