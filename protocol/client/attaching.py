"""Keeping a producer or a consumer attached to whichever server owns its topic, across moves and lost connections."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from math import inf
from typing import ClassVar, TypeVar

import trio

from protocol.backoff import Backoff
from protocol.client.attachments import Kind
from protocol.client.connection import ClientConnection
from protocol.client.errors import (
    AlreadyClosed,
    ConnectionLost,
    RequestTimedOut,
    ServerRefused,
    is_passing,
    is_unknown,
)
from protocol.client.pool import ConnectionPool
from protocol.errors import ProtocolError
from protocol.framing import encode
from protocol.wire.pulsar_api_pb2 import BaseCommand

T = TypeVar("T")

# How long closing waits for the server to confirm: it finds out by itself later on.
_CLOSE_TIMEOUT = 5.0
# The request id of what nobody waits for the answer of.
_UNANSWERED = 0


class Attached(ABC):
    """One topic as the wire knows it, looked up and attached to again until it fails for good or is closed.

    `run` does that and returns when it is over. What passes (see `is_passing`) is tried again without end; how long
    that may take is up to those who wait.
    """

    kind: ClassVar[Kind]

    def __init__(self, pool: ConnectionPool, topic: str) -> None:
        self.topic = topic
        self.attaches = 0  # how often it was attached
        self.asked_at = -inf  # when it asked for the place that it has, or wants, on the clock of the loop
        self.failure: ProtocolError | None = None  # why it is over
        self.last_error: ProtocolError | None = None  # why it is not attached
        self._pool = pool
        self._connection: ClientConnection | None = None  # while attached
        self._visited: ClientConnection | None = None  # the last one that it asked for a place
        self._number = 0  # on that connection
        self._stay: trio.CancelScope | None = None  # on a connection, from before the server has agreed
        self._dismissed = False  # the server has given up the place itself
        # The place that the server took back last, until there is another one: who asks for it again by the same number
        # is told if there is nothing to come back to.
        self._former: tuple[ClientConnection, int] | None = None
        self._changed = trio.Event()
        self._backoff = Backoff()
        self._running = trio.CancelScope()

    @property
    def is_attached(self) -> bool:
        return self._connection is not None

    async def wait_attached(self) -> ClientConnection:
        """The connection it is attached to, or why there will be none."""
        while True:
            if self.failure is not None:
                raise self.failure.with_traceback(None)
            if self._connection is not None:
                return self._connection
            await self._changed.wait()

    async def retry(self, attempt: Callable[[ClientConnection, int], Awaitable[T]], what: str) -> T:
        """Let the server that has the place answer a request, which `attempt` makes by a connection and a number.

        Whoever has lost the place may refuse it for that, and the next owner decides. What may pass is asked again, in
        all no longer than a request may take; `what` should have been done is said if that is not enough.
        """
        backoff = Backoff()
        refusal: ProtocolError | None = None
        with trio.move_on_after(self._pool.timeout):
            while True:
                connection, number = await self.wait_attached(), self._number
                try:
                    return await attempt(connection, number)
                except ProtocolError as error:
                    refusal = error
                    if self._connection is connection and self._number == number:
                        if is_unknown(error):
                            self._lose(error)  # it was given up there without a word
                        elif not is_passing(error):
                            raise
                await trio.sleep(backoff.next())
        reason = "" if refusal is None else f" The last refusal: {refusal}"
        raise RequestTimedOut(f"{self.topic} could not be {what} within {self._pool.timeout:g} s.{reason}")

    async def run(self) -> None:
        with self._running:
            while self.failure is None:
                try:
                    await self._once(await self._find())
                except ProtocolError as error:
                    self.last_error = error
                    if not is_passing(error):
                        self._fail(error)
                if self.failure is None:
                    await trio.sleep(self._backoff.next())

    async def close(self) -> None:
        """Give the place back, and wait a little until the server has confirmed that."""
        connection, number = self._connection, self._number
        self._fail(AlreadyClosed(f"What was attached to {self.topic} was closed."), leave=False)
        try:
            if connection is not None and not self._dismissed:
                with trio.move_on_after(_CLOSE_TIMEOUT):
                    await connection.request(
                        lambda request_id: self._close_command(request_id, number), BaseCommand.SUCCESS
                    )
                    self._dismissed = True
        except ProtocolError:
            pass  # the connection is gone, and the place with it
        finally:
            self._running.cancel()

    def abandon(self, reason: ProtocolError) -> None:
        """It is over, whatever it waits for: it asks for no other place, and gives back the one it has."""
        self._fail(reason)
        self._running.cancel()

    def end(self, reason: ProtocolError) -> None:
        """For the connection: it has ended."""
        self._lose(reason)

    async def _find(self) -> ClientConnection:
        """A connection to the server that is responsible now."""
        return await self._pool.connection_for(self.topic)

    async def _once(self, connection: ClientConnection) -> None:
        """One stay on one connection: raises what kept it from attaching, returns when it has lost its place."""
        self._dismissed = False
        former = self._former_number(connection)
        self._number = number = connection.attach(self.kind, self, former)
        self._visited = connection
        try:
            with trio.CancelScope() as self._stay:
                self.asked_at = trio.current_time()
                await self._attach(connection, number)
                if not self._dismissed:
                    self._former = None
                self._backoff.reset()
                self.attaches += 1
                self.last_error = None
                self._connection = connection
                self._attached(connection)
                self._change()
                await trio.sleep_forever()
        except ServerRefused:
            self._dismissed = True
            raise
        finally:
            self._stay = None
            connection.detach(self.kind, number)
            self._give_up_place()
            if connection.is_open and not self._dismissed:
                # The server may or may not have given the place.
                connection.write(encode(self._close_command(_UNANSWERED, number)))

    def _dismiss(self) -> None:
        """The server said that the place is no longer there."""
        self._dismissed = True
        if self._visited is not None:
            self._former = self._visited, self._number
        self._lose(ConnectionLost(f"The server gave {self.topic} away."))

    def _former_number(self, connection: ClientConnection) -> int | None:
        """The number that it had on this connection until the server took its place back.

        Producers begin anew: what comes late must not be taken for the answer to what they send again.
        """
        if self.kind is Kind.CONSUMER and self._former is not None and self._former[0] is connection:
            return self._former[1]
        return None

    def _lose(self, reason: ProtocolError) -> None:
        """Leave the connection, from this moment on, and look for the owner again."""
        self.last_error = reason
        if self._connection is not None:
            self._connection.detach(self.kind, self._number)
        self._give_up_place()
        if self._stay is not None:
            self._stay.cancel()

    def _give_up_place(self) -> None:
        if self._connection is not None:
            self._connection = None
            self._detached()
            self._change()

    def _fail(self, error: ProtocolError, *, leave: bool = True) -> None:
        """It is over; the first reason counts."""
        if self.failure is None:
            self.failure = error
            self._ended(error)
            self._change()
        if leave and self._stay is not None:
            self._stay.cancel()

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    @abstractmethod
    async def _attach(self, connection: ClientConnection, number: int) -> None:
        """Ask the server for the place."""

    @abstractmethod
    def _close_command(self, request_id: int, number: int) -> BaseCommand:
        """What tells the server that the place is not wanted any more."""

    @abstractmethod
    def _attached(self, connection: ClientConnection) -> None:
        """The server agreed; must not wait."""

    @abstractmethod
    def _detached(self) -> None:
        """The place is lost; must not wait."""

    @abstractmethod
    def _ended(self, error: ProtocolError) -> None:
        """There will be no other place; must not wait."""

    @abstractmethod
    def receive(self, command: BaseCommand, body: bytes) -> None:
        """For the connection: a command for this number has arrived."""
