"""Receivers and a log for dispatchers, without sockets or a store."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from segments.cursors import Cursor
from segments.dispatch import Delivery, Dispatcher, Kind
from segments.entries import StoredEntry


@dataclass(eq=False)
class StagedReceiver:
    name: str = "c"
    priority: int = 0
    key_ranges: Sequence[tuple[int, int]] = ()
    is_ready: bool = True


@dataclass
class StagedLog:
    """A log whose entries all hold as many messages as was said when they were appended."""

    entries: list[StoredEntry] = field(default_factory=list)

    def append(self, count: int = 1, *, messages: int = 1, body: bytes = b"") -> None:
        start = len(self.entries)
        self.entries += [StoredEntry(index, 0, messages, body) for index in range(start, start + count)]

    @property
    def end(self) -> int:
        return len(self.entries)

    def fetch(self, dispatcher: Dispatcher[StagedReceiver]) -> list[StoredEntry]:
        return [self.entries[index] for index in dispatcher.wanted(self.end) or ()]

    def pump(self, dispatcher: Dispatcher[StagedReceiver]) -> list[Delivery[StagedReceiver]]:
        """Deliver until nobody takes anything any more."""
        deliveries: list[Delivery[StagedReceiver]] = []
        while wanted := self.fetch(dispatcher):
            handed_out = dispatcher.offer(wanted)
            if not handed_out and wanted == self.fetch(dispatcher):
                break
            deliveries += handed_out
        return deliveries


def log_of(count: int, *, messages: int = 1) -> StagedLog:
    log = StagedLog()
    log.append(count, messages=messages)
    return log


def dispatcher_of(kind: Kind, *receivers: StagedReceiver, permits: int = 0) -> Dispatcher[StagedReceiver]:
    dispatcher: Dispatcher[StagedReceiver] = Dispatcher(kind, Cursor(), 0)
    for receiver in receivers:
        dispatcher.add(receiver)
        dispatcher.flow(receiver, permits)
    return dispatcher


def indexes(deliveries: Sequence[Delivery[StagedReceiver]], receiver: StagedReceiver | None = None) -> list[int]:
    return [delivery.entry.index for delivery in deliveries if receiver in (None, delivery.receiver)]
