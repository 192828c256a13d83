"""Why a receiver is not let in."""

from protocol.wire import pulsar_api_pb2 as api


class DispatchRefusal(Exception):
    """Base of the refusals; `str(error)` says what the client can do."""

    http_status = 409
    server_error: int = api.UnknownError


class ConsumerBusy(DispatchRefusal):
    """An Exclusive subscription has its one receiver; clients try again until it has left."""

    server_error = api.ConsumerBusy


class ConsumerAssignError(DispatchRefusal):
    """The hash ranges that a receiver asks for do not fit those of the others."""

    server_error = api.ConsumerAssignError
