"""A proxy whose connections can die in silence: no byte passes, and neither side is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self
from urllib.parse import urlsplit

import trio

from tests.support.ports import HOST

_CHUNK = 65_536
_GONE = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)


class BlackHole:
    """Stands before whatever listens at a URL, and understands none of it.

    `swallow` is for the connections that are open then, `give_back` lets go on what they swallowed; connections that
    come later pass, as over a way around the fault.
    """

    def __init__(self, target: tuple[str, int], port: int) -> None:
        self.address = (HOST, port)
        self._target = target
        self._gate = _Gate()
        self._shut: list[trio.Event] = []

    @classmethod
    @asynccontextmanager
    async def before(cls, url: str) -> AsyncIterator[Self]:
        target = urlsplit(url)
        assert target.hostname is not None
        assert target.port is not None
        (listener,) = await trio.open_tcp_listeners(0, host=HOST)
        hole = cls((target.hostname, target.port), listener.socket.getsockname()[1])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, hole._serve, [listener])
            yield hole
            nursery.cancel_scope.cancel()

    def swallow(self) -> None:
        self._gate.shut = trio.Event()
        self._shut.append(self._gate.shut)
        self._gate = _Gate()

    def give_back(self) -> None:
        for shut in self._shut:
            shut.set()

    async def _serve(self, client: trio.SocketStream) -> None:
        gate = self._gate
        try:
            server = await trio.open_tcp_stream(*self._target)
        except OSError:
            await client.aclose()
            return
        async with client, server, trio.open_nursery() as nursery:
            nursery.start_soon(_pump, client, server, gate)
            nursery.start_soon(_pump, server, client, gate)


class _Gate:
    """What the connections of one time pass through, both ways."""

    def __init__(self) -> None:
        self.shut: trio.Event | None = None

    async def passed(self) -> None:
        if self.shut is not None:
            await self.shut.wait()


async def _pump(source: trio.SocketStream, sink: trio.SocketStream, gate: _Gate) -> None:
    """Also the end of the stream passes only through an open gate."""
    try:
        while data := await source.receive_some(_CHUNK):
            await gate.passed()
            await sink.send_all(data)
        await gate.passed()
        await sink.send_eof()
    except _GONE:
        await gate.passed()
        await sink.aclose()
