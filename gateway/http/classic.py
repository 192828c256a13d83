"""Classic topics over HTTP, with Pulsar's paths: single ones, and partitioned ones with their number of partitions."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from litestar import Controller, delete, get, post, put
from litestar.openapi.spec import OpenAPIType, Schema
from msgspec import Meta

from gateway.http.documentation import STRING_MAP, SWITCH, described, query, refusals
from gateway.http.parameters import AnyRequest, json_object, json_value, switch
from gateway.http.path_names import NAMESPACE, OF_CLASSIC_TOPIC, OF_NAMESPACE, TOPIC, NamespaceInPath, TopicInPath
from gateway.http.ports import AdminPorts, Ports
from gateway.http.schemas import ClassicTopicInfo, PartitionedTopicMetadata
from metadata.classic_records import ClassicLog, ClassicTopic
from metadata.errors import TopicMissing
from protocol.names import PERSISTENT, NamespaceName, TopicName

PARTITIONS: Final = f"{TOPIC}/partitions"
_NUMBER: Final = Schema(type=OpenAPIType.INTEGER, minimum=1)
_FORCE: Final = query("force", SWITCH, "Delete it although clients are connected.")

_Number = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]


class _Partitions(msgspec.Struct):
    """The other form in which Pulsar's clients send the number, with properties."""

    partitions: _Number
    properties: dict[str, str] | None = None


_properties_body: msgspec.json.Decoder[dict[str, str] | None] = msgspec.json.Decoder(dict[str, str] | None)
_number_body: msgspec.json.Decoder[_Number] = msgspec.json.Decoder(_Number)
_partitions_body: msgspec.json.Decoder[_Number | _Partitions] = msgspec.json.Decoder(_Number | _Partitions)


class ClassicRoutes(Controller):
    path = "/admin/v2/persistent"
    tags = ("classic topics",)
    dependencies = OF_CLASSIC_TOPIC

    @get(
        NAMESPACE,
        summary="List the classic topics of a namespace",
        dependencies=OF_NAMESPACE,
        responses=refusals(412),
    )
    async def list_topics(self, ports: Ports, name: NamespaceInPath) -> list[str]:
        """The full names, sorted; of a partitioned topic, its partitions."""
        return _full(name, await ports.classic.topics.list_logs(name))

    @get(
        f"{NAMESPACE}/partitioned",
        summary="List the partitioned topics of a namespace",
        dependencies=OF_NAMESPACE,
        responses=refusals(412),
    )
    async def list_partitioned(self, ports: Ports, name: NamespaceInPath) -> list[str]:
        return _full(name, await ports.classic.topics.list_partitioned(name))

    @put(
        TOPIC,
        status_code=204,
        summary="Create a classic topic without partitions",
        responses=refusals(404, 409, 412, 507),
        operation_class=described(body=STRING_MAP),
    )
    async def create_topic(self, ports: Ports, request: AnyRequest, name: TopicInPath) -> None:
        await ports.classic.create(name, await json_object(request, _properties_body))

    @get(TOPIC, summary="Read a classic topic", responses=refusals(404, 412))
    async def read_topic(self, ports: Ports, name: TopicInPath) -> ClassicTopicInfo:
        """Also one that is being deleted, until it is gone."""
        found = await classic_topic(ports, name)
        sealed = found.sealed if isinstance(found, ClassicLog) else found.migrated
        return ClassicTopicInfo(str(name), found.partitions, sealed, found.ctime_ms, dict(found.properties))

    @delete(
        TOPIC,
        status_code=204,
        summary="Delete a classic topic without partitions",
        responses=refusals(404, 409, 412),
        operation_class=described(parameters=[_FORCE]),
    )
    async def delete_topic(self, ports: Ports, request: AnyRequest, name: TopicInPath) -> None:
        await ports.classic.delete(name, force=switch(request, "force"))
        ports.garbage.collect_soon()

    @put(
        PARTITIONS,
        status_code=204,
        summary="Create a partitioned topic",
        responses=refusals(404, 409, 412, 507),
        operation_class=described(body=_NUMBER, body_required=True),
    )
    async def create_partitioned(self, ports: Ports, request: AnyRequest, name: TopicInPath) -> None:
        """The body is the number of partitions, or an object with `partitions` and `properties`."""
        given = await json_value(request, _partitions_body, "number of partitions")
        if isinstance(given, int):
            given = _Partitions(given)
        await ports.classic.create_partitioned(name, given.partitions, given.properties)

    @get(PARTITIONS, summary="Read how many partitions a topic has", responses=refusals(404, 412))
    async def read_partitions(self, ports: Ports, name: TopicInPath) -> PartitionedTopicMetadata:
        found = await classic_topic(ports, name)
        if found.is_going:
            raise TopicMissing(f"Topic not found: {name} is being deleted.")
        return PartitionedTopicMetadata(found.partitions, properties=dict(found.properties))

    @post(
        PARTITIONS,
        status_code=204,
        summary="Give a topic more partitions",
        responses=refusals(404, 409, 412, 507),
        operation_class=described(body=_NUMBER, body_required=True),
    )
    async def update_partitions(self, ports: Ports, request: AnyRequest, name: TopicInPath) -> None:
        """The body is the new number. The same number again creates partitions that are missing."""
        await ports.classic.grow(name, await json_value(request, _number_body, "number of partitions"))

    @delete(
        PARTITIONS,
        status_code=204,
        summary="Delete a topic with all of its partitions",
        responses=refusals(404, 409, 412),
        operation_class=described(parameters=[_FORCE]),
    )
    async def delete_partitioned(self, ports: Ports, request: AnyRequest, name: TopicInPath) -> None:
        """A deletion that was interrupted is finished by another one."""
        try:
            await ports.classic.delete_partitioned(name, force=switch(request, "force"))
        finally:
            ports.garbage.collect_soon()


def _full(namespace: NamespaceName, found: list[str]) -> list[str]:
    return [f"{PERSISTENT}://{namespace}/{local}" for local in found]


async def classic_topic(ports: AdminPorts, name: TopicName) -> ClassicTopic:
    """A topic as it is in the store."""
    found = await ports.classic.topics.get(name)
    if found is None:
        raise TopicMissing(f"Topic not found: {name}. Check its name, or create it.")
    return found
