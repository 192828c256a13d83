"""The generated module is up to date and holds the whole protocol."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from protocol.wire import pulsar_api_pb2 as api
from tests.protocol import vectors

ROOT = Path(__file__).parents[2]
PROTO = "protocol/wire/pulsar_api.proto"
SCHEMA = vectors.schema()
SCALARS = {
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_UINT64: "uint64",
}
# Added to the protocol after the schema was recorded.
LATER_MESSAGES = {
    "CommandScalableTopicUnsubscribe": {
        "fields": [
            {"name": "request_id", "number": 1, "label": "required", "type": "uint64"},
            {"name": "consumer_id", "number": 2, "label": "required", "type": "uint64"},
        ]
    }
}
LATER_TYPES = {"SCALABLE_TOPIC_UNSUBSCRIBE": 82}
LATER_COMMAND_FIELDS = [
    {
        "name": "scalableTopicUnsubscribe",
        "number": 82,
        "label": "optional",
        "type": "CommandScalableTopicUnsubscribe",
    }
]


def expected_messages() -> dict[str, Any]:
    messages: dict[str, Any] = SCHEMA["messages"] | LATER_MESSAGES
    command = messages["BaseCommand"]
    messages["BaseCommand"] = {
        "fields": command["fields"] + LATER_COMMAND_FIELDS,
        "enums": {"Type": command["enums"]["Type"] | LATER_TYPES},
    }
    return messages


def described_enum(enum: EnumDescriptor) -> dict[str, int]:
    return {value.name: value.number for value in enum.values}


def described_field(field: FieldDescriptor) -> dict[str, Any]:
    named = field.message_type or field.enum_type
    row: dict[str, Any] = {
        "name": field.name,
        "number": field.number,
        "label": "repeated" if field.is_repeated else "required" if field.is_required else "optional",
        "type": named.full_name.removeprefix("pulsar.proto.") if named else SCALARS[field.type],
    }
    if field.has_default_value:
        value = field.default_value
        if field.enum_type:
            row["default"] = field.enum_type.values_by_number[value].name
        else:
            row["default"] = str(value).lower()
    if field.containing_oneof:
        row["oneof"] = field.containing_oneof.name
    return row


def described_message(message: Descriptor) -> dict[str, Any]:
    described: dict[str, Any] = {"fields": [described_field(field) for field in message.fields]}
    if message.enum_types:
        described["enums"] = {enum.name: described_enum(enum) for enum in message.enum_types}
    return described


def by_number(message: dict[str, Any]) -> dict[str, Any]:
    return message | {"fields": sorted(message["fields"], key=lambda field: field["number"])}


def test_every_message_has_exactly_the_fields_of_the_protocol() -> None:
    described = {
        name: by_number(described_message(message)) for name, message in api.DESCRIPTOR.message_types_by_name.items()
    }
    assert described == {name: by_number(message) for name, message in expected_messages().items()}


def test_every_enum_has_exactly_the_values_of_the_protocol() -> None:
    described = {name: described_enum(enum) for name, enum in api.DESCRIPTOR.enum_types_by_name.items()}
    assert described == SCHEMA["enums"]


def test_no_repeated_number_is_packed() -> None:
    message = api.MessageIdData(ledgerId=0, entryId=0, ack_set=[1, 2])
    assert message.SerializeToString() == bytes.fromhex("0800100028012802")


def test_the_file_keeps_the_package_and_syntax_of_the_protocol() -> None:
    assert api.DESCRIPTOR.package == SCHEMA["package"]
    assert api.DESCRIPTOR.name == PROTO
    assert f'syntax = "{SCHEMA["syntax"]}";' in (ROOT / PROTO).read_text(encoding="utf-8")


@pytest.mark.parametrize("suffix", ["py", "pyi"])
def test_the_committed_code_is_what_the_proto_file_generates(tmp_path: Path, suffix: str) -> None:
    plugin = Path(sys.executable).parent / "protoc-gen-mypy"
    outputs = {"py": [f"--python_out={tmp_path}"], "pyi": [f"--plugin={plugin}", f"--mypy_out={tmp_path}"]}
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I.", *outputs[suffix], PROTO],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    generated = f"protocol/wire/pulsar_api_pb2.{suffix}"
    assert (tmp_path / generated).read_bytes() == (ROOT / generated).read_bytes(), "run `make proto`"
