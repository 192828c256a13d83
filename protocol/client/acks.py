"""Acknowledgements on their way: collected into groups, which are told again until the server has confirmed them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import trio

from protocol.client.entries import words_of
from protocol.client.message_ids import MessageId
from protocol.errors import ProtocolError
from protocol.wire import pulsar_api_pb2 as api

# As in Pulsar's own clients.
MAX_GROUP = 1_000
# Batches of which a part was acknowledged; the oldest are forgotten first, which at worst delivers the rest again.
MAX_PARTIAL = 10_000


class AckGroup:
    """What is told with one command of each kind. Once it is on its way nothing is added."""

    __slots__ = ("_over", "cumulative", "individual", "is_sent", "reason")

    def __init__(self) -> None:
        self.individual: dict[tuple[int, int], api.MessageIdData] = {}
        self.cumulative: api.MessageIdData | None = None
        self.is_sent = False
        self.reason: ProtocolError | None = None
        self._over = trio.Event()

    async def wait(self) -> None:
        """Until the server has confirmed it; raises what it, or the end of the consumer, said instead."""
        await self._over.wait()
        if self.reason is not None:
            raise self.reason.with_traceback(None)

    def end(self, reason: ProtocolError | None) -> None:
        self.reason = reason
        self._over.set()


class AckQueue:
    """The groups of one consumer, oldest first. A group stays at the head until its outcome is known."""

    def __init__(self) -> None:
        self._groups: deque[AckGroup] = deque()
        self._partial: dict[tuple[int, int], int] = {}  # what is left of batches
        self._last_cumulative: tuple[int, int, int] = (-1, -1, -1)
        self._added = trio.lowlevel.ParkingLot()
        self._failure: ProtocolError | None = None

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[AckGroup]:
        return iter(tuple(self._groups))

    @property
    def head(self) -> AckGroup | None:
        return self._groups[0] if self._groups else None

    @property
    def newest(self) -> AckGroup | None:
        return self._groups[-1] if self._groups else None

    def add(self, message_id: MessageId) -> AckGroup:
        """One message; of a batch that was not delivered whole, what is left is told."""
        left = 0
        if message_id.batch_index >= 0:
            left = self._partial.pop(message_id.entry, (1 << message_id.batch_size) - 1)
            left &= ~(1 << message_id.batch_index)
            if left:
                self._remember(message_id, left)
        group = self._open_group()
        group.individual[message_id.entry] = _data(message_id, left)
        return group

    def add_cumulative(self, message_id: MessageId) -> AckGroup | None:
        """A message and all before it; None if that was said already."""
        if message_id.position <= self._last_cumulative:
            return None
        self._last_cumulative = message_id.position
        left = 0
        if message_id.batch_index >= 0:
            left = ((1 << message_id.batch_size) - 1) & ~((1 << (message_id.batch_index + 1)) - 1)
        group = self._open_group()
        group.cumulative = _data(message_id, left)
        return group

    def note_batch(self, message_id: MessageId, left: int) -> None:
        """The server says that this is what is left of a batch: others acknowledged the rest."""
        self._remember(message_id, self._partial.get(message_id.entry, left) & left)

    async def wait_head(self) -> None:
        """Until there is a group."""
        while not self._groups:
            await self._added.park()

    def settle(self, group: AckGroup, reason: ProtocolError | None = None) -> None:
        """The outcome of a group is known; without effect if it was before."""
        if group in self._groups:
            self._groups.remove(group)
            group.end(reason)

    def fail(self, reason: ProtocolError) -> None:
        """Nothing more will be told."""
        self._failure = reason
        self._drop(reason)

    def forget(self) -> None:
        """After a seek nothing of before counts: neither what is acknowledged nor that it was."""
        self._drop(None)
        self._partial.clear()
        self._last_cumulative = (-1, -1, -1)

    def _drop(self, reason: ProtocolError | None) -> None:
        while self._groups:
            self._groups.popleft().end(reason)

    def _remember(self, message_id: MessageId, left: int) -> None:
        self._partial[message_id.entry] = left
        if len(self._partial) > MAX_PARTIAL:
            del self._partial[next(iter(self._partial))]

    def _open_group(self) -> AckGroup:
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        group = self.newest
        if group is None or group.is_sent or len(group.individual) >= MAX_GROUP:
            group = AckGroup()
            self._groups.append(group)
            self._added.unpark_all()
        return group


def _data(message_id: MessageId, left: int) -> api.MessageIdData:
    data = api.MessageIdData(ledgerId=message_id.ledger, entryId=message_id.index)
    if message_id.partition >= 0:
        data.partition = message_id.partition
    if left:
        data.ack_set.extend(words_of(left))
        data.batch_size = message_id.batch_size
    return data
