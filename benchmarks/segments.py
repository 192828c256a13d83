"""Resident memory of the server per segment that it has and that nobody uses any more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.figures import Figure, MeasurementFailed, Quantity
from benchmarks.processes import resident_bytes
from benchmarks.producers import close_producer_message, producer_message
from benchmarks.readers import Readers, readers
from benchmarks.server import running_server, segment_urls

KB = 1024
SEGMENTS_PER_TOPIC = 100
_OPENED = "vela_logs_opened_total"
# Requests to the readers at a time, whose answers have a time limit.
_AT_A_TIME = 500


@dataclass(frozen=True, slots=True)
class Scale:
    """Topics of SEGMENTS_PER_TOPIC each. The warm-up comes first and stays: it pays for what is allocated only once."""

    topics: int
    warm_up: int


FULL = Scale(topics=100, warm_up=5)
QUICK = Scale(topics=3, warm_up=1)


def measure(quick: bool) -> list[Figure]:
    scale = QUICK if quick else FULL
    with running_server() as server, readers() as clients:
        names = [f"segments-{number}" for number in range(scale.warm_up + scale.topics)]
        for name in names:
            server.create_topic(name, SEGMENTS_PER_TOPIC)
        urls = [url for name in names for url in segment_urls(name, SEGMENTS_PER_TOPIC)]
        warm_up = scale.warm_up * SEGMENTS_PER_TOPIC
        clients.connect(server.pulsar_address, 1)
        clients.greet(range(1))
        _use(clients, urls[:warm_up])
        before = resident_bytes(server.pid)
        _use(clients, urls[warm_up:])
        grown = resident_bytes(server.pid) - before
        if (opened := server.metric(_OPENED)) != len(urls):
            raise MeasurementFailed(f"the server has opened {opened:.0f} segments, and not {len(urls)}")
    segments = len(urls) - warm_up
    return [
        Figure(
            name="memory per idle segment",
            measured=Quantity(grown / segments / KB, "KB"),
            floor=None,
            target=None,
            notes=(
                f"resident memory of the server {before / KB**2:.1f} MB with {warm_up:,} segments, {grown / KB**2:.1f} "
                f"MB more with {segments:,} further ones, {SEGMENTS_PER_TOPIC} to a topic; each had a producer that "
                "was closed again",
            ),
        )
    ]


def _use(clients: Readers, urls: Sequence[str]) -> None:
    """Open a producer on each, and close all of them."""
    for first in range(0, len(urls), _AT_A_TIME):
        some = list(enumerate(urls[first : first + _AT_A_TIME], start=1))
        clients.request([(0, producer_message(number, number, url)) for number, url in some])
        clients.request([(0, close_producer_message(number, number)) for number, _ in some])
