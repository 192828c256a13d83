"""What recording costs a server that follows many changes: its CPU with `--record` against the same without, both with
watchers on the namespaces that change.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.figures import Figure, MeasurementFailed, Quantity
from benchmarks.processes import cpu_seconds
from benchmarks.readers import namespace_message, readers
from benchmarks.server import QUIET, RunningServer, running_server

TARGET = 1.2
# Few for a node: each makes more of the server's work one that recording adds nothing to.
WATCHERS = 200
NAMESPACES = 10
WATCH_ID = 1
WARM_UP = 0.5
# Seconds of a recording with few events.
BRIEF = 0.1
# Bytes of a part before the next is begun, as is the default; what a part costs by itself is spread over so many.
PART_SIZE = 128 * 1024 * 1024
# Updates come every 50 ms while topics come and go.
_SILENCE = 1.5


@dataclass(frozen=True, slots=True)
class Scale:
    rate: int
    seconds: float
    rounds: int


FULL = Scale(rate=5000, seconds=6.0, rounds=5)
QUICK = Scale(rate=200, seconds=1.0, rounds=1)

# Runs in an interpreter of its own, with the product's own way to write: topics are created, changed and deleted
# through its scripts, at a steady rate whatever the answers take.
_WRITER = """
import sys, trio
from layout import records
from layout.layouts import Layout
from layout.records import TopicRecord
from metadata.store import open_store
from protocol.names import NamespaceName, TopicName

url, prefix = sys.argv[1:3]
rate, seconds, namespaces = int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])
TICK = 0.01
PAUSE = 0.3  # so that each state is read back before the next
first = Layout.create(2, 0)
created = records.encode(TopicRecord(first, {"owner": "team", "stage": "load"}))
changed = records.encode(TopicRecord(first.split(0, 0), {"owner": "team", "stage": "load"}))

async def life(store, topic):
    version = await store.create(topic, created, [])
    await trio.sleep(PAUSE)
    version = await store.replace(topic, version, changed)
    await trio.sleep(PAUSE)
    await store.delete(topic, version, [])

async def main():
    async with open_store(url) as store:
        for number in range(namespaces):
            await store.ensure_namespace(NamespaceName("public", f"recorded-{number}"))
        print("ready", flush=True)
        sys.stdin.readline()
        lives = round(rate * seconds / 3)
        per_tick = rate * TICK / 3
        started = trio.current_time()
        begun = tick = 0
        async with trio.open_nursery() as nursery:
            while begun < lives:
                tick += 1
                while begun < min(lives, round(tick * per_tick)):
                    topic = TopicName.scalable("public", f"recorded-{begun % namespaces}", f"{prefix}-{begun:07}")
                    nursery.start_soon(life, store, topic)
                    begun += 1
                await trio.sleep_until(started + tick * TICK)
        print(3 * lives, trio.current_time() - started, flush=True)

trio.run(main)
"""


@dataclass(frozen=True, slots=True)
class _Sample:
    """CPU seconds of the server for so many changes, written in so many seconds."""

    cpu: float
    changes: int
    seconds: float

    @property
    def each(self) -> float:
        return self.cpu / self.changes * 1e6


@dataclass(frozen=True, slots=True)
class _Sealing:
    """Microseconds of CPU for each event of a part of the usual size, and the bytes of one in the log."""

    each: float
    size: float


def measure(quick: bool) -> list[Figure]:
    scale = QUICK if quick else FULL
    plain: list[_Sample] = []
    recorded: list[_Sample] = []
    without_values: list[_Sample] = []
    with TemporaryDirectory(prefix="vela-bench-") as scratch:
        traces = [Path(scratch, f"trace-{number}") for number in range(scale.rounds)]
        for trace in traces:
            plain.append(_sample(scale, {}))
            recorded.append(_sample(scale, {"VELA_RECORD": str(trace)}))
            bare = {"VELA_RECORD": f"{trace}-bare", "VELA_RECORD_VALUES": "false"}
            without_values.append(_sample(scale, bare))
        brief = Path(scratch, "brief")
        _sample(replace(scale, seconds=BRIEF), {"VELA_RECORD": str(brief)})
        sealing = _sealing(brief, traces[-1])
    return [_figure(scale, plain, recorded, without_values, sealing)]


def _sample(scale: Scale, settings: dict[str, str]) -> _Sample:
    """Killed at the end, so that the log of what was recorded can be looked at."""
    with running_server({**QUIET, **settings}) as server, readers() as watchers:
        with _writing(server, replace(scale, seconds=WARM_UP), "warm") as writer:
            writer.begin()
            writer.finish()
        watchers.connect(server.pulsar_address, WATCHERS)
        watchers.greet(range(WATCHERS))
        watchers.request(
            [
                (number, namespace_message(WATCH_ID, f"public/recorded-{number % NAMESPACES}"))
                for number in range(WATCHERS)
            ]
        )
        with _writing(server, scale, "measured") as writer:
            before = server.metric("vela_changes_total")
            cpu = -cpu_seconds(server.pid)
            writer.begin()
            watchers.listen(_SILENCE)
            changes, seconds = writer.finish()
            server.await_metric("vela_changes_total", before + changes)
            cpu += cpu_seconds(server.pid)
        if "VELA_RECORD" in settings and server.metric("vela_recorder_dropped_total"):
            raise MeasurementFailed("the recorder dropped changes")
        server.kill()
    return _Sample(cpu, changes, seconds)


class _Writing:
    """The process that writes: begins when told to, and says how much it wrote in how many seconds."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def begin(self) -> None:
        self._said()
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def finish(self) -> tuple[int, float]:
        changes, seconds = self._said().split()
        return int(changes), float(seconds)

    def _said(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise MeasurementFailed("the process that writes to the store has failed")
        return line


@contextmanager
def _writing(server: RunningServer, scale: Scale, prefix: str) -> Iterator[_Writing]:
    arguments = (server.store_url, prefix, str(scale.rate), str(scale.seconds), str(NAMESPACES))
    with subprocess.Popen(
        [sys.executable, "-c", _WRITER, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield _Writing(process)
        finally:
            process.kill()


def _sealing(brief: Path, long: Path) -> _Sealing:
    """From a part with few events and one with many; what a part costs by itself is shared by those of a full one."""
    few = _seal(brief)
    many = _seal(long)
    each = (many.cpu - few.cpu) / (many.events - few.events)
    by_itself = few.cpu - each * few.events
    size = many.size / many.events
    return _Sealing((each + by_itself / (PART_SIZE / size)) * 1e6, size)


@dataclass(frozen=True, slots=True)
class _Sealed:
    cpu: float
    events: int
    size: int  # of the log


def _seal(trace: Path) -> _Sealed:
    """Seal the log of a killed server as its recorder would have had it done."""
    [log] = trace.glob("part-*.log")
    size = log.stat().st_size
    before = _children()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "metadata.traces.sealing", str(log), str(os.getpid())],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise MeasurementFailed(f"a part could not be sealed: {done.stderr}")
    return _Sealed(_children() - before, int(json.loads((trace / "manifest.json").read_text())["events"]), size)


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _figure(
    scale: Scale,
    plain: Sequence[_Sample],
    recorded: Sequence[_Sample],
    without_values: Sequence[_Sample],
    sealing: _Sealing,
) -> Figure:
    floor = median(sample.each for sample in plain)
    measured = median(sample.each for sample in recorded)
    bare = median(sample.each for sample in without_values)
    rates = sorted(sample.changes / sample.seconds for sample in (*plain, *recorded))
    ratios = sorted(with_it.each / without.each for with_it, without in zip(recorded, plain, strict=True))
    return Figure(
        name="recorder overhead",
        measured=Quantity(measured, "us"),
        floor=Quantity(floor, "us"),
        target=TARGET,
        target_is_ratio=True,
        notes=(
            f"CPU of the server for each change, at {rates[0]:,.0f} to {rates[-1]:,.0f} changes a second (topics are "
            f"created, split and deleted) in {NAMESPACES} namespaces with {WATCHERS} watchers; medians of "
            f"{scale.rounds} runs, ratios of single ones {ratios[0]:.2f} to {ratios[-1]:.2f}",
            f"of it recording {measured - floor:.1f} us with values and {bare - floor:.1f} us without, its thread "
            "included",
            f"sealing, later and in a process of its own behind all others, takes {sealing.each:.1f} us for an event "
            f"of {sealing.size:,.0f} bytes: {(measured + sealing.each) / floor:.2f} times the floor with it",
        ),
    )
