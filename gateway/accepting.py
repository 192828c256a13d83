"""Takes connections from a listening socket, for either port, and goes on when descriptors or memory run out."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable
from typing import Any, Final

import trio

from gateway.seldom import SeldomLine

log = logging.getLogger(__name__)

# Connections taken per wake-up before other tasks run.
ACCEPTS_PER_TURN: Final = 64
# Pause after the process or the system ran out of descriptors or memory: closing connections gives them back.
ACCEPT_BACK_OFF: Final = 0.1

_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_BROKEN: Final = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSOCK, errno.EOPNOTSUPP})

Welcome = Callable[[socket.socket, tuple[Any, ...]], None]


async def accept_connections(
    listening: socket.socket, welcome: Welcome, *, port: str, on_error: Callable[[], None]
) -> None:
    """Hand every connection to `welcome`, without blocking mode, until cancelled. `port` is what the log calls it."""
    trouble = SeldomLine(log, logging.ERROR)
    while True:
        await trio.lowlevel.wait_readable(listening)
        try:
            for _ in range(ACCEPTS_PER_TURN):
                sock, peer = listening.accept()
                sock.setblocking(False)
                welcome(sock, peer)
                trouble.over(f"accepting connections on the {port} port again")
        except BlockingIOError:
            pass
        except OSError as error:
            on_error()
            if error.errno in _BROKEN:
                raise
            if error.errno in _EXHAUSTED:
                trouble.say(f"cannot accept connections on the {port} port for now: {error.strerror}")
                await trio.sleep(ACCEPT_BACK_OFF)
            # Anything else is the fate of one connection, over before it was accepted.
