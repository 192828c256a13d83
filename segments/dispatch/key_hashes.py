"""On which hash of the ring an entry falls, by the key that its metadata names."""

from base64 import b64decode
from binascii import Error as Base64Error

from google.protobuf.message import DecodeError

from metadata.log_entries import StoredEntry
from protocol.errors import ProtocolError
from protocol.framing import metadata_in
from protocol.hashing import bucket_hash
from protocol.wire import pulsar_api_pb2 as api


def key_hash(entry: StoredEntry) -> int:
    """A batch has the key of its outer metadata: clients that care put one key into a batch.

    A message without a key falls anywhere, but always on the same place. One whose metadata cannot be read falls
    on the first: somebody has to get it, and say what is wrong with it.
    """
    try:
        key = _key(api.MessageMetadata.FromString(metadata_in(entry.body)))
    except (ProtocolError, DecodeError):
        return 0
    return bucket_hash(key)


def _key(metadata: api.MessageMetadata) -> bytes:
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    if not metadata.HasField("partition_key"):
        return _bytes_of(metadata.producer_name) + b"-%d" % metadata.sequence_id
    text = _bytes_of(metadata.partition_key)
    if metadata.partition_key_b64_encoded:
        try:
            return b64decode(text, validate=True)
        except Base64Error:
            pass  # flagged wrongly: the text is as good a key
    return text


def _bytes_of(text: str | bytes) -> bytes:
    """Nobody has looked into what is stored: protocol buffers give a string that is not UTF-8 as its bytes."""
    return text if isinstance(text, bytes) else text.encode()
