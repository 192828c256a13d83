"""What a server has to know of the metadata inside an entry: how many messages, when it is due, whose chunk it is."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from metadata.log_entries import StoredEntry
from protocol.errors import ProtocolError
from protocol.framing import metadata_in
from protocol.wire import pulsar_api_pb2 as api

# The tags of `deliver_at_time` and `chunk_id` as they are encoded. Bytes that only look like them cost a parse.
_DUE_TAG: Final = b"\x98\x01"
_CHUNK_TAG: Final = b"\xe8\x01"
# Longer ids of chunked messages are known by their digest, so that no client decides what one costs.
_LONGEST_ID: Final = 64


class Traits(NamedTuple):
    """What makes an entry special to those who hand it out."""

    due_ms: int  # 0 if at once
    chunked: str | None  # which message it is a chunk of


_PLAIN: Final = Traits(0, None)


def traits_of(entry: StoredEntry) -> Traits:
    """Of what cannot be read, nothing is special: somebody has to get it, and say what is wrong with it."""
    try:
        encoded = metadata_in(entry.body)
        if _DUE_TAG not in encoded and _CHUNK_TAG not in encoded:
            return _PLAIN
        metadata = api.MessageMetadata.FromString(encoded)
    except (ProtocolError, DecodeError):
        return _PLAIN
    return Traits(max(0, metadata.deliver_at_time), _chunked(metadata))


def last_batch_index(entry: StoredEntry) -> int:
    """The place of the last message in its batch, also in one of a single message; -1 if the entry is no batch."""
    try:
        metadata = api.MessageMetadata.FromString(metadata_in(entry.body))
    except (ProtocolError, DecodeError):
        return -1
    return max(-1, metadata.num_messages_in_batch - 1) if metadata.HasField("num_messages_in_batch") else -1


def _chunked(metadata: api.MessageMetadata) -> str | None:
    if not (metadata.HasField("uuid") and metadata.HasField("chunk_id")) or metadata.num_chunks_from_msg < 2:
        return None
    # Nobody has looked into what is stored: protocol buffers give a string that is not UTF-8 as its bytes.
    uuid = metadata.uuid
    if isinstance(uuid, str) and len(uuid) <= _LONGEST_ID:
        return uuid
    raw = uuid.encode(errors="surrogateescape") if isinstance(uuid, str) else bytes(uuid)
    return blake2b(raw, digest_size=32).hexdigest()
