"""What a namespace demands of the schemas of its topics, over HTTP with Pulsar's paths."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from litestar import Controller, MediaType, Response, get, post, put

from gateway.http.documentation import AUTO_UPDATE, STRATEGY, YES_OR_NO, answer, described, refusals
from gateway.http.namespace_policies import damaged, stored_policies, write_policy
from gateway.http.parameters import AnyRequest, json_value
from gateway.http.path_names import NAMESPACE, OF_NAMESPACE, NamespaceInPath
from gateway.http.ports import AdminPorts, Ports
from gateway.http.refusals import BadRequest
from metadata.stored_values import UNREADABLE
from protocol.names import NamespaceName
from segments.schema_policies import AutoUpdate, SchemaPolicies, Strategy

_policies = msgspec.json.Decoder(SchemaPolicies)
_strategy = msgspec.json.Decoder(Strategy)
_auto_update = msgspec.json.Decoder(AutoUpdate)
_switch = msgspec.json.Decoder(bool)

_TEXT: Final = answer(str, "What is set.")
_FLAG: Final = answer(bool, "What is set, or the default.")


class SchemaPolicyRoutes(Controller):
    path = f"/admin/v2/namespaces{NAMESPACE}"
    tags = ("namespaces",)
    dependencies = OF_NAMESPACE

    @get(
        "/schemaCompatibilityStrategy",
        summary="Read how a new schema must fit the ones before",
        responses=refusals(404, 412) | {200: _TEXT},
    )
    async def read_strategy(self, ports: Ports, name: NamespaceInPath) -> Response[bytes]:
        """UNDEFINED stands for what the older policy says, or else for FULL."""
        return _json((await _read(ports, name)).schema_compatibility_strategy or Strategy.UNDEFINED)

    @put(
        "/schemaCompatibilityStrategy",
        status_code=204,
        summary="Set how a new schema must fit the ones before",
        responses=refusals(404, 409, 412),
        operation_class=described(body=STRATEGY, body_required=True),
    )
    async def set_strategy(self, ports: Ports, request: AnyRequest, name: NamespaceInPath) -> None:
        chosen = await json_value(request, _strategy, "strategy")
        await write_policy(ports, name, "schema_compatibility_strategy", chosen)

    @get(
        "/schemaAutoUpdateCompatibilityStrategy",
        summary="Read the same as older tools set it",
        responses=refusals(404, 412) | {200: _TEXT},
    )
    async def read_auto_update(self, ports: Ports, name: NamespaceInPath) -> Response[bytes]:
        return _json((await _read(ports, name)).schema_auto_update_compatibility_strategy or AutoUpdate.FULL)

    @put(
        "/schemaAutoUpdateCompatibilityStrategy",
        status_code=204,
        summary="Set the same as older tools do",
        responses=refusals(404, 409, 412),
        operation_class=described(body=AUTO_UPDATE, body_required=True),
    )
    async def set_auto_update(self, ports: Ports, request: AnyRequest, name: NamespaceInPath) -> None:
        """It counts where no other strategy is set."""
        chosen = await json_value(request, _auto_update, "strategy")
        await write_policy(ports, name, "schema_auto_update_compatibility_strategy", chosen)

    @get(
        "/isAllowAutoUpdateSchema",
        summary="Read whether clients may add schemas",
        responses=refusals(404, 412) | {200: _FLAG},
    )
    async def read_updates(self, ports: Ports, name: NamespaceInPath) -> Response[bytes]:
        return _json((await _read(ports, name)).producers_may_update)

    @post(
        "/isAllowAutoUpdateSchema",
        status_code=204,
        summary="Set whether clients may add schemas",
        responses=refusals(404, 409, 412),
        operation_class=described(body=YES_OR_NO, body_required=True),
    )
    async def set_updates(self, ports: Ports, request: AnyRequest, name: NamespaceInPath) -> None:
        """Uploads are always possible."""
        chosen = await json_value(request, _switch, "true or false")
        await write_policy(ports, name, "is_allow_auto_update_schema", chosen)

    @get(
        "/schemaValidationEnforced",
        summary="Read whether producers need a schema where a topic has one",
        responses=refusals(404, 412) | {200: _FLAG},
    )
    async def read_enforced(self, ports: Ports, name: NamespaceInPath) -> Response[bytes]:
        return _json((await _read(ports, name)).producers_need_schema)

    @post(
        "/schemaValidationEnforced",
        status_code=204,
        summary="Set whether producers need a schema where a topic has one",
        responses=refusals(404, 409, 412),
        operation_class=described(body=YES_OR_NO, body_required=True),
    )
    async def set_enforced(self, ports: Ports, request: AnyRequest, name: NamespaceInPath) -> None:
        chosen = await json_value(request, _switch, "true or false")
        await write_policy(ports, name, "schema_validation_enforced", chosen)


def check_schema_policies(policies: dict[str, Any]) -> None:
    """Refuse policies of a new namespace that nobody could read later."""
    try:
        msgspec.convert(policies, SchemaPolicies)
    except msgspec.ValidationError as error:
        raise BadRequest(f"The policies are not those of a namespace: {error}.") from None


async def _read(ports: AdminPorts, name: NamespaceName) -> SchemaPolicies:
    try:
        return _policies.decode(await stored_policies(ports, name))
    except UNREADABLE as error:
        raise damaged(name, error) from error


def _json(value: object) -> Response[bytes]:
    """A bare text or truth value, which the framework would not write as JSON."""
    return Response(msgspec.json.encode(value), media_type=MediaType.JSON)
