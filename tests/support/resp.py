"""Where one RESP message ends and the next begins: enough of the protocol to tamper with whole messages."""

from enum import Enum

import hiredis

_LINES = b"+-:,#_("
_BULKS = b"$!="
_AGGREGATES = {ord("*"): 1, ord("~"): 1, ord(">"): 1, ord("%"): 2}
_ATTRIBUTE = ord("|")


class RespSplitter:
    """Bytes in, whole messages out, each as the bytes it came in; the unfinished rest is kept."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._scanned = 0
        # Values that are still missing from the message at the start of the buffer.
        self._missing = 1

    def receive(self, data: bytes) -> list[bytes]:
        self._buffer += data
        messages = []
        while (after := self._after_value()) is not None:
            self._scanned = after
            if self._missing == 0:
                messages.append(bytes(self._buffer[:after]))
                del self._buffer[:after]
                self._scanned, self._missing = 0, 1
        return messages

    def _after_value(self) -> int | None:
        """The position behind the value (or the head of the aggregate) at the scan position, if it is all here."""
        line_end = self._buffer.find(b"\r\n", self._scanned)
        if line_end < 0:
            return None
        kind, after = self._buffer[self._scanned], line_end + 2
        if kind in _LINES:
            self._missing -= 1
            return after
        length = int(self._buffer[self._scanned + 1 : line_end])
        if kind in _BULKS:
            if length >= 0:
                after += length + 2
            if after > len(self._buffer):
                return None
            self._missing -= 1
        elif kind == _ATTRIBUTE:
            # Stands before a value and does not count as one.
            self._missing += 2 * length
        elif kind in _AGGREGATES:
            self._missing += max(length, 0) * _AGGREGATES[kind] - 1
        else:
            raise ValueError(f"not RESP: {bytes(self._buffer[self._scanned : line_end])!r}")
        return after


class Reply(Enum):
    ANSWER = "answer"
    PUSH = "push"
    BELL = "bell"


def classify(message: bytes) -> Reply:
    """An answer to a command, a keyspace notification (a bell), or another push such as a subscription's receipt."""
    if not message.startswith(b">"):
        return Reply.ANSWER
    reader = hiredis.Reader()
    reader.feed(message)
    kind, *parts = reader.gets()
    channel = {b"message": 0, b"pmessage": 1, b"smessage": 0}.get(kind)
    if channel is not None and parts[channel].startswith((b"__keyspace@", b"__keyevent@")):
        return Reply.BELL
    return Reply.PUSH


def answers_to(request: bytes) -> int:
    """How many answers a request gets. Subscribing is acknowledged by pushes alone (in RESP3)."""
    reader = hiredis.Reader()
    reader.feed(request)
    name = bytes(reader.gets()[0]).lower()
    return 0 if name.endswith(b"subscribe") else 1
