"""The floors: the least that any Python server on this machine would spend, measured in processes of their own."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import trio
import trio.testing

from benchmarks.children import Child, child
from benchmarks.readers import Address

_ACCEPT_LIMIT = 30.0
# As the server sets it.
_UNSENT_IN_KERNEL = 16 * 1024


class BareSender:
    """Holds accepted sockets and sends them frames in a plain loop."""

    def __init__(self, process: Child) -> None:
        self._process = process
        self.address: Address = process.answer()

    def accept(self, count: int) -> None:
        """Take `count` connections that were made already."""
        self._process.ask("accept", count)

    def load(self, frame: bytes) -> None:
        self._process.ask("load", frame)

    def send(self, times: int = 1) -> float:
        """Send the loaded frame to every socket, and then again; the CPU seconds that the loop took."""
        seconds = self._process.ask("send", times)
        assert isinstance(seconds, float)
        return seconds


@contextmanager
def bare_sender() -> Iterator[BareSender]:
    with child(_send_main) as process:
        yield BareSender(process)


class BareWaiters:
    """Holds accepted sockets with one trio task each, which waits for something to read."""

    def __init__(self, process: Child) -> None:
        self._process = process
        self.address: Address = process.answer()

    @property
    def pid(self) -> int:
        return self._process.pid

    def accept(self, count: int) -> None:
        """Take `count` connections that were made already; returns once all of their tasks wait."""
        self._process.ask(count)


@contextmanager
def bare_waiters() -> Iterator[BareWaiters]:
    with child(_wait_main) as process:
        yield BareWaiters(process)


def _listen() -> socket.socket:
    listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
    listening.settimeout(_ACCEPT_LIMIT)
    return listening


def _accept(listening: socket.socket) -> socket.socket:
    sock = listening.accept()[0]
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_IN_KERNEL)
    return sock


def _send_main(pipe: Connection) -> None:
    listening = _listen()
    pipe.send(listening.getsockname())
    socks: list[socket.socket] = []
    parts: tuple[bytes, ...] = ()
    while True:
        match pipe.recv():
            case ("accept", count):
                socks += [_accept(listening) for _ in range(count)]
                pipe.send(None)
            case ("load", frame):
                parts = (frame,)
                pipe.send(None)
            case ("send", times):
                pipe.send(_send_to_all(socks, parts, times))


def _send_to_all(socks: list[socket.socket], parts: tuple[bytes, ...], times: int) -> float:
    started_at = time.process_time()
    for _ in range(times):
        for sock in socks:
            sock.sendmsg(parts)
    return time.process_time() - started_at


def _wait_main(pipe: Connection) -> None:
    trio.run(_wait_for_all, pipe)


async def _wait_for_all(pipe: Connection) -> None:
    listening = _listen()
    pipe.send(listening.getsockname())
    async with trio.open_nursery() as nursery:
        while True:
            await trio.lowlevel.wait_readable(pipe.fileno())
            try:
                count = pipe.recv()[0]
            except EOFError:
                nursery.cancel_scope.cancel()
                return
            for _ in range(count):
                nursery.start_soon(trio.lowlevel.wait_readable, _accept(listening))
            await trio.testing.wait_all_tasks_blocked()
            pipe.send(None)
