"""What one connection still has to send, in order, when its peer does not keep up: a queue in which a newer
state takes the place of the older one of the same watch."""

from collections import OrderedDict
from collections.abc import Callable, Iterable

Part = bytes | memoryview
# Gives the parts to send when their turn comes, none if there is nothing left to say.
Source = Callable[[], tuple[bytes, ...]]

# What a queued reply costs beside its bytes (tuple, key, links of the queue). Without it, 64 KiB of queued
# PONGs of 13 bytes would hold more than a megabyte.
REPLY_OVERHEAD = 256
# What a queued source counts for: what it will say exists elsewhere, or not yet.
SOURCE_COST = 64


class Backlog:
    """Frames in sending order. States are replaceable until their first byte is out, replies never."""

    __slots__ = ("_frames", "_reply_keys", "_rest", "moved_at", "reply_cost", "size")

    def __init__(self, moved_at: float = 0.0) -> None:
        self.moved_at = moved_at  # when the peer took something last
        # States stand under their watch (>= 0), replies under even numbers below zero, other frames under odd ones.
        # An OrderedDict, because
        # assigning to a present key keeps its place, and taking the first of thousands is as cheap as of one.
        self._frames: OrderedDict[int, tuple[bytes, ...] | Source] = OrderedDict()
        self._rest: tuple[Part, ...] = ()
        self._reply_keys = 0
        self.reply_cost = 0
        self.size = 0

    def __bool__(self) -> bool:
        return self.size > 0

    def begin(self, parts: tuple[Part, ...], sent: int) -> None:
        """Keep what is left of a frame of which `sent` bytes are out: it goes before everything else."""
        self._rest = _after(parts, sent)
        self.size += _length(self._rest)

    def add_state(self, watch: int, parts: tuple[bytes, ...]) -> bool:
        """Queue the newest state of `watch`; True if it took the place of an older one."""
        older = self._frames.get(watch)
        self._frames[watch] = parts
        self.size += _length(parts)
        if older is None:
            return False
        self.size -= _cost(older)
        return True

    def add_source(self, key: int, source: Source) -> None:
        """Ask `source` what to send when everything before it is out; once, however often it is added."""
        if key not in self._frames:
            self._frames[key] = source
            self.size += SOURCE_COST

    def add_reply(self, frame: bytes) -> None:
        self._reply_keys -= 2
        self._frames[self._reply_keys] = (frame,)
        self.size += len(frame)
        self.reply_cost += len(frame) + REPLY_OVERHEAD

    def add_frame(self, parts: tuple[bytes, ...]) -> None:
        """Queue a frame that nothing replaces and that does not count as a reply."""
        self._reply_keys -= 2
        self._frames[self._reply_keys - 1] = parts
        self.size += _length(parts)

    def drop(self, watch: int) -> None:
        """Forget the queued state of `watch`. A begun frame stays: half of it is at the peer."""
        queued = self._frames.pop(watch, None)
        if queued is not None:
            self.size -= _cost(queued)

    def head(self) -> tuple[Part, ...]:
        """The parts to offer to the socket next; empty if all that was left were sources with nothing to say."""
        while not self._rest and self._frames:
            queued = next(iter(self._frames.values()))
            if isinstance(queued, tuple):
                return queued
            self._frames.popitem(last=False)
            self._rest = queued()
            self.size += _length(self._rest) - SOURCE_COST
        return self._rest

    def advance(self, sent: int) -> bool:
        """Take note that the socket accepted `sent` bytes of `head()`; True if that was all of it."""
        if sent == 0:
            return False
        self.size -= sent
        if self._rest:
            self._rest = _after(self._rest, sent)
            return not self._rest
        key, parts = self._frames.popitem(last=False)
        assert isinstance(parts, tuple), "`head` has asked every source before it"
        if key < 0 and key % 2 == 0:
            self.reply_cost -= _length(parts) + REPLY_OVERHEAD
        self._rest = _after(parts, sent)
        return not self._rest


def _cost(queued: tuple[bytes, ...] | Source) -> int:
    return _length(queued) if isinstance(queued, tuple) else SOURCE_COST


def _length(parts: Iterable[Part]) -> int:
    return sum(map(len, parts))


def _after(parts: Iterable[Part], sent: int) -> tuple[Part, ...]:
    # Slices instead of a copy: the tail of a state frame is shared by all the connections that it goes to.
    rest: list[Part] = []
    for part in parts:
        if sent >= len(part):
            sent -= len(part)
        else:
            rest.append(memoryview(part)[sent:])
            sent = 0
    return tuple(rest)
