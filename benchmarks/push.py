"""What a pushed frame costs the server: CPU per frame when one topic changes under many watches, against a bare
loop of `sendmsg` of the same bytes to as many sockets.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from statistics import mean, median, quantiles

from benchmarks.bare import BareSender, bare_sender
from benchmarks.figures import Figure, Quantity
from benchmarks.processes import cpu_seconds
from benchmarks.readers import Readers, readers, watch_message
from benchmarks.server import RunningServer, running_server, topic_url
from layout.layouts import Layout

SEGMENTS = 64
TARGET = 1.4
# Session ids from here on take two bytes in a frame, so that all frames have the same length.
FIRST_SESSION = 1000
WARM_UP_ROUNDS = 1


@dataclass(frozen=True, slots=True)
class Scale:
    """How many of everything. Each round has a topic of its own: sealed segments stay in the DAG, so that the frames of
    one topic grow from change to change."""

    connections: int
    rounds: int
    changes: int


FULL = Scale(connections=1000, rounds=15, changes=16)
QUICK = Scale(connections=20, rounds=2, changes=4)


@dataclass(frozen=True, slots=True)
class _Sample:
    """CPU seconds that the server spent on one change, by who watches the topic, and the bare loop over its frame."""

    by_all: float
    by_one: float
    by_nobody: float
    floor: float
    frame_size: int
    delays: Sequence[float]
    wall: float

    @property
    def net(self) -> float:
        return self.by_all - self.by_nobody


@dataclass(frozen=True, slots=True)
class _Topics:
    """Three topics that go through the same changes."""

    by_all: str
    by_one: str
    by_nobody: str


@dataclass(frozen=True, slots=True)
class _Rig:
    """The server with `many` clients and a `lone` one, and the floor: a bare sender with as many readers."""

    server: RunningServer
    many: Readers
    lone: Readers
    sender: BareSender
    floor_readers: Readers

    def connect(self, connections: int) -> None:
        for clients, count in ((self.many, connections), (self.lone, 1)):
            clients.connect(self.server.pulsar_address, count)
            clients.greet(range(count))
        self.floor_readers.connect(self.sender.address, connections)
        self.sender.accept(connections)

    def prepare(self, number: int, connections: int) -> _Topics:
        topics = _Topics(f"push-{number}-by-all", f"push-{number}-by-one", f"push-{number}-by-nobody")
        for topic in (topics.by_all, topics.by_one, topics.by_nobody):
            self.server.create_topic(topic, SEGMENTS)
        for clients, topic, count in ((self.many, topics.by_all, connections), (self.lone, topics.by_one, 1)):
            clients.request([(each, watch_message(FIRST_SESSION + each, topic_url(topic))) for each in range(count)])
        return topics

    def sample(self, topics: _Topics, change: str) -> _Sample:
        # After the answer and the frames are out the server still has things to finish. It has the time to while the
        # floor is taken, so that all of its work counts where it belongs.
        self.many.expect()
        cpu = [cpu_seconds(self.server.pid)]
        asked_at = time.monotonic()
        self.server.change_topic(topics.by_all, change)
        arrival = self.many.arrived()
        wall = time.monotonic() - asked_at
        self.sender.load(arrival.frame)
        floors = [self._floor()]
        cpu.append(cpu_seconds(self.server.pid))

        self.lone.expect()
        self.server.change_topic(topics.by_one, change)
        self.lone.arrived()
        floors.append(self._floor())
        cpu.append(cpu_seconds(self.server.pid))

        self.server.change_topic(topics.by_nobody, change)
        floors.append(self._floor())
        cpu.append(cpu_seconds(self.server.pid))

        by_all, by_one, by_nobody = (after - before for before, after in pairwise(cpu))
        delays = [at - asked_at for at in arrival.times]
        return _Sample(by_all, by_one, by_nobody, mean(floors), len(arrival.frame), delays, wall)

    def queued(self) -> float:
        """How many frames did not go out at once so far."""
        return self.server.metric('vela_pushes_total{way="queued"}')

    def _floor(self) -> float:
        self.floor_readers.expect()
        seconds = self.sender.send()
        self.floor_readers.arrived()
        return seconds


def measure(quick: bool) -> list[Figure]:
    scale = QUICK if quick else FULL
    samples: list[_Sample] = []
    with (
        running_server() as server,
        readers() as many,
        readers() as lone,
        bare_sender() as sender,
        readers() as floor_readers,
    ):
        rig = _Rig(server, many, lone, sender, floor_readers)
        rig.connect(scale.connections)
        for number in range(WARM_UP_ROUNDS + scale.rounds):
            topics = rig.prepare(number, scale.connections)
            taken = [rig.sample(topics, change) for change in _changes(scale.changes)]
            if number >= WARM_UP_ROUNDS:
                samples += taken
        return [_figure(scale, samples, rig.queued())]


def _changes(count: int) -> Iterator[str]:
    """Splits, each undone by a merge of its children: 64 or 65 segments are active all the time."""
    layout = Layout.create(SEGMENTS, now_ms=0)
    for turn in range(count):
        if turn % 2 == 0:
            split = layout.active[turn // 2 % SEGMENTS].segment_id
            layout = layout.split(split, now_ms=0)
            yield f"split/{split}"
        else:
            first, second = layout.segments[split].child_ids
            layout = layout.merge(first, second, now_ms=0)
            yield f"merge/{first}/{second}"


def _figure(scale: Scale, samples: Sequence[_Sample], queued: float) -> Figure:
    def per_frame(seconds: Iterable[float]) -> float:
        return median(seconds) / scale.connections * 1e6

    raw = per_frame(sample.by_all for sample in samples)
    change = per_frame(sample.by_nobody for sample in samples)
    once = per_frame(sample.by_one - sample.by_nobody for sample in samples)
    net = per_frame(sample.net for sample in samples)
    floor = per_frame(sample.floor for sample in samples)
    ratios = quantiles([sample.net / sample.floor for sample in samples], n=4)
    delays = quantiles(chain.from_iterable(sample.delays for sample in samples), n=100)
    sizes = [sample.frame_size for sample in samples]
    rate = scale.connections / median(sample.wall for sample in samples)
    sent = (WARM_UP_ROUNDS + scale.rounds) * scale.changes * scale.connections
    return Figure(
        name="CPU per pushed frame",
        measured=Quantity(net, "us"),
        floor=Quantity(floor, "us"),
        target=TARGET,
        target_is_ratio=True,
        notes=(
            f"{scale.connections} connections watch one {SEGMENTS}-segment topic; medians of {len(samples)} changes; "
            f"quartiles of the ratio: {', '.join(f'{ratio:.2f}' for ratio in ratios)}",
            f"the server used {raw:.2f} us a frame, {raw / floor:.2f} times the floor; subtracted are {change:.2f} us: "
            "the same change to a topic that nobody watches (admin request, write, change feed)",
            f"of the rest {once:.2f} us a frame are spent once per change however many watch (a lone watch costs as "
            f"much: read back, decode, encode); without them the ratio would be {(net - once) / floor:.2f}",
            f"frames of {min(sizes):,} to {max(sizes):,} bytes; {queued:,.0f} of {sent:,} did not go out at once",
            f"{rate:,.0f} frames/s with one change at a time; from the admin request to arrival: "
            f"p50 {delays[49] * 1e3:.1f} ms, p99 {delays[98] * 1e3:.1f} ms",
        ),
    )
