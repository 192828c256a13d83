"""The events of one namespace, from its model and a seed: the same ones wherever and beside whatever it runs.

Histories are legal: a topic is created before it changes, each creation is a new incarnation, versions and epochs
grow. Nothing is kept but the topics that live, so a day costs as little memory as an hour.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from random import Random
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from metadata.keys import bucket_of, namespace_path
from metadata.traces.events import Kind
from metadata.traces.tables import EVENT_SCHEMA
from protocol.names import NamespaceName
from spark.synth.model import (
    CELLS,
    CHANGE,
    CREATE,
    DELETE,
    HOUR_US,
    OPS,
    NamespaceModel,
    Quantiles,
    Surroundings,
    cumulative,
    daily_rate,
    gaps_of,
    smooth_cells,
    stepped_cells,
)

# Midnight, so that a daily curve begins where days do. Fixed, because the same seed has to give the same trace.
FIRST_US: Final = 1_767_225_600_000_000

# `seq` orders the whole trace without anybody counting through it: (slot, number of the namespace), where the slot is
# 0 for the gap at the start, then one for each topic that is there, and from here on the time in microseconds.
FIRST_TIME_SLOT: Final = 2_000_000
MOST_TOPICS: Final = FIRST_TIME_SLOT - 2

SCHEMA: Final = EVENT_SCHEMA.append(pa.field("hour", pa.int32(), nullable=False))

_ROWS: Final = 20_000
_ABOUT_TOPIC: Final = ("bucket", "topic", "incarnation", "version", "epoch", "size")
# Time, kind, the store's time and number, and then the columns about the topic.
_Row = tuple[int, str, int, int, int, str, str, int, int | None, int | None]
_KINDS: Final = (Kind.CREATED.value, Kind.CHANGED.value, Kind.DELETED.value)
_LAGS: Final = 4_096  # seconds until the lags begin again
_LARGEST_SWING_US: Final = 400_000
_REMEMBERED: Final = 64  # names of deleted topics that may come back


class _Topic:
    __slots__ = ("bucket", "epoch", "incarnation", "name", "size", "version")

    def __init__(self, name: str, bucket: int, incarnation: str, version: int, epoch: int, size: int) -> None:
        self.name = name
        self.bucket = bucket
        self.incarnation = incarnation
        self.version = version
        self.epoch = epoch
        self.size = size


class _Names:
    """New names for topics, all of the same length, and the bucket of each."""

    def __init__(self, namespace: str, length: int) -> None:
        self._path = namespace_path(NamespaceName.parse(namespace))
        self._width = max(1, length - len("topic-"))
        self._count = 0

    def new(self) -> tuple[str, int]:
        name = f"topic-{self._count:0{self._width}x}"
        self._count += 1
        return name, bucket_of(f"{self._path}/{name}")  # nothing in such a name needs encoding


class _Batches:
    """Rows to Arrow: what follows from other columns is added here, for all rows at once."""

    def __init__(self, namespace: str, index: int, around: Surroundings) -> None:
        self._namespace = namespace
        self._index = index
        self._around = around

    def changes(self, rows: list[_Row]) -> pa.RecordBatch:
        at_us, kind, store_ms, store_seq, *about = zip(*rows, strict=True)
        at = pa.array(at_us, pa.int64())
        arrival = pc.add(at, pa.scalar(FIRST_US, pa.int64()))
        return self._batch(
            pc.add(at, pa.scalar(FIRST_TIME_SLOT, pa.int64())),
            pc.divide(at, pa.scalar(HOUR_US, pa.int64())),
            about,
            kind=pa.array(kind, pa.string()),
            taken_us=pc.add(arrival, pa.scalar(self._around.delay_us, pa.int64())),
            arrival_us=arrival,
            store_ms=pa.array(store_ms, pa.int64()),
            store_seq=pa.array(store_seq, pa.int64()),
        )

    def seeds(self, topics: list[_Topic]) -> pa.RecordBatch:
        """The topics that are there at the start, as a recorder would find them."""
        count = len(topics)
        about = [(each.bucket, each.name, each.incarnation, each.version, each.epoch, each.size) for each in topics]
        return self._batch(
            pa.array(range(1, count + 1), pa.int64()),
            pa.repeat(pa.scalar(0, pa.int64()), count),
            list(zip(*about, strict=True)),
            kind=pa.repeat(Kind.BASE.value, count),
            taken_us=pa.repeat(pa.scalar(FIRST_US, pa.int64()), count),
        )

    def _batch(
        self, slots: pa.Array, hours: pa.Array, about: list[tuple[object, ...]], **columns: pa.Array
    ) -> pa.RecordBatch:
        count = len(slots)
        for name, values in zip(_ABOUT_TOPIC, about, strict=True):
            columns[name] = pa.array(values, SCHEMA.field(name).type)
        columns["seq"] = pc.add(pc.multiply(slots, pa.scalar(self._around.namespaces, pa.int64())), self._index)
        columns["run"] = pa.repeat(pa.scalar(1, pa.int32()), count)
        columns["namespace"] = pa.repeat(self._namespace, count)
        columns["hour"] = hours.cast(pa.int32())
        arrays = [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in SCHEMA]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def bookends(around: Surroundings) -> pa.RecordBatch:
    """What a recorder says before and after it has found the topics at its start; once in a trace."""
    rows = [
        {"seq": 0, "kind": Kind.GAP.value, "detail": "start"},
        {"seq": (FIRST_TIME_SLOT - 1) * around.namespaces, "kind": Kind.BASE_END.value, "detail": "start"},
    ]
    common = {"run": 1, "taken_us": FIRST_US, "hour": 0}
    return pa.RecordBatch.from_pylist([{**row, **common} for row in rows], schema=SCHEMA)


def generate(model: NamespaceModel, namespace: str, index: int, around: Surroundings) -> Iterator[pa.RecordBatch]:
    """The batches of one namespace, in the order of time; `index` is its number among all of the trace."""
    rng = Random(f"{around.seed}/{namespace}")
    names = _Names(namespace, model.name_length)
    batches = _Batches(namespace, index, around)
    live = _first_topics(model, names, rng)
    if live:
        yield batches.seeds(live)
    if model.per_hour > 0:
        yield from _changes(model, around, rng, names, live, batches)


@lru_cache(maxsize=4)
def _lags(seed: int, quantiles: Quantiles) -> tuple[int, ...]:
    """The lag at each full second; between two of them it changes evenly.

    All namespaces share it, and it never changes as fast as time goes by: so the store's time does not go back, in a
    bucket of several namespaces either.
    """
    if not quantiles:
        return (0,) * _LAGS
    cells = sorted(stepped_cells(quantiles))
    middle = cells[CELLS // 2]
    drawn = Random(f"{seed}/lags").choices(cells, k=_LAGS)
    return tuple(min(max(lag, middle - _LARGEST_SWING_US), middle + _LARGEST_SWING_US) for lag in drawn)


def _first_topics(model: NamespaceModel, names: _Names, rng: Random) -> list[_Topic]:
    epochs = stepped_cells(model.epochs) if model.epochs else (0,) * CELLS
    created_sizes = stepped_cells(model.created_sizes) if model.created_sizes else (0,) * CELLS
    changed_sizes = stepped_cells(model.changed_sizes) if model.changed_sizes else created_sizes
    topics = []
    for _ in range(min(model.topics, MOST_TOPICS)):
        name, bucket = names.new()
        epoch = epochs[int(rng.random() * CELLS)]
        size = (changed_sizes if epoch else created_sizes)[int(rng.random() * CELLS)]
        topics.append(_Topic(name, bucket, f"{rng.getrandbits(64):016x}", epoch, epoch, size))
    return topics


def _changes(
    model: NamespaceModel, around: Surroundings, rng: Random, names: _Names, live: list[_Topic], batches: _Batches
) -> Iterator[pa.RecordBatch]:
    """One long function, because this is where all the time goes: an event costs a few microseconds."""
    random = rng.random
    gaps = gaps_of(model, around.stretch)
    inside_gaps, between_gaps, burst_sizes = gaps.inside, gaps.between, gaps.burst_sizes
    lags = _lags(around.seed, around.lags)
    bounds = cumulative(model.steps)  # a row for each op before, and for each whether in a burst
    created_sizes = stepped_cells(model.created_sizes) if model.created_sizes else (0,) * CELLS
    changed_sizes = stepped_cells(model.changed_sizes) if model.changed_sizes else created_sizes
    lifetimes = smooth_cells(model.lifetimes) if model.lifetimes else None
    fewest, most = model.fewest, min(model.most, MOST_TOPICS)
    again, resized, recreated, lasting = model.again, model.resized, model.recreated, model.lasting
    amplitude, stretch, end = around.daily_amplitude, around.stretch, around.duration_us

    # Beside `live`, and ordered as that: by time of creation. The first ones were there before all time.
    births = [-1] * len(live)
    firsts = len(live)
    deleted: deque[tuple[str, int]] = deque(maxlen=_REMEMBERED)
    touched: _Topic | None = None
    previous = len(OPS)  # nothing yet
    last_ms = within_ms = -1
    rows: list[_Row] = []
    at = -between_gaps[int(random() * CELLS)] * random()  # somewhere inside a gap
    while True:
        gap: float = between_gaps[int(random() * CELLS)]
        if amplitude:
            gap = max(1.0, gap / daily_rate(max(at, 0), amplitude))
        for number in range(burst_sizes[int(random() * CELLS)]):
            at = int(at + (inside_gaps[int(random() * CELLS)] if number else gap)) or 1
            if at >= end:
                if rows:
                    yield batches.changes(rows)
                return
            if at < 0:
                continue
            draw = random()
            to_create, to_change = bounds[2 * previous + (number > 0)]
            op = CREATE if draw < to_create else CHANGE if draw < to_change else DELETE
            count = len(live)
            # The number of topics stays within what it was: at its bounds the opposite happens.
            if op == CREATE:
                if count >= most:
                    op = DELETE if count > fewest else CHANGE
            elif op == DELETE:
                if count <= fewest or not count:
                    op = CREATE if count < most else CHANGE
            elif not count:
                op = CREATE
            previous = op

            if op == CHANGE:
                if touched is None or random() >= again:
                    touched = live[int(random() * count)]
                touched.version += 1
                if random() < resized:
                    touched.epoch += 1
                    touched.size = changed_sizes[int(random() * CELLS)]
                topic = touched
            elif op == CREATE:
                if deleted and random() < recreated:
                    position = int(random() * len(deleted))
                    name, bucket = deleted[position]
                    del deleted[position]
                else:
                    name, bucket = names.new()
                first_size = created_sizes[int(random() * CELLS)]
                topic = touched = _Topic(name, bucket, f"{rng.getrandbits(64):016x}", 0, 0, first_size)
                live.append(topic)
                births.append(at)
            else:
                if lifetimes is None:
                    position = int(random() * count)
                elif firsts and (firsts == count or random() < lasting):
                    position = int(random() * firsts)
                else:
                    # The topic whose age is next to a lifetime as it should be.
                    born = at - lifetimes[int(random() * CELLS)] * stretch
                    position = min(bisect_left(births, born, firsts), count - 1)
                topic = live.pop(position)
                del births[position]
                firsts -= position < firsts
                deleted.append((topic.name, topic.bucket))
                touched = None

            second, rest = divmod(at, 1_000_000)
            lag = lags[second % _LAGS]
            lag += (lags[(second + 1) % _LAGS] - lag) * rest // 1_000_000
            store_ms = (FIRST_US + at - lag) // 1_000
            if store_ms > last_ms:
                last_ms, within_ms = store_ms, 0
            else:
                within_ms += 1
            if op == DELETE:
                epoch, size = None, None  # nobody could read them any more
            else:
                epoch, size = topic.epoch, topic.size
            rows.append(
                (
                    at,
                    _KINDS[op],
                    last_ms,
                    within_ms,
                    topic.bucket,
                    topic.name,
                    topic.incarnation,
                    topic.version,
                    epoch,
                    size,
                )
            )
            if len(rows) >= _ROWS:
                yield batches.changes(rows)
                rows.clear()
