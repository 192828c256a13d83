"""Servers at fault: a proxy before a sound one that drops, doubles, swaps, delays or withholds what watchers are told.

It reads every frame on its way to the watchers. The first state of a watch always passes, so that a replay begins.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from urllib.parse import urlsplit

import trio

from protocol.framing import Frame, FrameDecoder, encode
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.support.ports import HOST

# The topic whose coming and going is meddled with; everything else passes, unless the fault is of another kind.
VICTIM = "victim"
DELAY_S = 0.6

_GONE = (trio.BrokenResourceError, trio.ClosedResourceError)


class Meddler:
    """What one connection's watchers are told instead. This one is sound."""

    delay = 0.0
    is_silent = False

    def __init__(self) -> None:
        self._known: set[int] = set()  # sessions that had their first layout

    def told_instead(self, command: BaseCommand) -> Sequence[BaseCommand]:
        match command.type:
            case BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE if command.watchScalableTopicsUpdate.HasField("diff"):
                diff = command.watchScalableTopicsUpdate.diff
                is_victim = any(name.endswith("/" + VICTIM) for name in (*diff.added, *diff.removed))
                return self.diff(command, is_victim)
            case BaseCommand.SCALABLE_TOPIC_UPDATE if command.scalableTopicUpdate.session_id in self._known:
                return self.layout(command)
            case BaseCommand.SCALABLE_TOPIC_UPDATE:
                self._known.add(command.scalableTopicUpdate.session_id)
        return [command]

    def diff(self, command: BaseCommand, is_victim: bool) -> Sequence[BaseCommand]:
        return [command]

    def layout(self, command: BaseCommand) -> Sequence[BaseCommand]:
        return [command]


class Dropping(Meddler):
    """Drops the diff with which the victim comes, and no other."""

    def diff(self, command: BaseCommand, is_victim: bool) -> Sequence[BaseCommand]:
        return _without_victim(command, removals=True)


class Hiding(Meddler):
    """Drops all that is about the victim, which leaves every set as it should be."""

    def diff(self, command: BaseCommand, is_victim: bool) -> Sequence[BaseCommand]:
        return _without_victim(command, removals=False)


class HidingLayout(Meddler):
    """Drops the first new layout of each topic; the next one makes up for it."""

    def __init__(self) -> None:
        super().__init__()
        self._hidden: set[int] = set()

    def layout(self, command: BaseCommand) -> Sequence[BaseCommand]:
        session_id = command.scalableTopicUpdate.session_id
        if session_id in self._hidden:
            return [command]
        self._hidden.add(session_id)
        return []


class Doubling(Meddler):
    """Sends every diff twice."""

    def diff(self, command: BaseCommand, is_victim: bool) -> Sequence[BaseCommand]:
        return [command, command]


class DoublingLayouts(Meddler):
    def layout(self, command: BaseCommand) -> Sequence[BaseCommand]:
        return [command, command]


class Swapping(Meddler):
    """Keeps the first diff about the victim until after the second."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[BaseCommand] = []

    def diff(self, command: BaseCommand, is_victim: bool) -> Sequence[BaseCommand]:
        if is_victim and not self._kept:
            self._kept.append(command)
            return []
        return [command, *self._kept] if is_victim else [command]


class Stale(Meddler):
    """Tells the layout before the new one once more, and then the new one."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[int, BaseCommand] = {}

    def layout(self, command: BaseCommand) -> Sequence[BaseCommand]:
        session_id = command.scalableTopicUpdate.session_id
        last, self._last[session_id] = self._last.get(session_id), command
        return [command] if last is None else [command, last, command]


class Delaying(Meddler):
    """Is late with everything, and otherwise sound."""

    delay = DELAY_S


class Silent(Meddler):
    """Says nothing any more from the first diff on, but answers whether it lives."""

    def diff(self, command: BaseCommand, is_victim: bool) -> Sequence[BaseCommand]:
        self.is_silent = True
        return []

    def layout(self, command: BaseCommand) -> Sequence[BaseCommand]:
        return [] if self.is_silent else [command]


def _without_victim(command: BaseCommand, *, removals: bool) -> Sequence[BaseCommand]:
    """The diff without what it says of the victim, or of its coming only; nothing if nothing else is in it."""
    told = BaseCommand()
    told.CopyFrom(command)
    diff = told.watchScalableTopicsUpdate.diff
    for names in (diff.added,) if removals else (diff.added, diff.removed):
        kept = [name for name in names if not name.endswith("/" + VICTIM)]
        del names[:]
        names.extend(kept)
    return [told] if diff.added or diff.removed else []


@asynccontextmanager
async def bad_server(url: str, kind: type[Meddler]) -> AsyncIterator[str]:
    """The URL of a server that is like the one at `url`, except for what the meddler does."""
    address = urlsplit(url)
    assert address.hostname is not None
    target = address.hostname, address.port or 0

    async def serve(client: trio.SocketStream) -> None:
        async with await trio.open_tcp_stream(*target) as server, client, trio.open_nursery() as nursery:
            send, receive = trio.open_memory_channel[tuple[float, bytes]](1_000)
            nursery.start_soon(_pass_requests, client, server, nursery.cancel_scope)
            nursery.start_soon(_meddle, server, send, kind(), nursery.cancel_scope)
            nursery.start_soon(_send_when_due, receive, client, nursery.cancel_scope)

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host=HOST))
        yield f"pulsar://{HOST}:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


@contextmanager
def bad_server_beside(url: str, kind: type[Meddler]) -> Iterator[str]:
    """The same on a thread of its own, for a test that waits for a process."""
    started = threading.Event()
    found: list[tuple[str, Callable[[], None]]] = []

    async def run() -> None:
        async with bad_server(url, kind) as proxied:
            token, scope = trio.lowlevel.current_trio_token(), trio.CancelScope()
            found.append((proxied, lambda: token.run_sync_soon(scope.cancel)))
            started.set()
            with scope:
                await trio.sleep_forever()

    thread = threading.Thread(target=trio.run, args=(run,), daemon=True)
    thread.start()
    assert started.wait(30), "the proxy did not start"
    proxied, stop = found[0]
    try:
        yield proxied
    finally:
        stop()
        thread.join(30)


async def _pass_requests(client: trio.SocketStream, server: trio.SocketStream, scope: trio.CancelScope) -> None:
    try:
        while data := await client.receive_some():
            await server.send_all(data)
    except _GONE:
        pass
    scope.cancel()


async def _meddle(
    server: trio.SocketStream,
    send: trio.MemorySendChannel[tuple[float, bytes]],
    meddler: Meddler,
    scope: trio.CancelScope,
) -> None:
    decoder = FrameDecoder()
    try:
        while data := await server.receive_some():
            for frame in decoder.receive(data):
                assert isinstance(frame, Frame)
                for command in meddler.told_instead(frame.command):
                    await send.send((trio.current_time() + meddler.delay, encode(command)))
    except _GONE:
        pass
    scope.cancel()


async def _send_when_due(
    receive: trio.MemoryReceiveChannel[tuple[float, bytes]], client: trio.SocketStream, scope: trio.CancelScope
) -> None:
    try:
        async for due, data in receive:
            await trio.sleep_until(due)
            await client.send_all(data)
    except _GONE:
        scope.cancel()
