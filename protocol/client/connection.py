"""One connection to a server: the handshake, keep-alive, requests with their answers, and the watches on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

import trio

from protocol import replies
from protocol.client import requests
from protocol.client.addresses import ServiceAddress
from protocol.client.attachments import ADDRESSED, Attachment, AttachmentTable, Kind
from protocol.client.background import background
from protocol.client.connection_watches import ConnectionWatch, RawNamespaceWatch, Update, Watch, WatchTable
from protocol.client.dialling import dial
from protocol.client.errors import (
    ConnectionLost,
    RequestTimedOut,
    ScalableTopicsUnsupported,
    ServerMisbehaved,
    ServerRefused,
)
from protocol.client.mailboxes import Latest, Mailbox
from protocol.client.writing import Chunk, FrameWriter
from protocol.errors import ProtocolError
from protocol.framing import BadFrame, Frame, FrameDecoder, UnknownCommand, encode
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand

if TYPE_CHECKING:
    from protocol.replies import CommandType

T = TypeVar("T")

CLIENT_VERSION = "Vela"
# Both as in Pulsar's own clients.
REQUEST_TIMEOUT = 30.0
KEEP_ALIVE_INTERVAL = 30.0
_RECEIVE_SIZE = 64 * 1024

# The answers, with the field of the command that has the number of the request in it.
_ANSWERS: Mapping[CommandType, str] = MappingProxyType(
    {
        BaseCommand.LOOKUP_RESPONSE: "lookupTopicResponse",
        BaseCommand.PARTITIONED_METADATA_RESPONSE: "partitionMetadataResponse",
        BaseCommand.SUCCESS: "success",
        BaseCommand.PRODUCER_SUCCESS: "producer_success",
        BaseCommand.ACK_RESPONSE: "ackResponse",
        BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE: "getLastMessageIdResponse",
        BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE: "scalableTopicSubscribeResponse",
    }
)


@asynccontextmanager
async def connect(
    service_url: str,
    *,
    client_version: str = CLIENT_VERSION,
    timeout: float = REQUEST_TIMEOUT,
    keep_alive: float = KEEP_ALIVE_INTERVAL,
    proxy_to_broker_url: str | None = None,
) -> AsyncIterator[ClientConnection]:
    """Connect to `pulsar://host[:6650]` for as long as the body runs.

    `timeout` bounds connecting, the handshake and every request, each. A server that is silent for two intervals of
    `keep_alive` counts as lost. That is not an exception in the body: whoever uses the connection is told.
    """
    address = ServiceAddress.parse(service_url)
    stream = await dial(address, timeout)
    connection = ClientConnection(stream.socket, address, timeout)
    async with background() as tasks:
        try:
            tasks.start_soon(connection._run, connection._read)
            tasks.start_soon(connection._run, connection._writer.run)
            await connection._shake_hands(client_version, proxy_to_broker_url)
            tasks.start_soon(connection._run, connection._keep_alive, keep_alive)
            yield connection
        finally:
            connection.close()


class ClientConnection:
    """An open connection; made by `connect`. Any number of tasks may use it."""

    def __init__(self, socket: trio.socket.SocketType, address: ServiceAddress, timeout: float) -> None:
        self.address = address
        self._socket = socket
        self._timeout = timeout
        self._decoder = FrameDecoder()
        self._writer = FrameWriter(socket)
        self._handshake: Latest[api.CommandConnected] = Latest()
        self._connected: api.CommandConnected | None = None
        self._answers: dict[int, Latest[BaseCommand]] = {}
        self._on_answer: dict[int, Callable[[BaseCommand], None]] = {}
        self._topic_watches: WatchTable[api.CommandScalableTopicUpdate] = WatchTable()
        self._namespace_watches: WatchTable[api.CommandWatchScalableTopicsUpdate] = WatchTable()
        self._attachments = AttachmentTable()
        self._request_ids = count(1)
        self._heard = False
        self._failure: ProtocolError | None = None
        self._ended = trio.Event()

    @property
    def server_version(self) -> str:
        return self._greeting.server_version

    @property
    def feature_flags(self) -> api.FeatureFlags:
        return self._greeting.feature_flags

    @property
    def max_message_size(self) -> int:
        return self._decoder.max_message_size

    @property
    def _greeting(self) -> api.CommandConnected:
        assert self._connected is not None, "connect() hands out a connection after the handshake only"
        return self._connected

    @property
    def is_open(self) -> bool:
        return self._failure is None

    def close(self) -> None:
        """End the connection at once; whoever uses it is told, as of a lost one."""
        self._end(ConnectionLost(f"The connection to {self.address} was closed on this side."))

    async def wait_ended(self) -> None:
        await self._ended.wait()

    def write(self, frame: bytes) -> Chunk:
        """Queue a whole frame without waiting; what is returned says when it is written.

        Whoever does not wait for that bounds by other means what he writes.
        """
        self._check()
        return self._writer.put(frame)

    async def send(self, command: BaseCommand) -> None:
        """Write one command. Who is cancelled before leaves nothing behind; who is cancelled later, a whole frame."""
        await trio.lowlevel.checkpoint_if_cancelled()
        written = self.write(encode(command))
        await written.wait()
        if not written.is_written:
            self._check()

    async def request(
        self,
        command_with: Callable[[int], BaseCommand],
        answer_type: CommandType,
        *,
        is_final: Callable[[BaseCommand], bool] = lambda _: True,
        on_answer: Callable[[BaseCommand], None] | None = None,
    ) -> BaseCommand:
        """Send the command made for a request id and wait for its answer; a refusal is raised.

        An answer that is not final is followed by another one, which may take as long as it likes. `on_answer` is
        called with an answer that is no refusal before anything that came after it is looked at.
        """
        request_id = next(self._request_ids)
        if on_answer is not None:
            self._on_answer[request_id] = on_answer
        try:
            return await self._request(request_id, command_with(request_id), answer_type, is_final)
        finally:
            self._on_answer.pop(request_id, None)

    def attach(self, kind: Kind, attachment: Attachment, former: int | None = None) -> int:
        """Let the commands for a number, which is returned, go to `attachment`, until it is detached.

        `former` is the one that it had before on this connection, if the server is to know it by that.
        """
        self._check()
        return self._attachments.add(kind, attachment, former)

    def detach(self, kind: Kind, number: int) -> None:
        self._attachments.remove(kind, number)

    async def lookup(self, topic: str, *, authoritative: bool = False) -> api.CommandLookupTopicResponse:
        """Ask which server is responsible for a topic: the answer says Connect or Redirect, and where."""
        request_id = next(self._request_ids)
        command = requests.lookup(request_id, topic, authoritative)
        answer = (await self._request(request_id, command, BaseCommand.LOOKUP_RESPONSE)).lookupTopicResponse
        if answer.response == answer.Failed or answer.HasField("error"):
            raise ServerRefused(answer.error, answer.message)
        return answer

    async def partitions(self, topic: str, *, create_if_missing: bool = True) -> int:
        """Ask how many partitions a topic has; none means that it is not partitioned."""
        request_id = next(self._request_ids)
        command = requests.partitioned_metadata(request_id, topic, create_if_missing)
        reply = await self._request(request_id, command, BaseCommand.PARTITIONED_METADATA_RESPONSE)
        answer = reply.partitionMetadataResponse
        if answer.response == answer.Failed or answer.HasField("error"):
            raise ServerRefused(answer.error, answer.message)
        return answer.partitions

    async def open_watch(
        self,
        topic: str,
        session_id: int | None = None,
        *,
        create_if_missing: bool = True,
        into: Mailbox[api.CommandScalableTopicUpdate] | None = None,
    ) -> Watch:
        """Watch a topic's segments. A session id that is in use passes to the new watch, as it does on the server.

        Updates are left in `into` where there is one, for those who have their own way of taking them.
        """
        self._check_scalable()
        session_id = self._topic_watches.choose(session_id)
        command = requests.open_topic_watch(session_id, topic, create_if_missing)
        watch = Watch(session_id, self._topic_watches, self._tell, into)
        await self._open(watch, self._topic_watches, command)
        return watch

    async def open_namespace_watch(
        self,
        namespace: str,
        *,
        properties: Mapping[str, str] | None = None,
        current_hash: str | None = None,
        watch_id: int | None = None,
        into: Mailbox[api.CommandWatchScalableTopicsUpdate] | None = None,
    ) -> RawNamespaceWatch:
        """Watch the topics of `tenant/namespace` that have all of these properties.

        Without `current_hash` the first update is a Snapshot; with the hash of the set as it is, nothing comes until it
        changes. A watch id that is in use passes to the new watch, as it does on the server. Updates are left in `into`
        where there is one.
        """
        self._check_scalable()
        watch_id = self._namespace_watches.choose(watch_id)
        command = requests.open_namespace_watch(watch_id, namespace, properties or {}, current_hash)
        watch = RawNamespaceWatch(watch_id, self._namespace_watches, self._tell, namespace, into)
        await self._open(watch, self._namespace_watches, command)
        return watch

    async def _open(self, watch: ConnectionWatch[Update], table: WatchTable[Update], command: BaseCommand) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        table.add(watch)
        try:
            await self.send(command)
        except BaseException:
            watch.abandon()
            raise

    def _check_scalable(self) -> None:
        if not self.feature_flags.supports_scalable_topics:
            raise ScalableTopicsUnsupported(
                f"{self.address} ({self.server_version}) has no scalable topics: watch on a server that has them."
            )

    def _tell(self, command: BaseCommand) -> Chunk:
        return self.write(encode(command))

    async def _request(
        self,
        request_id: int,
        command: BaseCommand,
        answer_type: CommandType,
        is_final: Callable[[BaseCommand], bool] = lambda _: True,
    ) -> BaseCommand:
        answer = self._answers[request_id] = Latest()
        try:
            reply = await self._ask(command, answer)
            while reply.type == answer_type and not is_final(reply):
                reply = await answer.take()
        finally:
            del self._answers[request_id]
        if reply.type == BaseCommand.ERROR:
            raise ServerRefused(reply.error.error, reply.error.message)
        if reply.type != answer_type:
            raise ServerMisbehaved(
                f"{self.address} answered {BaseCommand.Type.Name(command.type)} "
                f"with {BaseCommand.Type.Name(reply.type)}: it is at fault."
            )
        return reply

    async def _shake_hands(self, client_version: str, proxy_to_broker_url: str | None) -> None:
        self._connected = await self._ask(requests.connect(client_version, proxy_to_broker_url), self._handshake)

    async def _ask(self, command: BaseCommand, answer: Latest[T]) -> T:
        try:
            with trio.fail_after(self._timeout):
                await self.send(command)
                return await answer.take()
        except trio.TooSlowError:
            name = BaseCommand.Type.Name(command.type)
            raise RequestTimedOut(f"{self.address} did not answer {name} within {self._timeout:g} s.") from None

    async def _run(self, task: Callable[..., Awaitable[None]], *arguments: float) -> None:
        """Run a task of this connection: its failure is the connection's end, and nobody else's."""
        try:
            await task(*arguments)
        except ProtocolError as error:
            self._end(error)
        except (OSError, trio.ClosedResourceError) as error:
            self._end(self._lost(error))

    async def _read(self) -> None:
        while data := await self._socket.recv(_RECEIVE_SIZE):
            self._heard = True
            try:
                frames = self._decoder.receive(data)
            except BadFrame as error:
                await self._receive(error.preceding)
                raise ServerMisbehaved(
                    f"{self.address} does not speak Pulsar's protocol, is it the right address? {error}"
                ) from error
            await self._receive(frames)
        raise ConnectionLost(f"{self.address} closed the connection.")

    async def _keep_alive(self, interval: float) -> None:
        while True:
            await trio.sleep(interval)
            if not self._heard:
                raise ConnectionLost(f"Nothing was heard from {self.address} for {interval:g} s after a PING.")
            self._heard = False
            # A server that reads nothing must not keep this task from finding out that it says nothing either.
            with trio.move_on_after(interval):
                await self.send(replies.ping())

    async def _receive(self, frames: list[Frame | UnknownCommand]) -> None:
        for frame in frames:
            if isinstance(frame, UnknownCommand):
                continue  # of a later protocol version, and not an answer to anything that was asked here
            if frame.command.type == BaseCommand.PING:
                await self.send(replies.pong())
            else:
                self._handle(frame.command, frame.body)

    def _handle(self, command: BaseCommand, body: bytes) -> None:
        """Pass a command to whoever waits for it; one that nobody waits for came too late and does no harm."""
        match command.type:
            case kind if kind in ADDRESSED:
                self._attachments.receive(command, body)
            case kind if (name := _ANSWERS.get(kind)) is not None:
                self._answer(getattr(command, name).request_id, command)
            case BaseCommand.SCALABLE_TOPIC_UPDATE:
                update = command.scalableTopicUpdate
                self._check_content(update.HasField("dag") or update.HasField("error"))
                self._topic_watches.update(update.session_id, update)
            case BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE:
                change = command.watchScalableTopicsUpdate
                self._check_content(change.WhichOneof("event") is not None or change.HasField("error"))
                self._namespace_watches.update(change.watch_id, change)
            case BaseCommand.CONNECTED:
                if command.connected.max_message_size > 0:
                    self._decoder.max_message_size = command.connected.max_message_size
                self._handshake.put(command.connected)
            case BaseCommand.ERROR:
                concerns_connection = command.error.request_id == replies.CONNECTION_REQUEST_ID
                if concerns_connection or self._connected is None:
                    raise ServerRefused(command.error.error, command.error.message)
                self._answer(command.error.request_id, command)
            case BaseCommand.AUTH_CHALLENGE:
                raise ServerRefused(
                    api.AuthenticationError, f"{self.address} asks for credentials, and this client has none."
                )

    def _answer(self, request_id: int, reply: BaseCommand) -> None:
        if (answer := self._answers.get(request_id)) is not None:
            answer.put(reply)
            if reply.type != BaseCommand.ERROR and (on_answer := self._on_answer.get(request_id)) is not None:
                on_answer(reply)

    def _check_content(self, has_any: bool) -> None:
        if not has_any:
            raise ServerMisbehaved(f"{self.address} sent an update with neither content nor an error: it is at fault.")

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def _lost(self, error: Exception) -> ConnectionLost:
        lost = ConnectionLost(
            f"The connection to {self.address} was lost: {getattr(error, 'strerror', None) or error}."
        )
        lost.__cause__ = error
        return lost

    def _end(self, failure: ProtocolError) -> None:
        """Close, and tell everybody who waits why; the first reason is the one that counts."""
        if self._failure is None:
            self._failure = failure
            self._socket.close()
            self._ended.set()
            self._writer.end()
            self._handshake.end(failure)
            for answer in self._answers.values():
                answer.end(failure)
            self._topic_watches.end(failure)
            self._namespace_watches.end(failure)
            self._attachments.end(failure)
