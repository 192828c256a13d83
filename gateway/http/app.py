"""The admin API put together: routes, the OpenAPI document, and one table from errors to answers."""

from __future__ import annotations

import logging
import secrets
from functools import cache
from typing import Any, Final

from litestar import Litestar, MediaType, Response, Router
from litestar.connection import ASGIConnection
from litestar.di import Provide
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException
from litestar.handlers import BaseRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.plugins import PluginProtocol
from litestar.plugins.core import MsgspecDIPlugin
from litestar.types import ASGIApp, Receive, Scope, Send

from controller.leaders import LedElsewhere
from controller.transitions import TransitionError
from gateway.http.admission import Admission
from gateway.http.classic import ClassicRoutes
from gateway.http.classic_stats import ClassicStatsRoutes
from gateway.http.health import HealthRoutes
from gateway.http.namespaces import NamespaceRoutes
from gateway.http.nodes import NodeRoutes
from gateway.http.parameters import AnyRequest
from gateway.http.ports import AdminPorts
from gateway.http.raw_path import DecodedParameters, RawPathRouting
from gateway.http.refusals import NOT_DONE, RequestError, retry_headers
from gateway.http.retention import NamespaceRetentionRoutes, TopicRetentionRoutes
from gateway.http.schema_policies import SchemaPolicyRoutes
from gateway.http.schemas import Reason
from gateway.http.segments import SegmentRoutes
from gateway.http.stats import StatsRoutes
from gateway.http.subscriptions import SubscriptionRoutes
from gateway.http.topic_schemas import SchemaRoutes
from gateway.http.topics import TopicRoutes
from layout.errors import LayoutError
from metadata.complaints import complain
from metadata.errors import LeaderUnreachable, StoreError
from protocol.errors import ProtocolError

log = logging.getLogger(__name__)

OPENAPI_PATH = "/openapi.json"
# Under which name the state of a request has them.
_PORTS: Final = "ports"
ROUTES = (
    TopicRoutes,
    ClassicRoutes,
    StatsRoutes,
    ClassicStatsRoutes,
    SubscriptionRoutes,
    TopicRetentionRoutes,
    SegmentRoutes,
    NamespaceRoutes,
    NamespaceRetentionRoutes,
    SchemaPolicyRoutes,
    SchemaRoutes,
    NodeRoutes,
    HealthRoutes,
)
TypedError = ProtocolError | LayoutError | StoreError | TransitionError | RequestError


class _LeanLitestar(Litestar):
    """Without the plugin for pydantic, which some other package brings along: importing it takes 0.2 s of the start."""

    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        return [*plugins, MsgspecDIPlugin()]


def build_app(ports: AdminPorts) -> ASGIApp:
    """The whole API as one ASGI application over what the node hands in."""
    app = _routed()

    async def with_ports(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"] = {_PORTS: ports}
        await app(scope, receive, send)

    return Admission(RawPathRouting(with_ports), ports.admission, ports.hosts.check)


@cache
def _routed() -> Litestar:
    """All routes. They know nothing of a node and take a tenth of a second to make: nodes of one process share them."""
    return _LeanLitestar(
        ROUTES,
        dependencies={"ports": Provide(_ports_of, sync_to_thread=False)},
        middleware=[DecodedParameters],
        exception_handlers={
            **dict.fromkeys(TypedError.__args__, answer_typed),
            LedElsewhere: answer_redirect,
            HTTPException: answer_framework,
            Exception: answer_unexpected,
        },
        openapi_config=OpenAPIConfig(
            title="Vela admin API",
            version="v2",
            use_handler_docstrings=True,
            openapi_router=Router(OPENAPI_PATH, route_handlers=[], guards=[only_the_document], include_in_schema=False),
            render_plugins=[JsonRenderPlugin(path="/", media_type=MediaType.JSON)],
        ),
        # `Admission` has bounded the body already.
        request_max_body_size=None,
        logging_config=None,
        debug=False,
        pdb_on_exception=False,
    )


def _ports_of(scope: Scope) -> AdminPorts:
    ports: AdminPorts = scope["state"][_PORTS]
    return ports


def only_the_document(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """The framework puts pages of its own below the document, with HTML for what it does not know."""
    if connection.scope["path"] != OPENAPI_PATH:
        raise NotFoundException


def answer_typed(_: AnyRequest, error: TypedError) -> Response[Reason]:
    status = error.http_status
    if status == 500:
        complain(log, "a request failed: %s", error)
    # A client may send the same again without a look whether it was done.
    headers = {NOT_DONE: "leader-unreachable"} if isinstance(error, LeaderUnreachable) else None
    return _answer(status, str(error), headers)


def answer_redirect(request: AnyRequest, error: LedElsewhere) -> Response[Reason]:
    """The same request, at the node that leads the topic."""
    # As it was sent: what is encoded in a name must stay so.
    target = request.scope["raw_path"].decode("ascii")
    if query := request.scope["query_string"].decode("ascii"):
        target += f"?{query}"
    return _answer(307, str(error), {"location": error.leader.http_url.rstrip("/") + target})


def answer_framework(request: AnyRequest, error: HTTPException) -> Response[Reason]:
    match error:
        case NotFoundException():
            return _answer(404, f"There is nothing at this path: see {OPENAPI_PATH} for those there are.")
        case MethodNotAllowedException():
            allowed = _allowed((error.headers or {}).get("allow", ""))
            reason = f"{request.method.upper()} is not possible here: use {allowed}."
            return _answer(405, reason, {"allow": allowed})
        case _:
            return _answer(error.status_code, error.detail, error.headers)


def answer_unexpected(request: AnyRequest, error: Exception) -> Response[Reason]:
    request_id = secrets.token_hex(6)
    log.error("request %s, %s %s, failed", request_id, request.method, request.scope["path"], exc_info=error)
    return _answer(500, f"Something went wrong in the server; its log has more under request {request_id}.")


def _answer(status: int, reason: str, headers: dict[str, str] | None = None) -> Response[Reason]:
    return Response(
        Reason(reason),
        status_code=status,
        media_type=MediaType.JSON,
        headers=(headers or {}) | retry_headers(status),
    )


def _allowed(methods: str) -> str:
    """As `RawPathRouting` has it: no OPTIONS, and HEAD wherever there is GET."""
    allowed = set(methods.split(", ")) - {"OPTIONS"}
    return ", ".join(sorted(allowed | {"HEAD"} if "GET" in allowed else allowed))
