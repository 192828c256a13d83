"""Why a producer, a consumer or one of their messages is refused, each with the code that a client sees."""

from __future__ import annotations

from protocol.errors import ProtocolError
from protocol.wire import pulsar_api_pb2 as api


class DataRefusal(ProtocolError):
    """Base of what the data plane refuses; `str(error)` says what to do."""


class NotHere(DataRefusal):
    """Another node has the log, or nobody can have it now: look it up again."""

    server_error = api.ServiceNotReady
    http_status = 503


class NoLog(DataRefusal):
    server_error = api.TopicNotFound
    http_status = 404


class Terminated(DataRefusal):
    """The segment is sealed. Clients look for this code, and send to the segments that took its place."""

    server_error = api.TopicTerminatedError
    http_status = 409


class ProducerBusy(DataRefusal):
    server_error = api.ProducerBusy
    http_status = 409


class QuotaExceeded(DataRefusal):
    """Consumers are too far behind. Clients wait and try again."""

    server_error = api.ProducerBlockedQuotaExceededError
    http_status = 507


class ProducerFenced(DataRefusal):
    server_error = api.ProducerFenced
    http_status = 409


class NotAllowed(DataRefusal):
    server_error = api.NotAllowedError
    http_status = 405


class NoSuchConsumer(DataRefusal):
    server_error = api.ConsumerNotFound
    http_status = 404


class TooMany(DataRefusal):
    server_error = api.TooManyRequests
    http_status = 429
