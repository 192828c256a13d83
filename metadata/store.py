"""Topic records and namespaces in the store: read, list, and compare-and-set writes that know their own outcome."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Final

import msgspec
import trio
from msgspec import Meta

from metadata import keys, scripts
from metadata.complaints import complain
from metadata.directory import Directory
from metadata.errors import (
    Fenced,
    NamespaceClosing,
    NamespaceExists,
    NamespaceMissing,
    NamespaceNotEmpty,
    NameTaken,
    OutcomeUnknown,
    RecordDamaged,
    StoreError,
    StoreLost,
    TopicExists,
    TopicMissing,
    VersionConflict,
)
from metadata.identity import Identity
from metadata.index_entries import index_entries
from metadata.lanes import Lane, Timeouts
from metadata.link import Reply
from metadata.records import StoredTopic, Version
from metadata.stored_values import number
from metadata.unwrap import unwrapped
from metadata.urls import StoreUrl
from metadata.write_trouble import WriteTrouble
from protocol.errors import InvalidName
from protocol.names import NamespaceName, TopicName

log = logging.getLogger(__name__)

# One reply of a listing: small enough that nobody on the bulk lane waits long, large enough to pipeline well.
_SLICE: Final = 256
# What begins the fields of a record that say who owns which segment.
_OWNER: Final = b"owner:"
# What stands before the policies of a namespace: the operation that wrote them, and a blank.
_OP_LENGTH: Final = 17
# Entries of a change log that are looked through at a time.
_PAGE: Final = 1_000

# Where a bucket lists the topics of a namespace: scalable ones, unless another index is named.
IndexKey = Callable[[int, NamespaceName], bytes]
# Hears of every write of ours that changes a topic, when it is through: bucket, path, and what was done.
WriteListener = Callable[[int, str, scripts.Script], None]


class _EpochJson(msgspec.Struct):
    epoch: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None


_epoch_decoder: Final = msgspec.json.Decoder(_EpochJson)


class TopicStore:
    """The lanes to the store and what is done on them. `open_store` makes one."""

    def __init__(self, url: StoreUrl, timeouts: Timeouts, *, change_log_length: int) -> None:
        self.url = url
        self.timeouts = timeouts
        self.directory = Directory(url, connect_timeout=timeouts.connect)
        trouble = self.trouble = WriteTrouble()
        self.commands = Lane("commands", self.directory, timeouts, scripts=scripts.ALL, trouble=trouble)
        self.bulk = Lane("bulk", self.directory, timeouts, scripts=scripts.OF_BULK, trouble=trouble)
        self.appends = Lane("appends", self.directory, timeouts, scripts=(scripts.APPEND_ENTRIES,), trouble=trouble)
        self.leases = Lane("leases", self.directory, timeouts, scripts=scripts.ALL, trouble=trouble)
        self.identity = Identity(self.directory, self.commands, self.bulk)
        self.change_log_length = change_log_length
        self.on_write: WriteListener = lambda bucket, path, script: None

    @property
    def lanes(self) -> tuple[Lane, ...]:
        return self.commands, self.bulk, self.appends, self.leases

    async def create(self, topic: TopicName, value: bytes, segments: Sequence[str]) -> Version:
        """Write a topic that must not exist, with the states of its first segments."""
        path = keys.path_of(topic)
        bucket = keys.bucket_of(path)
        incarnation = operation_id()
        outcome, version = await self.write(
            path,
            scripts.CREATE_TOPIC,
            [
                keys.record_key(path),
                keys.index_key(bucket, topic.namespace_name),
                keys.changes_key(bucket),
                keys.marker_key(bucket),
                keys.closed_key(bucket, topic.namespace_name),
                keys.classic_key(path),
                keys.partitioned_key(path),
                *(keys.segment_key(path, descriptor) for descriptor in segments),
            ],
            [incarnation, value, topic.local, path, self.change_log_length, self.identity.mark, epoch_of(value)],
            written=Version(incarnation, 0),
        )
        if outcome == b"exists":
            raise TopicExists(f"Scalable topic already exists: {topic}. Delete it first or choose another name.")
        if outcome == b"classic":
            raise NameTaken(f"{topic} is a classic topic already, under persistent://: migrate it, or delete it first.")
        self.check_creation(topic, outcome)
        return version

    @staticmethod
    def check_creation(topic: TopicName, outcome: bytes) -> None:
        """Raise what forbids any creation in this place."""
        if outcome == b"lost":
            raise _lost()
        if outcome == b"closed":
            raise NamespaceClosing(
                f"Namespace {topic.namespace_name} is being deleted: wait for the end, or delete it again with force."
            )

    async def replace(
        self,
        topic: TopicName,
        expected: Version,
        value: bytes,
        *,
        created: Sequence[str] = (),
        sealed: Sequence[str] = (),
        removed: Sequence[str] = (),
        fence: bytes = b"",
        activity: int | None = None,
    ) -> Version:
        """Write a record if it is still the expected one, together with the segment states that change with it.

        With a `fence`, only while that is the entry of the topic's leader; with an `activity`, only if nobody has
        registered since that was read.
        """
        path = keys.path_of(topic)
        bucket = keys.bucket_of(path)
        outcome, version = await self.write(
            path,
            scripts.REPLACE_TOPIC,
            [
                keys.record_key(path),
                keys.changes_key(bucket),
                *(keys.segment_key(path, descriptor) for descriptor in (*created, *sealed, *removed)),
                *([keys.leaders_key(bucket)] if sealed else ()),
                *([keys.garbage_key(bucket)] if removed else ()),
            ],
            [
                expected.incarnation,
                expected.number,
                value,
                path,
                self.change_log_length,
                fence,
                len(created),
                len(sealed),
                "" if activity is None else activity,
                epoch_of(value),
                *removed,
            ],
            written=Version(expected.incarnation, expected.number + 1),
        )
        _check_expected(topic, outcome)
        return version

    async def delete(
        self, topic: TopicName, expected: Version, segments: Sequence[str], subscriptions: Sequence[str] = ()
    ) -> None:
        """Delete a topic with its schemas and its subscriptions, which must be all there are.

        Its segments go to the garbage list.
        """
        path = keys.path_of(topic)
        bucket = keys.bucket_of(path)
        outcome, _ = await self.write(
            path,
            scripts.DELETE_TOPIC,
            [
                keys.record_key(path),
                keys.index_key(bucket, topic.namespace_name),
                keys.changes_key(bucket),
                keys.leaders_key(bucket),
                keys.garbage_key(bucket),
                keys.subscriptions_key(path),
                *(keys.members_key(path, name) for name in subscriptions),
                keys.schemas_key(path, expected.incarnation),
                keys.deleted_key(path),
            ],
            [
                expected.incarnation,
                expected.number,
                topic.local,
                path,
                self.change_log_length,
                len(subscriptions),
                *subscriptions,
                *segments,
            ],
            written=expected,
        )
        _check_expected(topic, outcome)

    async def get(self, topic: TopicName) -> StoredTopic | None:
        [stored] = await self.read(self.commands, [topic])
        if isinstance(stored, RecordDamaged | StoreLost):
            raise stored
        return stored

    async def get_many(self, topics: Sequence[TopicName]) -> list[StoredTopic | None]:
        """Many records on the bulk lane, in slices, so that nobody else waits; None also for damaged ones."""
        found: list[StoredTopic | None] = []
        for start in range(0, len(topics), _SLICE):
            for stored in await self.read(self.bulk, topics[start : start + _SLICE]):
                if isinstance(stored, StoreLost):
                    raise stored
                found.append(None if isinstance(stored, RecordDamaged) else stored)
        return found

    async def read(
        self, lane: Lane, topics: Sequence[TopicName]
    ) -> Sequence[StoredTopic | RecordDamaged | StoreLost | None]:
        """The records of these topics as they are now, None where there is none.

        Absence in a bucket that does not carry the mark of our store says nothing: StoreLost stands in its place.
        """
        slots = keys.BUCKET_SLOTS
        paths = [keys.path_of(topic) for topic in topics]
        homes = [keys.bucket_of(path) for path in paths]
        buckets = list(dict.fromkeys(homes))
        records = [
            (slots[bucket], ("HGETALL", keys.record_key(path))) for bucket, path in zip(homes, paths, strict=True)
        ]
        # Behind the records: a flush between the two is then noticed, too.
        marks = [(slots[bucket], ("GET", keys.marker_key(bucket))) for bucket in buckets]
        replies = await lane.gather([*records, *marks], refusals=True)
        mine = self.identity.mark
        foreign = {bucket for bucket, mark in zip(buckets, replies[len(paths) :], strict=True) if mark != mine}
        found = [_stored(topic, reply) for topic, reply in zip(topics, replies, strict=False)]
        if not foreign:
            return found
        return [_lost() if it is None and home in foreign else it for it, home in zip(found, homes, strict=True)]

    async def list_topics(self, namespace: NamespaceName, index: IndexKey = keys.index_key) -> list[str]:
        """The local names of a namespace's topics, sorted: one exact read of each bucket's index."""
        slots = keys.BUCKET_SLOTS
        indexes = [(slots[b], ("HKEYS", index(b, namespace))) for b in range(keys.BUCKETS)]
        marks = [(slots[b], ("GET", keys.marker_key(b))) for b in range(keys.BUCKETS)]
        replies = await self.bulk.gather([*indexes, *marks])
        if any(mark != self.identity.mark for mark in replies[keys.BUCKETS :]):
            raise _lost()
        indexed = enumerate(replies[: keys.BUCKETS])
        classic = index is not keys.index_key
        named = (
            index_entries(bucket, namespace, dict.fromkeys(reply, b""), classic=classic) for bucket, reply in indexed
        )
        return sorted(name for entries in named for name in entries)

    async def list_buckets(
        self, lane: Lane, buckets: Sequence[int], namespace: NamespaceName, index: IndexKey = keys.index_key
    ) -> dict[int, dict[str, str]]:
        """The topics of a namespace with their incarnations, by bucket; without those that are not our store's now."""
        slots = keys.BUCKET_SLOTS
        indexes = [(slots[bucket], ("HGETALL", index(bucket, namespace))) for bucket in buckets]
        marks = [(slots[bucket], ("GET", keys.marker_key(bucket))) for bucket in buckets]
        replies = await lane.gather([*indexes, *marks], refusals=True)
        listed = zip(buckets, replies[: len(buckets)], replies[len(buckets) :], strict=True)
        mine = self.identity.mark
        return {
            bucket: index_entries(bucket, namespace, found, classic=index is not keys.index_key)
            for bucket, found, mark in listed
            if mark == mine and not isinstance(found, StoreError)
        }

    async def create_namespace(self, namespace: NamespaceName, policies: bytes = b"{}") -> None:
        if await self.get_namespace(namespace) is not None:
            raise NamespaceExists(f"Namespace already exists: {namespace}.")
        # Before it is there, so that no crash leaves a new namespace behind that takes no topics.
        await self.reopen_namespace(namespace)
        op = operation_id()
        reply = await self.commands.script(
            keys.NAMESPACES_SLOT,
            scripts.CREATE_NAMESPACE,
            [keys.NAMESPACES],
            [op, str(namespace), policies],
            repeatable=True,
        )
        if reply != b"done":
            raise NamespaceExists(f"Namespace already exists: {namespace}.")

    async def ensure_namespace(self, namespace: NamespaceName) -> None:
        if await self.get_namespace(namespace) is not None:
            return
        try:
            await self.create_namespace(namespace)
        except NamespaceExists:
            pass  # somebody else was faster

    async def get_namespace(self, namespace: NamespaceName) -> bytes | None:
        """The namespace's policies as JSON, None where it does not exist."""
        value: bytes | None = await self.commands.call(keys.NAMESPACES_SLOT, "HGET", keys.NAMESPACES, str(namespace))
        return None if value is None else _policies_in(value)

    async def get_namespaces(self, namespaces: Collection[NamespaceName]) -> dict[NamespaceName, bytes | None]:
        """The policies of each of them, None where it does not exist."""
        if not namespaces:
            return {}
        names = list(namespaces)
        values = await self.commands.call(keys.NAMESPACES_SLOT, "HMGET", keys.NAMESPACES, *map(str, names))
        return {name: None if value is None else _policies_in(value) for name, value in zip(names, values, strict=True)}

    async def replace_namespace(self, namespace: NamespaceName, expected: bytes, policies: bytes) -> None:
        """Write the policies of a namespace if they are still the expected ones."""
        outcome = await self.commands.script(
            keys.NAMESPACES_SLOT,
            scripts.REPLACE_NAMESPACE,
            [keys.NAMESPACES],
            [operation_id(), str(namespace), expected, policies],
            repeatable=True,
        )
        if outcome == b"missing":
            raise NamespaceMissing(f"Namespace does not exist: {namespace}. Check its name, or create it.")
        if outcome == b"conflict":
            raise VersionConflict(f"The policies of {namespace} were changed by somebody else meanwhile: try again.")

    async def close_namespace(self, namespace: NamespaceName) -> None:
        """Let no topic be created in a namespace from now on, until it is reopened or created anew."""
        await self.commands.gather(
            [
                (keys.BUCKET_SLOTS[bucket], scripts.CLOSE_NAMESPACE.command([keys.closed_key(bucket, namespace)], []))
                for bucket in range(keys.BUCKETS)
            ]
        )

    async def reopen_namespace(self, namespace: NamespaceName) -> None:
        await self.commands.gather(
            [
                (keys.BUCKET_SLOTS[bucket], ("UNLINK", keys.closed_key(bucket, namespace)))
                for bucket in range(keys.BUCKETS)
            ]
        )

    async def is_closed(self, namespace: NamespaceName) -> bool:
        """Whether somebody is deleting a namespace with its topics, or was interrupted while doing so."""
        marks = await self.commands.gather(
            [
                (keys.BUCKET_SLOTS[bucket], ("EXISTS", keys.closed_key(bucket, namespace)))
                for bucket in range(keys.BUCKETS)
            ]
        )
        return any(marks)

    async def delete_namespace(self, namespace: NamespaceName) -> None:
        if await self.get_namespace(namespace) is None:
            raise NamespaceMissing(f"Namespace does not exist: {namespace}. Check its name, or create it.")
        indexes = (keys.index_key, keys.classic_index_key, keys.partitioned_index_key)
        if any([await self.list_topics(namespace, index) for index in indexes]):
            raise NamespaceNotEmpty(f"Namespace {namespace} still has topics: delete them first, or use force.")
        await self.commands.call(keys.NAMESPACES_SLOT, "HDEL", keys.NAMESPACES, str(namespace))

    async def list_namespaces(self, tenant: str | None = None) -> list[NamespaceName]:
        names: list[bytes] = await self.commands.call(keys.NAMESPACES_SLOT, "HKEYS", keys.NAMESPACES)
        found = filter(None, map(_namespace_of, sorted(names)))
        return [name for name in found if tenant is None or name.tenant == tenant]

    async def write(
        self,
        path: str,
        script: scripts.Script,
        script_keys: Sequence[bytes],
        args: Sequence[bytes | str | int],
        *,
        written: Version,
    ) -> tuple[bytes, Version]:
        """Run a script on the topic at this path, under a new operation id, until its outcome is known.

        `written` is the version that it writes.
        """
        bucket = keys.bucket_of(path)
        try:
            return await self._write(bucket, script, script_keys, args, written=written)
        finally:
            # Before anybody is answered, and also where the outcome is "exists": who is told that may go and look.
            self.on_write(bucket, path, script)

    async def _write(
        self,
        bucket: int,
        script: scripts.Script,
        script_keys: Sequence[bytes],
        args: Sequence[bytes | str | int],
        *,
        written: Version,
    ) -> tuple[bytes, Version]:
        op = operation_id()
        give_up_at = trio.current_time() + self.timeouts.patience
        interrupted = False
        while True:
            try:
                outcome, incarnation, version = await self.commands.script(
                    keys.BUCKET_SLOTS[bucket], script, script_keys, [op, *args]
                )
            except OutcomeUnknown:
                interrupted = True
                # Looked up before it is sent again: a topic that was created and deleted meanwhile stays deleted.
                if await self.is_logged(bucket, op):
                    return b"done", written
                if trio.current_time() > give_up_at:
                    raise
                continue
            # The first sending may have arrived after all, and somebody else's write after it.
            if outcome != b"done" and interrupted and await self.is_logged(bucket, op):
                return b"done", written
            return outcome, Version(incarnation.decode(), int(version or 0))

    async def is_logged(self, bucket: int, op: str) -> bool:
        """Whether an operation happened: then the bucket's change log names it."""
        wanted = op.encode()
        end = b"+"
        for _ in range(0, self.change_log_length, _PAGE):
            entries: list[Reply] = await self.commands.call(
                keys.BUCKET_SLOTS[bucket], "XREVRANGE", keys.changes_key(bucket), end, "-", "COUNT", _PAGE
            )
            if any(wanted in fields for _, fields in entries):
                return True
            if len(entries) < _PAGE:
                return False
            end = b"(" + entries[-1][0]
        return False


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
            await store.directory.refresh()
            await store.identity.establish()
            yield store
            nursery.cancel_scope.cancel()


def _stored(topic: TopicName, reply: Reply) -> StoredTopic | RecordDamaged | None:
    try:
        if b"incarnation" not in reply:
            return None
        return StoredTopic(
            topic,
            bytes(reply[b"value"]),
            Version(reply[b"incarnation"].decode(), number(reply[b"version"])),
            number(reply[b"ctime"]),
            number(reply[b"mtime"]),
            reply.get(b"leader", b""),
            number(reply.get(b"activity", 0)),
            {number(key[len(_OWNER) :]): owner.decode() for key, owner in reply.items() if key.startswith(_OWNER)},
        )
    except (KeyError, TypeError, ValueError):
        # Something that no script of ours wrote.
        return RecordDamaged(
            f"What is stored for {topic}, under {keys.record_key(keys.path_of(topic)).decode()}, is not the record of a"
            " topic: restore or remove it."
        )


def _policies_in(value: bytes) -> bytes:
    """Of what is not as we write it, all: nobody can read that, and takes it for policies that say nothing."""
    return value[_OP_LENGTH:] if value[_OP_LENGTH - 1 : _OP_LENGTH] == b" " else value


def _namespace_of(name: bytes) -> NamespaceName | None:
    """None for a field that is no name: it hides only itself."""
    try:
        return NamespaceName.parse(name.decode())
    except (UnicodeDecodeError, InvalidName):
        complain(log, "%s has a field that is no namespace: %r; remove it", keys.NAMESPACES.decode(), name[:64])
        return None


def epoch_of(value: bytes) -> int | str:
    """The epoch of a record's layout, for the change log; empty for a value that is no record: not ours to judge."""
    try:
        epoch = _epoch_decoder.decode(value).epoch
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return "" if epoch is None else epoch


def _check_expected(topic: TopicName, outcome: bytes) -> None:
    if outcome == b"missing":
        raise TopicMissing(f"Scalable topic not found: {topic}. Check its name, or create it.")
    if outcome == b"fenced":
        raise Fenced(f"This node does not lead {topic} any more: try again.")
    if outcome == b"conflict":
        raise VersionConflict(f"{topic} was changed by somebody else meanwhile: read it again.")


def _lost() -> StoreLost:
    return StoreLost("The store has lost its identity (flushed, or another data set): restore it or restart Vela.")


def operation_id() -> str:
    return os.urandom(8).hex()
