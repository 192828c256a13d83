"""What the producers and the consumers of one connection share: the way back to the client, its requests that are under
way, and their bounds.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import trio

from metadata.errors import StoreError
from metadata.tasks import Tasks
from protocol import replies
from protocol.errors import ProtocolError
from protocol.framing import encode
from protocol.turns import SlowTurns
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from segments.dispatch.errors import DispatchRefusal
from segments.errors import TooMany
from segments.hosting import Hosting
from segments.ports import Peer
from segments.schemas import SchemaRegistry
from segments.seats import Seats
from segments.starting import Starting

log = logging.getLogger(__name__)

# What refuses a request without being a fault of ours.
REFUSALS: Final = (ProtocolError, StoreError, DispatchRefusal)
# Of one connection. Producers and consumers: as many as one log takes. Requests under way: as many lookups as Java's
# client has at once unless it is told otherwise.
_MOST_CLIENTS: Final = 10_000
_MOST_REQUESTS: Final = 5_000

# What clients of Pulsar 5 say where they use the log of a classic topic as the segment of a scalable one.
_MANAGED: Final = "__pulsar.v5.managed"

# What is opened: its kind, and the id that the client gave it.
Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all connections share."""

    hosting: Hosting
    starting: Starting
    nursery: Tasks
    schemas: SchemaRegistry
    seats: Seats
    turns: SlowTurns = field(default_factory=SlowTurns)


class Conversation:
    def __init__(self, around: Surroundings, peer: Peer, address: str, client_version: str) -> None:
        self.around = around
        self.peer = peer
        self.address = address
        self.client_version = client_version
        self.clients = 0  # producers and consumers
        self._is_over = False
        self._opening: dict[Key, trio.CancelScope] = {}
        self._requests = 0  # under way
        self._turn = trio.Lock()

    async def take_turn(self) -> None:
        """Wait while others of this connection go on: of thousands that one answer of the store sets free, one does in
        a turn of the loop."""
        async with self._turn:
            pass

    def reply(self, command: BaseCommand) -> None:
        self.peer.reply(encode(command))

    def refuse(self, command: BaseCommand, error: Exception) -> None:
        code = getattr(error, "server_error", api.UnknownError)
        # Texts quote what clients sent, and JSON can spell what UTF-8 cannot.
        text = str(error).encode(errors="replace").decode()
        reply = replies.refusal(command, code, text)
        if reply is not None:
            self.reply(reply)

    def check_room(self) -> None:
        """For another producer or consumer."""
        if self.clients + len(self._opening) >= _MOST_CLIENTS:
            raise TooMany(
                f"This connection has {_MOST_CLIENTS} producers and consumers, which is the limit:"
                " close some, or use another connection."
            )

    def start(
        self,
        command: BaseCommand,
        work: Callable[[], Awaitable[None]],
        key: Key | None = None,
        ended: Callable[[], None] | None = None,
    ) -> None:
        """Do what takes time; a refusal goes to the client. Under a key it can be given up.

        `ended` is called if the connection has gone meanwhile: what was opened then has nobody to close it.
        """
        # What is closed is gone already, and there is no more of it than was open.
        if self._requests >= _MOST_REQUESTS and command.type != BaseCommand.CLOSE_PRODUCER:
            raise TooMany(f"{self._requests} requests of this connection are under way: wait for some of them.")
        self._requests += 1
        scope = trio.CancelScope()
        if key is not None:
            self.give_up(key)
            self._opening[key] = scope
        self.around.nursery.start_soon(self._run, command, work, scope, key, ended)

    async def _run(
        self,
        command: BaseCommand,
        work: Callable[[], Awaitable[None]],
        scope: trio.CancelScope,
        key: Key | None,
        ended: Callable[[], None] | None,
    ) -> None:
        try:
            with scope:
                await self.around.turns.timed(BaseCommand.Type.Name(command.type), f"from {self.address}", work())
        except REFUSALS as error:
            self.refuse(command, error)
        except Exception:
            log.exception("%s of a client failed", BaseCommand.Type.Name(command.type))
            self.refuse(command, StoreError("The server failed; its log has more. Try again."))
        finally:
            self._requests -= 1
            if key is not None and self._opening.get(key) is scope:
                del self._opening[key]
            if self._is_over and ended is not None:
                ended()

    def give_up(self, key: Key) -> None:
        """What is being opened under this key is not wanted any more."""
        scope = self._opening.pop(key, None)
        if scope is not None:
            scope.cancel()

    def end(self) -> None:
        """The connection is gone."""
        self._is_over = True
        for scope in self._opening.values():
            scope.cancel()


def is_managed(properties: Iterable[api.KeyValue]) -> bool:
    """Whether a client says that it will follow a classic topic that becomes scalable."""
    return any(it.key == _MANAGED and it.value == "true" for it in properties)
