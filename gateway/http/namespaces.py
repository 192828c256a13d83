"""Namespaces over HTTP, and the tenants and the cluster as far as Pulsar's tools ask for them."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import trio
from litestar import Controller, MediaType, Response, delete, get, put
from litestar.params import FromPath

from gateway.http.documentation import ANY_MAP, SWITCH, answer, described, query, refusals
from gateway.http.namespace_policies import fields_of, stored_policies
from gateway.http.parameters import AnyRequest, json_object, switch
from gateway.http.path_names import NAMESPACE, OF_NAMESPACE, NamespaceInPath
from gateway.http.ports import AdminPorts, Ports
from gateway.http.retention import check_policies
from gateway.http.schema_policies import check_schema_policies
from gateway.http.schemas import TenantInfo
from metadata.errors import NamespaceMissing, StoreError, TopicMissing
from protocol.names import NamespaceName, TopicName

# Topics deleted together; between two slices everybody else gets a turn.
SLICE: Final = 16

POLICIES: Final = f"/namespaces{NAMESPACE}"

_policies_body: msgspec.json.Decoder[dict[str, Any] | None] = msgspec.json.Decoder(dict[str, Any] | None)


class UnknownTenant(NamespaceMissing):
    """A tenant is there while it has a namespace."""


class NamespaceRoutes(Controller):
    path = "/admin/v2"
    tags = ("namespaces",)
    dependencies = OF_NAMESPACE

    @get("/namespaces/{tenant:str}", summary="List the namespaces of a tenant", responses=refusals(404))
    async def list_namespaces(self, ports: Ports, tenant: FromPath[str]) -> list[str]:
        return [str(name) for name in await _namespaces_of(ports, tenant)]

    @get(
        POLICIES,
        summary="Read the policies of a namespace",
        responses=refusals(404, 412) | {200: answer(dict[str, Any], "The policies.")},
    )
    async def read_namespace(self, ports: Ports, name: NamespaceInPath) -> Response[bytes]:
        policies = await stored_policies(ports, name)
        fields_of(name, policies)
        return Response(policies, media_type=MediaType.JSON)

    @put(
        POLICIES,
        status_code=204,
        summary="Create a namespace",
        responses=refusals(409, 412, 507),
        operation_class=described(body=ANY_MAP),
    )
    async def create_namespace(self, ports: Ports, request: AnyRequest, name: NamespaceInPath) -> None:
        """The body is kept as its policies."""
        policies = await json_object(request, _policies_body)
        check_policies(policies)
        check_schema_policies(policies)
        await ports.store.create_namespace(name, msgspec.json.encode(policies))

    @delete(
        POLICIES,
        status_code=204,
        summary="Delete a namespace",
        responses=refusals(404, 409, 412),
        operation_class=described(parameters=[query("force", SWITCH, "Delete its topics first.")]),
    )
    async def delete_namespace(self, ports: Ports, request: AnyRequest, name: NamespaceInPath) -> None:
        """With force, no topic is created in it meanwhile; a delete that was interrupted is finished by another one."""
        if switch(request, "force"):
            await _delete_with_topics(ports, name)
        else:
            await ports.store.delete_namespace(name)

    @get("/tenants", summary="List the tenants", responses=refusals())
    async def list_tenants(self, ports: Ports) -> list[str]:
        return sorted({name.tenant for name in await ports.store.list_namespaces()})

    @get("/tenants/{tenant:str}", summary="Read a tenant", responses=refusals(404))
    async def read_tenant(self, ports: Ports, tenant: FromPath[str]) -> TenantInfo:
        await _namespaces_of(ports, tenant)
        return TenantInfo(admin_roles=[], allowed_clusters=[ports.cluster])

    @get("/clusters", summary="List the clusters", responses=refusals())
    async def list_clusters(self, ports: Ports) -> list[str]:
        """One: Vela has no geo-replication."""
        return [ports.cluster]


async def _namespaces_of(ports: AdminPorts, tenant: str) -> list[NamespaceName]:
    found = await ports.store.list_namespaces(tenant)
    if not found:
        raise UnknownTenant(f"Tenant does not exist: {tenant[:80]!a}. It comes with its first namespace.")
    return found


async def _delete_with_topics(ports: AdminPorts, name: NamespaceName) -> None:
    """Every step may be repeated, so after a crash in the middle the next call goes on from there."""
    store = ports.store
    if await store.get_namespace(name) is None and not await store.is_closed(name):
        raise NamespaceMissing(f"Namespace does not exist: {name}. Check its name, or create it.")
    # First in all buckets: what is listed from then on is all that there will be.
    await store.close_namespace(name)
    try:
        await _delete_topics(ports, name)
        # After the scalable ones: some of these may be parts of those.
        await ports.classic.clear(name)
    finally:
        ports.garbage.collect_soon()
    try:
        await store.delete_namespace(name)
    except NamespaceMissing:
        pass  # whoever was interrupted came as far as this
    # Last, so that whoever is interrupted before can still be found.
    await store.reopen_namespace(name)


async def _delete_topics(ports: AdminPorts, name: NamespaceName) -> None:
    failures: list[StoreError] = []

    async def delete_topic(local: str) -> None:
        try:
            await ports.transitions.delete(TopicName.scalable(name.tenant, name.namespace, local))
        except TopicMissing:
            pass  # somebody else was faster, and that is what was asked for
        except StoreError as error:
            failures.append(error)

    found = await ports.store.list_topics(name)
    for start in range(0, len(found), SLICE):
        async with trio.open_nursery() as nursery:
            for local in found[start : start + SLICE]:
                nursery.start_soon(delete_topic, local)
        if failures:
            raise failures[0]
