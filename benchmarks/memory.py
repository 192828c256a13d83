"""Resident memory of the server per idle connection with one DAG watch, and per further watch on a connection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.bare import bare_waiters
from benchmarks.figures import Figure, MeasurementFailed, Quantity
from benchmarks.processes import resident_bytes
from benchmarks.readers import Readers, readers, watch_message
from benchmarks.server import RunningServer, running_server, topic_url

CONNECTION_TARGET = 10.0
WATCH_TARGET = 1.0
KB = 1024
SEGMENTS = 64
SHARED = "memory-shared"


@dataclass(frozen=True, slots=True)
class Scale:
    """How many of everything. The warm-up comes first and stays: it pays for what is allocated only once."""

    connections: int
    warm_up: int
    watching: int
    watches_each: int
    warm_up_each: int

    @property
    def further_watches(self) -> int:
        return self.watching * self.watches_each


FULL = Scale(connections=2000, warm_up=200, watching=200, watches_each=50, warm_up_each=5)
QUICK = Scale(connections=40, warm_up=10, watching=10, watches_each=5, warm_up_each=1)


def measure(quick: bool) -> list[Figure]:
    scale = QUICK if quick else FULL
    return [
        _connections(scale),
        _further_watches(scale, "same topic", lambda _number, _session: SHARED),
        _further_watches(scale, "distinct topics", lambda number, session: f"memory-{number}-{session}"),
    ]


def _connections(scale: Scale) -> Figure:
    floor = _bare_connections(scale)
    with running_server() as server, readers() as clients:
        server.create_topic(SHARED, SEGMENTS)
        _open_connections(server, clients, 0, scale.warm_up)
        before = resident_bytes(server.pid)
        _open_connections(server, clients, scale.warm_up, scale.connections)
        grown = resident_bytes(server.pid) - before
        _check_watches(server, scale.warm_up + scale.connections)
    return Figure(
        name="memory per connection",
        measured=Quantity(grown / scale.connections / KB, "KB"),
        floor=Quantity(floor / scale.connections / KB, "KB"),
        target=CONNECTION_TARGET,
        notes=(
            f"idle, with one DAG watch each on one {SEGMENTS}-segment topic: resident memory of the server "
            f"{before / KB**2:.1f} MB with {scale.warm_up} connections, {grown / KB**2:.1f} MB more with "
            f"{scale.connections} further ones",
            "floor: a bare trio task per accepted socket, waiting for something to read",
        ),
    )


def _bare_connections(scale: Scale) -> int:
    with bare_waiters() as waiters, readers() as clients:
        clients.connect(waiters.address, scale.warm_up)
        waiters.accept(scale.warm_up)
        before = resident_bytes(waiters.pid)
        clients.connect(waiters.address, scale.connections)
        waiters.accept(scale.connections)
        return resident_bytes(waiters.pid) - before


def _further_watches(scale: Scale, what: str, topic_of: Callable[[int, int], str]) -> Figure:
    def open_watches(first_session: int, each: int) -> None:
        clients.request(
            [
                (number, watch_message(session, topic_url(topic_of(number, session))))
                for session in range(first_session, first_session + each)
                for number in range(scale.watching)
            ]
        )

    with running_server() as server, readers() as clients:
        server.create_topic(SHARED, SEGMENTS)
        _open_connections(server, clients, 0, scale.watching)
        open_watches(1, scale.warm_up_each)
        before = resident_bytes(server.pid)
        open_watches(1 + scale.warm_up_each, scale.watches_each)
        grown = resident_bytes(server.pid) - before
        _check_watches(server, scale.watching * (1 + scale.warm_up_each) + scale.further_watches)
    return Figure(
        name=f"memory per further watch, {what}",
        measured=Quantity(grown / scale.further_watches / KB, "KB"),
        floor=None,
        target=WATCH_TARGET,
        notes=(
            f"{grown / KB**2:.1f} MB more resident memory with {scale.watches_each} further watches on each of "
            f"{scale.watching} connections that had {1 + scale.warm_up_each}",
        ),
    )


def _open_connections(server: RunningServer, clients: Readers, first: int, count: int) -> None:
    clients.connect(server.pulsar_address, count)
    numbers = range(first, first + count)
    clients.greet(numbers)
    watch = watch_message(0, topic_url(SHARED))
    clients.request([(number, watch) for number in numbers])


def _check_watches(server: RunningServer, expected: int) -> None:
    there = server.metric("vela_watches")
    if there != expected:
        raise MeasurementFailed(f"the server holds {there:.0f} watches, not {expected}")
