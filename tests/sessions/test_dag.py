"""The spliced frame is byte for byte what protobuf would have written."""

import pytest

from layout.layouts import Layout
from layout.legacy import synthetic_layout
from protocol.framing import FrameDecoder, encode
from protocol.wire import pulsar_api_pb2 as api
from sessions.dag import encode_tail, error_frame, with_brokers
from sessions.splice import frame_head, id_field

URL = "pulsar://127.0.0.1:6650"
NAME = "topic://public/default/orders"
SESSION_IDS = [0, 1, 127, 128, 16_383, 16_384, 2**32, 2**63, 2**64 - 1]


def reference_frame(tail: bytes, session_id: int) -> bytes:
    command = api.BaseCommand(type=api.BaseCommand.SCALABLE_TOPIC_UPDATE)
    command.scalableTopicUpdate.CopyFrom(as_message(tail))
    command.scalableTopicUpdate.session_id = session_id
    return encode(command)


def spliced_frame(tail: bytes, session_id: int) -> bytes:
    field = id_field(session_id)
    return frame_head(api.BaseCommand.SCALABLE_TOPIC_UPDATE, len(field), tail) + field + tail


def as_message(tail: bytes) -> api.CommandScalableTopicUpdate:
    return api.CommandScalableTopicUpdate.FromString(id_field(0) + tail)


@pytest.mark.parametrize("session_id", SESSION_IDS)
@pytest.mark.parametrize("segments", [1, 3, 64, 1024])
def test_splice_equals_protobuf(session_id: int, segments: int) -> None:
    tail = encode_tail(
        Layout.create(segments, 1_767_225_600_000), name=NAME, owner_url=lambda segment: URL, controller_url=URL
    )
    assert spliced_frame(tail, session_id) == reference_frame(tail, session_id)


def test_splice_of_a_long_unicode_name_equals_protobuf() -> None:
    name = "topic://t/n/" + "日本語" * 100
    tail = encode_tail(Layout.create(2, 0), name=name, owner_url=lambda segment: URL, controller_url=URL)
    assert spliced_frame(tail, 7) == reference_frame(tail, 7)
    assert as_message(tail).resolved_topic_name == name


def test_the_splice_knows_every_field_of_the_message() -> None:
    # A new field would silently be missing from spliced frames: teach `sessions.dag` about it, then this list.
    fields = {field.name: field.number for field in api.CommandScalableTopicUpdate.DESCRIPTOR.fields}
    assert fields == {"session_id": 1, "dag": 2, "error": 3, "message": 4, "resolved_topic_name": 5}
    base = api.BaseCommand.DESCRIPTOR.fields_by_name["scalableTopicUpdate"]
    assert base.number == api.BaseCommand.SCALABLE_TOPIC_UPDATE == 71


def test_a_dag_shows_active_and_sealed_segments_as_the_wire_wants_them() -> None:
    layout = Layout.create(1, 1_000).split(0, 2_000)
    message = as_message(encode_tail(layout, name=NAME, owner_url=lambda segment: URL, controller_url=URL)).dag
    parent, left, right = message.segments
    assert message.epoch == 1
    assert (parent.state, parent.sealed_at_epoch, parent.sealed_at_ms) == (api.SEALED, 1, 2_000)
    assert list(parent.child_ids) == [1, 2]
    assert (left.state, left.hash_start, left.hash_end, list(left.parent_ids)) == (api.ACTIVE, 0, 0x7FFF, [0])
    assert not left.HasField("sealed_at_epoch")
    assert not left.HasField("sealed_at_ms")
    assert right.created_at_ms == 2_000
    assert [(broker.segment_id, broker.broker_url) for broker in message.segment_brokers] == [(1, URL), (2, URL)]
    assert message.controller_broker_url == URL


def test_an_error_frame_always_has_a_text() -> None:
    [frame] = FrameDecoder().receive(error_frame(9, api.TopicNotFound, ""))
    assert frame is not None
    update = frame.command.scalableTopicUpdate  # type: ignore[union-attr]
    assert (update.session_id, update.error, bool(update.message)) == (9, api.TopicNotFound, True)


def test_the_dag_of_a_classic_topic_names_its_logs_and_nobody_who_serves_them() -> None:
    names = [f"persistent://t/n/a-partition-{index}" for index in range(3)]
    layout = synthetic_layout(names, 1_767_225_600_000)
    message = as_message(encode_tail(layout, name=NAME, owner_url=None, controller_url=None)).dag
    assert [segment.legacy_topic_name for segment in message.segments] == names
    assert {segment.state for segment in message.segments} == {api.ACTIVE}
    assert (message.epoch, list(message.segment_brokers), message.HasField("controller_broker_url")) == (0, [], False)


def test_addresses_with_tls_stand_in_the_fields_for_them() -> None:
    secured = "pulsar+ssl://node:6651"
    tail = encode_tail(Layout.create(2, 0), name=NAME, owner_url=lambda segment: secured, controller_url=secured)
    assert spliced_frame(tail, 7) == reference_frame(tail, 7)
    dag = as_message(tail).dag
    assert (dag.HasField("controller_broker_url"), dag.controller_broker_url_tls) == (False, secured)
    assert [(broker.broker_url, broker.broker_url_tls) for broker in dag.segment_brokers] == [("", secured)] * 2
    assert with_brokers(tail, lambda segment: secured) is tail

    # One of them moves to a node without TLS, and back.
    moved = with_brokers(tail, lambda segment: URL if segment.segment_id else secured)
    brokers = as_message(moved).dag.segment_brokers
    assert [(broker.broker_url, broker.HasField("broker_url_tls")) for broker in brokers] == [("", True), (URL, False)]
    assert with_brokers(moved, lambda segment: secured) == tail
