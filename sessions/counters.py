"""What the socket side counts: plain numbers, shared by all connections, that the metrics page reads."""

from dataclasses import dataclass, field
from enum import StrEnum

from sessions.budgets import Budget, Holdings


class CloseReason(StrEnum):
    """Why a connection ended; the value is the metric label."""

    PEER = "peer"  # the client hung up
    RESET = "reset"  # the network or the client's kernel did
    BAD_FRAME = "bad_frame"
    PROTOCOL = "protocol"  # well-formed commands in an order that the protocol forbids
    HANDSHAKE_TIMEOUT = "handshake_timeout"
    DEAD = "dead"  # no sign of life since our last PING
    OVERLOAD = "overload"  # what waits for slow clients has reached the bound of the node
    RECEIVE_OVERLOAD = "receive_overload"  # what has arrived of unfinished frames has
    WATCH_OVERLOAD = "watch_overload"  # what watches take has
    STALLED = "stalled"  # the peer took no byte of what it was owed
    ERROR = "error"  # our own fault, logged with its cause
    SHUTDOWN = "shutdown"


@dataclass(slots=True, eq=False)
class Counters:
    """Totals over all connections. `connections` and the bytes go up and down, the others only up."""

    connections: int = 0
    accepted: int = 0
    refused: int = 0
    accept_errors: int = 0
    bad_frames: dict[str, int] = field(default_factory=dict)
    unknown_commands: int = 0
    pushes_direct: int = 0
    pushes_queued: int = 0
    pushes_replaced: int = 0
    outbox_bytes: int = 0
    receive_bytes: int = 0
    watching: Budget[Holdings] | None = None  # what watches take, once there is a listener
    stalls: int = 0
    errors: int = 0
    closes: dict[CloseReason, int] = field(default_factory=lambda: dict.fromkeys(CloseReason, 0))

    def count_accept_error(self) -> None:
        self.accept_errors += 1

    def count_bad_frame(self, kind: str) -> None:
        self.bad_frames[kind] = self.bad_frames.get(kind, 0) + 1
