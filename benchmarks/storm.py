"""A reconnect storm: all watchers of a large namespace come back at once, each with the hash of the set that it
knows. Against as many bare handshakes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.creators import creators
from benchmarks.figures import Figure, MeasurementFailed, Quantity
from benchmarks.processes import cpu_seconds
from benchmarks.readers import Readers, namespace_message, readers
from benchmarks.server import RunningServer, running_server
from protocol.hashing import topic_set_hash

NAMESPACE = "public/storm"
TIME_TARGET = 1.5
# One listing of the store is a read of each of its buckets.
LISTINGS_TARGET = 128
WARM_UP_ROUNDS = 1


@dataclass(frozen=True, slots=True)
class Scale:
    watchers: int
    topics: int
    rounds: int


FULL = Scale(watchers=2000, topics=10_000, rounds=15)
QUICK = Scale(watchers=40, topics=100, rounds=2)


@dataclass(frozen=True, slots=True)
class _Taken:
    """Seconds on the clock and of the server's CPU."""

    wall: float
    cpu: float


@dataclass(frozen=True, slots=True)
class _Sample:
    storm: _Taken
    alone: _Taken  # a storm of one
    handshakes: _Taken
    listings: float
    snapshot_bytes: int


def measure(quick: bool) -> list[Figure]:
    scale = QUICK if quick else FULL
    samples: list[_Sample] = []
    with running_server() as server, readers() as clients, creators(server.http_address) as creating:
        topics = [f"topic-{number:05}" for number in range(scale.topics)]
        creating.create(NAMESPACE, topics)
        for number in range(WARM_UP_ROUNDS + scale.rounds):
            handshakes = _handshakes(server, clients, scale.watchers)
            _leave(server, clients)
            alone, _, _ = _storm(server, clients, 1, topics)
            _leave(server, clients)
            storm, listings, snapshot_bytes = _storm(server, clients, scale.watchers, topics)
            # Silence could also mean that nobody is watching.
            clients.expect()
            creating.create(NAMESPACE, [f"after-{number}"])
            topics.append(f"after-{number}")
            clients.arrived()
            _leave(server, clients)
            if number >= WARM_UP_ROUNDS:
                samples.append(_Sample(storm, alone, handshakes, listings, snapshot_bytes))
    return _figures(scale, samples)


def _handshakes(server: RunningServer, clients: Readers, count: int) -> _Taken:
    cpu = cpu_seconds(server.pid)
    rush = clients.rush(server.pulsar_address, count)
    # Its end is seen as that of a storm is, at the same expense.
    server.await_metric("vela_connections", count)
    return _Taken(time.monotonic() - rush.started_at, cpu_seconds(server.pid) - cpu)


def _storm(server: RunningServer, clients: Readers, count: int, topics: Sequence[str]) -> tuple[_Taken, float, int]:
    message = namespace_message(1, NAMESPACE, topic_set_hash(f"topic://{NAMESPACE}/{name}" for name in topics))
    spared, listed = (server.metric(name) for name in ("vela_snapshots_spared_total", "vela_namespace_listings_total"))
    cpu = cpu_seconds(server.pid)
    rush = clients.rush(server.pulsar_address, count, then=message)
    # Nothing is sent to a watch whose hash is right, so only the server can tell that it has opened the last one.
    server.await_metric("vela_snapshots_spared_total", spared + count)
    taken = _Taken(time.monotonic() - rush.started_at, cpu_seconds(server.pid) - cpu)
    listings = server.metric("vela_namespace_listings_total") - listed
    return taken, listings, rush.unasked + clients.unread()


def _leave(server: RunningServer, clients: Readers) -> None:
    """Everybody disconnects, and the server has forgotten what they watched."""
    clients.disconnect()
    server.await_metric("vela_connections", 0)
    if server.metric("vela_namespace_groups"):
        raise MeasurementFailed("the server keeps a set that nobody watches")


def _figures(scale: Scale, samples: Sequence[_Sample]) -> list[Figure]:
    storm = median(sample.storm.wall for sample in samples)
    bare = median(sample.handshakes.wall for sample in samples)
    storm_cpu = median(sample.storm.cpu for sample in samples)
    bare_cpu = median(sample.handshakes.cpu for sample in samples)
    alone = median(sample.alone.wall for sample in samples)
    alone_cpu = median(sample.alone.cpu for sample in samples)
    ratios = sorted(sample.storm.wall / sample.handshakes.wall for sample in samples)
    return [
        Figure(
            name="reconnect storm",
            measured=Quantity(storm * 1e3, "ms"),
            floor=Quantity(bare * 1e3, "ms"),
            target=TIME_TARGET,
            target_is_ratio=True,
            notes=(
                f"{scale.watchers:,} watchers of a namespace with {scale.topics:,} topics reconnect with the right "
                f"hash, from the first connect until the server has opened the last watch; medians of {len(samples)} "
                f"storms, ratios of single ones {ratios[0]:.2f} to {ratios[-1]:.2f}",
                f"floor: {scale.watchers:,} bare handshakes (connect, CONNECT, CONNECTED) with the same server",
                f"CPU of the server {storm_cpu * 1e3:,.0f} ms, for bare handshakes {bare_cpu * 1e3:,.0f} ms: "
                f"{storm_cpu / bare_cpu:.2f} times as much",
                f"a lone watcher takes {alone * 1e3:,.0f} ms and {alone_cpu * 1e3:,.0f} ms of CPU, spent once however "
                "many come: listing, hash, and asking the server whether it is done; without them the CPU ratio would "
                f"be {(storm_cpu - alone_cpu) / bare_cpu:.2f}",
                f"{max(sample.snapshot_bytes for sample in samples)} bytes of snapshots came; all watches were live",
            ),
        ),
        Figure(
            name="bucket reads in a reconnect storm",
            measured=Quantity(max(sample.listings for sample in samples), "reads"),
            floor=None,
            target=LISTINGS_TARGET,
            notes=("the most in one storm; one listing of the store is a read of each of its 128 buckets",),
        ),
    ]
