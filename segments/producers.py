"""The producers of one log: who may send, under which name, and what each has sent already."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from metadata.log_states import ProducerMark
from protocol.wire import pulsar_api_pb2 as api
from segments.errors import DataRefusal, ProducerBusy, ProducerFenced
from segments.ports import Peer
from segments.rates import Pulse

# Messages of a producer whose place is remembered, for whoever sends them again: as many as a client keeps pending.
_REMEMBERED: Final = 1_000


class Mode(Enum):
    SHARED = api.Shared
    EXCLUSIVE = api.Exclusive
    WAIT = api.WaitForExclusive
    FENCING = api.ExclusiveWithFencing

    @property
    def shown(self) -> str:
        """As statistics name it."""
        return api.ProducerAccessMode.Name(self.value)


@dataclass(eq=False, slots=True)
class Producer:
    """A client's producer, at one connection."""

    peer: Peer
    producer_id: int
    name: str
    mode: Mode
    epoch: int  # how often the client has connected it anew
    is_named: bool  # by its user
    # Told of it, so that they need not hold it:
    begin: Callable[[Producer], None]  # tells a client that has waited that its producer may send
    refuse: Callable[[Producer, DataRefusal], None] = lambda refused, error: None  # or that it never will
    address: str = ""
    client_version: str = ""
    is_managed: bool = False  # by a client that uses a classic log as the segment of a scalable topic
    metadata: Mapping[str, str] | None = None
    topic_epoch: int | None = None
    broken: bool = False  # a message was refused: what follows it would overtake it
    waits: bool = False  # to have the log alone, and may not send before
    messages: int = 0
    bytes: int = 0
    pending: int = 0
    since_ms: int = 0  # on the clock of the wall
    since: float = 0.0  # on that of the loop
    pulse: Pulse = field(init=False)

    def __post_init__(self) -> None:
        self.pulse = Pulse(self.since)

    def succeeds(self, other: Producer) -> bool:
        """Whether this is the same producer, come back."""
        if self.peer is other.peer and self.producer_id == other.producer_id:
            return True
        return other.peer.closed or (self.epoch > other.epoch and self.is_named == other.is_named)


# The chunk of a message that has no others.
WHOLE: Final = 2**31


class _Line:
    """What one producer name has sent."""

    __slots__ = ("accepted", "mark", "places")

    def __init__(self, mark: ProducerMark | None) -> None:
        self.mark: tuple[int, int] | None = mark  # sequence and index of the last that is stored
        self.accepted = (-1, WHOLE) if mark is None else (mark.sequence, WHOLE)
        self.places: OrderedDict[tuple[int, int], int] = OrderedDict()
        if mark is not None:
            self.places[mark.sequence, WHOLE] = mark.index


class Sequences:
    """What was stored of each producer name, as the store knows it, and more in detail for what is recent.

    The chunks of a large message share its sequence number. The store knows of a message when its last chunk is there:
    of one that was begun under an earlier owner a chunk may be stored twice, which its consumers pass over.
    """

    def __init__(self, marks: Mapping[str, ProducerMark]) -> None:
        self._lines = {name: _Line(mark) for name, mark in marks.items()}

    @property
    def marks(self) -> dict[str, ProducerMark]:
        """As the store has them."""
        return {name: ProducerMark(*line.mark) for name, line in self._lines.items() if line.mark is not None}

    def last(self, name: str) -> int:
        """The highest sequence number that is stored or on its way, -1 if none is."""
        line = self._lines.get(name)
        return -1 if line is None else line.accepted[0]

    def accept(self, name: str, sequence: int, chunk: int = WHOLE) -> bool:
        """Whether a message, or a chunk of one, is new; then it is on its way."""
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line(None)
        if (sequence, chunk) <= line.accepted:
            return False
        line.accepted = sequence, chunk
        return True

    def stored(self, name: str, sequence: int, index: int, chunk: int = WHOLE, *, is_last: bool = True) -> None:
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line(None)
        if is_last:
            line.mark = sequence, index
            if chunk != WHOLE and line.accepted == (sequence, chunk):
                line.accepted = sequence, WHOLE
        places = line.places
        places[sequence, chunk] = index
        if len(places) > _REMEMBERED:
            places.popitem(last=False)

    def place(self, name: str, sequence: int, chunk: int = WHOLE) -> int | None:
        """Where a message stands that was stored before; None if that is not known any more."""
        line = self._lines.get(name)
        if line is None:
            return None
        if (place := line.places.get((sequence, chunk))) is not None:
            return place
        return line.mark[1] if line.mark is not None and line.mark[0] == sequence else None

    def refuse(self, name: str) -> None:
        """What was on its way is not stored."""
        line = self._lines.get(name)
        if line is not None:
            line.accepted = (-1, WHOLE) if line.mark is None else (line.mark[0], WHOLE)

    def forget(self, name: str) -> None:
        self._lines.pop(name, None)

    def forget_places(self, name: str) -> None:
        """Remember of a producer what the store does, and no more."""
        line = self._lines.get(name)
        if line is not None:
            line.places.clear()


class Producers:
    """Who is connected, and who waits to have the log alone."""

    def __init__(self, topic_epoch: int | None, fence: Callable[[Producer], None]) -> None:
        """`fence` tells a client that its producer has to go, for one that has the log alone from now on."""
        self.topic_epoch = topic_epoch
        self._fence = fence
        self._by_name: dict[str, Producer] = {}
        self._waiting: dict[str, Producer] = {}  # by name, in the order of their turns
        self._alone: Producer | None = None

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def count(self) -> int:
        """With those who wait."""
        return len(self._by_name) + len(self._waiting)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    @property
    def all(self) -> list[Producer]:
        return [*self._by_name.values(), *self._waiting.values()]

    def join(self, producer: Producer, client_epoch: int | None) -> bool:
        """Let a producer in; False if it has to wait. Raises ProducerBusy and ProducerFenced, and changes nothing then.

        The texts name their codes: clients look for them there.
        """
        before = self._predecessor(producer)
        match producer.mode:
            case Mode.SHARED:
                if self._has_waiting_beside(before) or (self._alone is not None and self._alone is not before):
                    raise ProducerBusy(
                        "The topic has an exclusive producer (ProducerBusy): wait for its end, or use the same mode."
                    )
            case Mode.EXCLUSIVE:
                self._check_epoch(client_epoch)
                if self._has_beside(before):
                    raise ProducerFenced(
                        "The topic has producers, and an exclusive one needs it for itself (ProducerFenced):"
                        " close them, or use a mode that waits or fences."
                    )
            case Mode.WAIT:
                self._check_epoch(client_epoch)
                if self._has_beside(before):
                    self._wait(producer, before)
                    return False
            case Mode.FENCING:
                self._check_epoch(client_epoch)
                for other in self.all:
                    if other is not before:
                        self._drop(other)
                        self._fence(other)
        if before is not None:
            self._drop(before)
        if producer.mode is not Mode.SHARED:
            self._begin_alone(producer, client_epoch)
        self._by_name[producer.name] = producer
        return True

    def _wait(self, producer: Producer, before: Producer | None) -> None:
        """Queue a producer; one that has come back keeps its turn."""
        producer.waits = True
        if before is not None and self._waiting.get(before.name) is not before:
            self._drop(before)
        self._waiting[producer.name] = producer

    def _has_beside(self, before: Producer | None) -> bool:
        """Whether anybody may send but the one who comes back."""
        return len(self._by_name) > (before is not None and self._by_name.get(before.name) is before)

    def _has_waiting_beside(self, before: Producer | None) -> bool:
        return len(self._waiting) > (before is not None and self._waiting.get(before.name) is before)

    def end(self) -> None:
        """Nobody joins any more; who is here may still leave."""
        self._fence = lambda producer: None  # it is that of who holds this

    def take_waiting(self) -> list[Producer]:
        """Those who wait, for whom there will be nothing to send to."""
        waiting, self._waiting = self._waiting, {}
        return list(waiting.values())

    def leave(self, producer: Producer) -> Producer | None:
        """A producer is gone; the one that may send instead, if one waited."""
        self._drop(producer)
        if self._by_name or not self._waiting:
            return None
        following = self._waiting.pop(next(iter(self._waiting)))
        self._begin_alone(following, None)
        self._by_name[following.name] = following
        return following

    def _predecessor(self, producer: Producer) -> Producer | None:
        """The same producer as it was connected before, if it is still here."""
        other = self._by_name.get(producer.name) or self._waiting.get(producer.name)
        if other is not None and not producer.succeeds(other):
            raise ProducerBusy(f"The topic has a producer named {producer.name} (ProducerBusy): choose another name.")
        return other

    def _check_epoch(self, client_epoch: int | None) -> None:
        if client_epoch is not None and self.topic_epoch is not None and client_epoch < self.topic_epoch:
            raise ProducerFenced(
                "Another exclusive producer has taken the topic over since (ProducerFenced): create a new one."
            )

    def _begin_alone(self, producer: Producer, client_epoch: int | None) -> None:
        # Who comes back with the current number goes on under it.
        if client_epoch is None or client_epoch != self.topic_epoch:
            self.topic_epoch = 0 if self.topic_epoch is None else self.topic_epoch + 1
        producer.topic_epoch = self.topic_epoch
        self._alone = producer

    def _drop(self, producer: Producer) -> None:
        if self._by_name.get(producer.name) is producer:
            del self._by_name[producer.name]
        if self._waiting.get(producer.name) is producer:
            del self._waiting[producer.name]
        if self._alone is producer:
            self._alone = None
