"""A server that does what a test tells it, one script per connection: for what no sane server would do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TypeAlias

import trio

from protocol import replies
from protocol.framing import DEFAULT_MAX_MESSAGE_SIZE, Frame, FrameDecoder, encode
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand

SCALABLE = replies.Features(supports_scalable_topics=True)
TOPIC = "topic://public/default/t"
NAMESPACE = "public/default"


class Peer:
    """The server's end of one connection."""

    def __init__(self, stream: trio.SocketStream, server: ScriptedServer) -> None:
        self.server = server
        self._stream = stream
        self._sending = trio.Lock()  # a test may send beside its script
        self._decoder = FrameDecoder()
        self._received: list[Frame] = []

    async def send(self, *commands: BaseCommand) -> None:
        await self.send_bytes(b"".join(map(encode, commands)))

    async def send_bytes(self, data: bytes) -> None:
        async with self._sending:
            await self._stream.send_all(data)

    async def close(self) -> None:
        """Close the connection, also under a script that is still reading."""
        await self._stream.aclose()

    async def receive(self) -> BaseCommand | None:
        """The next command; None when the client has gone."""
        frame = await self.receive_frame()
        return None if frame is None else frame.command

    async def receive_frame(self) -> Frame | None:
        """The next command with what follows it in its frame."""
        while not self._received:
            try:
                data = await self._stream.receive_some()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return None
            if not data:
                return None
            frames = self._decoder.receive(data)
            self._received += [frame for frame in frames if isinstance(frame, Frame)]
        return self._received.pop(0)

    async def expect(self, kind: BaseCommand.Type.ValueType) -> BaseCommand:
        command = await self.receive()
        assert command is not None, f"the client left instead of sending {BaseCommand.Type.Name(kind)}"
        assert command.type == kind, f"{BaseCommand.Type.Name(command.type)} instead of {BaseCommand.Type.Name(kind)}"
        return command

    async def greet(
        self, features: replies.Features = SCALABLE, max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE
    ) -> api.CommandConnect:
        hello = (await self.expect(BaseCommand.CONNECT)).connect
        self._decoder.max_message_size = max_message_size
        await self.send(replies.connected("Scripted 1", hello.protocol_version, max_message_size, features))
        return hello

    async def point_to(self, url: str) -> None:
        request = (await self.expect(BaseCommand.LOOKUP)).lookupTopic
        await self.send(replies.lookup_connect(request.request_id, url))

    async def open_watch(self) -> api.CommandScalableTopicLookup:
        """Everything up to the watch: handshake, lookup (of this very server), and the watch command."""
        await self.greet()
        await self.point_to(self.server.url)
        return (await self.expect(BaseCommand.SCALABLE_TOPIC_LOOKUP)).scalableTopicLookup

    async def open_namespace_watch(self) -> api.CommandWatchScalableTopics:
        """Handshake and watch command: any server can tell about a namespace, so there is no lookup."""
        await self.greet()
        return (await self.expect(BaseCommand.WATCH_SCALABLE_TOPICS)).watchScalableTopics

    async def until_read(self) -> None:
        """Until the client has read all that was sent: it answers a PING after that."""
        await self.send(replies.ping())
        await self.expect(BaseCommand.PONG)

    async def until_gone(self) -> None:
        while await self.receive() is not None:
            pass


Script: TypeAlias = Callable[[Peer], Awaitable[None]]


class ScriptedServer:
    def __init__(self, port: int) -> None:
        self.url = f"pulsar://127.0.0.1:{port}"
        self.accepted = 0


@asynccontextmanager
async def scripted_server(*scripts: Script) -> AsyncIterator[ScriptedServer]:
    """Run the scripts for the first, second, … connection; a connection is closed where its script ends.

    More connections than scripts are an error, and so is a script that fails.
    """
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    server = ScriptedServer(listener.socket.getsockname()[1])

    async def handle(stream: trio.SocketStream) -> None:
        assert server.accepted < len(scripts), "the client connects more often than the test expects"
        script = scripts[server.accepted]
        server.accepted += 1
        async with stream:
            await script(Peer(stream, server))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, handle, [listener])
        yield server
        nursery.cancel_scope.cancel()


def layout(epoch: int, session_id: int = 1) -> BaseCommand:
    """An update with one segment, told from others by its epoch."""
    command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_UPDATE)
    update = command.scalableTopicUpdate
    update.session_id = session_id
    update.resolved_topic_name = TOPIC
    update.dag.epoch = epoch
    update.dag.segments.add(
        segment_id=0, hash_start=0, hash_end=0xFFFF, state=api.ACTIVE, created_at_epoch=0, created_at_ms=0
    )
    return command


def deleted(session_id: int = 1) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_UPDATE)
    command.scalableTopicUpdate.session_id = session_id
    command.scalableTopicUpdate.error = api.TopicNotFound
    command.scalableTopicUpdate.message = "The topic was deleted."
    return command


def snapshot(topics: Iterable[str], watch_id: int = 1) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE)
    command.watchScalableTopicsUpdate.watch_id = watch_id
    command.watchScalableTopicsUpdate.snapshot.SetInParent()  # an empty one is one, too
    command.watchScalableTopicsUpdate.snapshot.topics.extend(topics)
    return command


def diff(added: Iterable[str] = (), removed: Iterable[str] = (), watch_id: int = 1) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE)
    command.watchScalableTopicsUpdate.watch_id = watch_id
    command.watchScalableTopicsUpdate.diff.SetInParent()
    command.watchScalableTopicsUpdate.diff.added.extend(added)
    command.watchScalableTopicsUpdate.diff.removed.extend(removed)
    return command


def watch_refused(watch_id: int = 1) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE)
    command.watchScalableTopicsUpdate.watch_id = watch_id
    command.watchScalableTopicsUpdate.error = api.TooManyRequests
    command.watchScalableTopicsUpdate.message = "Close some watches first."
    return command
