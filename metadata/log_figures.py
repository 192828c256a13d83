"""What goes through a log and who is at it, as its owner tells it to the store, and what there is to know of it in all.

Rates are per second. Whoever reads them elsewhere sees what the owner has told last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from metadata.stored_values import UNREADABLE

# Of one log in the store. It comes along whenever the log is looked at, so it has to stay small: above this it is told
# without its clients, and if that is still too much, without its subscriptions.
MOST_BYTES: Final = 32 * 1024
# Clients of one log that are told by name, producers and consumers each.
MOST_CLIENTS: Final = 100


class ProducerFigures(msgspec.Struct, frozen=True, array_like=True):
    name: str
    producer_id: int
    mode: str
    address: str
    since_ms: int
    messages: int  # that it has sent since
    bytes: int
    message_rate: float = 0.0
    byte_rate: float = 0.0
    client_version: str = ""


class ConsumerFigures(msgspec.Struct, frozen=True, array_like=True):
    name: str
    consumer_id: int
    address: str
    since_ms: int
    messages: int  # that it was sent since
    bytes: int
    unacked: int
    permits: int
    message_rate: float = 0.0
    byte_rate: float = 0.0
    client_version: str = ""


class SubscriptionFigures(msgspec.Struct, frozen=True, array_like=True):
    kind: str = ""  # of its consumers; nothing while it has none
    unacked: int = 0  # what its consumers were sent and have not acknowledged
    consumer_count: int = 0
    consumers: tuple[ConsumerFigures, ...] = ()
    messages_out: float = 0.0
    bytes_out: float = 0.0
    redelivered: float = 0.0  # messages
    acked: float = 0.0  # entries
    delayed: int = 0  # entries that wait for their time


class Traffic(msgspec.Struct, frozen=True, array_like=True):
    producer_count: int = 0
    producers: tuple[ProducerFigures, ...] = ()
    subscriptions: Mapping[str, SubscriptionFigures] = {}  # durable ones at which something is going on
    messages_in: float = 0.0
    bytes_in: float = 0.0
    messages_out: float = 0.0
    bytes_out: float = 0.0
    clients: int = 0  # all that are connected, readers among them
    managed: int = 0  # of these, who use the log of a classic topic as the segment of a scalable one

    @property
    def is_still(self) -> bool:
        """Whether all rates are zero."""
        return self == self.stilled

    @property
    def stilled(self) -> Traffic:
        """The same without rates."""
        return Traffic(
            self.producer_count,
            tuple(msgspec.structs.replace(it, message_rate=0.0, byte_rate=0.0) for it in self.producers),
            {
                name: SubscriptionFigures(
                    it.kind,
                    it.unacked,
                    it.consumer_count,
                    tuple(msgspec.structs.replace(c, message_rate=0.0, byte_rate=0.0) for c in it.consumers),
                    delayed=it.delayed,
                )
                for name, it in self.subscriptions.items()
            },
            clients=self.clients,
            managed=self.managed,
        )

    def encode(self) -> bytes:
        """For the store; empty if there is nothing to tell."""
        if self == NOTHING:
            return b""
        encoded = _encoder.encode(self)
        if len(encoded) > MOST_BYTES:
            encoded = _encoder.encode(self._without_clients)
        if len(encoded) > MOST_BYTES:
            encoded = _encoder.encode(msgspec.structs.replace(self._without_clients, subscriptions={}))
        return encoded

    @property
    def _without_clients(self) -> Traffic:
        few = {name: msgspec.structs.replace(it, consumers=()) for name, it in self.subscriptions.items()}
        return msgspec.structs.replace(self, producers=(), subscriptions=few)


NOTHING: Final = Traffic()
_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Traffic)


def decode(entry: bytes | None, now_ms: int) -> Traffic:
    """What stands in the store, by its clock: until when the rates hold, and the rest.

    What cannot be read is nothing: figures are told again soon, and nobody's work depends on them.
    """
    until, _, encoded = (entry or b"").partition(b" ")
    try:
        traffic = _decoder.decode(encoded)
        return traffic if now_ms < int(until) else traffic.stilled
    except UNREADABLE:
        return NOTHING


@dataclass(frozen=True, slots=True)
class LogFigures:
    """All there is to know about a log: its size, what each subscription has not acknowledged, its traffic."""

    size: int = 0  # bytes
    entries: int = 0
    backlogs: Mapping[str, int] = field(default_factory=dict)  # entries
    traffic: Traffic = NOTHING

    def backlog_size(self, subscription: str) -> int:
        """Bytes that a subscription has not acknowledged, if all entries were of the same size."""
        return self._share(self.backlogs.get(subscription, 0))

    @property
    def largest_backlog_size(self) -> int:
        """Bytes that somebody has not acknowledged, as an estimate."""
        return self._share(max(self.backlogs.values(), default=0))

    def _share(self, entries: int) -> int:
        return round(self.size * min(entries, self.entries) / self.entries) if self.entries else 0
