"""Times the turns of admin requests, so that one that holds everybody up is named in the log."""

from __future__ import annotations

from typing import Final

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from protocol.turns import SlowTurns

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def timed(app: ASGIApp, turns: SlowTurns) -> ASGIApp:
    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await app(scope, receive, send)
            return
        client = scope.get("client")
        whose = f"{scope['path']} from {client[0] if client else 'an unknown address'}"
        await turns.timed(f"HTTP {_method(scope['method'])}", whose, app(scope, receive, send))

    return handle


def _method(name: str) -> str:
    """Clients may make methods up, and metrics have one counter for each."""
    return name if name in _METHODS else "OTHER"
