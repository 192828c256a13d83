"""Promised times on machines that others use, too: a bound grows only if answers to the plainest question are late."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import trio

from gateway.node import Node
from protocol import client
from tests.support.waiting import eventually

# A lookup of an idle machine takes a few milliseconds, so that it takes trouble to reach half a second.
_LOOKUPS: Final = 20
_PAUSE: Final = 0.01
_LATEST: Final = 15.0


@dataclass(slots=True)
class Floor:
    """How long a lookup took at worst, in which a node asks the store as well."""

    slowest: float = 0.0

    async def within(self, promised: float, predicate: Callable[[], object]) -> None:
        """Wait for something; it is an error if it came later than promised, and lookups were not late, too."""
        since = trio.current_time()
        await eventually(predicate, _LATEST)
        took = trio.current_time() - since
        assert took <= max(promised, _LOOKUPS * self.slowest), f"{took:.3f} s; a lookup {self.slowest:.3f} s at most"


@asynccontextmanager
async def floor_of(node: Node, log: str) -> AsyncIterator[Floor]:
    """Measured all the time, because what others do comes and goes; the node must not own the log, or it knows."""
    floor = Floor()

    async def measure(connection: client.ClientConnection) -> None:
        while True:
            since = trio.current_time()
            await connection.lookup(log)
            floor.slowest = max(floor.slowest, trio.current_time() - since)
            await trio.sleep(_PAUSE)

    async with client.connect(node.pulsar_url) as connection, trio.open_nursery() as nursery:
        nursery.start_soon(measure, connection)
        yield floor
        nursery.cancel_scope.cancel()
