"""How fast messages of 1 KB that are in the store come to one and to twenty subscriptions, against XRANGE of the same
entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

import redis

from benchmarks.consumers import Consumers, consumers
from benchmarks.figures import Figure, MeasurementFailed, Quantity
from benchmarks.processes import cpu_seconds
from benchmarks.producers import producers
from benchmarks.server import RunningServer, running_server, segment_urls
from benchmarks.streams import Streams, streams

# Twice the time is half the rate.
TARGET = 2.0
SIZE = 1024
TOPIC = "dispatch"
WINDOW = 100
# Entries that the server asks the store for at a time.
PAGE = 256
WARM_UP_ROUNDS = 1


@dataclass(frozen=True, slots=True)
class Scale:
    """Many more messages than the server keeps in memory of one segment, which is 1 MB."""

    messages: int
    rounds: int


FULL = Scale(messages=20_000, rounds=5)
QUICK = Scale(messages=2_000, rounds=2)


@dataclass(frozen=True, slots=True)
class _Sample:
    """Seconds for the same number of messages."""

    seconds: float
    floor: float
    cpu: float  # of the server


def measure(quick: bool) -> list[Figure]:
    scale = QUICK if quick else FULL
    with running_server() as server, producers() as sending, consumers() as clients, streams() as bare:
        server.create_topic(TOPIC, 1)
        [segment] = segment_urls(TOPIC, 1)
        sending.open(server.pulsar_address, segment, 1)
        sending.send(scale.messages, SIZE, WINDOW)
        rig = _Rig(server, segment, clients, bare, _log_key(server, scale.messages))
        return [
            _figure(scale, "one subscription", 1, rig.samples(scale, 1)),
            _figure(scale, "twenty subscriptions", 20, rig.samples(scale, 20)),
        ]


@dataclass(frozen=True, slots=True)
class _Rig:
    server: RunningServer
    segment: str
    clients: Consumers
    bare: Streams
    log: bytes

    def samples(self, scale: Scale, count: int) -> list[_Sample]:
        taken = [self._sample(scale, count, number) for number in range(WARM_UP_ROUNDS + scale.rounds)]
        return taken[WARM_UP_ROUNDS:]

    def _sample(self, scale: Scale, count: int, number: int) -> _Sample:
        names = [f"{each}-of-{count}-in-round-{number}" for each in range(count)]
        self.clients.open(self.server.pulsar_address, self.segment, names)
        before = cpu_seconds(self.server.pid)
        seconds = self.clients.take(scale.messages)
        cpu = cpu_seconds(self.server.pid) - before
        floor = self.bare.read(self.server.store_socket, self.log, scale.messages, PAGE, count)
        return _Sample(seconds, floor, cpu)


def _log_key(server: RunningServer, entries: int) -> bytes:
    """The stream with the messages: the only one that has as many entries."""
    with redis.Redis(unix_socket_path=str(server.store_socket)) as store:
        found = [key for key in store.scan_iter(count=1000, _type="stream") if store.xlen(key) == entries]
    if len(found) != 1:
        raise MeasurementFailed(f"the store has {len(found)} streams of {entries} entries, and not one")
    key = found[0]
    assert isinstance(key, bytes)
    return key


def _figure(scale: Scale, who: str, count: int, samples: Sequence[_Sample]) -> Figure:
    delivered = scale.messages * count

    def each(seconds: float) -> float:
        return seconds / delivered * 1e6

    measured = median(each(sample.seconds) for sample in samples)
    floor = median(each(sample.floor) for sample in samples)
    ratios = quantiles([sample.floor / sample.seconds for sample in samples], n=4, method="inclusive")
    return Figure(
        name=f"time per delivered message, {who}",
        measured=Quantity(measured, "us"),
        floor=Quantity(floor, "us"),
        target=TARGET,
        target_is_ratio=True,
        notes=(
            f"{1e6 / measured:,.0f} messages/s in all, the floor {1e6 / floor:,.0f}/s: {floor / measured:.2f} of it; "
            f"quartiles: {', '.join(f'{ratio:.2f}' for ratio in ratios)}",
            f"{len(samples)} rounds of {scale.messages:,} messages of {SIZE:,} bytes to each of {count}, on a "
            f"connection of its own; the server used {median(each(sample.cpu) for sample in samples):.1f} us of CPU a "
            "message",
            f"floor: XRANGE with redis-py, {PAGE} entries at a time, over the same log {count} time(s)",
        ),
    )
