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
_NOWHERE: Final = b"\x08" + b"\xff" * 9 + b"\x01\x10" + b"\xff" * 9 + b"\x01"


def varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


class MessageFrames:
    """Heads of MESSAGE frames for one consumer of one log; the stored bytes follow as they are."""

    __slots__ = ("_consumer", "_epoch", "_ledger", "_newest", "_partition", "_plain", "partition")

    def __init__(self, consumer_id: int, ledger: int, partition: int = -1, epoch: int | None = None) -> None:
        self._consumer = b"\x08" + varint(consumer_id)
        self._ledger = b"\x08" + varint(ledger) + b"\x10"
        self.partition = partition
        self._partition = b"" if partition < 0 else b"\x18" + varint(partition)
        self._epoch = b"" if epoch is None else b"\x28" + varint(epoch)
        self._newest = -1 if epoch is None else epoch
        # By the size of an index: what comes before it in the command of a first delivery, what behind, and the size.
        self._plain: dict[int, tuple[bytes, bytes, int]] = {}

    def begin_epoch(self, epoch: int) -> None:
        """The client wants everything again, and drops what carries an epoch before this one."""
        if epoch > self._newest:
            self._newest = epoch
            self._epoch = b"\x28" + varint(epoch)
            self._plain.clear()

    def head(self, index: int, redeliveries: int, ack_set: Sequence[int], body: int) -> bytes:
        """Everything before a body of so many bytes."""
        number = varint(index)
        if not redeliveries and not ack_set:
            before, behind, size = self._plain.get(len(number)) or self._first_delivery(len(number))
            return b"%b%b%b%b" % (_SIZES.pack(4 + size + body, size), before, number, behind)
        command = self._command(number, redeliveries, ack_set)
        return _SIZES.pack(4 + len(command) + body, len(command)) + command

    def _command(self, number: bytes, redeliveries: int, ack_set: Sequence[int]) -> bytes:
        position = self._ledger + number + self._partition
        message = self._consumer + b"\x12" + varint(len(position)) + position
        if redeliveries:
            message += b"\x18" + varint(redeliveries)
        for word in ack_set:
            message += b"\x20" + varint(word & _MASK)
        message += self._epoch
        return _MESSAGE + varint(len(message)) + message

    def _first_delivery(self, size: int) -> tuple[bytes, bytes, int]:
        behind = self._partition + self._epoch
        command = self._command(bytes(size), 0, ())
        before = command[: len(command) - len(behind) - size]
        self._plain[size] = before, behind, len(command)
        return self._plain[size]


class Receipts:
    """SEND_RECEIPT frames of one log."""

    __slots__ = ("_ledger",)

    def __init__(self, ledger: int) -> None:
        self._ledger = b"\x08" + varint(ledger) + b"\x10"

    def frame(self, producer_id: int, sequence: int, highest: int, index: int | None) -> bytes:
        """`highest` is 0 as the client sent it, or left it out; no index: it is not known where the message stands."""
        position = _NOWHERE if index is None else self._ledger + varint(index)
        told = b"\x08%b\x10%b\x1a%c%b" % (varint(producer_id), varint(sequence), len(position), position)
        if highest:
            told += b"\x20" + varint(highest)
        # Never long enough for a second byte of a length: six numbers of ten bytes at most.
        size = len(_RECEIPT) + 1 + len(told)
        return b"%b%b%c%b" % (_SIZES.pack(4 + size, size), _RECEIPT, len(told), told)
