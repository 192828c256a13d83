"""The frames of the hot paths, put together by hand: a message on its way to a consumer, and the receipt of one.

Protocol buffers would build each from objects, at several times the cost; a test compares the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from protocol.wire.pulsar_api_pb2 import BaseCommand

_SIZES: Final = Struct(">II")
_MASK: Final = (1 << 64) - 1

# BaseCommand: the type, then the message in the field of the same number.
_MESSAGE: Final = bytes((0x08, BaseCommand.MESSAGE, BaseCommand.MESSAGE << 3 | 2))
_RECEIPT: Final = bytes((0x08, BaseCommand.SEND_RECEIPT, BaseCommand.SEND_RECEIPT << 3 | 2))

# The id of a message that was not stored, because it had been before.
NOWHERE: Final = (_MASK, _MASK)


def varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


class MessageFrames:
    """Heads of MESSAGE frames for one consumer of one log; the stored bytes follow as they are."""

    __slots__ = ("_consumer", "_epoch", "_ledger", "_partition", "partition")

    def __init__(self, consumer_id: int, ledger: int, partition: int = -1, epoch: int | None = None) -> None:
        self._consumer = b"\x08" + varint(consumer_id)
        self._ledger = b"\x08" + varint(ledger) + b"\x10"
        self.partition = partition
        self._partition = b"" if partition < 0 else b"\x18" + varint(partition)
        self._epoch = b"" if epoch is None else b"\x28" + varint(epoch)

    def head(self, index: int, redeliveries: int, ack_set: Sequence[int], body: int) -> bytes:
        """Everything before a body of so many bytes."""
        position = self._ledger + varint(index) + self._partition
        message = self._consumer + b"\x12" + varint(len(position)) + position
        if redeliveries:
            message += b"\x18" + varint(redeliveries)
        for word in ack_set:
            message += b"\x20" + varint(word & _MASK)
        message += self._epoch
        command = _MESSAGE + varint(len(message)) + message
        return _SIZES.pack(4 + len(command) + body, len(command)) + command


def receipt(producer_id: int, sequence: int, highest: int, ledger: int, index: int) -> bytes:
    """A SEND_RECEIPT frame; `highest` 0 as the client sent it, or left it out."""
    position = b"\x08" + varint(ledger) + b"\x10" + varint(index)
    told = b"\x08" + varint(producer_id) + b"\x10" + varint(sequence)
    told += b"\x1a" + varint(len(position)) + position
    if highest:
        told += b"\x20" + varint(highest)
    command = _RECEIPT + varint(len(told)) + told
    return _SIZES.pack(4 + len(command), len(command)) + command
