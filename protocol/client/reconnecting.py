"""Keeping a watch open across lost connections: when to try again, how soon, and when to give up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Literal, TypeAlias

import trio

from protocol.backoff import Backoff
from protocol.client.connection import ClientConnection
from protocol.client.errors import ServerMisbehaved
from protocol.errors import ProtocolError

WatchState: TypeAlias = Literal["connecting", "connected", "reconnecting"]
OnState: TypeAlias = Callable[[WatchState], None]


class Reconnection:
    """The state of a watch that outlives its connections.

    Until it has `succeeded` once every failure is final: the address or the name may be wrong. Later ones are answered
    by connecting again, except for a server that talks nonsense.
    """

    def __init__(self, on_state: OnState | None) -> None:
        self.state: WatchState = "connecting"
        self.succeeded = False
        self._on_state = on_state
        self._backoff = Backoff()

    def opened(self) -> None:
        """The watch command was written. Not later, because a watch that is up to date hears nothing back."""
        self._backoff.reset()
        self._enter("connected")

    async def run(
        self,
        connected: Callable[[], AbstractAsyncContextManager[ClientConnection]],
        session: Callable[[ClientConnection], Awaitable[None]],
    ) -> ProtocolError | None:
        """Run `session` on one connection after another until it returns; what was final is given back."""
        while True:
            try:
                async with connected() as connection:
                    await session(connection)
                    return None
            except ProtocolError as error:
                if not self.succeeded or isinstance(error, ServerMisbehaved):
                    return error
            self._enter("reconnecting")
            await trio.sleep(self._backoff.next())

    def _enter(self, state: WatchState) -> None:
        if state != self.state:
            self.state = state
            if self._on_state is not None:
                self._on_state(state)
