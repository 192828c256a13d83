"""Schemas of every type: what is refused as such, and which strategy takes which change."""

import json
from collections.abc import Mapping

import pytest

from protocol.schemas import InvalidSchema, Schema, SchemaType, join_key_value
from protocol.wire import pulsar_api_pb2 as api
from segments.schema_policies import AutoUpdate, SchemaPolicies, Strategy, policies_of
from segments.schema_rules import IncompatibleSchema, check, validate


def avro(*fields: Mapping[str, object], kind: SchemaType = SchemaType.AVRO) -> Schema:
    return Schema(kind, json.dumps({"type": "record", "name": "Order", "fields": fields}).encode())


def native(root: str) -> Schema:
    return Schema(SchemaType.PROTOBUF_NATIVE, json.dumps({"rootMessageTypeName": root}).encode())


def old_json(identity: str | None) -> Schema:
    return Schema(SchemaType.JSON, json.dumps({"type": "object", "id": identity, "properties": {}}).encode())


def pair(key: Schema, value: Schema, **more: str) -> Schema:
    types = {"key.schema.type": key.type.name, "value.schema.type": value.type.name}
    return Schema(SchemaType.KEY_VALUE, join_key_value(key.data, value.data), types | more)


A = {"name": "a", "type": "int"}
B = {"name": "b", "type": "int"}
B_OR_NOT = {"name": "b", "type": "int", "default": 0}
BYTES, STRING, NUMBER = (Schema(kind) for kind in (SchemaType.BYTES, SchemaType.STRING, SchemaType.INT32))

ADDED_WITH_DEFAULT = (avro(A), avro(A, B_OR_NOT))
ADDED = (avro(A), avro(A, B))
REMOVED = (avro(A, B), avro(A))
REPLACED = (avro(A), avro(B))


def fits(strategy: Strategy, old: Schema, new: Schema) -> bool:
    try:
        check(strategy, old, new)
        return True
    except IncompatibleSchema:
        return False


@pytest.mark.parametrize(
    ("strategy", "takes"),
    [
        (Strategy.ALWAYS_COMPATIBLE, (True, True, True, True)),
        (Strategy.ALWAYS_INCOMPATIBLE, (False, False, False, False)),
        (Strategy.BACKWARD, (True, False, True, False)),
        (Strategy.BACKWARD_TRANSITIVE, (True, False, True, False)),
        (Strategy.FORWARD, (True, True, False, False)),
        (Strategy.FORWARD_TRANSITIVE, (True, True, False, False)),
        (Strategy.FULL, (True, False, False, False)),
        (Strategy.FULL_TRANSITIVE, (True, False, False, False)),
    ],
)
@pytest.mark.parametrize("kind", [SchemaType.AVRO, SchemaType.JSON])
def test_each_strategy_takes_what_its_name_says(strategy: Strategy, takes: tuple[bool, ...], kind: SchemaType) -> None:
    changes = [
        (Schema(kind, old.data), Schema(kind, new.data)) for old, new in (ADDED_WITH_DEFAULT, ADDED, REMOVED, REPLACED)
    ]
    assert tuple(fits(strategy, old, new) for old, new in changes) == takes


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (STRING, NUMBER, False),
        (avro(A), avro(A, kind=SchemaType.JSON), False),
        (STRING, STRING, True),
        (avro(A, kind=SchemaType.PROTOBUF), avro(B, kind=SchemaType.PROTOBUF), True),
        (Schema(SchemaType.EXTERNAL, b"1"), Schema(SchemaType.EXTERNAL, b"2"), True),
        (native("a.B"), native("a.B"), True),
        (native("a.B"), native("a.C"), False),
        (old_json("urn:a"), old_json("urn:a"), True),
        (old_json("urn:a"), old_json("urn:b"), False),
        (old_json("urn:a"), avro(A, kind=SchemaType.JSON), True),
        (avro(A, kind=SchemaType.JSON), old_json("urn:a"), True),
        (pair(STRING, avro(A)), pair(STRING, avro(A, B_OR_NOT)), True),
        (pair(STRING, avro(A)), pair(STRING, avro(B)), False),
        (pair(avro(A), STRING), pair(avro(B), STRING), False),
        (pair(STRING, NUMBER), pair(NUMBER, STRING), False),
        (pair(BYTES, STRING), pair(BYTES, STRING), True),
    ],
)
def test_types_are_kept_and_definitions_compared_where_they_can_be(old: Schema, new: Schema, expected: bool) -> None:
    assert fits(Strategy.FULL, old, new) is expected


def test_a_refusal_says_what_does_not_fit() -> None:
    with pytest.raises(IncompatibleSchema, match=r"FULL.*cannot be read with it: field b: it is missing") as caught:
        check(Strategy.FULL, *ADDED)
    assert (caught.value.server_error, caught.value.http_status) == (api.IncompatibleSchema, 409)
    with pytest.raises(IncompatibleSchema, match=r"with the one before: field b"):
        check(Strategy.FULL, *REMOVED)
    with pytest.raises(IncompatibleSchema, match=r"type STRING, and this is INT32"):
        check(Strategy.FULL, STRING, NUMBER)


def test_a_refusal_is_short_however_long_names_are() -> None:
    long = {"name": "x" * 100_000, "type": "int"}
    with pytest.raises(IncompatibleSchema) as caught:
        check(Strategy.FULL, avro(A), avro(A, long))
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "schema",
    [
        STRING,
        Schema(SchemaType.LOCAL_DATE_TIME),
        avro(A),
        avro(A, kind=SchemaType.JSON),
        avro(A, kind=SchemaType.PROTOBUF),
        Schema(SchemaType.AVRO, b'"string"'),
        old_json(None),
        native("a.B"),
        pair(STRING, avro(A), **{"kv.encoding.type": "SEPARATED"}),
        Schema(SchemaType.KEY_VALUE, join_key_value(b"", b"")),
        Schema(SchemaType.EXTERNAL, b"\xff"),
    ],
)
def test_what_clients_send_is_a_schema(schema: Schema) -> None:
    validate(schema)


@pytest.mark.parametrize(
    "schema",
    [
        Schema(SchemaType.BYTES),
        Schema(SchemaType.NONE),
        Schema(SchemaType.AUTO_CONSUME),
        Schema(SchemaType.STRING, b"x"),
        Schema(SchemaType.AVRO),
        Schema(SchemaType.AVRO, b'["null","int"]'),
        Schema(SchemaType.JSON, b"{}"),
        Schema(SchemaType.JSON, b"\xff"),
        Schema(SchemaType.PROTOBUF, b"message A {}"),
        Schema(SchemaType.PROTOBUF_NATIVE, b"{}"),
        Schema(SchemaType.KEY_VALUE, b""),
        Schema(SchemaType.KEY_VALUE, join_key_value(b"", b""), {"key.schema.type": "STRINGS"}),
        Schema(SchemaType.KEY_VALUE, join_key_value(b"", b""), {"key.schema.type": "KEY_VALUE"}),
        Schema(SchemaType.KEY_VALUE, join_key_value(b"x", b""), {"key.schema.type": "STRING"}),
        Schema(SchemaType.KEY_VALUE, join_key_value(b"", b"{"), {"value.schema.type": "AVRO"}),
    ],
)
def test_what_is_no_schema_is_refused(schema: Schema) -> None:
    with pytest.raises(InvalidSchema) as caught:
        validate(schema)
    assert caught.value.http_status == 422
    assert caught.value.server_error == api.IncompatibleSchema


@pytest.mark.parametrize(
    ("stored", "strategy"),
    [
        (None, Strategy.FULL),
        (b"{}", Strategy.FULL),
        (b"not json", Strategy.FULL),
        (b'{"schema_compatibility_strategy":"WHATEVER"}', Strategy.FULL),
        (b'{"schema_compatibility_strategy":"UNDEFINED"}', Strategy.FULL),
        (b'{"schema_compatibility_strategy":"FORWARD"}', Strategy.FORWARD),
        (b'{"schema_auto_update_compatibility_strategy":"Backward"}', Strategy.BACKWARD),
        (b'{"schema_auto_update_compatibility_strategy":"AutoUpdateDisabled"}', Strategy.ALWAYS_INCOMPATIBLE),
        (
            b'{"schema_compatibility_strategy":"FORWARD","schema_auto_update_compatibility_strategy":"Full"}',
            Strategy.FORWARD,
        ),
        (b'{"schema_compatibility_strategy":null,"other":[1]}', Strategy.FULL),
    ],
)
def test_a_namespace_chooses_the_strategy_and_full_is_the_default(stored: bytes | None, strategy: Strategy) -> None:
    assert policies_of(stored).strategy is strategy


def test_every_older_name_of_a_strategy_has_a_newer_one() -> None:
    assert {older.strategy for older in AutoUpdate} == set(Strategy) - {Strategy.UNDEFINED}


def test_producers_may_bring_schemas_or_none_unless_a_namespace_says_otherwise() -> None:
    assert SchemaPolicies().producers_may_update
    assert not SchemaPolicies().producers_need_schema


@pytest.mark.parametrize("strategy", [strategy for strategy in Strategy if not strategy.startswith("ALWAYS")])
def test_a_consumer_only_has_to_read(strategy: Strategy) -> None:
    wanted = strategy.for_consumers()
    assert wanted.reads_old
    assert not wanted.is_read_by_old
