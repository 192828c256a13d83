"""Long lists are cut before they are parsed, and say the same in parts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import pytest

from protocol.framing import BadFrame, Frame, FrameDecoder, UnknownCommand, encode
from protocol.long_commands import IDS_PER_PART, LONG_COMMAND, MOST_LISTED, cut
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from segments import bounds


def acknowledgement(ids: int, **fields: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.ACK)
    command.ack.consumer_id, command.ack.ack_type = 5, api.CommandAck.Individual
    for name, value in fields.items():
        setattr(command.ack, name, value)
    for number in range(ids):
        command.ack.message_id.add(ledgerId=1_000, entryId=number)
    return command


def redelivery(ids: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    request = command.redeliverUnacknowledgedMessages
    request.consumer_id, request.consumer_epoch = 5, 3
    for number in range(ids):
        request.message_ids.add(ledgerId=1_000, entryId=number)
    return command


def subscribe() -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SUBSCRIBE)
    request = command.subscribe
    request.topic, request.subscription, request.subType = "t", "s", api.CommandSubscribe.Key_Shared
    request.consumer_id, request.request_id = 5, 9
    request.keySharedMeta.keySharedMode = api.STICKY
    return command


def frames_of(command: BaseCommand, *, cuts: bool = True) -> Iterator[Frame | UnknownCommand]:
    [frame] = FrameDecoder(cuts=cuts).receive(encode(command))
    assert isinstance(frame, Frame)
    return chain([frame], frame.rest or ())


def commands_of(command: BaseCommand, *, cuts: bool = True) -> list[BaseCommand]:
    return [frame.command for frame in frames_of(command, cuts=cuts) if isinstance(frame, Frame)]


@pytest.mark.parametrize("ids", [3 * IDS_PER_PART, 10 * IDS_PER_PART, 10 * IDS_PER_PART + 1])
def test_acknowledgement_in_parts_names_each_id_once_and_is_answered_once(ids: int) -> None:
    parts = commands_of(acknowledgement(ids, request_id=9))
    assert len(parts) == -(-ids // IDS_PER_PART)
    assert [it.entryId for part in parts for it in part.ack.message_id] == list(range(ids))
    assert {(part.ack.consumer_id, part.ack.ack_type) for part in parts} == {(5, api.CommandAck.Individual)}
    assert [part.ack.HasField("request_id") for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].ack.request_id == 9


def test_redelivery_in_parts_is_of_one_epoch_and_never_of_everything() -> None:
    parts = commands_of(redelivery(3 * IDS_PER_PART))
    requests = [part.redeliverUnacknowledgedMessages for part in parts]
    assert [len(it.message_ids) for it in requests] == [IDS_PER_PART] * 3, "none at all would mean everything"
    assert [(it.consumer_id, it.consumer_epoch) for it in requests] == [(5, 3)] * 3


def test_of_a_cumulative_acknowledgement_the_first_id_counts() -> None:
    [part] = commands_of(acknowledgement(5_000, ack_type=api.CommandAck.Cumulative, request_id=9))
    assert part.ack.message_id[0].entryId == 0
    assert part.ack.request_id == 9


def test_transaction_of_an_acknowledgement_is_named_in_each_part() -> None:
    parts = commands_of(acknowledgement(3_000, txnid_most_bits=1, txnid_least_bits=2))
    assert {(part.ack.txnid_most_bits, part.ack.txnid_least_bits) for part in parts} == {(1, 2)}


def test_parts_of_large_ids_are_small_too() -> None:
    command = acknowledgement(200)
    for it in command.ack.message_id:
        it.ack_set.extend([-1] * 1_000)
    parts = commands_of(command)
    assert max(part.ByteSize() for part in parts) < 100_000
    assert [it for part in parts for it in part.ack.message_id] == list(command.ack.message_id)


def test_id_with_more_acknowledgements_than_any_batch_has_is_nobodys() -> None:
    command = acknowledgement(3)
    command.ack.message_id[1].ack_set.extend([1] * 500_000)
    [part] = commands_of(command)
    assert [(it.ledgerId, it.entryId) for it in part.ack.message_id] == [(1_000, 0), (2**64 - 1, 0), (1_000, 2)]
    assert not part.ack.message_id[1].ack_set


def test_nothing_is_parsed_before_the_part_before_it_was_taken() -> None:
    command = acknowledgement(3 * IDS_PER_PART)
    # An id that lacks its entry, as no honest client sends it, in the last part.
    whole = command.SerializePartialToString()
    command.ack.message_id[-1].ClearField("entryId")
    assert command.SerializePartialToString() != whole
    data = command.SerializePartialToString()
    [frame] = FrameDecoder(cuts=True).receive((len(data) + 4).to_bytes(4, "big") + len(data).to_bytes(4, "big") + data)
    assert isinstance(frame, Frame)
    assert frame.rest is not None
    assert len(frame.command.ack.message_id) == IDS_PER_PART
    assert next(frame.rest)
    with pytest.raises(BadFrame, match="lacks a required field"):
        next(frame.rest)


def test_other_lists_are_cut_to_one_more_than_any_bound() -> None:
    command = subscribe()
    for number in range(MOST_LISTED + 5_000):
        command.subscribe.keySharedMeta.hashRanges.add(start=number, end=number)
        command.subscribe.metadata.add(key="k", value=str(number))
        command.subscribe.schema.properties.add(key="k", value=str(number))
    command.subscribe.schema.name, command.subscribe.schema.schema_data = "s", b""
    command.subscribe.schema.type = api.Schema.String
    [cut_] = commands_of(command)
    lists = cut_.subscribe.keySharedMeta.hashRanges, cut_.subscribe.metadata, cut_.subscribe.schema.properties
    assert [len(it) for it in lists] == [MOST_LISTED + 1] * 3
    assert cut_.subscribe.metadata[-1].value == str(MOST_LISTED)
    for request in (cut_.subscribe, command.subscribe):
        request.keySharedMeta.ClearField("hashRanges")
        request.ClearField("metadata")
        request.schema.ClearField("properties")
    assert cut_ == command, "the rest is as it was"


def test_bounds_are_below_what_lists_are_cut_to() -> None:
    assert max(bounds.MOST_PROPERTIES, bounds.MOST_RANGES, bounds.MOST_SCHEMA_PROPERTIES) <= MOST_LISTED


def test_what_is_long_but_lists_nothing_is_passed_on_as_it_is() -> None:
    command = subscribe()
    command.subscribe.consumer_name = "n" * LONG_COMMAND
    data = command.SerializeToString()
    assert list(cut(data)) == [data]
    assert commands_of(command) == [command]


def test_client_gets_long_commands_whole() -> None:
    assert commands_of(acknowledgement(5_000), cuts=False) == [acknowledgement(5_000)]


def test_long_garbage_is_a_bad_frame() -> None:
    data = b"\xff" * LONG_COMMAND * 2
    with pytest.raises(BadFrame, match="not valid protobuf"):
        FrameDecoder(cuts=True).receive((len(data) + 4).to_bytes(4, "big") + len(data).to_bytes(4, "big") + data)
