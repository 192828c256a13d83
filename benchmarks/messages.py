"""How fast messages of 1 KB are stored and acknowledged, from one and from ten producers, against a bare pipeline of
XADDs into the same store with as many entries at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median, quantiles

import redis

from benchmarks.figures import Figure, Quantity
from benchmarks.processes import cpu_seconds
from benchmarks.producers import Producers, producers
from benchmarks.server import RunningServer, running_server, segment_urls
from benchmarks.streams import Streams, streams

# Twice the time is half the rate.
TARGET = 2.0
SIZE = 1024
# Messages of a producer without a receipt.
WINDOW = 100
WARM_UP_ROUNDS = 1


@dataclass(frozen=True, slots=True)
class Scale:
    messages: int
    rounds: int


FULL = Scale(messages=20_000, rounds=5)
QUICK = Scale(messages=1_000, rounds=2)


@dataclass(frozen=True, slots=True)
class _Sample:
    """Seconds for the same number of messages."""

    seconds: float
    floor: float
    cpu: float  # of the server
    batch: float  # messages that it stored at a time
    delays: Sequence[float]


def measure(quick: bool) -> list[Figure]:
    scale = QUICK if quick else FULL
    with running_server() as server, producers() as clients, streams() as bare:
        return [
            _figure(scale, "one producer", 1, _samples(server, clients, bare, scale, 1)),
            _figure(scale, "ten producers", 10, _samples(server, clients, bare, scale, 10)),
        ]


def _samples(server: RunningServer, clients: Producers, bare: Streams, scale: Scale, count: int) -> list[_Sample]:
    topic = f"messages-of-{count}"
    server.create_topic(topic, 1)
    [segment] = segment_urls(topic, 1)
    clients.open(server.pulsar_address, segment, count)
    taken = [_sample(server, clients, bare, scale, count) for _ in range(WARM_UP_ROUNDS + scale.rounds)]
    return taken[WARM_UP_ROUNDS:]


def _sample(server: RunningServer, clients: Producers, bare: Streams, scale: Scale, count: int) -> _Sample:
    calls, cpu = _appends(server), cpu_seconds(server.pid)
    sending = clients.send(scale.messages // count, SIZE, WINDOW)
    cpu = cpu_seconds(server.pid) - cpu
    batch = scale.messages / max(1, _appends(server) - calls)
    floor = bare.append(server.store_socket, scale.messages, SIZE, max(1, round(batch)))
    return _Sample(sending.seconds, floor, cpu, batch, sending.delays)


def _appends(server: RunningServer) -> int:
    """Scripts that the store has run so far: next to nothing else needs one meanwhile."""
    with redis.Redis(unix_socket_path=str(server.store_socket)) as store:
        stats = store.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval", "fcall"))


def _figure(scale: Scale, who: str, count: int, samples: Sequence[_Sample]) -> Figure:
    def each(seconds: float) -> float:
        return seconds / scale.messages * 1e6

    measured = median(each(sample.seconds) for sample in samples)
    floor = median(each(sample.floor) for sample in samples)
    ratios = quantiles([sample.floor / sample.seconds for sample in samples], n=4, method="inclusive")
    delays = quantiles(chain.from_iterable(sample.delays for sample in samples), n=100)
    return Figure(
        name=f"time per acknowledged message, {who}",
        measured=Quantity(measured, "us"),
        floor=Quantity(floor, "us"),
        target=TARGET,
        target_is_ratio=True,
        notes=(
            f"{1e6 / measured:,.0f} messages/s, the floor {1e6 / floor:,.0f}/s: {floor / measured:.2f} of it; "
            f"quartiles: {', '.join(f'{ratio:.2f}' for ratio in ratios)}",
            f"{len(samples)} rounds of {scale.messages:,} messages of {SIZE:,} bytes, {WINDOW} under way from each of "
            f"{count}; {median(sample.batch for sample in samples):.0f} stored at a time, in the floor as well",
            f"from sending to receipt: p50 {delays[49] * 1e3:.1f} ms, p99 {delays[98] * 1e3:.1f} ms; "
            f"the server used {median(each(sample.cpu) for sample in samples):.1f} us of CPU a message",
        ),
    )
