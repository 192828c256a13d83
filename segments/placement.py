"""Where a log is served: every node comes to the same answer without asking another one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

from segments.ports import Node


def candidates(nodes: Sequence[Node]) -> list[Node]:
    """Those that clients can be sent to: of a node whose record cannot be read, nobody knows where it is."""
    return [node for node in nodes if node.pulsar_url or node is nodes[0]]


def url_of(log: str, owner: str, nodes: Sequence[Node]) -> str:
    """Where a client should go for a log: to its owner, if that session lives, or else to the node that should own it.

    Lookups and layouts both tell what this says. The first of the nodes is the one that is asked.
    """
    urls = {node.session: node.pulsar_url for node in candidates(nodes)}
    chosen = owner if owner in urls else choose(log, urls)
    return urls[chosen] if chosen is not None else nodes[0].pulsar_url


def choose(log: str, sessions: Iterable[str]) -> str | None:
    """The one of these nodes that a log belongs to.

    Each node draws a number for each log and the highest wins, so that a node that comes or goes moves only the logs
    that it gets or had.
    """
    return max(sessions, key=lambda session: (_draw(log, session), session), default=None)


def _draw(log: str, session: str) -> bytes:
    return blake2b(f"{session} {log}".encode(), digest_size=8).digest()
