"""Schemas of topics and what namespaces demand of them, over real HTTP and a real store."""

import json
from typing import Any

import httpx
import pytest

from metadata import keys
from protocol.names import TopicName
from protocol.schemas import Schema, SchemaType, join_key_value
from segments.schemas import SchemaRegistry
from tests.gateway.http.running import SCALABLE, Api, reason_of
from tests.support.processes import ValkeyProcess

SCHEMAS = "/admin/v2/schemas/public/default/t"
SCHEMA = f"{SCHEMAS}/schema"
NAMESPACE = "/admin/v2/namespaces/public/default"
TOPIC = TopicName.scalable("public", "default", "t")


def payload(*fields: str, default: bool = True, kind: str = "AVRO") -> dict[str, Any]:
    made = [{"name": name, "type": "int", **({"default": 0} if default else {})} for name in fields]
    definition = {"type": "record", "name": "Order", "fields": made}
    return {"type": kind, "schema": json.dumps(definition), "properties": {"by": "test"}}


A, AB, STRING = payload("a"), payload("a", "b"), {"type": "STRING", "schema": ""}


@pytest.fixture
async def topic(api: Api) -> Api:
    await api.call("PUT", NAMESPACE)
    created = await api.call("PUT", f"{SCALABLE}/t")
    assert created.status_code == 204
    return api


def version(response: httpx.Response) -> int:
    assert response.status_code == 200, response.text
    content = response.json()
    assert list(content) == ["version"]
    return int(content["version"])


async def test_what_was_uploaded_is_read_back_with_its_version(topic: Api) -> None:
    assert [version(await topic.call("POST", SCHEMA, json=sent)) for sent in (A, AB, A)] == [0, 1, 0]
    last = (await topic.call("GET", SCHEMA)).json()
    assert last.pop("timestamp") > 1_600_000_000_000
    assert last == {"version": 1, "type": "AVRO", "data": AB["schema"], "properties": {"by": "test"}}
    first = (await topic.call("GET", f"{SCHEMA}/0")).json()
    assert (first["version"], first["data"]) == (0, A["schema"])
    listed = (await topic.call("GET", f"{SCHEMAS}/schemas")).json()
    assert list(listed) == ["getSchemaResponses"]
    assert [found["version"] for found in listed["getSchemaResponses"]] == [0, 1]


async def test_producers_find_what_was_uploaded(topic: Api) -> None:
    await topic.call("POST", SCHEMA, json=STRING)
    registry = SchemaRegistry(topic.store)
    assert await registry.number_of(TOPIC, Schema(SchemaType.STRING)) == 0


async def test_a_schema_that_does_not_fit_is_refused_with_the_reason(topic: Api) -> None:
    await topic.call("POST", SCHEMA, json=A)
    for sent, words in ((payload("a", "b", default=False), "field b"), (STRING, "type AVRO, and this is STRING")):
        response = await topic.call("POST", SCHEMA, json=sent)
        assert response.status_code == 409
        assert words in reason_of(response)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({}, 400),
        ([], 400),
        ({"type": 1}, 400),
        ({"type": "STRING", "properties": {"a": 1}}, 400),
        ({"type": "STRINGS"}, 422),
        ({"type": "BYTES"}, 422),
        ({"type": "NONE"}, 422),
        ({"type": "AUTO_CONSUME"}, 422),
        ({"type": "STRING", "schema": "x"}, 422),
        ({"type": "AVRO", "schema": "{}"}, 422),
        ({"type": "AVRO", "schema": "[" * 10_000}, 422),
        ({"type": "KEY_VALUE", "schema": "{}"}, 422),
        ({"type": "KEY_VALUE", "schema": "["}, 422),
        ({"type": "AVRO", "schema": "x" * 600_000}, 422),
    ],
)
async def test_what_is_no_schema_is_refused(topic: Api, sent: object, status: int) -> None:
    for path in (SCHEMA, f"{SCHEMAS}/compatibility"):
        response = await topic.call("POST", path, json=sent)
        assert response.status_code == status
        assert len(reason_of(response)) < 500


async def test_a_deleted_schema_is_gone_but_its_versions_can_be_read(topic: Api) -> None:
    await topic.call("POST", SCHEMA, json=A)
    assert version(await topic.call("DELETE", SCHEMA)) == 1
    for path in (SCHEMA, f"{SCHEMA}/1", f"{SCHEMA}/7"):
        response = await topic.call("GET", path)
        assert response.status_code == 404
        assert "no such schema" in reason_of(response)
    assert (await topic.call("GET", f"{SCHEMA}/0")).status_code == 200
    assert (await topic.call("GET", f"{SCHEMAS}/schemas")).json() == {"getSchemaResponses": []}
    assert (await topic.call("DELETE", SCHEMA)).status_code == 404
    assert version(await topic.call("DELETE", SCHEMA, params={"force": "true"})) == 2
    assert (await topic.call("GET", f"{SCHEMA}/0")).status_code == 404
    assert version(await topic.call("POST", SCHEMA, json=STRING)) == 3


async def test_whether_a_schema_would_fit_is_told_without_adding_it(topic: Api) -> None:
    path = f"{SCHEMAS}/compatibility"
    await topic.call("POST", SCHEMA, json=A)
    for sent, expected in ((A, True), (AB, True), (STRING, False)):
        response = await topic.call("POST", path, json=sent)
        assert response.json() == {"compatibility": expected, "schemaCompatibilityStrategy": "FULL"}
    assert len((await topic.call("GET", f"{SCHEMAS}/schemas")).json()["getSchemaResponses"]) == 1


async def test_the_version_of_a_schema_is_found_by_its_content(topic: Api) -> None:
    await topic.call("POST", SCHEMA, json=A)
    assert version(await topic.call("POST", f"{SCHEMAS}/version", json=A)) == 0
    assert version(await topic.call("POST", f"{SCHEMAS}/version", json=AB)) == -1


async def test_key_and_value_are_told_apart_in_json(topic: Api) -> None:
    definition = json.loads(A["schema"])
    sent = {
        "type": "KEY_VALUE",
        "schema": json.dumps({"key": "", "value": definition}),
        "properties": {"key.schema.type": "STRING", "value.schema.type": "AVRO"},
    }
    assert version(await topic.call("POST", SCHEMA, json=sent)) == 0
    found = (await topic.call("GET", SCHEMA)).json()
    assert json.loads(found["data"]) == {"key": "", "value": definition}
    stored = await SchemaRegistry(topic.store).stored(TOPIC)
    assert stored is not None
    assert stored.schema.data == join_key_value(b"", json.dumps(definition).encode())


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "schema"),
        ("GET", "schema/0"),
        ("GET", "schemas"),
        ("POST", "schema"),
        ("POST", "compatibility"),
        ("POST", "version"),
        ("DELETE", "schema"),
    ],
)
async def test_a_topic_that_there_is_not_has_no_schemas(api: Api, method: str, path: str) -> None:
    for name in ("missing", "a%2Fb"):
        response = await api.call(
            method, f"/admin/v2/schemas/public/default/{name}/{path}", json=STRING if method == "POST" else None
        )
        assert response.status_code == 404
        assert "Topic not found" in reason_of(response)


async def test_classic_topics_have_schemas_at_the_same_paths(api: Api, valkey: ValkeyProcess) -> None:
    valkey.command("HSET", keys.classic_key("public/default/old"), "incarnation", "1")
    schema = "/admin/v2/schemas/public/default/old/schema"
    assert version(await api.call("POST", schema, json=A)) == 0
    assert (await api.call("GET", "/admin/v2/schemas/public/default/old-partition-1/schema")).json()["version"] == 0


@pytest.mark.parametrize("number", ["x", "-1", "1.5", "9" * 19])
async def test_a_version_is_a_number(topic: Api, number: str) -> None:
    response = await topic.call("GET", f"{SCHEMA}/{number}")
    assert response.status_code == 412
    reason_of(response)


async def test_the_strategy_of_a_namespace_is_set_and_acted_on(topic: Api) -> None:
    path = f"{NAMESPACE}/schemaCompatibilityStrategy"
    assert (await topic.call("GET", path)).json() == "UNDEFINED"
    await topic.call("POST", SCHEMA, json=A)
    assert (await topic.call("PUT", path, json="ALWAYS_COMPATIBLE")).status_code == 204
    assert (await topic.call("GET", path)).json() == "ALWAYS_COMPATIBLE"
    assert version(await topic.call("POST", SCHEMA, json=STRING)) == 1


async def test_the_older_form_of_the_strategy_counts_where_no_other_is_set(topic: Api) -> None:
    path = f"{NAMESPACE}/schemaAutoUpdateCompatibilityStrategy"
    assert (await topic.call("GET", path)).json() == "Full"
    assert (await topic.call("PUT", path, json="Forward")).status_code == 204
    assert (await topic.call("GET", path)).json() == "Forward"
    response = await topic.call("POST", f"{SCHEMAS}/compatibility", json=A)
    assert response.json()["schemaCompatibilityStrategy"] == "FORWARD"
    await topic.call("PUT", f"{NAMESPACE}/schemaCompatibilityStrategy", json="BACKWARD")
    response = await topic.call("POST", f"{SCHEMAS}/compatibility", json=A)
    assert response.json()["schemaCompatibilityStrategy"] == "BACKWARD"


@pytest.mark.parametrize(
    ("policy", "default"), [("isAllowAutoUpdateSchema", True), ("schemaValidationEnforced", False)]
)
async def test_switches_of_a_namespace_are_set_and_leave_the_others_alone(
    topic: Api, policy: str, default: bool
) -> None:
    await topic.call("POST", f"{NAMESPACE}/retention", json={"retentionTimeInMinutes": 10})
    path = f"{NAMESPACE}/{policy}"
    assert (await topic.call("GET", path)).json() is default
    assert (await topic.call("POST", path, json=not default)).status_code == 204
    assert (await topic.call("GET", path)).json() is not default
    assert (await topic.call("GET", f"{NAMESPACE}/retention")).json()["retentionTimeInMinutes"] == 10


@pytest.mark.parametrize(
    ("method", "policy", "good"),
    [
        ("PUT", "schemaCompatibilityStrategy", b'"FULL"'),
        ("PUT", "schemaAutoUpdateCompatibilityStrategy", b'"Full"'),
        ("POST", "isAllowAutoUpdateSchema", b"true"),
        ("POST", "schemaValidationEnforced", b"true"),
    ],
)
async def test_policies_are_refused_that_there_are_not(topic: Api, method: str, policy: str, good: bytes) -> None:
    path = f"{NAMESPACE}/{policy}"
    for body in (b"", b"null", b'"WHATEVER"', b"{}", b"1", b"\xff", b"["):
        response = await topic.call(method, path, content=body)
        assert response.status_code == 400, body
        reason_of(response)
    missing = path.replace("default", "missing")
    assert (await topic.call(method, missing, content=good)).status_code == 404
    assert (await topic.call("GET", missing)).status_code == 404
    assert (await topic.call(method, path, content=good)).status_code == 204


async def test_a_namespace_is_not_created_with_policies_that_nobody_can_read(api: Api) -> None:
    path = "/admin/v2/namespaces/public/new"
    response = await api.call("PUT", path, json={"schema_compatibility_strategy": "WHATEVER"})
    assert response.status_code == 400
    reason_of(response)
    assert (await api.call("PUT", path, json={"schema_compatibility_strategy": "FORWARD"})).status_code == 204
    assert (await api.call("GET", f"{path}/schemaCompatibilityStrategy")).json() == "FORWARD"
