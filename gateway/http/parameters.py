"""Query parameters, headers and bodies as values; what cannot be used is refused with a sentence of ours.

Parameters that nobody knows are ignored: Pulsar's clients add some of their own.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec
from litestar import Request

from controller.transitions import PreconditionFailed
from gateway.http.refusals import BadRequest, InvalidParameter
from metadata.records import Version
from metadata.subscriptions import SubscriptionType
from protocol.names import MAX_LOCAL_NAME_BYTES

AnyRequest = Request[Any, Any, Any]
Entries = TypeVar("Entries", dict[str, str], dict[str, Any])
Struct = TypeVar("Struct", bound=msgspec.Struct)
Value = TypeVar("Value")

_WHOLE_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)
_SWITCH = {"true": True, "false": False}


def whole_number(request: AnyRequest, name: str, default: int) -> int:
    text = _only(request, name)
    if text is None:
        return default
    if not _WHOLE_NUMBER.fullmatch(text):
        raise InvalidParameter(f"{name} cannot be {_shown(text)}: give a whole number from 1 up.")
    return int(text)


def moment(request: AnyRequest, name: str) -> int:
    """Milliseconds since 1970. Never assumed: a missing one would rewind to the beginning."""
    text = _only(request, name)
    if text is None or not _WHOLE_NUMBER.fullmatch(text):
        given = "is missing" if text is None else f"cannot be {_shown(text)}"
        raise InvalidParameter(f"{name} {given}: give milliseconds since 1970.")
    return int(text)


def subscription_type(request: AnyRequest, name: str) -> SubscriptionType | None:
    """None where it is left to the first consumer."""
    text = _only(request, name)
    if text is None:
        return None
    for kind in (SubscriptionType.STREAM, SubscriptionType.QUEUE):
        if text == kind:
            return kind
    raise InvalidParameter(
        f"{name} cannot be {_shown(text)}: give STREAM or QUEUE, or leave it out and its first consumer decides."
    )


def checked_subscription(text: str) -> str:
    """Anything that can be shown and stored, as over the binary protocol."""
    if not text.strip():
        raise InvalidParameter("The name of the subscription is blank: give it one.")
    if len(text.encode()) > MAX_LOCAL_NAME_BYTES:
        raise InvalidParameter(f"The name of the subscription is longer than {MAX_LOCAL_NAME_BYTES} bytes: shorten it.")
    return text


def switch(request: AnyRequest, name: str) -> bool:
    text = _only(request, name)
    if text is None:
        return False
    if text.lower() not in _SWITCH:
        raise InvalidParameter(f"{name} cannot be {_shown(text)}: give true or false.")
    return _SWITCH[text.lower()]


def property_filters(request: AnyRequest) -> list[tuple[str, str]]:
    """Each `key=value`; the value may hold further equals signs."""
    filters = []
    for text in request.query_params.getall("property", []):
        key, separator, value = text.partition("=")
        if not (key and separator and value):
            raise InvalidParameter(f"property filter must be in the form key=value, got: {_shown(text)}")
        filters.append((key, value))
    return filters


async def json_object(request: AnyRequest, decoder: msgspec.json.Decoder[Entries | None]) -> Entries:
    """The body, which may be empty whatever the content type says: Pulsar's clients send it so."""
    body = await request.body()
    if not body.strip():
        return {}
    return _decoded(body, decoder, "object") or {}


async def json_list(request: AnyRequest, decoder: msgspec.json.Decoder[list[str] | None]) -> list[str]:
    """The body, which may be empty as well."""
    body = await request.body()
    if not body.strip():
        return []
    return _decoded(body, decoder, "list") or []


async def json_struct(request: AnyRequest, decoder: msgspec.json.Decoder[Struct]) -> Struct:
    body = await request.body()
    if not body.strip():
        raise BadRequest("The body is missing: send a JSON object.")
    return _decoded(body, decoder, "object")


async def json_value(request: AnyRequest, decoder: msgspec.json.Decoder[Value], what: str) -> Value:
    """A body that cannot be left out; `what` is how a refusal calls it."""
    body = await request.body()
    if not body.strip():
        raise BadRequest(f"The body is missing: send a JSON {what}.")
    return _decoded(body, decoder, what)


def _decoded(body: bytes, decoder: msgspec.json.Decoder[Value], what: str) -> Value:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise BadRequest(f"The body is not the JSON {what} that belongs here: {error}.") from None
    except msgspec.DecodeError as error:
        raise BadRequest(f"The body is not valid JSON: {error}.") from None
    except UnicodeDecodeError:
        raise BadRequest("The body is not UTF-8: JSON is.") from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply: make it flatter.") from None


def expected_version(request: AnyRequest) -> Version | None:
    """The version that `If-Match` demands, None where any will do."""
    if_match = request.headers.get("if-match")
    if if_match is None or if_match.strip() == "*":
        return None
    version = Version.parse_etag(if_match)
    if version is None:
        raise PreconditionFailed(
            f"If-Match {_shown(if_match)} is no version of a topic: send the ETag of a GET as it came."
        )
    return version


def _only(request: AnyRequest, name: str) -> str | None:
    values = request.query_params.getall(name, [])
    if len(values) > 1:
        raise InvalidParameter(f"{name} is given {len(values)} times: give it once.")
    return values[0] if values else None


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 80 else text[:80] + "...")
