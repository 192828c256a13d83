"""What a peer that stops reading does to the others: delays of healthy watchers of a namespace with such a peer among
them, against the same without.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import quantiles

from benchmarks.creators import creators
from benchmarks.figures import Figure, MeasurementFailed, Quantity
from benchmarks.readers import Readers, connect_message, namespace_message, readers
from benchmarks.server import QUIET, RunningServer, running_server

NAMESPACE = "public/default"
# The peer stays for the whole measurement, and no update waits for others to join it.
SETTINGS = QUIET | {"VELA_STALL_LIMIT": "1h", "VELA_COALESCE": "0ms"}
# What the kernel takes for the peer must be less than one snapshot.
_RECEIVE_BUFFER = 4096
_OPEN_LIMIT = 10.0
WARM_UP_ROUNDS = 1


@dataclass(frozen=True, slots=True)
class Scale:
    """Rounds without and with a stalled peer take turns."""

    watchers: int
    topics: int
    rounds: int
    changes: int


FULL = Scale(watchers=100, topics=2000, rounds=10, changes=50)
QUICK = Scale(watchers=10, topics=1000, rounds=1, changes=10)


def measure(quick: bool) -> list[Figure]:
    scale = QUICK if quick else FULL
    without: list[float] = []
    beside: list[float] = []
    with (
        running_server(SETTINGS) as server,
        creators(server.http_address) as creating,
        readers() as clients,
    ):
        creating.create(NAMESPACE, [f"topic-{number:05}" for number in range(scale.topics)])
        clients.connect(server.pulsar_address, scale.watchers)
        clients.greet(range(scale.watchers))
        watch = namespace_message(1, NAMESPACE)
        clients.request([(number, watch) for number in range(scale.watchers)])
        waiting = 0.0
        for number in range(WARM_UP_ROUNDS + scale.rounds):
            alone = _delays(server, clients, f"without-{number}", scale.changes)
            with _stalled_peer(server):
                disturbed = _delays(server, clients, f"beside-{number}", scale.changes)
                waiting = server.metric("vela_outbox_bytes")
            if not waiting:
                raise MeasurementFailed("the peer that does not read is not stalled: nothing waits for it")
            server.await_metric("vela_connections", scale.watchers)
            if number >= WARM_UP_ROUNDS:
                without += alone
                beside += disturbed
    return [_figure(scale, beside, without, waiting)]


def _delays(server: RunningServer, clients: Readers, prefix: str, changes: int) -> list[float]:
    """From the admin request to the arrival at each watcher, one change at a time."""
    delays: list[float] = []
    for number in range(changes):
        clients.expect()
        asked_at = time.monotonic()
        server.create_topic(f"{prefix}-{number}", 1)
        delays += [at - asked_at for at in clients.arrived().times]
    return delays


@contextmanager
def _stalled_peer(server: RunningServer) -> Iterator[None]:
    """A watcher that never reads; its snapshot is more than the kernel holds for it."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        sock.settimeout(_OPEN_LIMIT)
        sock.connect(server.pulsar_address)
        sock.sendall(connect_message() + namespace_message(1, NAMESPACE))
        deadline = time.monotonic() + _OPEN_LIMIT
        while not server.metric("vela_outbox_bytes"):
            if time.monotonic() > deadline:
                raise MeasurementFailed("a peer that does not read could not be stalled")
        yield


def _figure(scale: Scale, beside: Sequence[float], without: Sequence[float], waiting: float) -> Figure:
    stalled, healthy = quantiles(beside, n=100), quantiles(without, n=100)
    return Figure(
        name="p99 beside a stalled peer",
        measured=Quantity(stalled[98] * 1e3, "ms"),
        floor=Quantity(healthy[98] * 1e3, "ms"),
        target=None,
        notes=(
            f"{scale.watchers} watchers of a namespace with {scale.topics:,} topics and more, one creation at a time, "
            "from the admin request to arrival, without gathering (`--coalesce 0`); "
            f"{scale.rounds * scale.changes} creations each, in {scale.rounds} turns",
            f"floor: the same without the stalled peer; p50 {stalled[49] * 1e3:.2f} ms beside it, "
            f"{healthy[49] * 1e3:.2f} ms without: {stalled[49] / healthy[49]:.2f}",
            f"{waiting / 1024:,.0f} KB waited for the stalled peer in the end",
        ),
    )
