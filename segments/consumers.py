"""A client's consumer at one log: what it is sent, and whether its connection takes more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from protocol import data_replies
from protocol.framing import encode
from segments.frames import MessageFrames
from segments.ports import Peer
from segments.rates import Pulse

# Bytes queued on a connection above which its consumers get nothing more: a frame or two of large messages, and enough
# small ones to keep a socket busy while the next are fetched.
MOST_QUEUED: Final = 256 * 1024


@dataclass(eq=False, slots=True)
class Consumer:
    """A receiver of the dispatcher."""

    peer: Peer
    consumer_id: int
    name: str
    frames: MessageFrames
    priority: int = 0
    key_ranges: Sequence[tuple[int, int]] = ()
    address: str = ""
    client_version: str = ""
    is_managed: bool = False  # by a client that uses a classic log as the segment of a scalable topic
    since_ms: int = 0  # on the clock of the wall
    since: float = 0.0  # on that of the loop
    messages: int = 0
    bytes: int = 0
    redelivered: int = 0
    is_dismissed: bool = False  # its subscription was deleted: it shall not come back
    told_end: bool = False
    told_active: bool | None = field(default=None)
    pulse: Pulse = field(init=False)

    def __post_init__(self) -> None:
        self.pulse = Pulse(self.since)

    @property
    def is_ready(self) -> bool:
        return not self.peer.closed and self.peer.queued_bytes < MOST_QUEUED

    def tell_end(self) -> None:
        """Everything of a sealed log is acknowledged; said once."""
        if not self.told_end:
            self.told_end = True
            self.peer.reply(encode(data_replies.reached_end_of_topic(self.consumer_id)))

    def tell_active(self, is_active: bool) -> None:
        if self.told_active is not is_active:
            self.told_active = is_active
            self.peer.reply(encode(data_replies.active_consumer_change(self.consumer_id, is_active)))

    def tell_closed(self, url: str | None = None) -> None:
        """The client has to come back, perhaps elsewhere."""
        self.peer.reply(encode(data_replies.close_consumer(self.consumer_id, url)))
