"""The floor for delays: a bare subscriber to the store's keyspace notifications, in a process of its own, and the
times at which the store itself says that it wrote.
"""

from __future__ import annotations

import os
import socket
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import hiredis
import redis

from benchmarks.children import Child, child
from benchmarks.figures import MeasurementFailed

# The change log of every bucket; below some of them lie other keys for a short time.
_LOGS = "/changes/{b*}"
_CHANNEL = "__keyspace@0__:"
_NOTICE_LIMIT = 30.0
_CHUNK = 65_536


class Subscriber:
    """The parent's end."""

    def __init__(self, process: Child, store_socket: Path) -> None:
        self._process = process
        self._store_socket = store_socket

    def follow(self, changes: int) -> None:
        """Subscribe, and wait for so many changes; `followed` has the times of their notifications."""
        self._process.ask(os.fspath(self._store_socket), changes)

    def followed(self) -> Mapping[str, Sequence[float]]:
        """By change log and in their order, on the monotonic clock."""
        times = self._process.answer()
        assert isinstance(times, dict)
        return times


@contextmanager
def subscriber(store_socket: Path) -> Iterator[Subscriber]:
    with child(_main) as process:
        yield Subscriber(process, store_socket)


def written(store_socket: Path, paths: Collection[str]) -> Mapping[str, Sequence[tuple[str, float]]]:
    """By change log and in their order: which of these topics changed when, on the monotonic clock.

    The store writes the time into the id of the entry, in whole milliseconds, rounded down.
    """
    to_monotonic = time.monotonic() - time.time()
    found: dict[str, list[tuple[str, float]]] = {}
    with redis.Redis(unix_socket_path=os.fspath(store_socket), decode_responses=True) as store:
        for log in store.scan_iter(match=_LOGS, count=1000, _type="stream"):
            entries: Any = store.xrange(log)
            found[log] = [
                (fields["topic"], int(entry_id.partition("-")[0]) / 1e3 + to_monotonic)
                for entry_id, fields in entries
                if fields.get("topic") in paths
            ]
    return found


def _main(pipe: Connection) -> None:
    while True:
        path, changes = pipe.recv()
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(_NOTICE_LIMIT)
            sock.connect(path)
            sock.sendall(f"PSUBSCRIBE {_CHANNEL}{_LOGS}\r\n".encode())
            reader = hiredis.Reader()
            _receive(sock, reader)  # the answer, which comes alone while nothing is written
            pipe.send(None)
            pipe.send(_notices(sock, reader, changes))


def _notices(sock: socket.socket, reader: hiredis.Reader, changes: int) -> dict[str, list[float]]:
    times: defaultdict[str, list[float]] = defaultdict(list)
    count = 0
    while count < changes:
        for _kind, _pattern, channel, event in _receive(sock, reader):
            if event == b"xadd":
                times[channel.decode().removeprefix(_CHANNEL)].append(time.monotonic())
                count += 1
    return dict(times)


def _receive(sock: socket.socket, reader: hiredis.Reader) -> list[Any]:
    data = sock.recv(_CHUNK)
    if not data:
        raise MeasurementFailed("the store closed the connection of the bare subscriber")
    reader.feed(data)
    messages = []
    while (message := reader.gets()) is not False:
        messages.append(message)
    return messages
