"""What every request passes before it is worked on: its body read within bounds, then its turn.

A request costs about a millisecond of the loop that also pushes layouts to clients, so only a few are worked on at the
same time and the rest wait. Bodies are read before that, because a slow sender must hold neither one of the few places
nor one of those that wait for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import trio
from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPReceiveMessage, HTTPScope, Message, Receive, Scope, Send

from gateway.http.refusals import BodyTooLarge, Overloaded, RequestError, SlowBody, send_refusal
from gateway.http.shares import Share, Shares

# Asked by those who watch over the node, who must get an answer above all when it is busy, and under whichever name
# they have for it. They change nothing, and tell nothing that is worth a page's trouble.
UNLIMITED_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
# Of an oversize body so many times the bound is read and dropped: who is cut off in the middle of sending sees a
# broken connection instead of the answer.
DISCARDED_BOUNDS = 16


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Sizes in bytes, times in seconds. `all_bodies` bounds what is kept of bodies until their requests are done."""

    concurrency: int = 8
    max_body: int = 1 << 20
    waiting: int = 256
    body_timeout: float = 10.0
    request_timeout: float = 30.0
    all_bodies: int = 64 << 20


# Raises a RequestError for a request with this body that is not to be worked on at all.
Screen = Callable[[HTTPScope, bytes], None]


class _Gone(Exception):
    """The client left before its request was complete."""


class Admission:
    def __init__(self, app: ASGIApp, limits: AdmissionLimits, screen: Screen = lambda _scope, _body: None) -> None:
        self._app = app
        self._screen = screen
        self._limits = limits
        self._turn = trio.CapacityLimiter(limits.concurrency)
        self._bodies = Shares(limits.all_bodies)

    @property
    def kept_bytes(self) -> int:
        """Of bodies whose requests are not done."""
        return self._bodies.used

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.WEBSOCKET:
            await send({"type": "websocket.close", "code": 1000, "reason": "no web sockets here"})
            return
        try:
            if scope["path"] in UNLIMITED_PATHS:
                await self._read_body(receive, None)
                await self._work(scope, _replay(b"", receive), send)
            else:
                await self._work_in_turn(scope, receive, send)
        except _Gone:
            pass
        except RequestError as error:
            await send_refusal(send, error)

    async def _work_in_turn(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        patience = trio.CancelScope()
        with self._bodies.open(patience.cancel) as share:
            has_turn = False
            try:
                with patience:
                    body = await self._read_body(receive, share)
                    self._screen(scope, body)
                    if not self._turn.available_tokens and self._waiting() >= self._limits.waiting:
                        raise Overloaded("Too many requests are waiting: try again later.")
                    await self._turn.acquire()
                    has_turn = share.pinned = True
                if not has_turn:
                    raise Overloaded("Too many large requests are on their way at the same time: try again later.")
                await self._work(scope, _replay(body, receive), send)
            finally:
                if has_turn:
                    self._turn.release()

    def _waiting(self) -> int:
        return self._turn.statistics().tasks_waiting

    async def _read_body(self, receive: Receive, share: Share | None) -> bytes:
        """The body, kept in this share; without one it is read and dropped."""
        limit = self._limits.max_body
        kept, size, more = bytearray(), 0, True
        with trio.move_on_after(self._limits.body_timeout):
            while more and size <= limit * DISCARDED_BOUNDS:
                message = await receive()
                if message["type"] != "http.request":
                    raise _Gone
                size += len(message["body"])
                if share is not None and size <= limit:
                    kept += message["body"]
                    self._bodies.grow(share, len(message["body"]))
                more = message["more_body"]
        if size > limit:
            raise BodyTooLarge(f"The body of a request may have {limit} bytes: send less.")
        if more:
            raise SlowBody(f"The body did not arrive within {self._limits.body_timeout:g} s: send it in one go.")
        return bytes(kept)

    async def _work(self, scope: Scope, receive: Receive, send: Send) -> None:
        answered = False

        async def noting_send(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        with trio.move_on_after(self._limits.request_timeout) as patience:
            await self._app(scope, receive, noting_send)
        if patience.cancelled_caught and not answered:
            raise Overloaded(
                f"No result within {self._limits.request_timeout:g} s."
                " A change may or may not have been made: look before you try again."
            )


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that hands out the body that was read, then whatever comes after it."""
    pending = True

    async def replay() -> HTTPReceiveMessage:
        nonlocal pending
        if pending:
            pending = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()  # type: ignore[return-value]  # web sockets do not get here

    return replay
