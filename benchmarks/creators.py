"""Topics made through the admin API over a few connections at a time, in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from multiprocessing.connection import Connection

from benchmarks.children import Child, child
from benchmarks.figures import MeasurementFailed
from benchmarks.readers import Address

# As many as the server works on at the same time.
_CONNECTIONS = 8
# Topics per request to the child, whose answers have a time limit.
_AT_A_TIME = 2000
_REQUEST_LIMIT = 30.0


class Creators:
    """The parent's end."""

    def __init__(self, process: Child, address: Address) -> None:
        self._process = process
        self._address = address

    def create(self, namespace: str, names: Sequence[str]) -> None:
        """Create topics of one segment each, in no particular order; returns when all are there."""
        for start in range(0, len(names), _AT_A_TIME):
            self._process.ask(self._address, namespace, names[start : start + _AT_A_TIME])


@contextmanager
def creators(address: Address) -> Iterator[Creators]:
    """For the server whose admin API has this address."""
    with child(_main) as process:
        yield Creators(process, address)


def _main(pipe: Connection) -> None:
    with ThreadPoolExecutor(_CONNECTIONS) as threads:
        while True:
            address, namespace, names = pipe.recv()
            shares = [names[first::_CONNECTIONS] for first in range(_CONNECTIONS)]
            for done in [threads.submit(_create, address, namespace, share) for share in shares]:
                done.result()
            pipe.send(None)


def _create(address: Address, namespace: str, names: Sequence[str]) -> None:
    connection = HTTPConnection(*address, timeout=_REQUEST_LIMIT)
    try:
        for name in names:
            connection.request("PUT", f"/admin/v2/scalable/{namespace}/{name}?numInitialSegments=1")
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
            if response.status >= 400:
                raise MeasurementFailed(f"creating {namespace}/{name} was answered with {response.status}: {text}")
    finally:
        connection.close()
