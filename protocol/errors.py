"""The root of every refusal made by this package: an error knows its code on the wire and over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from protocol.wire import pulsar_api_pb2 as api

if TYPE_CHECKING:
    from typing import TypeAlias

    # Exists in the generated stub only.
    ServerErrorCode: TypeAlias = api.ServerError.ValueType


class ProtocolError(Exception):
    """Something a peer sent cannot be accepted; `str(error)` says what to do about it."""

    server_error: ClassVar[ServerErrorCode] = api.UnknownError
    http_status: ClassVar[int] = 400


class InvalidName(ProtocolError):
    """The text is not the name of a topic, a namespace or a segment."""

    server_error = api.InvalidTopicName
    http_status = 412
