"""A blocking connection to the server that asks one thing after another, and tells frames apart by their length and the
type of their command only.
"""

from __future__ import annotations

import socket
import struct

from benchmarks.figures import MeasurementFailed
from benchmarks.readers import FRAME_LIMIT, Address, connect_message
from protocol.wire.pulsar_api_pb2 import BaseCommand

_CHUNK = 262_144
_SIZE = struct.Struct(">I")
# Behind both sizes a command begins with the tag of its type. Types below 128 take the byte after it.
_TYPE_AT = 9
_NAMES: dict[int, str] = {number: name for name, number in BaseCommand.Type.items()}


class Wire:
    def __init__(self, address: Address) -> None:
        self._sock = socket.create_connection(address, timeout=FRAME_LIMIT)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        self.ask(connect_message(), BaseCommand.CONNECTED)

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def receive(self) -> bytes:
        """Wait for what comes next: the types of the commands that it completes, which may be none."""
        received = self._sock.recv(_CHUNK)
        if not received:
            raise MeasurementFailed("the server closed a connection")
        data = self._rest + received if self._rest else received
        types = bytearray()
        position, end = 0, len(data) - _TYPE_AT
        while position < end:
            following = position + _SIZE.size + _SIZE.unpack_from(data, position)[0]
            if following > len(data):
                break
            types.append(data[position + _TYPE_AT])
            position = following
        self._rest = data[position:]
        return bytes(types)

    def ask(self, message: bytes, answer: BaseCommand.Type.ValueType) -> None:
        """Send a request and wait for its answer, which has to be of this type."""
        self.send(message)
        types = b""
        while not types:
            types = self.receive()
        expect(types, answer)


def expect(types: bytes, wanted: BaseCommand.Type.ValueType) -> None:
    """Raise where something else came among these."""
    if types.count(wanted) != len(types):
        other = next(each for each in types if each != wanted)
        raise MeasurementFailed(f"the server said {_NAMES.get(other, other)} where {_NAMES[wanted]} should come")
