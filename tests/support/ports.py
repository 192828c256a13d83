"""TCP ports that stay ours while nothing listens on them, so that a server can come back on the same one."""

import socket
import sys

HOST = "127.0.0.1"


class ReservedPort:
    """A port held by a bound socket that never listens.

    Linux lets a server with SO_REUSEADDR listen beside it, while no other process is handed the number, not even for an
    outgoing connection. Elsewhere the port is only picked, and a collision is possible but rare.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((HOST, 0))
        self.number: int = self._socket.getsockname()[1]
        if sys.platform != "linux":
            self._socket.close()

    def listener(self) -> socket.socket:
        """A new listening socket on the port."""
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((HOST, self.number))
        listening.listen(128)
        return listening

    def release(self) -> None:
        self._socket.close()
