"""What every request passes before it is worked on: its body read within bounds, then its turn.

A request costs about a millisecond of the loop that also pushes layouts to clients, so only a few are worked on at the
same time and the rest wait. Bodies are read before that, because a slow sender must not hold one of the few places.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio
from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPReceiveMessage, Message, Receive, Scope, Send

from gateway.http.refusals import BodyTooLarge, Overloaded, RequestError, SlowBody, send_refusal

# Asked by those who watch over the node, who must get an answer above all when it is busy.
UNLIMITED_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
# Of an oversize body so many times the bound is read and dropped: who is cut off in the middle of sending sees a
# broken connection instead of the answer.
DISCARDED_BOUNDS = 16


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Sizes in bytes, times in seconds."""

    concurrency: int = 8
    max_body: int = 1 << 20
    waiting: int = 256
    body_timeout: float = 10.0
    request_timeout: float = 30.0


class _Gone(Exception):
    """The client left before its request was complete."""


class Admission:
    def __init__(self, app: ASGIApp, limits: AdmissionLimits) -> None:
        self._app = app
        self._limits = limits
        self._turn = trio.CapacityLimiter(limits.concurrency)
        self._inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.WEBSOCKET:
            await send({"type": "websocket.close", "code": 1000, "reason": "no web sockets here"})
            return
        limited = scope["path"] not in UNLIMITED_PATHS
        if limited and self._inside >= self._limits.concurrency + self._limits.waiting:
            await self._turn_away(receive, send)
            return
        self._inside += limited
        try:
            body = await self._read_body(receive, keep=True)
            if limited:
                async with self._turn:
                    await self._work(scope, _replay(body, receive), send)
            else:
                await self._work(scope, _replay(body, receive), send)
        except _Gone:
            pass
        except RequestError as error:
            await _refuse_unread(receive, send, error)
        finally:
            self._inside -= limited

    async def _turn_away(self, receive: Receive, send: Send) -> None:
        try:
            await self._read_body(receive, keep=False)
        except _Gone:
            return
        except RequestError:
            pass  # being turned away is what it has to know first
        await _refuse_unread(receive, send, Overloaded("Too many requests are waiting: try again later."))

    async def _read_body(self, receive: Receive, *, keep: bool) -> bytes:
        limit = self._limits.max_body
        kept, size, more = bytearray(), 0, True
        with trio.move_on_after(self._limits.body_timeout):
            while more and size <= limit * DISCARDED_BOUNDS:
                message = await receive()
                if message["type"] != "http.request":
                    raise _Gone
                size += len(message["body"])
                if keep and size <= limit:
                    kept += message["body"]
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


async def _refuse_unread(receive: Receive, send: Send, error: RequestError) -> None:
    """Answer while the body is still coming.

    The server hands the body over through a bounded queue and, to finish an answer, puts one more message into it:
    unless somebody goes on taking, both wait for ever.
    """

    async def drop() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(drop)
        await send_refusal(send, error)
        nursery.cancel_scope.cancel()
