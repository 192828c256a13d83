"""Where a message stands: its topic on the wire (a segment, a partition or a plain topic), ledger and index."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, TypeAlias

from protocol.names import TopicName
from protocol.wire import pulsar_api_pb2 as api

_UNSIGNED = 2**64
_LARGEST_SIGNED = 2**63 - 1

# Where reading may begin besides at a message.
Edge: TypeAlias = Literal["earliest", "latest"]


@dataclass(frozen=True, slots=True)
class MessageId:
    """`index` is that of the entry. A message of a batch shares it with others and has a place in the batch as well.

    Ledger and index are -1 where the server says that it has had the message before, but not where.
    """

    topic: str
    ledger: int
    index: int
    batch_index: int = -1
    batch_size: int = field(default=0, compare=False)
    partition: int = field(default=-1, compare=False)

    @property
    def position(self) -> tuple[int, int, int]:
        """Orders the messages of one topic."""
        return self.ledger, self.index, self.batch_index

    @property
    def entry(self) -> tuple[int, int]:
        """The same for all messages of a batch."""
        return self.ledger, self.index

    @property
    def is_known(self) -> bool:
        return self.index >= 0

    def __str__(self) -> str:
        """As in `17:4`, or `17:4:2` within a batch; the topic is left out."""
        place = f"{self.ledger}:{self.index}"
        return place if self.batch_index < 0 else f"{place}:{self.batch_index}"

    @classmethod
    def from_wire(cls, topic: str, data: api.MessageIdData) -> MessageId:
        return cls(
            topic,
            _signed(data.ledgerId),
            _signed(data.entryId),
            data.batch_index,
            data.batch_size,
            data.partition,
        )

    def to_wire(self) -> api.MessageIdData:
        """The entry with the place in its batch, as positions to read from are told."""
        data = api.MessageIdData(ledgerId=self.ledger % _UNSIGNED, entryId=self.index % _UNSIGNED)
        if self.partition >= 0:
            data.partition = self.partition
        if self.batch_index >= 0:
            data.batch_index = self.batch_index
        return data


@lru_cache(maxsize=4_096)
def scalable_topic_of(topic: str) -> str:
    """The `topic://` name that a segment, or the log of a migrated partition, belongs to."""
    return str(TopicName.parse(topic).canonical)


def edge_to_wire(edge: Edge) -> api.MessageIdData:
    """The first or the next message of a topic: numbers that no message has."""
    number = _UNSIGNED - 1 if edge == "earliest" else _LARGEST_SIGNED
    return api.MessageIdData(ledgerId=number, entryId=number)


def _signed(number: int) -> int:
    return number if number <= _LARGEST_SIGNED else number - _UNSIGNED
