"""Recorded frames of every command, read and written."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict, ParseDict

from protocol import framing
from protocol.wire import pulsar_api_pb2 as api
from tests.protocol import vectors

FRAMES = vectors.lines("frames.jsonl")
PAYLOAD_FRAMES = [row for row in FRAMES if "payload" in row]
SIMPLE_FRAMES = [row for row in FRAMES if "payload" not in row]

# Frame and command, by name.
COMMANDS = {
    "PING": (
        "00000009000000050812920100",
        {"type": "PING", "ping": {}},
    ),
    "PONG": (
        "000000090000000508139a0100",
        {"type": "PONG", "pong": {}},
    ),
    "CONNECT": (
        "00000035000000310802122d0a1550756c7361722d4a6176612d76352e302e302d4d311a0020152a046e6f6e65520a0801"
        "1001180128013001",
        {
            "type": "CONNECT",
            "connect": {
                "client_version": "Pulsar-Java-v5.0.0-M1",
                "auth_data": "",
                "protocol_version": 21,
                "auth_method_name": "none",
                "feature_flags": {
                    "supports_auth_refresh": True,
                    "supports_broker_entry_metadata": True,
                    "supports_partial_producer": True,
                    "supports_get_partitioned_metadata_without_auto_creation": True,
                    "supports_repl_dedup_by_lid_and_eid": True,
                },
            },
        },
    ),
    "CONNECTED": (
        "000000340000003008031a2c0a1550756c73617220536572766572352e302e302d4d311015188080c002220c2001280130"
        "01380140014800",
        {
            "type": "CONNECTED",
            "connected": {
                "server_version": "Pulsar Server5.0.0-M1",
                "protocol_version": 21,
                "max_message_size": 5242880,
                "feature_flags": {
                    "supports_topic_watchers": True,
                    "supports_get_partitioned_metadata_without_auto_creation": True,
                    "supports_repl_dedup_by_lid_and_eid": True,
                    "supports_topic_watcher_reconcile": True,
                    "supports_scalable_topics": True,
                    "supports_tc_metadata_discovery": False,
                },
            },
        },
    ),
    "ERROR about the connection": (
        "0000002d00000029080e722508ffffffffffffffffff0110031a164661696c656420746f2061757468656e746963617465",
        {
            "type": "ERROR",
            "error": {
                "request_id": "18446744073709551615",
                "error": "AuthenticationError",
                "message": "Failed to authenticate",
            },
        },
    ),
    "SCALABLE_TOPIC_LOOKUP": (
        "0000002c000000280846b204230801121d746f7069633a2f2f7075626c69632f64656661756c742f6f72646572731801",
        {
            "type": "SCALABLE_TOPIC_LOOKUP",
            "scalableTopicLookup": {
                "session_id": "1",
                "topic": "topic://public/default/orders",
                "create_if_missing": True,
            },
        },
    ),
    "SCALABLE_TOPIC_UPDATE with a layout": (
        "00000077000000730847ba046e0801124b0800121f0800100018ffff03200038004880d0eab6b7336080800160808002608"
        "080031a140800121070756c7361723a2f2f67773a36363530221070756c7361723a2f2f67773a363635302a1d746f706963"
        "3a2f2f7075626c69632f64656661756c742f6f7264657273",
        {
            "type": "SCALABLE_TOPIC_UPDATE",
            "scalableTopicUpdate": {
                "session_id": "1",
                "dag": {
                    "epoch": "0",
                    "segments": [
                        {
                            "segment_id": "0",
                            "hash_start": 0,
                            "hash_end": 65535,
                            "state": "ACTIVE",
                            "created_at_epoch": "0",
                            "created_at_ms": "1767225600000",
                            "entry_bucket_splits": [16384, 32768, 49152],
                        }
                    ],
                    "segment_brokers": [{"segment_id": "0", "broker_url": "pulsar://gw:6650"}],
                    "controller_broker_url": "pulsar://gw:6650",
                },
                "resolved_topic_name": "topic://public/default/orders",
            },
        },
    ),
    "SCALABLE_TOPIC_UPDATE with an error": (
        "00000046000000420847ba043d0801180b22375363616c61626c6520746f706963206e6f7420666f756e643a20746f7069633a"
        "2f2f7075626c69632f64656661756c742f6f7264657273",
        {
            "type": "SCALABLE_TOPIC_UPDATE",
            "scalableTopicUpdate": {
                "session_id": "1",
                "error": "TopicNotFound",
                "message": "Scalable topic not found: topic://public/default/orders",
            },
        },
    ),
    "SCALABLE_TOPIC_CLOSE": (
        "0000000b000000070848c204020801",
        {"type": "SCALABLE_TOPIC_CLOSE", "scalableTopicClose": {"session_id": "1"}},
    ),
    "WATCH_SCALABLE_TOPICS": (
        "0000001b00000017084ce204120801120e7075626c69632f64656661756c74",
        {
            "type": "WATCH_SCALABLE_TOPICS",
            "watchScalableTopics": {"watch_id": "1", "namespace": "public/default"},
        },
    ),
    "WATCH_SCALABLE_TOPICS_UPDATE with an empty snapshot": (
        "0000000d00000009084dea040408011200",
        {
            "type": "WATCH_SCALABLE_TOPICS_UPDATE",
            "watchScalableTopicsUpdate": {"watch_id": "1", "snapshot": {}},
        },
    ),
    "WATCH_SCALABLE_TOPICS_UPDATE with a diff": (
        "000000410000003d084dea043808011a340a18746f7069633a2f2f7075626c69632f64656661756c742f611218746f706963"
        "3a2f2f7075626c69632f64656661756c742f62",
        {
            "type": "WATCH_SCALABLE_TOPICS_UPDATE",
            "watchScalableTopicsUpdate": {
                "watch_id": "1",
                "diff": {"added": ["topic://public/default/a"], "removed": ["topic://public/default/b"]},
            },
        },
    ),
    "SCALABLE_TOPIC_UNSUBSCRIBE": (
        "0000000d0000000908529205040807100c",
        {
            "type": "SCALABLE_TOPIC_UNSUBSCRIBE",
            "scalableTopicUnsubscribe": {"request_id": "7", "consumer_id": "12"},
        },
    ),
}


def decode(data: bytes) -> framing.Frame:
    (frame,) = framing.FrameDecoder().receive(data)
    assert isinstance(frame, framing.Frame)
    return frame


def as_json(command: api.BaseCommand) -> dict[str, Any]:
    return MessageToDict(command, preserving_proto_field_name=True)


def row_name(row: dict[str, Any]) -> str:
    return f"{row['command']}-{FRAMES.index(row) % 3}"


@pytest.mark.parametrize("row", SIMPLE_FRAMES, ids=row_name)
def test_simple_frame_reads_as_its_json(row: dict[str, Any]) -> None:
    frame = decode(bytes.fromhex(row["hex"]))
    assert as_json(frame.command) == row["json"]
    assert frame.body == b""


@pytest.mark.parametrize("row", SIMPLE_FRAMES, ids=row_name)
def test_simple_json_is_written_as_its_frame(row: dict[str, Any]) -> None:
    command = ParseDict(row["json"], api.BaseCommand())
    assert framing.encode(command).hex() == row["hex"]


@pytest.mark.parametrize("row", PAYLOAD_FRAMES, ids=row_name)
def test_payload_frame_reads_as_its_json(row: dict[str, Any]) -> None:
    frame = decode(bytes.fromhex(row["hex"]))
    assert as_json(frame.command) == row["json"]
    payload = framing.parse_payload(frame.body)
    metadata = api.MessageMetadata.FromString(payload.metadata)
    assert MessageToDict(metadata, preserving_proto_field_name=True) == row["metadata"]
    assert payload.payload.hex() == row["payload"]
    assert (payload.checksum is not None) == row["checksum"]
    payload.verify()


@pytest.mark.parametrize("row", PAYLOAD_FRAMES, ids=row_name)
def test_payload_json_is_written_as_its_frame(row: dict[str, Any]) -> None:
    command = ParseDict(row["json"], api.BaseCommand())
    metadata = ParseDict(row["metadata"], api.MessageMetadata()).SerializeToString()
    payload = bytes.fromhex(row["payload"])
    data = framing.encode_payload(command, metadata, payload, checksum=row["checksum"])
    assert data.hex() == row["hex"]


def test_recorded_frames_cover_every_command() -> None:
    recorded = {row["command"] for row in FRAMES}
    assert recorded == set(api.BaseCommand.Type.keys()) - {"SCALABLE_TOPIC_UNSUBSCRIBE"}


@pytest.mark.parametrize(("data", "document"), COMMANDS.values(), ids=COMMANDS)
def test_known_command_is_read_and_written(data: str, document: dict[str, Any]) -> None:
    assert as_json(decode(bytes.fromhex(data)).command) == document
    assert framing.encode(ParseDict(document, api.BaseCommand())).hex() == data


def test_known_send_is_read_and_written() -> None:
    data = "000000270000000808063204080010070e0150d500720000000c0a017010071880d0eab6b73368656c6c6f"
    frame = decode(bytes.fromhex(data))
    payload = framing.parse_payload(frame.body)
    assert (frame.command.send.producer_id, frame.command.send.sequence_id) == (0, 7)
    assert (payload.checksum, payload.payload) == (0x50D50072, b"hello")
    assert api.MessageMetadata.FromString(payload.metadata).producer_name == "p"
    assert framing.encode_payload(frame.command, payload.metadata, payload.payload).hex() == data
