"""Which Avro schema can read what which other one wrote: a table of changes that people make to their schemas."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.schemas import InvalidSchema
from segments.avro_reading import obstacle
from segments.avro_schemas import AvroSchema, parse

BOTH, NEW_READS_OLD, OLD_READS_NEW, NEITHER = (True, True), (True, False), (False, True), (False, False)


def schema(definition: object) -> AvroSchema:
    return parse(json.dumps(definition).encode())


def record(*fields: dict[str, Any], name: str = "Order", **more: object) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: object = "int", **more: object) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def enum(*symbols: str, name: str = "Colour", **more: object) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(size: int, name: str = "Hash", **more: object) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **more}


LIST = record(field("next", ["null", "Order"], default=None))
LONG_LIST = record(field("next", ["null", "Order"], default=None), field("id", "long"))

CHANGES = {
    "nothing": (record(field("a")), record(field("a")), BOTH),
    "a field is added with a default": (record(field("a")), record(field("a"), field("b", default=0)), BOTH),
    "a default of null is a default": (record(), record(field("b", ["null", "int"], default=None)), BOTH),
    "a field is added without a default": (record(field("a")), record(field("a"), field("b")), OLD_READS_NEW),
    "a field with a default is removed": (record(field("a"), field("b", default=0)), record(field("a")), BOTH),
    "a field without a default is removed": (record(field("a"), field("b")), record(field("a")), NEW_READS_OLD),
    "fields change places": (record(field("a"), field("b")), record(field("b"), field("a")), BOTH),
    "a field is renamed": (record(field("a")), record(field("b")), NEITHER),
    "a field is renamed with an alias": (record(field("a")), record(field("b", aliases=["a"])), NEW_READS_OLD),
    "a field with defaults is renamed": (record(field("a", default=0)), record(field("b", default=0)), BOTH),
    "a record is renamed": (record(field("a")), record(field("a"), name="Purchase"), BOTH),
    "a record moves": (record(field("a"), namespace="old"), record(field("a"), namespace="new"), BOTH),
    "documentation is written": (record(field("a")), record(field("a", doc="!"), doc="!"), BOTH),
    "int becomes long": ("int", "long", NEW_READS_OLD),
    "int becomes double": ("int", "double", NEW_READS_OLD),
    "long becomes float": ("long", "float", NEW_READS_OLD),
    "float becomes double": ("float", "double", NEW_READS_OLD),
    "double becomes float": ("double", "float", OLD_READS_NEW),
    "bytes become a string": ("bytes", "string", BOTH),
    "int becomes a string": ("int", "string", NEITHER),
    "boolean becomes int": ("boolean", "int", NEITHER),
    "int becomes null": ("int", "null", NEITHER),
    "a field's int becomes long": (record(field("a", "int")), record(field("a", "long")), NEW_READS_OLD),
    "a logical type is added": ("long", {"type": "long", "logicalType": "timestamp-millis"}, BOTH),
    "items of an array are promoted": (
        {"type": "array", "items": "int"},
        {"type": "array", "items": "long"},
        NEW_READS_OLD,
    ),
    "values of a map are promoted": (
        {"type": "map", "values": "int"},
        {"type": "map", "values": "long"},
        NEW_READS_OLD,
    ),
    "an array becomes a map": ({"type": "array", "items": "int"}, {"type": "map", "values": "int"}, NEITHER),
    "an array becomes its item": ({"type": "array", "items": "int"}, "int", NEITHER),
    "a symbol is added": (enum("RED"), enum("RED", "BLUE"), NEW_READS_OLD),
    "a symbol is added where others have a default": (
        enum("RED", default="RED"),
        enum("RED", "BLUE", default="RED"),
        BOTH,
    ),
    "a symbol is removed": (enum("RED", "BLUE"), enum("RED"), OLD_READS_NEW),
    "symbols change places": (enum("RED", "BLUE"), enum("BLUE", "RED"), BOTH),
    "an enum is renamed": (enum("RED"), enum("RED", name="Paint"), NEITHER),
    "an enum is renamed with an alias": (enum("RED"), enum("RED", name="Paint", aliases=["x.Colour"]), NEW_READS_OLD),
    "an enum moves": (enum("RED", namespace="old"), enum("RED", namespace="new"), BOTH),
    "an enum becomes a string": (enum("RED"), "string", NEITHER),
    "a fixed grows": (fixed(4), fixed(8), NEITHER),
    "a fixed is renamed": (fixed(4), fixed(4, name="Digest"), NEITHER),
    "a fixed becomes bytes": (fixed(4), "bytes", NEITHER),
    "a value becomes optional": ("int", ["null", "int"], NEW_READS_OLD),
    "a field becomes optional": (
        record(field("a", "int")),
        record(field("a", ["null", "int"], default=None)),
        NEW_READS_OLD,
    ),
    "a branch is added to a union": (["null", "int"], ["null", "int", "string"], NEW_READS_OLD),
    "branches change places": (["null", "int"], ["int", "null"], BOTH),
    "a branch is promoted": (["null", "int"], ["null", "long"], NEW_READS_OLD),
    "a union becomes what takes all its branches": (["int", "long"], "double", NEW_READS_OLD),
    "a record in a union is renamed": (["null", record(field("a"))], ["null", record(field("a"), name="X")], BOTH),
    "a record in a union gets a field": (
        ["null", record(field("a"))],
        ["null", record(field("a"), field("b"))],
        OLD_READS_NEW,
    ),
    "a record that contains itself stays": (LIST, LIST, BOTH),
    "a record that contains itself gets a field": (LIST, LONG_LIST, OLD_READS_NEW),
    "a record becomes an int": (record(field("a")), "int", NEITHER),
    "a record deep inside changes": (
        record(field("a", {"type": "array", "items": record(field("x"), name="Item")})),
        record(field("a", {"type": "array", "items": record(field("x"), field("y"), name="Item")})),
        OLD_READS_NEW,
    ),
}


@pytest.mark.parametrize(("old", "new", "expected"), CHANGES.values(), ids=CHANGES)
def test_who_can_read_whom_after_a_change(old: object, new: object, expected: tuple[bool, bool]) -> None:
    before, after = schema(old), schema(new)
    assert (
        obstacle(reader=after, writer=before) is None,
        obstacle(reader=before, writer=after) is None,
    ) == expected


def test_the_reason_names_the_way_to_the_field() -> None:
    old, new = (record(field("item", record(field("price", kind), name="Item"))) for kind in ("long", "int"))
    assert obstacle(reader=schema(new), writer=schema(old)) == "field item: field price: long cannot be read as int"


def test_what_was_good_inside_a_bad_pair_is_looked_at_again() -> None:
    """B reads only as long as A does, which it contains; a branch of a union that failed must leave nothing behind."""
    inner = record(field("up", ["null", "A"], default=None), name="B")
    old = record(field("b", inner), field("x", "string"), name="A")
    outer = record(field("b", inner), field("x", "int"), name="A")
    assert obstacle(reader=schema(["null", outer, "B"]), writer=schema(["null", old, "B"])) is not None
    assert obstacle(reader=schema(["null", old, "B"]), writer=schema(["null", old, "B"])) is None


def test_unions_of_many_records_are_not_compared_for_ever() -> None:
    fields = [field(f"f{i}") for i in range(20)]
    crowd = [record(*fields, field(f"own{i}"), name=f"R{i}") for i in range(300)]
    with pytest.raises(InvalidSchema, match="too large"):
        obstacle(reader=schema(crowd[::-1]), writer=schema(crowd))


def test_types_that_use_each_other_in_a_long_chain_are_refused_with_a_sentence() -> None:
    """Definitions are never nested deeply here: they stand where nobody looks, and only their names are followed."""
    links = [field(f"f{i}", record(*([field("x", f"R{i - 1}")] if i else []), name=f"R{i}")) for i in range(2_000)]
    definitions = record(field("absent"), *links, name="Definitions")
    reader = schema(record(field("a", [definitions, "R1999"])))
    writer = schema(record(field("unread", definitions), field("a", "R1999")))
    with pytest.raises(InvalidSchema, match="too deeply"):
        obstacle(reader=reader, writer=writer)


NAMES = st.sampled_from("abc")
KINDS = st.sampled_from(["int", "long", "double", "string", ["null", "int"]])


@given(st.dictionaries(NAMES, st.tuples(KINDS, st.booleans())))
def test_every_schema_reads_itself(fields: dict[str, tuple[object, bool]]) -> None:
    own = schema(record(*(field(n, kind, **({"default": 0} if d else {})) for n, (kind, d) in fields.items())))
    assert obstacle(reader=own, writer=own) is None
