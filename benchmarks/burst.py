"""A burst of creations in a namespace that many watch: what the frames cost the server against a bare loop of
`sendmsg`, and how long after the store's write clients know, against a bare subscriber of the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, median, quantiles

from benchmarks.bare import BareSender, bare_sender
from benchmarks.creators import Creators, creators
from benchmarks.figures import Figure, MeasurementFailed, Quantity
from benchmarks.processes import cpu_seconds
from benchmarks.readers import Readers, Told, namespace_message, readers
from benchmarks.server import QUIET, RunningServer, running_server
from benchmarks.subscribers import Subscriber, subscriber, written

BY_ALL, BY_ONE, BY_NOBODY = "public/burst-by-all", "public/burst-by-one", "public/burst-by-nobody"
CPU_TARGET = 1.4
# The same for all, so that all get the same bytes.
WATCH_ID = 1
WARM_UP_ROUNDS = 1


@dataclass(frozen=True, slots=True)
class Scale:
    watchers: int
    topics: int
    rounds: int


FULL = Scale(watchers=1000, topics=1000, rounds=9)
QUICK = Scale(watchers=20, topics=40, rounds=2)


@dataclass(frozen=True, slots=True)
class _Sample:
    """CPU seconds that the server spent on a burst, by who watches the namespace, and the bare loop over its frames."""

    by_all: float
    by_one: float
    by_nobody: float
    floor: float
    frames: int
    frames_of_one: int
    sizes: Sequence[int]
    delays: Sequence[float]
    bare_delays: Sequence[float]

    @property
    def net(self) -> float:
        return self.by_all - self.by_nobody

    @property
    def once(self) -> float:
        return self.by_one - self.by_nobody


@dataclass(frozen=True, slots=True)
class _Rig:
    """The server with `many` watchers and a `lone` one, and the floors."""

    server: RunningServer
    store_socket: Path
    creating: Creators
    many: Readers
    lone: Readers
    sender: BareSender
    floor_readers: Readers
    subscriber: Subscriber

    def connect(self, watchers: int) -> None:
        for clients, namespace, count in ((self.many, BY_ALL, watchers), (self.lone, BY_ONE, 1)):
            clients.connect(self.server.pulsar_address, count)
            clients.greet(range(count))
            message = namespace_message(WATCH_ID, namespace)
            clients.request([(number, message) for number in range(count)])
        self.floor_readers.connect(self.sender.address, watchers)
        self.sender.accept(watchers)

    def sample(self, names: Sequence[str]) -> _Sample:
        # The server finishes what it has left to do while the floor is taken.
        self.many.follow(len(names))
        self.subscriber.follow(len(names))
        cpu = [cpu_seconds(self.server.pid)]
        self.creating.create(BY_ALL, names)
        told = self.many.followed()
        notices = self.subscriber.followed()
        floors = [self._floor(told)]
        cpu.append(cpu_seconds(self.server.pid))

        self.lone.follow(len(names))
        self.creating.create(BY_ONE, names)
        told_one = self.lone.followed()
        floors.append(self._floor(told))
        cpu.append(cpu_seconds(self.server.pid))

        self.creating.create(BY_NOBODY, names)
        floors.append(self._floor(told))
        cpu.append(cpu_seconds(self.server.pid))

        by_all, by_one, by_nobody = (after - before for before, after in pairwise(cpu))
        writes = written(self.store_socket, {f"{BY_ALL}/{name}" for name in names})
        return _Sample(
            by_all=by_all,
            by_one=by_one,
            by_nobody=by_nobody,
            floor=mean(floors),
            frames=sum(len(update.times) for update in told),
            frames_of_one=len(told_one),
            sizes=[len(update.frame) for update in told for _ in update.times],
            delays=_delays(told, writes),
            bare_delays=_bare_delays(notices, writes),
        )

    def queued(self) -> float:
        """How many frames did not go out at once so far."""
        return self.server.metric('vela_pushes_total{way="queued"}')

    def _floor(self, told: Sequence[Told]) -> float:
        """CPU seconds of a bare loop for as many frames of the same sizes."""
        seconds = 0.0
        for update in told:
            self.sender.load(update.frame)
            self.floor_readers.expect()
            loop = self.sender.send()
            sockets = len(self.floor_readers.arrived().times)
            seconds += loop * len(update.times) / sockets
        return seconds


def measure(quick: bool) -> list[Figure]:
    scale = QUICK if quick else FULL
    samples: list[_Sample] = []
    with (
        # Another node takes the admin requests: they cost several times what is to be measured.
        running_server() as creator,
        running_server({**QUIET, "VELA_STORE": creator.store_url}) as server,
        creators(creator.http_address) as creating,
        readers() as many,
        readers() as lone,
        bare_sender() as sender,
        readers() as floor_readers,
        subscriber(creator.store_socket) as bare_subscriber,
    ):
        rig = _Rig(server, creator.store_socket, creating, many, lone, sender, floor_readers, bare_subscriber)
        rig.connect(scale.watchers)
        for number in range(WARM_UP_ROUNDS + scale.rounds):
            sample = rig.sample([f"topic-{number}-{each:04}" for each in range(scale.topics)])
            if number >= WARM_UP_ROUNDS:
                samples.append(sample)
        queued = rig.queued()
    return [_cpu_figure(scale, samples, queued), *_delay_figures(scale, samples)]


def _delays(told: Sequence[Told], writes: Mapping[str, Sequence[tuple[str, float]]]) -> list[float]:
    """Of every topic at every watcher."""
    written_at = {f"topic://{path}": at for changes in writes.values() for path, at in changes}
    return [at - written_at[topic] for update in told for topic in update.added for at in update.times]


def _bare_delays(
    notices: Mapping[str, Sequence[float]], writes: Mapping[str, Sequence[tuple[str, float]]]
) -> list[float]:
    """Notifications do not name the topic, but those of one log come in its order."""
    delays: list[float] = []
    for log, times in notices.items():
        if len(times) != len(writes[log]):
            raise MeasurementFailed(f"{len(times)} notifications of {log} came for {len(writes[log])} changes")
        delays += [noticed_at - at for noticed_at, (_, at) in zip(times, writes[log], strict=True)]
    return delays


def _cpu_figure(scale: Scale, samples: Sequence[_Sample], queued: float) -> Figure:
    def per_frame(seconds: Iterable[float]) -> float:
        """Microseconds; bursts differ in how many frames they take."""
        return median(each / sample.frames for each, sample in zip(seconds, samples, strict=True)) * 1e6

    raw = per_frame(sample.by_all for sample in samples)
    creation = per_frame(sample.by_nobody for sample in samples)
    once = per_frame(sample.once for sample in samples)
    net = per_frame(sample.net for sample in samples)
    floor = per_frame(sample.floor for sample in samples)
    ratios = sorted(sample.net / sample.floor for sample in samples)
    frames = median(sample.frames for sample in samples)
    frames_of_one = median(sample.frames_of_one for sample in samples)
    sizes = [size for sample in samples for size in sample.sizes]
    per_topic = median(sample.once for sample in samples) / scale.topics * 1e6
    return Figure(
        name="CPU per frame of a burst",
        measured=Quantity(net, "us"),
        floor=Quantity(floor, "us"),
        target=CPU_TARGET,
        target_is_ratio=True,
        notes=(
            f"{scale.topics:,} topics are created while {scale.watchers:,} watch: {frames:,.0f} frames instead of "
            f"{scale.topics * scale.watchers:,}; medians of {len(samples)} bursts, "
            f"ratios of single ones {ratios[0]:.2f} to {ratios[-1]:.2f}",
            f"the server used {raw:.2f} us a frame, {raw / floor:.2f} times the floor; subtracted are {creation:.2f} "
            "us for following the same creations, by another node, in a namespace that nobody watches",
            f"of the rest {once:.2f} us a frame are spent once however many watch (a lone watcher, who got "
            f"{frames_of_one:,.0f} frames, costs as much: {per_topic:.0f} us a topic for reading it back, its place in "
            f"the set and its encoding); without them the ratio would be {(net - once) / floor:.2f}",
            f"frames of {min(sizes):,} to {max(sizes):,} bytes, {mean(sizes):,.0f} on average; {queued:,.0f} did not "
            "go out at once",
        ),
    )


def _delay_figures(scale: Scale, samples: Sequence[_Sample]) -> list[Figure]:
    delays = quantiles((delay for sample in samples for delay in sample.delays), n=100)
    bare = quantiles((delay for sample in samples for delay in sample.bare_delays), n=100)
    return [
        Figure(
            name=f"from write to watcher in a burst, p{percent}",
            measured=Quantity(delays[percent - 1] * 1e3, "ms"),
            floor=Quantity(bare[percent - 1] * 1e3, "ms"),
            target=None,
            notes=(
                f"over every topic at each of {scale.watchers:,} watchers, from the time that the store notes with the "
                "change (whole milliseconds, rounded down); changes are gathered for 50 ms, as `--coalesce` has it",
                "floor: one bare subscriber to the keyspace notifications of the same changes",
            ),
        )
        for percent in (50, 99)
    ]
