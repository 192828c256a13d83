"""Opens the listening sockets of a host and port."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable, Sequence
from typing import Any

import trio

# With port 0 and several addresses, the port that the first one got may be taken on another.
PORT_ATTEMPTS = 10

# Connections that wait to be accepted; a reconnect storm brings many at once.
BACKLOG = 1024

_NOT_HERE = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})


class CannotListen(Exception):
    """The address cannot be listened on; the text is for the user."""


async def open_sockets(host: str, port: int, backlog: int = BACKLOG) -> list[socket.socket]:
    """Listening sockets on every address of `host` (empty: all interfaces), all on the same port."""
    try:
        found = await trio.socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise CannotListen(f"Cannot listen on {host}:{port}: no such host.") from error
    addresses = list(dict.fromkeys((family, sockaddr) for family, _, _, _, sockaddr in found))
    for attempt in range(PORT_ATTEMPTS):
        try:
            return _bind_all(addresses, backlog)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and port == 0 and attempt < PORT_ATTEMPTS - 1:
                continue
            raise CannotListen(
                f"Cannot listen on {host}:{port}: {error.strerror}. Stop what listens there, or choose another address."
            ) from error
    raise AssertionError("the last attempt returns or raises")


def _bind_all(addresses: Sequence[tuple[socket.AddressFamily, Any]], backlog: int) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    not_here: OSError | None = None
    try:
        for family, (address, port, *rest) in addresses:
            same_port = port or (sockets[0].getsockname()[1] if sockets else 0)
            try:
                sockets.append(_bind(family, (address, same_port, *rest), backlog))
            except OSError as error:
                # `localhost` names ::1 also on machines without IPv6.
                if error.errno not in _NOT_HERE:
                    raise
                not_here = error
        if not sockets and not_here is not None:
            raise not_here
    except BaseException:
        close_all(sockets)
        raise
    return sockets


def _bind(family: socket.AddressFamily, address: Any, backlog: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # Else `::` would take the IPv4 port too, and the socket for 0.0.0.0 could not have it.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(backlog)
    except BaseException:
        sock.close()
        raise
    return sock


def close_all(sockets: Iterable[socket.socket]) -> None:
    for sock in sockets:
        sock.close()
