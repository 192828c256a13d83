"""What can go wrong between this client and a server, as types that a caller can tell apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.errors import ProtocolError
from protocol.wire import pulsar_api_pb2 as api

if TYPE_CHECKING:
    from protocol.client.message_ids import MessageId
    from protocol.errors import ServerErrorCode


class BadServiceUrl(ProtocolError):
    """The address of the server cannot be used."""


class ServerRefused(ProtocolError):
    """The server answered with an error; `server_error` is its code and `message` its explanation."""

    def __init__(self, server_error: ServerErrorCode, message: str) -> None:
        name = api.ServerError.Name(server_error)
        super().__init__(f"{message} ({name})" if message else f"The server refused with {name} and no explanation.")
        self.server_error = server_error  # type: ignore[misc]  # the other errors have one code per class
        self.message = message


class ServerMisbehaved(ProtocolError):
    """What the server sent makes no sense: it is no Pulsar server, or one with a fault. Trying again is no use."""

    http_status = 502


class ScalableTopicsUnsupported(ProtocolError):
    """The server did not announce scalable topics, so it would not understand a watch."""

    server_error = api.UnsupportedVersionError
    http_status = 501


class ConnectionLost(ProtocolError, ConnectionError):
    """There is no connection, or it ended; also an OSError, as callers of anything on a network expect."""

    server_error = api.ServiceNotReady
    http_status = 503


class RequestTimedOut(ProtocolError, TimeoutError):
    """The server took longer to answer than the caller allows."""

    server_error = api.ServiceNotReady
    http_status = 504


class UpdatesNotTaken(ProtocolError):
    """Updates that must not be dropped arrived faster than anybody took them."""

    server_error = api.TooManyRequests
    http_status = 503


class TooManyTopics(ProtocolError):
    """More topics match than a namespace consumer may consume at the same time."""

    server_error = api.TooManyRequests
    http_status = 503


class AlreadyClosed(ProtocolError):
    """The producer or consumer was closed on this side."""

    http_status = 409


class SubscriptionDeleted(ServerRefused):
    """Somebody has deleted the subscription, and its consumers with it. A new consumer would begin it anew."""

    http_status = 404

    def __init__(self, message: str) -> None:
        super().__init__(api.TopicNotFound, message or "The subscription was deleted.")


class SendTimedOut(RequestTimedOut):
    """The server did not confirm a message in time: it may be stored or not."""


class MessageTooLarge(ProtocolError):
    """The server would not accept a message of this size."""

    server_error = api.NotAllowedError
    http_status = 413


class MixedBatch(ProtocolError):
    """The messages of a batch have different keys, which might belong to different segments."""

    server_error = api.NotAllowedError


class UnreadableMessage(ProtocolError):
    """A message arrived that this client cannot read; `message_id` says which, and may be acknowledged to skip it."""

    server_error = api.NotAllowedError
    http_status = 502

    def __init__(self, message_id: MessageId, reason: str) -> None:
        super().__init__(f"Message {message_id} of {message_id.topic} cannot be read: {reason}")
        self.message_id = message_id


def is_passing(error: ProtocolError) -> bool:
    """Whether the same request may succeed later, because what refused it is expected to pass."""
    if isinstance(error, ServerRefused):
        return error.server_error in _PASSING
    return isinstance(error, ConnectionLost | RequestTimedOut)


def is_unknown(error: ProtocolError) -> bool:
    """Whether the server does not know, or no longer, who asks: another place may be had."""
    return isinstance(error, ServerRefused) and error.server_error == api.ConsumerNotFound


# What a server says while segments move, nodes start and stores fail over, or an old connection still holds a place.
_PASSING = frozenset(
    {
        api.UnknownError,
        api.MetadataError,
        api.PersistenceError,
        api.ConsumerBusy,
        api.ServiceNotReady,
        api.ProducerBlockedQuotaExceededError,
        api.ProducerBlockedQuotaExceededException,
        api.ChecksumError,
        api.TooManyRequests,
        api.ProducerBusy,
        api.ConsumerAssignError,
    }
)
