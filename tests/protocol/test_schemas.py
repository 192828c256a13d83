"""Schemas on the wire: what a client sends is what others get, and what is no schema is refused."""

import pytest

from protocol.schemas import (
    InvalidSchema,
    Schema,
    SchemaType,
    join_key_value,
    split_key_value,
    version_bytes,
    version_number,
)
from protocol.wire import pulsar_api_pb2 as api


def test_every_type_of_the_wire_has_its_number_here() -> None:
    assert {kind.value for kind in SchemaType} - {SchemaType.BYTES} == set(api.Schema.Type.values())


def test_a_schema_survives_the_way_out_and_back() -> None:
    schema = Schema(SchemaType.AVRO, b'{"type":"int"}', {"a": "1", "b": ""})
    sent = schema.to_wire("t/n/orders")
    assert sent.name == "t/n/orders"
    assert Schema.from_wire(api.Schema.FromString(sent.SerializeToString())) == schema


def test_plain_bytes_are_no_schema() -> None:
    assert Schema.from_wire(api.Schema(name="", type=api.Schema.Type.Value("None"), schema_data=b"")) is None


def test_versions_are_eight_bytes_with_the_largest_first() -> None:
    assert version_bytes(258) == bytes([0, 0, 0, 0, 0, 0, 1, 2])
    assert version_number(version_bytes(258)) == 258
    assert version_number(b"") is None
    assert version_number(bytes(9)) is None


def test_key_and_value_come_apart_as_they_were_joined() -> None:
    assert split_key_value(join_key_value(b"", b'{"type":"int"}')) == (b"", b'{"type":"int"}')


def test_a_length_of_minus_one_stands_for_no_definition() -> None:
    assert split_key_value(b"\xff\xff\xff\xff" + b"\0\0\0\1x") == (b"", b"x")


@pytest.mark.parametrize("size", range(13))
def test_a_key_value_schema_that_was_cut_is_refused(size: int) -> None:
    whole = join_key_value(b"key", b"va")
    assert len(whole) == 13
    with pytest.raises(InvalidSchema):
        split_key_value(whole[:size])


def test_a_key_value_schema_with_a_tail_is_refused() -> None:
    with pytest.raises(InvalidSchema):
        split_key_value(join_key_value(b"key", b"value") + b"x")
