"""Routing on the path as it was sent, so that an encoded slash is part of a name and not a step in the path.

The framework routes on the decoded path, where a topic named `a/stats` could not be told from the stats of `a`. Here it
sees the raw path, and the parameters that it found are decoded afterwards, each on its own and only once.
"""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from gateway.http.refusals import BadRequest, RequestError, UnknownPath, send_refusal


def decode_part(part: str) -> str:
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise BadRequest(f"{part[:80]} is not UTF-8 once decoded: percent-encode names as UTF-8.") from None


class RawPathRouting:
    """Around the framework: lets it route on the raw path, and answers HEAD as GET without its body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        raw_path = scope["raw_path"].decode("ascii")
        try:
            decode_part(raw_path)
            decode_part(scope["query_string"].decode("ascii"))
            if "//" in raw_path:
                # The router folds empty steps away, and a name left out would make it another request.
                raise UnknownPath(f"{raw_path[:80]} has an empty step: is a name missing?")
        except RequestError as error:
            await send_refusal(send, error)
            return
        # A copy, because the server reads its own: there it says HEAD, and the body is held back.
        routed = scope.copy()
        routed["path"] = raw_path
        match scope["method"]:
            case "HEAD":
                routed["method"] = "GET"
            case "OPTIONS":
                # The framework's own answer names only some of the methods. In small letters it is one that it
                # does not know, and it refuses that by naming all.
                routed["method"] = "options"  # type: ignore[typeddict-item]
        await self._app(routed, receive, send)


class DecodedParameters:
    """Inside the framework, after routing: decodes what the path parameters hold."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Never in place: the router caches what it found and hands the same mapping out again.
        scope["path_params"] = {
            name: decode_part(value) if isinstance(value, str) else value
            for name, value in scope["path_params"].items()
        }
        await self._app(scope, receive, send)
