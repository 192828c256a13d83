"""Refusals of a request before it reaches the domain, and the one shape in which any refusal is answered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from litestar.types import Send

from gateway.http.schemas import Reason

Header = tuple[bytes, bytes]


class RequestError(Exception):
    """Base of what is wrong with a request as such."""

    http_status = 400


class BadRequest(RequestError):
    """Not what it claims to be: broken encoding, broken JSON."""


class UnknownPath(RequestError):
    """There is nothing at this path."""

    http_status = 404


class InvalidParameter(RequestError):
    """A query parameter or header that cannot be used; 412 as Pulsar answers it."""

    http_status = 412


class InUse(RequestError):
    """Somebody would lose by it: only with force."""

    http_status = 412


class UnknownSegment(RequestError):
    """A segment that no split or merge has made cannot be created by itself."""

    http_status = 412


class SegmentInLayout(RequestError):
    """A segment that the layout of its topic still names in a way that forbids it."""

    http_status = 409


class SlowBody(RequestError):
    """The body did not arrive in time."""

    http_status = 408


class BodyTooLarge(RequestError):
    """The body is past its bound."""

    http_status = 413


class NotJson(RequestError):
    """A body that is not called JSON, as one that a page of another site may send unasked."""

    http_status = 415


class UnknownHost(RequestError):
    """Asked for under a name that is none of this server's."""

    http_status = 421


class ForeignOrigin(RequestError):
    """Sent by a page of a site that has no business here."""

    http_status = 403


class Overloaded(RequestError):
    """More requests than the node works on at the same time, or one that took too long."""

    http_status = 503


# Of an answer that says that the request was not even begun.
NOT_DONE: Final = "x-vela-not-done"


def retry_headers(status: int) -> dict[str, str]:
    """A 503 of ours is always about the moment, never about the request."""
    return {"retry-after": "1"} if status == 503 else {}


async def send_refusal(send: Send, error: RequestError) -> None:
    """Answer below the framework, where there is no response object."""
    body = msgspec.json.encode(Reason(str(error)))
    headers: Iterable[Header] = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *((name.encode(), value.encode()) for name, value in retry_headers(error.http_status).items()),
    ]
    await send({"type": "http.response.start", "status": error.http_status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
