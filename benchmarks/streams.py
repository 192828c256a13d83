"""The floor of the data plane: a bare redis-py client, in a process of its own, that writes and reads streams in the
server's own store.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import redis

from benchmarks.children import Child, child
from benchmarks.figures import MeasurementFailed

_FLOOR_KEY = "benchmark-floor"
# As long as what the server notes beside each message.
_HEADER = b"h" * 14


class Streams:
    """The parent's end."""

    def __init__(self, process: Child) -> None:
        self._process = process

    def append(self, store: Path, entries: int, size: int, batch: int) -> float:
        """Seconds for so many XADDs of so many bytes, in pipelines of `batch`."""
        return self._seconds("append", store, entries, size, batch)

    def read(self, store: Path, key: bytes, entries: int, page: int, times: int) -> float:
        """Seconds for XRANGE over a stream of so many entries, a page at a time, and all of it so many times."""
        return self._seconds("read", store, key, entries, page, times)

    def _seconds(self, *request: object) -> float:
        seconds = self._process.ask(*request)
        assert isinstance(seconds, float)
        return seconds


@contextmanager
def streams() -> Iterator[Streams]:
    with child(_main) as process:
        yield Streams(process)


def _main(pipe: Connection) -> None:
    while True:
        match pipe.recv():
            case ("append", store, entries, size, batch):
                pipe.send(_append(store, entries, size, batch))
            case ("read", store, key, entries, page, times):
                pipe.send(sum(_read(store, key, entries, page) for _ in range(times)))


def _append(store: Path, entries: int, size: int, batch: int) -> float:
    body = b"x" * size
    with redis.Redis(unix_socket_path=str(store)) as client:
        client.ping()
        started_at = time.monotonic()
        for first in range(0, entries, batch):
            pipeline = client.pipeline(transaction=False)
            for _ in range(min(batch, entries - first)):
                pipeline.xadd(_FLOOR_KEY, {b"h": _HEADER, b"d": body})
            pipeline.execute()
        seconds = time.monotonic() - started_at
        client.unlink(_FLOOR_KEY)
    return seconds


def _read(store: Path, key: bytes, entries: int, page: int) -> float:
    with redis.Redis(unix_socket_path=str(store)) as client:
        client.ping()
        started_at = time.monotonic()
        found, start = 0, b"-"
        while entries_of_page := client.xrange(key, start, count=page):
            found += len(entries_of_page)
            start = b"(" + entries_of_page[-1][0]
        seconds = time.monotonic() - started_at
    if found != entries:
        raise MeasurementFailed(f"the store has {found} entries, and not {entries}")
    return seconds
