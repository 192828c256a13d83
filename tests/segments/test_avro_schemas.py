"""Avro schemas that anybody may send: good ones are understood, all others are refused with a sentence."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.schemas import InvalidSchema
from segments.avro_schemas import AvroSchema, parse

NOT_SCHEMAS = {
    "nothing": b"",
    "no JSON": b"{",
    "no UTF-8": b'"\xff"',
    "a number": b"1",
    "null": b"null",
    "an object without a type": b"{}",
    "a type that there is not": b'"integer"',
    "a type of a type that there is not": b'{"type":"integer"}',
    "a type that is a number": b'{"type":1}',
    "a union of unions": b'[["int"],"null"]',
    "a record without a name": b'{"type":"record","fields":[]}',
    "a record without fields": b'{"type":"record","name":"R"}',
    "fields that are no list": b'{"type":"record","name":"R","fields":{}}',
    "a field that is a text": b'{"type":"record","name":"R","fields":["a"]}',
    "a field without a type": b'{"type":"record","name":"R","fields":[{"name":"a"}]}',
    "a field without a name": b'{"type":"record","name":"R","fields":[{"type":"int"}]}',
    "a field twice": b'{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}',
    "a type twice": b'[{"type":"fixed","name":"F","size":1},{"type":"fixed","name":"F","size":2}]',
    "a record that is called int": b'{"type":"record","name":"int","fields":[]}',
    "an array without items": b'{"type":"array"}',
    "a map without values": b'{"type":"map"}',
    "an enum without symbols": b'{"type":"enum","name":"E"}',
    "an enum of numbers": b'{"type":"enum","name":"E","symbols":[1]}',
    "an enum with a symbol twice": b'{"type":"enum","name":"E","symbols":["A","A"]}',
    "a fixed without a size": b'{"type":"fixed","name":"F"}',
    "a fixed of a true size": b'{"type":"fixed","name":"F","size":true}',
    "too many brackets": b'{"type":"array","items":' * 100 + b'"int"' + b"}" * 100,
    "far too many brackets": b"[" * 100_000,
    "what the library would take as checked": b'{"__fastavro_parsed":true,"type":"record","__named_schemas":{}}',
}


@pytest.mark.parametrize("data", NOT_SCHEMAS.values(), ids=NOT_SCHEMAS)
def test_what_is_no_schema_is_refused_with_a_short_sentence(data: bytes) -> None:
    with pytest.raises(InvalidSchema) as caught:
        parse(data)
    assert len(str(caught.value)) < 500


MEMBERS = st.sampled_from(["type", "name", "fields", "items", "values", "symbols", "size", "aliases", "default"])
WORDS = st.sampled_from(["int", "record", "enum", "fixed", "array", "map", "a", "x.a"]) | st.text()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: st.lists(inner) | st.dictionaries(MEMBERS, inner),
)


@given(JSON)
def test_no_json_at_all_breaks_the_parser(value: object) -> None:
    try:
        assert isinstance(parse(json.dumps(value).encode()), AvroSchema)
    except InvalidSchema:
        pass


@pytest.mark.parametrize(
    "data",
    [
        b'"int"',
        b'{"type":"int"}',
        b'{"type":{"type":"int"}}',
        b'{"type":"record","name":"a.b.C$D","namespace":"a.b.C$","fields":[]}',
        b'{"type":"record","name":"R","fields":[{"name":"f","type":"float","default":0}]}',
        b'{"type":"record","name":"R","fields":[{"name":"f","type":"int","default":"none at all"}]}',
        b'{"type":"record","name":"R","namespace":"n","fields":[{"name":"f","type":{"type":"n.R"}}]}',
        b'{"type":"bytes","logicalType":"decimal","precision":4,"scale":2}',
        b'{"type":"record","name":"R","fields":[],"anything":{"else":[1]},"doc":5,"aliases":7}',
    ],
)
def test_what_clients_of_pulsar_send_is_understood(data: bytes) -> None:
    parse(data)
