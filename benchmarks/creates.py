"""What a namespace watch costs the one who creates topics: a node reads what it wrote before it answers watches, and
the answer to the write must not wait for that.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPConnection
from statistics import median, quantiles

from benchmarks.figures import Figure, MeasurementFailed, Quantity
from benchmarks.readers import namespace_message, readers
from benchmarks.server import running_server

# Milliseconds that the 99th percentile may be higher beside a watch.
ALLOWANCE = 1.0
WATCHED = "public/watched"
UNWATCHED = "public/unwatched"
REQUEST_LIMIT = 30.0


@dataclass(frozen=True, slots=True)
class Scale:
    turns: int
    creates: int


FULL = Scale(turns=30, creates=200)
QUICK = Scale(turns=2, creates=20)


def measure(quick: bool) -> list[Figure]:
    scale = QUICK if quick else FULL
    watched: list[list[float]] = []
    unwatched: list[list[float]] = []
    with running_server() as server, readers() as clients:
        clients.connect(server.pulsar_address, 1)
        clients.greet(range(1))
        clients.request([(0, namespace_message(1, WATCHED))])
        connection = HTTPConnection(*server.http_address, timeout=REQUEST_LIMIT)
        try:
            for turn in range(scale.turns):
                # Who begins takes turns as well: the store has more topics in the second half.
                pair = [(WATCHED, watched), (UNWATCHED, unwatched)]
                for namespace, taken in pair if turn % 2 else reversed(pair):
                    names = [f"creates-{turn}-{number}" for number in range(scale.creates)]
                    taken.append([_create(connection, namespace, name) for name in names])
        finally:
            connection.close()
    return [_figure(scale, watched, unwatched)]


def _create(connection: HTTPConnection, namespace: str, name: str) -> float:
    """Seconds until it is answered."""
    started_at = time.perf_counter()
    connection.request("PUT", f"/admin/v2/scalable/{namespace}/{name}?numInitialSegments=1")
    response = connection.getresponse()
    text = response.read().decode(errors="replace")
    seconds = time.perf_counter() - started_at
    if response.status >= 400:
        raise MeasurementFailed(f"creating {namespace}/{name} was answered with {response.status}: {text}")
    return seconds


def _figure(scale: Scale, watched: Sequence[Sequence[float]], unwatched: Sequence[Sequence[float]]) -> Figure:
    p50, p99 = _percentiles(watched)
    floor_p50, floor_p99 = _percentiles(unwatched)
    return Figure(
        name="creating a topic beside a namespace watch, p99",
        measured=Quantity(p99, "ms"),
        floor=Quantity(floor_p99, "ms"),
        target=floor_p99 + ALLOWANCE,
        notes=(
            f"the median over {scale.turns} turns of the 99th percentile of {scale.creates} creates one after another, "
            "from request to answer, in a namespace that one connection watches",
            f"floor: the same in a namespace that nobody watches, in turns with it; target: {ALLOWANCE:g} ms more",
            f"p50: {p50:.2f} ms beside the watch, {floor_p50:.2f} ms without",
        ),
    )


def _percentiles(turns: Sequence[Sequence[float]]) -> tuple[float, float]:
    """In milliseconds: the medians over all turns of their 50th and 99th percentiles."""
    cut = [quantiles(seconds, n=100, method="inclusive") for seconds in turns]
    return median(turn[49] for turn in cut) * 1e3, median(turn[98] for turn in cut) * 1e3
