"""A proxy before a node that keeps newcomers waiting for as long as it is told to: whoever was dropped stays away."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self
from urllib.parse import urlsplit

import trio

from tests.support.ports import HOST

_CHUNK = 65_536
_GONE = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)


class Turnstile:
    """Passes everything on. While it is shut, those who are inside stay connected, and whoever comes is kept waiting.

    `shut` and `open` may be called on any thread; `is_empty` is set when all who were inside have left after `shut`.
    """

    def __init__(self, target: tuple[str, int], port: int) -> None:
        self.url = f"pulsar://{HOST}:{port}"
        self.is_empty = threading.Event()
        self._target = target
        self._is_shut = threading.Event()
        self._token = trio.lowlevel.current_trio_token()
        self._opened = trio.Event()
        self._opened.set()
        self._inside = 0

    @classmethod
    @asynccontextmanager
    async def before(cls, url: str) -> AsyncIterator[Self]:
        target = urlsplit(url)
        assert target.hostname is not None
        assert target.port is not None
        [listener] = await trio.open_tcp_listeners(0, host=HOST)
        turnstile = cls((target.hostname, target.port), listener.socket.getsockname()[1])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, turnstile._serve, [listener])
            yield turnstile
            nursery.cancel_scope.cancel()

    def shut(self) -> None:
        """Returns when nobody gets in any more."""
        self._token.run_sync_soon(self._shut, idempotent=True)
        assert self._is_shut.wait(30), "the proxy's loop is stuck"

    def open(self) -> None:
        self._token.run_sync_soon(self._open, idempotent=True)

    def _shut(self) -> None:
        if self._opened.is_set():
            self._opened = trio.Event()
        self._is_shut.set()

    def _open(self) -> None:
        self._opened.set()

    async def _serve(self, client: trio.SocketStream) -> None:
        async with client:
            await self._opened.wait()
            self._inside += 1
            try:
                await self._pass_on(client)
            finally:
                self._inside -= 1
                if self._inside == 0 and self._is_shut.is_set():
                    self.is_empty.set()

    async def _pass_on(self, client: trio.SocketStream) -> None:
        async with await trio.open_tcp_stream(*self._target) as server, trio.open_nursery() as nursery:
            nursery.start_soon(_pump, client, server, nursery.cancel_scope)
            nursery.start_soon(_pump, server, client, nursery.cancel_scope)


async def _pump(source: trio.SocketStream, sink: trio.SocketStream, scope: trio.CancelScope) -> None:
    try:
        while data := await source.receive_some(_CHUNK):
            await sink.send_all(data)
    except _GONE:
        pass
    scope.cancel()
