"""Which node should own a log that nobody owns: every node comes to the same answer without asking another one."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b


def choose(log: str, sessions: Iterable[str]) -> str | None:
    """The one of these nodes that a log belongs to.

    Each node draws a number for each log and the highest wins, so that a node that comes or goes moves only the logs
    that it gets or had.
    """
    return max(sessions, key=lambda session: (_draw(log, session), session), default=None)


def _draw(log: str, session: str) -> bytes:
    return blake2b(f"{session} {log}".encode(), digest_size=8).digest()
