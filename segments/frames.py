"""The frames of the hot paths, put together by hand: a message on its way to a consumer, and the receipt of one.

Protocol buffers would build each from objects, at several times the cost; a test compares the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
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


# Bytes of a number: the last of them, and those that others follow.
_LAST: Final = tuple(bytes((value,)) for value in range(0x80))
_FOLLOWED: Final = tuple(bytes((value | 0x80,)) for value in range(0x80))
# Sizes of messages for which a consumer has the begin of their frames ready.
_SIZES_READY: Final = 256


def varint(value: int) -> bytes:
    if value < 0x80:
        return _LAST[value]
    return _FOLLOWED[value & 0x7F] + _high_bytes(value >> 7)


@lru_cache(maxsize=4_096)
def _high_bytes(value: int) -> bytes:
    """Numbers of messages count up: all but the lowest byte is the same for many in a row."""
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


class MessageFrames:
    """Heads of MESSAGE frames for one consumer of one log; the stored bytes follow as they are."""

    __slots__ = ("_begin", "_consumer", "_epoch", "_high", "_ledger", "_newest", "_partition", "_rest", "partition")

    def __init__(self, consumer_id: int, ledger: int, partition: int = -1, epoch: int | None = None) -> None:
        self._consumer = b"\x08" + varint(consumer_id)
        self._ledger = b"\x08" + varint(ledger) + b"\x10"
        self.partition = partition
        self._partition = b"" if partition < 0 else b"\x18" + varint(partition)
        self._epoch = b"" if epoch is None else b"\x28" + varint(epoch)
        self._newest = -1 if epoch is None else epoch
        # Of first deliveries, whose frames differ little: all but the lowest seven bits of the index, what follows that
        # lowest byte in the command, and what comes before it, by the size of the body.
        self._high = -1
        self._rest = b""
        self._begin: dict[int, bytes] = {}

    def begin_epoch(self, epoch: int) -> None:
        """The client wants everything again, and drops what carries an epoch before this one."""
        if epoch > self._newest:
            self._newest = epoch
            self._epoch = b"\x28" + varint(epoch)
            self._high = -1
            self._begin.clear()

    def head(self, index: int, redeliveries: int, ack_set: Sequence[int], body: int) -> bytes:
        """Everything before a body of so many bytes."""
        if redeliveries or ack_set or index < 0x80:
            command = self._command(varint(index), redeliveries, ack_set)
            return _SIZES.pack(4 + len(command) + body, len(command)) + command
        if index >> 7 != self._high:
            self._turn_to(index >> 7)
        begin = self._begin.get(body) or self._begin_of(index, body)
        return begin + _FOLLOWED[index & 0x7F] + self._rest

    def _command(self, number: bytes, redeliveries: int, ack_set: Sequence[int]) -> bytes:
        position = self._ledger + number + self._partition
        message = self._consumer + b"\x12" + varint(len(position)) + position
        if redeliveries:
            message += b"\x18" + varint(redeliveries)
        for word in ack_set:
            message += b"\x20" + varint(word & _MASK)
        message += self._epoch
        return _MESSAGE + varint(len(message)) + message

    def _turn_to(self, high: int) -> None:
        rest = varint(high) + self._partition + self._epoch
        if len(rest) != len(self._rest):
            self._begin.clear()  # it has lengths in it
        self._high, self._rest = high, rest

    def _begin_of(self, index: int, body: int) -> bytes:
        command = self._command(varint(index), 0, ())
        if len(self._begin) >= _SIZES_READY:
            self._begin.clear()
        begin = self._begin[body] = _SIZES.pack(4 + len(command) + body, len(command)) + command[: -1 - len(self._rest)]
        return begin


class Receipts:
    """SEND_RECEIPT frames of one log."""

    __slots__ = ("_ledger",)

    def __init__(self, ledger: int) -> None:
        self._ledger = b"\x08" + varint(ledger) + b"\x10"

    def frame(self, producer_id: int, sequence: int, highest: int, index: int | None) -> bytes:
        """`highest` is 0 as the client sent it, or left it out; no index: it is not known where the message stands."""
        if highest or index is None or sequence < 0x80 or index < 0x80:
            return self._frame(producer_id, sequence, highest, index)
        end = _high_bytes(index >> 7)
        begin, middle = _around_sequence(self._ledger, producer_id, sequence >> 7, len(end))
        return begin + _FOLLOWED[sequence & 0x7F] + middle + _FOLLOWED[index & 0x7F] + end

    def _frame(self, producer_id: int, sequence: int, highest: int, index: int | None) -> bytes:
        position = _NOWHERE if index is None else self._ledger + varint(index)
        told = b"\x08%b\x10%b\x1a%c%b" % (varint(producer_id), varint(sequence), len(position), position)
        if highest:
            told += b"\x20" + varint(highest)
        # Never long enough for a second byte of a length: six numbers of ten bytes at most.
        size = len(_RECEIPT) + 1 + len(told)
        return b"%b%b%c%b" % (_SIZES.pack(4 + size, size), _RECEIPT, len(told), told)


@lru_cache(maxsize=4_096)
def _around_sequence(ledger: bytes, producer_id: int, sequence: int, index_size: int) -> tuple[bytes, bytes]:
    """What stands in receipts before the lowest byte of the sequence number, of which the rest is given, and from there
    to the index, of which the size is given but for its lowest byte.

    It is the same for many in a row, as numbers count up.
    """
    middle = varint(sequence) + b"\x1a%c%b" % (len(ledger) + 1 + index_size, ledger)
    begin = b"\x08" + varint(producer_id) + b"\x10"
    told = len(begin) + 1 + len(middle) + 1 + index_size
    size = len(_RECEIPT) + 1 + told
    return b"%b%b%c%b" % (_SIZES.pack(4 + size, size), _RECEIPT, told, begin), middle
