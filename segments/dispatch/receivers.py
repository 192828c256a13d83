"""Those who receive: what a dispatcher must know of a consumer, and what it keeps about each of them."""

from collections.abc import Sequence
from enum import Enum
from typing import Generic, NamedTuple, Protocol, TypeVar

from metadata.log_entries import StoredEntry

# What a client can ask for at once fits 32 bits; more permits than this are never used up.
MAX_PERMITS = 2**31 - 1


class Kind(Enum):
    EXCLUSIVE = "Exclusive"
    SHARED = "Shared"
    FAILOVER = "Failover"
    KEY_SHARED = "Key_Shared"


class Receiver(Protocol):
    """A consumer, told from others by identity."""

    @property
    def name(self) -> str: ...

    @property
    def priority(self) -> int:
        """0 is served first."""

    @property
    def key_ranges(self) -> Sequence[tuple[int, int]]:
        """Key_Shared: the hashes that it asks for, both ends included; empty if it takes what it is given."""

    @property
    def is_ready(self) -> bool:
        """Whether its connection takes more now."""


R = TypeVar("R", bound=Receiver)


class Delivery(NamedTuple, Generic[R]):
    """An entry on its way. `ack_set` is empty unless some messages of the batch are done."""

    receiver: R
    entry: StoredEntry
    redeliveries: int
    ack_set: tuple[int, ...]


class Seat(Generic[R]):
    """A receiver with its permits and with what it holds unacknowledged."""

    __slots__ = ("held", "messages", "permits", "receiver")

    def __init__(self, receiver: R) -> None:
        self.receiver = receiver
        # Below zero after a batch that was larger than what was left.
        self.permits = 0
        # Shared kinds: entry -> its messages that are not acknowledged, and the sum of them.
        self.held: dict[int, int] = {}
        self.messages = 0

    def room(self, max_unacked: int) -> int:
        """How many messages it can take now."""
        if self.permits <= 0 or self.messages >= max_unacked or not self.receiver.is_ready:
            return 0
        return min(self.permits, max_unacked - self.messages)
