"""Frames that are put together by hand are those that protocol buffers would make."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from protocol.framing import encode
from protocol.wire.pulsar_api_pb2 import BaseCommand
from segments.frames import MessageFrames, Receipts

LONGS = st.integers(0, 2**64 - 1)
WORDS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4)


# Near each other, and of all lengths.
INDEXES = st.integers(0, 70).map(lambda bits: min(2**bits, 2**64 - 1)) | LONGS
STEPS = st.lists(
    st.tuples(
        INDEXES,
        st.just(0) | st.integers(0, 2**32 - 1),
        st.just([]) | WORDS,
        st.sampled_from([0, 100, 1000]) | st.integers(0, 2**20),
        st.none() | st.sampled_from([1, 127, 128, 2**14]) | LONGS,
    ),
    min_size=1,
    max_size=8,
)


@given(LONGS, LONGS, st.integers(-1, 1000), st.none() | LONGS | st.integers(0, 200), STEPS)
@example(1, 2, -1, 127, [(20_000, 0, [], 100, None), (300, 0, [], 100, 128)])
@example(1, 2, -1, None, [(3_000_000, 0, [], 100, None), (300, 0, [], 100, 1)])
def test_message_heads_are_what_protobuf_writes(
    consumer_id: int,
    ledger: int,
    partition: int,
    epoch: int | None,
    steps: list[tuple[int, int, list[int], int, int | None]],
) -> None:
    frames = MessageFrames(consumer_id, ledger, partition, epoch)
    for index, redeliveries, ack_set, size, next_epoch in steps:
        if next_epoch is not None:
            frames.begin_epoch(next_epoch)
            epoch = next_epoch if epoch is None else max(epoch, next_epoch)
        command = BaseCommand(type=BaseCommand.MESSAGE)
        command.message.consumer_id = consumer_id
        command.message.message_id.ledgerId = ledger
        command.message.message_id.entryId = index
        if partition >= 0:
            command.message.message_id.partition = partition
        if redeliveries:
            command.message.redelivery_count = redeliveries
        command.message.ack_set.extend(ack_set)
        if epoch is not None:
            command.message.consumer_epoch = epoch
        whole = encode(command)
        head = frames.head(index, redeliveries, ack_set, size)
        assert head[4:] == whole[4:]
        assert int.from_bytes(head[:4], "big") == int.from_bytes(whole[:4], "big") + size


@given(LONGS, LONGS, st.just(0) | LONGS, LONGS, LONGS)
def test_receipt_is_what_protobuf_writes(
    producer_id: int, sequence: int, highest: int, ledger: int, index: int
) -> None:
    command = BaseCommand(type=BaseCommand.SEND_RECEIPT)
    command.send_receipt.producer_id = producer_id
    command.send_receipt.sequence_id = sequence
    command.send_receipt.message_id.ledgerId = ledger
    command.send_receipt.message_id.entryId = index
    if highest:
        command.send_receipt.highest_sequence_id = highest
    assert Receipts(ledger).frame(producer_id, sequence, highest, index) == encode(command)


def test_message_that_stands_nowhere_has_the_id_minus_one() -> None:
    command = BaseCommand.FromString(Receipts(5).frame(1, 2, 0, None)[8:])
    position = command.send_receipt.message_id
    assert [position.ledgerId - 2**64, position.entryId - 2**64] == [-1, -1]
