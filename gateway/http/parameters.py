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

AnyRequest = Request[Any, Any, Any]
Entries = TypeVar("Entries", dict[str, str], dict[str, Any])

_WHOLE_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)
_SWITCH = {"true": True, "false": False}


def whole_number(request: AnyRequest, name: str, default: int) -> int:
    text = _only(request, name)
    if text is None:
        return default
    if not _WHOLE_NUMBER.fullmatch(text):
        raise InvalidParameter(f"{name} cannot be {_shown(text)}: give a whole number from 0 up.")
    return int(text)


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
    try:
        return decoder.decode(body) or {}
    except msgspec.ValidationError as error:
        raise BadRequest(f"The body is not the JSON object that belongs here: {error}.") from None
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
