"""Who is connected, and since when without a word: handshake timeouts and keep-alive for all connections in one
task. The time is an argument, so nothing in here waits but `run`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from itertools import chain
from typing import Protocol

import trio

from sessions.counters import CloseReason
from sessions.outbox import Outbox

# Connections looked after before other tasks run: a PING costs about 10 us.
_PER_TURN = 64


class Client(Protocol):
    """A connection as the roster and who walks over it see it."""

    outbox: Outbox
    address: str

    def close(self, reason: CloseReason) -> None: ...

    def beat(self) -> None:
        """A keep-alive interval has passed."""


class Roster:
    """All live connections, those that still owe their CONNECT apart from the others.

    Within each of the two the interval is the same for everybody, so the order of entering is the order of
    coming due, and only the heads are ever looked at. They are dicts, because a connection that ends must leave
    at once: in a plain queue, a burst of short connections would stay in memory for a whole interval.
    """

    def __init__(self, handshake_timeout: float, keep_alive: float) -> None:
        self._handshake_timeout = handshake_timeout
        self._keep_alive = keep_alive
        self._greeting: OrderedDict[Client, float] = OrderedDict()
        self._settled: OrderedDict[Client, float] = OrderedDict()
        self._by_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._greeting) + len(self._settled)

    def __iter__(self) -> Iterator[Client]:
        return chain(self._greeting, self._settled)

    def count_from(self, address: str) -> int:
        return self._by_address[address]

    def add(self, client: Client, now: float) -> None:
        self._greeting[client] = now + self._handshake_timeout
        self._by_address[client.address] += 1

    def settle(self, client: Client, now: float) -> None:
        """The handshake is done: from now on the client is only asked for signs of life."""
        if self._greeting.pop(client, None) is not None:
            self._settled[client] = now + self._keep_alive

    def discard(self, client: Client) -> None:
        """It is gone: once for each that was added, also for one that was closed for being late."""
        self._greeting.pop(client, None)
        self._settled.pop(client, None)
        self._by_address[client.address] -= 1
        if not self._by_address[client.address]:
            del self._by_address[client.address]

    def tick(self, now: float) -> bool:
        """Look after some of those who are due; True if there may be more."""
        for _ in range(_PER_TURN):
            if client := _pop_due(self._greeting, now):
                client.close(CloseReason.HANDSHAKE_TIMEOUT)
            elif client := _pop_due(self._settled, now):
                self._settled[client] = now + self._keep_alive
                client.beat()
            else:
                return False
        return True

    async def run(self) -> None:
        # A timeout may come late by a tenth; exact ones would need a wake-up per connection.
        period = min(1.0, self._handshake_timeout / 10, self._keep_alive / 10)
        while True:
            more = self.tick(trio.current_time())
            await trio.sleep(0 if more else period)


def _pop_due(clients: OrderedDict[Client, float], now: float) -> Client | None:
    if clients:
        client, due = next(iter(clients.items()))
        if due <= now:
            del clients[client]
            return client
    return None
