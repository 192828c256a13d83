"""The schemas of topics over HTTP, with Pulsar's paths, which do not say of which kind a topic is."""

from __future__ import annotations

import re
from typing import Final

import msgspec
from litestar import Controller, delete, get, post
from litestar.params import FromPath

from gateway.http.documentation import SCHEMA_PAYLOAD, SWITCH, described, query, refusals
from gateway.http.parameters import AnyRequest, json_struct, switch
from gateway.http.path_names import OF_WHOLE_TOPIC, TOPIC, TopicInPath
from gateway.http.ports import Ports
from gateway.http.refusals import InvalidParameter, RequestError
from gateway.http.schemas import SchemaFit, SchemaVersion, TopicSchema, TopicSchemas
from metadata.schemas import StoredSchema
from protocol.names import TopicName
from protocol.schemas import InvalidSchema, Schema, SchemaType, join_key_value, split_key_value

NO_VERSION: Final = -1
_NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)


class SchemaMissing(RequestError):
    http_status = 404


class SchemaPayload(msgspec.Struct, frozen=True):
    """As Pulsar's tools send a schema."""

    type: str
    schema: str = ""
    properties: dict[str, str] | None = None


_payload = msgspec.json.Decoder(SchemaPayload)


class SchemaRoutes(Controller):
    path = f"/admin/v2/schemas{TOPIC}"
    tags = ("schemas",)
    dependencies = OF_WHOLE_TOPIC

    @get("/schema", summary="Read the schema of a topic", responses=refusals(404, 412))
    async def read_schema(self, ports: Ports, name: TopicInPath) -> TopicSchema:
        """The last version that is in force."""
        return _shown(name, await ports.schemas.stored(name))

    @get("/schema/{version:str}", summary="Read a version of the schema of a topic", responses=refusals(404, 412))
    async def read_version(self, ports: Ports, name: TopicInPath, version: FromPath[str]) -> TopicSchema:
        """Also one that was deleted: there may be messages that were written with it."""
        if not _NUMBER.fullmatch(version):
            raise InvalidParameter(f"{version[:80]!a} is no version of a schema: give a whole number from 0 up.")
        return _shown(name, await ports.schemas.stored(name, int(version)))

    @get("/schemas", summary="List the versions of the schema of a topic", responses=refusals(404, 412))
    async def list_versions(self, ports: Ports, name: TopicInPath) -> TopicSchemas:
        return TopicSchemas([_shown(name, stored) for stored in await ports.schemas.history(name)])

    @post(
        "/schema",
        status_code=200,
        summary="Give a topic a new version of its schema",
        responses=refusals(404, 409, 412, 422, 507),
        operation_class=described(body=SCHEMA_PAYLOAD, body_required=True),
    )
    async def upload_schema(self, ports: Ports, request: AnyRequest, name: TopicInPath) -> SchemaVersion:
        """It must fit, as the namespace demands it. One that the topic has already keeps its version."""
        schema = await _sent(request)
        return SchemaVersion(await ports.schemas.upload(name, schema))

    @delete(
        "/schema",
        status_code=200,
        summary="Delete the schema of a topic",
        responses=refusals(404, 412),
        operation_class=described(
            parameters=[query("force", SWITCH, "Messages that were written with it cannot be read any more.")]
        ),
    )
    async def delete_schema(self, ports: Ports, request: AnyRequest, name: TopicInPath) -> SchemaVersion:
        """All versions. The deletion takes a number of its own."""
        purge = switch(request, "force")
        number = await ports.schemas.delete(name, purge=purge)
        if number is None:
            raise _missing(name)
        return SchemaVersion(number)

    @post(
        "/compatibility",
        status_code=200,
        summary="Ask whether a schema would fit a topic",
        responses=refusals(404, 412, 422),
        operation_class=described(body=SCHEMA_PAYLOAD, body_required=True),
    )
    async def check_schema(self, ports: Ports, request: AnyRequest, name: TopicInPath) -> SchemaFit:
        schema = await _sent(request)
        fits, strategy = await ports.schemas.fits(name, schema)
        return SchemaFit(fits, strategy.value)

    @post(
        "/version",
        status_code=200,
        summary="Find the version of a schema",
        responses=refusals(404, 412, 422),
        operation_class=described(body=SCHEMA_PAYLOAD, body_required=True),
    )
    async def find_version(self, ports: Ports, request: AnyRequest, name: TopicInPath) -> SchemaVersion:
        """-1 where the topic does not have it."""
        schema = await _sent(request)
        number = await ports.schemas.number_of(name, schema)
        return SchemaVersion(NO_VERSION if number is None else number)


async def _sent(request: AnyRequest) -> Schema:
    payload = await json_struct(request, _payload)
    try:
        kind = SchemaType[payload.type]
    except KeyError:
        raise InvalidSchema(f"{payload.type[:80]!a} is no type of schemas: give one like AVRO or STRING.") from None
    data = _packed(payload.schema) if kind is SchemaType.KEY_VALUE else payload.schema.encode()
    return Schema(kind, data, payload.properties or {})


def _packed(text: str) -> bytes:
    """Two definitions from the JSON that holds both; a text stands for that of a type without one."""
    try:
        parts = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        halves = [bytes(parts[side]) for side in ("key", "value")]
    except (msgspec.DecodeError, KeyError, RecursionError):
        raise InvalidSchema("A key/value schema is sent as JSON with the definitions of key and value.") from None
    return join_key_value(*(b"" if half.startswith(b'"') else half for half in halves))


def _shown(name: TopicName, stored: StoredSchema | None) -> TopicSchema:
    if stored is None:
        raise _missing(name)
    schema = stored.schema
    text = _unpacked(schema.data) if schema.type is SchemaType.KEY_VALUE else schema.data.decode(errors="replace")
    return TopicSchema(stored.version, schema.type.name, stored.created_at_ms, text, dict(schema.properties))


def _unpacked(data: bytes) -> str:
    key, value = (msgspec.Raw(half) if half else "" for half in split_key_value(data))
    return msgspec.json.encode({"key": key, "value": value}).decode(errors="replace")


def _missing(name: TopicName) -> SchemaMissing:
    return SchemaMissing(f"{name.tenant}/{name.namespace}/{name.local} has no such schema: upload one, or produce.")
