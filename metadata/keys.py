"""Where things live in the store: buckets, hash slots and key names.

All keys of a topic carry the hash tag of its bucket, so that one script may touch all of them on a single
server and on a cluster alike.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote, unquote
from zlib import crc32

from redis.crc import key_slot

from protocol.names import NamespaceName, TopicName

BUCKETS = 128
STORE = b"/store"
NAMESPACES = b"/namespaces"
NODES = b"/nodes"
CHANGES_PREFIX = "/changes/"

_TAGS = tuple(f"{{b{bucket:03d}}}" for bucket in range(BUCKETS))
BUCKET_SLOTS: tuple[int, ...] = tuple(key_slot(tag.encode()) for tag in _TAGS)
_CHANGES = tuple(f"{CHANGES_PREFIX}{tag}".encode() for tag in _TAGS)
_BUCKET_OF_CHANGES = {key: bucket for bucket, key in enumerate(_CHANGES)}
STORE_SLOT: int = key_slot(STORE)
NAMESPACES_SLOT: int = key_slot(NAMESPACES)
NODES_SLOT: int = key_slot(NODES)


def slot_of(key: bytes) -> int:
    return int(key_slot(key))


def path_of(topic: TopicName) -> str:
    """A topic's place below its bucket, `tenant/namespace/name`, each part URL-encoded; the domain does not count."""
    return f"{_encode(topic.tenant)}/{_encode(topic.namespace)}/{_encode(topic.local)}"


@lru_cache(maxsize=1_024)
def namespace_path(namespace: NamespaceName) -> str:
    """What the paths of a namespace's topics begin with, without the slash."""
    return f"{_encode(namespace.tenant)}/{_encode(namespace.namespace)}"


def topic_at(path: str) -> TopicName:
    """The inverse of `path_of`."""
    tenant, namespace, local = (unquote(part) for part in path.split("/"))
    return TopicName("topic", tenant, namespace, local)


def bucket_of(path: str) -> int:
    # CRC-32 is fixed for ever: another function would lose every stored topic.
    return crc32(path.encode()) % BUCKETS


def record_key(path: str) -> bytes:
    return f"/topics/{_TAGS[bucket_of(path)]}/{path}".encode()


def segment_key(path: str, descriptor: str) -> bytes:
    return f"/segments/{_TAGS[bucket_of(path)]}/{path}/{descriptor}".encode()


def classic_key(path: str) -> bytes:
    """Hash: the state of a topic that is a single log, or of one partition of a classic topic."""
    return f"/classic/{_TAGS[bucket_of(path)]}/{path}".encode()


def partitioned_key(path: str) -> bytes:
    """Hash: how many partitions a classic topic has. They lie in buckets of their own, by their names."""
    return f"/partitioned/{_TAGS[bucket_of(path)]}/{path}".encode()


def log_key(owner: bytes, incarnation: str) -> bytes:
    """Stream: the entries of a segment. With the incarnation, so that a re-created topic never meets old data."""
    return owner + f"/{incarnation}/log".encode()


def cursors_key(owner: bytes, incarnation: str) -> bytes:
    """Hash: the name of each subscription to where it stands in that log."""
    return owner + f"/{incarnation}/cursors".encode()


def producers_key(owner: bytes, incarnation: str) -> bytes:
    """Hash: the name of each producer to its last sequence number and the index that it was stored at."""
    return owner + f"/{incarnation}/producers".encode()


def storage_keys(owner: bytes, incarnation: str) -> tuple[bytes, ...]:
    """All that a segment stored: what is deleted with it."""
    return log_key(owner, incarnation), cursors_key(owner, incarnation), producers_key(owner, incarnation)


def ledgers_key(bucket: int) -> bytes:
    """What the last ledger of this bucket was made of."""
    return f"/ledgers/{_TAGS[bucket]}".encode()


def subscriptions_key(path: str) -> bytes:
    """Hash: the name of each subscription of a topic to its type and settings."""
    return record_key(path) + b"/subscriptions"


def deleted_key(path: str) -> bytes:
    """List: subscriptions of a topic that were deleted, the last first: the id, a blank, the name."""
    return record_key(path) + b"/deleted"


def members_key(path: str, subscription: str) -> bytes:
    """Hash: the consumers of one subscription, where they are attached and what they are assigned."""
    return subscriptions_key(path) + f"/{_encode(subscription)}".encode()


def leaders_key(bucket: int) -> bytes:
    """Hash: the path of each topic that needs a leader to the node session that leads it, empty where none does."""
    return f"/leaders/{_TAGS[bucket]}".encode()


def garbage_key(bucket: int) -> bytes:
    """Hash: segments, as path and descriptor, whose storage is still to be deleted."""
    return f"/garbage/{_TAGS[bucket]}".encode()


def schemas_key(path: str, incarnation: str) -> bytes:
    """Hash: the versions of a topic's schema. With the incarnation, so that a re-created topic starts without any."""
    return f"/schemas/{_TAGS[bucket_of(path)]}/{path}/{incarnation}".encode()


def index_key(bucket: int, namespace: NamespaceName) -> bytes:
    return f"/index/{_TAGS[bucket]}/{_encode(namespace.tenant)}/{_encode(namespace.namespace)}".encode()


def classic_index_key(bucket: int, namespace: NamespaceName) -> bytes:
    """Hash: the name of each classic log of a namespace, partitions among them, to its incarnation."""
    return f"/classic-index/{_TAGS[bucket]}/{namespace_path(namespace)}".encode()


def partitioned_index_key(bucket: int, namespace: NamespaceName) -> bytes:
    """Hash: the name of each partitioned topic of a namespace to its incarnation."""
    return f"/partitioned-index/{_TAGS[bucket]}/{namespace_path(namespace)}".encode()


def closed_key(bucket: int, namespace: NamespaceName) -> bytes:
    """Stands while a namespace is deleted with its topics: no topic is created in it meanwhile."""
    return f"/closed/{_TAGS[bucket]}/{_encode(namespace.tenant)}/{_encode(namespace.namespace)}".encode()


def changes_key(bucket: int) -> bytes:
    return _CHANGES[bucket]


def bucket_of_changes_key(key: bytes) -> int | None:
    """The bucket whose change log this key is, None for any other key."""
    return _BUCKET_OF_CHANGES.get(key)


def bell_key(bucket: int) -> bytes:
    """A short-lived key below the change logs, written to see whether notifications arrive."""
    return _CHANGES[bucket] + b"/bell"


def marker_key(bucket: int) -> bytes:
    """Holds the store's id in each bucket: gone or another means that the bucket's data are not ours."""
    return f"/store/{_TAGS[bucket]}".encode()


def node_key(node_id: str) -> bytes:
    return f"/nodes/{node_id}".encode()


def _encode(part: str) -> str:
    return quote(part, safe="")
