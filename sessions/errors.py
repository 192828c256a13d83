"""What a client can do wrong in an otherwise well-formed conversation."""

from protocol.errors import ProtocolError
from protocol.wire import pulsar_api_pb2 as api


class Violation(ProtocolError):
    """A command that the state of the connection does not allow: the connection is closed.

    `kind` is a metric label, beside those of frames that cannot be read.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class WatchRefused(ProtocolError):
    """A watch that cannot be opened, now and for good; the connection stays."""


class NeverScalable(WatchRefused):
    server_error = api.NotAllowedError
    http_status = 412


class WatchOnPartition(WatchRefused):
    server_error = api.TopicNotFound
    http_status = 404


class BadConsumerName(WatchRefused):
    server_error = api.NotAllowedError
    http_status = 412


class TooManyFilters(WatchRefused):
    server_error = api.NotAllowedError
    http_status = 412


class LongFilter(WatchRefused):
    """One that no property of a topic could match, or more of them than a watch may have."""

    server_error = api.NotAllowedError
    http_status = 412


class LongQuestion(WatchRefused):
    server_error = api.NotAllowedError
    http_status = 412


class TooManyWatches(WatchRefused):
    server_error = api.TooManyRequests
    http_status = 429


class LongPattern(WatchRefused):
    server_error = api.NotAllowedError
    http_status = 412


class BadPattern(WatchRefused):
    server_error = api.InvalidTopicName
    http_status = 412


class TooManyTopics(WatchRefused):
    """More than one frame holds."""

    server_error = api.NotAllowedError
    http_status = 412


class TooManyRequests(WatchRefused):
    server_error = api.TooManyRequests
    http_status = 429
