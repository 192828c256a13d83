"""Clients' connections that take everything at once, and remember what they were told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.framing import Frame, FrameDecoder
from protocol.wire.pulsar_api_pb2 import BaseCommand


@dataclass(eq=False)
class ListeningPeer:
    closed: bool = False
    queued_bytes: int = 0
    heard: list[BaseCommand] = field(default_factory=list)
    _decoder: FrameDecoder = field(default_factory=FrameDecoder)

    def reply(self, frame: bytes) -> None:
        self.heard += [found.command for found in self._decoder.receive(frame) if isinstance(found, Frame)]

    def send(self, parts: tuple[bytes, ...]) -> None:
        self.reply(b"".join(parts))

    def when_sent(self, call: Callable[[], None]) -> None:
        raise AssertionError("nothing is ever queued")

    @property
    def errors(self) -> list[tuple[int, int]]:
        """Messages that were refused, each with the reason."""
        return [
            (it.send_error.sequence_id, it.send_error.error) for it in self.heard if it.type == BaseCommand.SEND_ERROR
        ]

    @property
    def receipts(self) -> list[int]:
        return [it.send_receipt.sequence_id for it in self.heard if it.type == BaseCommand.SEND_RECEIPT]

    @property
    def messages(self) -> list[int]:
        return [it.message.message_id.entryId for it in self.heard if it.type == BaseCommand.MESSAGE]

    def count(self, kind: BaseCommand.Type.ValueType) -> int:
        return sum(it.type == kind for it in self.heard)
