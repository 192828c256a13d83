"""Receivers and a log for dispatchers, without sockets or a store."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from metadata.log_entries import StoredEntry
from protocol.wire import pulsar_api_pb2 as api
from segments.cursors import Cursor
from segments.dispatch import Delivery, Dispatcher, Kind

# What the clock of the wall says, in milliseconds, where a test does not care.
NOW = 1_000_000


@dataclass(eq=False)
class StagedReceiver:
    name: str = "c"
    priority: int = 0
    key_ranges: Sequence[tuple[int, int]] = ()
    is_ready: bool = True


@dataclass
class StagedLog:
    """Entries as they were appended, all of them still there."""

    entries: list[StoredEntry] = field(default_factory=list)

    def append(self, count: int = 1, *, messages: int = 1, key: str | None = None) -> None:
        start = self.end
        self.entries += [StoredEntry(index, 0, messages, body_of(index, key)) for index in range(start, start + count)]

    @property
    def end(self) -> int:
        return len(self.entries)

    def append_chunks(self, uuid: str, total: int, chunks: Sequence[int] | None = None, due_ms: int = 0) -> list[int]:
        """A message in so many chunks, or these of them; their indexes."""
        start = self.end
        for chunk in range(total) if chunks is None else chunks:
            metadata = api.MessageMetadata(producer_name=uuid, sequence_id=7, publish_time=0, uuid=uuid)
            metadata.chunk_id, metadata.num_chunks_from_msg, metadata.total_chunk_msg_size = chunk, total, 10 * total
            if due_ms:
                metadata.deliver_at_time = due_ms
            self.entries.append(StoredEntry(self.end, 0, 1, _body(metadata)))
        return list(range(start, self.end))

    def append_delayed(self, due_ms: int, count: int = 1, key: str | None = None) -> None:
        for _ in range(count):
            metadata = api.MessageMetadata(producer_name="p", sequence_id=self.end, publish_time=0, partition_key=key)
            metadata.deliver_at_time = due_ms
            self.entries.append(StoredEntry(self.end, 0, 1, _body(metadata)))

    def fetch(self, dispatcher: Dispatcher[StagedReceiver], now_ms: int = NOW) -> list[StoredEntry]:
        return [self.entries[index] for index in dispatcher.wanted(self.end, now_ms) or ()]

    def pump(self, dispatcher: Dispatcher[StagedReceiver], now_ms: int = NOW) -> list[Delivery[StagedReceiver]]:
        """Deliver until nobody takes anything any more."""
        deliveries: list[Delivery[StagedReceiver]] = []
        while wanted := self.fetch(dispatcher, now_ms):
            handed_out = dispatcher.offer(wanted, now_ms)
            if not handed_out and wanted == self.fetch(dispatcher, now_ms):
                break
            deliveries += handed_out
        return deliveries


def body_of(sequence: int, key: str | None) -> bytes:
    return _body(api.MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=0, partition_key=key))


def _body(metadata: api.MessageMetadata) -> bytes:
    data = metadata.SerializeToString()
    return struct.pack(">I", len(data)) + data + b"payload"


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
