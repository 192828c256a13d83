"""A proxy between a client and the server that can keep the receipts of messages, and then cut the connection.

So the client has to send again what the server has stored.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from typing import Final, TypeAlias

from protocol.wire import pulsar_api_pb2 as api
from tests.support.ports import HOST

_CHUNK: Final = 65_536
_SIZES: Final = struct.Struct(">II")
_Pump: TypeAlias = Callable[[socket.socket, socket.socket], None]


class ReceiptThief:
    """Stands before a server that listens, or will listen, at port `target`."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.stolen = 0
        self._stealing = False
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"pulsar://{HOST}:{self.port}"

    def steal(self) -> None:
        """From now on receipts go no further."""
        self._stealing = True

    def cut(self) -> None:
        """Close all connections; later ones are left in peace."""
        with self._lock:
            ending, self._open = self._open, []
            self._stealing = False
        for each in ending:
            _end(each)

    def close(self) -> None:
        # A thread that accepts is not woken by `close` alone.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((HOST, self._target))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open += [client, server]
            for pump, source, sink in ((self._requests, client, server), (self._replies, server, client)):
                threading.Thread(target=self._until_closed, args=(pump, source, sink), daemon=True).start()

    def _until_closed(self, pump: _Pump, source: socket.socket, sink: socket.socket) -> None:
        try:
            pump(source, sink)
        except OSError:
            pass
        for each in (source, sink):
            _end(each)

    def _requests(self, source: socket.socket, sink: socket.socket) -> None:
        while chunk := source.recv(_CHUNK):
            sink.sendall(chunk)

    def _replies(self, source: socket.socket, sink: socket.socket) -> None:
        with source.makefile("rb") as frames:
            while sizes := frames.read(_SIZES.size):
                size, command_size = _SIZES.unpack(sizes)
                rest = frames.read(size - 4)
                command = api.BaseCommand.FromString(rest[:command_size])
                if self._stealing and command.type == api.BaseCommand.SEND_RECEIPT:
                    self.stolen += 1
                else:
                    sink.sendall(sizes + rest)


def _end(connection: socket.socket) -> None:
    """Wake whoever reads from it; the other direction's thread may have done so already."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
