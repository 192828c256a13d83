"""What a server answers, and how it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict, ParseDict

from protocol import replies
from protocol.framing import Frame, FrameDecoder, encode
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.protocol import vectors

FRAMES = {row["command"]: ParseDict(row["json"], BaseCommand()) for row in vectors.lines("frames.jsonl")}
TXN = {"request_id": "9", "txnid_least_bits": "4", "txnid_most_bits": "3"}
REASON = {"error": "NotAllowedError", "message": "no"}
REASON_CODE = {"error_code": "NotAllowedError", "error_message": "no"}


def refusal(document: dict[str, Any]) -> dict[str, Any] | None:
    reply = replies.refusal(ParseDict(document, BaseCommand()), api.NotAllowedError, "no")
    if reply is None:
        return None
    # What cannot be encoded or read back would be no answer.
    (frame,) = FrameDecoder().receive(encode(reply))
    assert isinstance(frame, Frame)
    return MessageToDict(frame.command, preserving_proto_field_name=True)


def test_every_command_is_refusable_or_unanswered_or_only_sent_by_servers() -> None:
    groups = [replies.REFUSABLE, replies.NEVER_ANSWERED, replies.SERVER_TO_CLIENT]
    assert sorted(number for group in groups for number in group) == sorted(BaseCommand.Type.values())


@pytest.mark.parametrize("number", sorted(replies.REFUSABLE), ids=BaseCommand.Type.Name)
def test_every_refusal_is_a_whole_command_that_only_servers_send(number: int) -> None:
    name = BaseCommand.Type.Name(number)  # type: ignore[arg-type]  # the stub has a NewType of int
    if name == "SCALABLE_TOPIC_UNSUBSCRIBE":
        command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_UNSUBSCRIBE)
        command.scalableTopicUnsubscribe.request_id = command.scalableTopicUnsubscribe.consumer_id = 1
    else:
        command = FRAMES[name]
    reply = replies.refusal(command, api.NotAllowedError, "no")
    if reply is None:
        assert name == "ACK"
        return
    assert reply.type in replies.SERVER_TO_CLIENT
    assert len(FrameDecoder().receive(encode(reply))) == 1


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (
            {"type": "CONNECT", "connect": {"client_version": "x"}},
            {"type": "ERROR", "error": {"request_id": "18446744073709551615", **REASON}},
        ),
        (
            {"type": "LOOKUP", "lookupTopic": {"topic": "x", "request_id": 9}},
            {
                "type": "LOOKUP_RESPONSE",
                "lookupTopicResponse": {"request_id": "9", "response": "Failed", **REASON},
            },
        ),
        (
            {"type": "PARTITIONED_METADATA", "partitionMetadata": {"topic": "x", "request_id": 9}},
            {
                "type": "PARTITIONED_METADATA_RESPONSE",
                "partitionMetadataResponse": {"request_id": "9", "response": "Failed", **REASON},
            },
        ),
        (
            {"type": "PRODUCER", "producer": {"topic": "x", "producer_id": 1, "request_id": 9}},
            {"type": "ERROR", "error": {"request_id": "9", **REASON}},
        ),
        (
            {"type": "SEND", "send": {"producer_id": 1, "sequence_id": 2}},
            {"type": "SEND_ERROR", "send_error": {"producer_id": "1", "sequence_id": "2", **REASON}},
        ),
        (
            {"type": "ACK", "ack": {"consumer_id": 1, "ack_type": "Individual"}},
            None,
        ),
        (
            {"type": "ACK", "ack": {"consumer_id": 1, "ack_type": "Individual", "request_id": 0}},
            {"type": "ACK_RESPONSE", "ackResponse": {"consumer_id": "1", "request_id": "0", **REASON}},
        ),
        (
            {"type": "ACK", "ack": {"consumer_id": 1, "ack_type": "Individual", **TXN}},
            {"type": "ACK_RESPONSE", "ackResponse": {"consumer_id": "1", **TXN, **REASON}},
        ),
        (
            {"type": "GET_LAST_MESSAGE_ID", "getLastMessageId": {"consumer_id": 1, "request_id": 9}},
            {"type": "ERROR", "error": {"request_id": "9", **REASON}},
        ),
        (
            {"type": "CONSUMER_STATS", "consumerStats": {"consumer_id": 1, "request_id": 9}},
            {
                "type": "CONSUMER_STATS_RESPONSE",
                "consumerStatsResponse": {"request_id": "9", **REASON_CODE},
            },
        ),
        (
            {"type": "GET_SCHEMA", "getSchema": {"topic": "x", "request_id": 9}},
            {"type": "GET_SCHEMA_RESPONSE", "getSchemaResponse": {"request_id": "9", **REASON_CODE}},
        ),
        (
            {"type": "SCALABLE_TOPIC_LOOKUP", "scalableTopicLookup": {"session_id": 5, "topic": "x"}},
            {"type": "SCALABLE_TOPIC_UPDATE", "scalableTopicUpdate": {"session_id": "5", **REASON}},
        ),
        (
            {"type": "WATCH_SCALABLE_TOPICS", "watchScalableTopics": {"watch_id": 5, "namespace": "x"}},
            {
                "type": "WATCH_SCALABLE_TOPICS_UPDATE",
                "watchScalableTopicsUpdate": {"watch_id": "5", **REASON},
            },
        ),
        (
            {"type": "WATCH_TC_ASSIGNMENTS", "watchTcAssignments": {"watch_id": 5}},
            {
                "type": "WATCH_TC_ASSIGNMENTS_UPDATE",
                "watchTcAssignmentsUpdate": {"watch_id": "5", **REASON},
            },
        ),
        (
            {
                "type": "SCALABLE_TOPIC_UNSUBSCRIBE",
                "scalableTopicUnsubscribe": {"request_id": 9, "consumer_id": 1},
            },
            {"type": "ERROR", "error": {"request_id": "9", **REASON}},
        ),
        (
            {"type": "NEW_TXN", "newTxn": {"request_id": 9, "tc_id": 3}},
            {
                "type": "NEW_TXN_RESPONSE",
                "newTxnResponse": {"request_id": "9", "txnid_most_bits": "3", **REASON},
            },
        ),
        (
            {"type": "END_TXN", "endTxn": TXN},
            {"type": "END_TXN_RESPONSE", "endTxnResponse": {**TXN, **REASON}},
        ),
        ({"type": "FLOW", "flow": {"consumer_id": 1, "messagePermits": 1}}, None),
        ({"type": "SCALABLE_TOPIC_CLOSE", "scalableTopicClose": {"session_id": 1}}, None),
        ({"type": "PING", "ping": {}}, None),
        ({"type": "PONG", "pong": {}}, None),
    ],
)
def test_request_is_refused_in_the_form_its_client_waits_for(
    request_: dict[str, Any], expected: dict[str, Any] | None
) -> None:
    assert refusal(request_) == expected


def test_ping_and_pong_carry_their_empty_message() -> None:
    assert encode(replies.ping()).hex() == "00000009000000050812920100"
    assert encode(replies.pong()).hex() == "000000090000000508139a0100"


def test_connected_writes_every_flag_even_when_it_is_false() -> None:
    features = replies.Features(
        supports_topic_watchers=True,
        supports_get_partitioned_metadata_without_auto_creation=True,
        supports_repl_dedup_by_lid_and_eid=True,
        supports_topic_watcher_reconcile=True,
        supports_scalable_topics=True,
    )
    reply = replies.connected("Pulsar Server5.0.0-M1", 21, 5_242_880, features)
    assert encode(reply).hex() == (
        "000000340000003008031a2c0a1550756c73617220536572766572352e302e302d4d311015188080c002220c2001280130"
        "01380140014800"
    )


@pytest.mark.parametrize(("client", "agreed"), [(0, 0), (19, 19), (21, 21), (22, 21)])
def test_connected_agrees_on_the_lower_version(client: int, agreed: int) -> None:
    reply = replies.connected("v", client, 1, replies.Features())
    assert reply.connected.protocol_version == agreed


def test_error_may_concern_the_connection() -> None:
    reply = replies.error(replies.CONNECTION_REQUEST_ID, api.AuthenticationError, "Failed to authenticate")
    assert encode(reply).hex() == (
        "0000002d00000029080e722508ffffffffffffffffff0110031a164661696c656420746f2061757468656e746963617465"
    )


def test_lookup_points_to_an_address() -> None:
    reply = replies.lookup_connect(9, "pulsar://gw:6650")
    assert MessageToDict(reply, preserving_proto_field_name=True) == {
        "type": "LOOKUP_RESPONSE",
        "lookupTopicResponse": {
            "brokerServiceUrl": "pulsar://gw:6650",
            "response": "Connect",
            "request_id": "9",
            "authoritative": True,
            "proxy_through_service_url": False,
        },
    }
    encrypted = replies.lookup_connect(9, None, "pulsar+ssl://gw:6651").lookupTopicResponse
    assert not encrypted.HasField("brokerServiceUrl")
    assert encrypted.brokerServiceUrlTls == "pulsar+ssl://gw:6651"


def test_topic_without_partitions_says_zero() -> None:
    response = replies.partitioned_metadata(9).partitionMetadataResponse
    assert response.HasField("partitions")
    assert response.partitions == 0
    assert response.response == api.CommandPartitionedTopicMetadataResponse.Success


def test_success_repeats_the_request_id() -> None:
    assert replies.success(9).success.request_id == 9
