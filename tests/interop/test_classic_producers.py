"""The `pulsar-client` of PyPI sends to persistent topics: one by one, in batches, in chunks, alone, and twice."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pulsar
import pytest

from tests.e2e.vela_process import VelaServer
from tests.interop.classic import LIMIT, data, nothing_more, numbered, receive, send, send_together, sending
from tests.interop.receipt_thief import ReceiptThief
from tests.support.ports import HOST, ReservedPort
from tests.support.waiting import wait_until


@pytest.fixture
def consumer(classic: Any, classic_topic: str) -> Any:
    return classic.subscribe(classic_topic, "readers", initial_position=pulsar.InitialPosition.Earliest)


def test_messages_sent_one_by_one_arrive_in_order(classic: Any, classic_topic: str, consumer: Any) -> None:
    ids = send(classic.create_producer(classic_topic), numbered(50))
    came = receive(consumer, 50)
    assert data(came) == numbered(50)
    places = [(message_id.ledger_id(), message_id.entry_id()) for message_id in ids]
    assert places == sorted(set(places))
    assert [(message.message_id().ledger_id(), message.message_id().entry_id()) for message in came] == places
    assert nothing_more(consumer)


@pytest.mark.parametrize("kind", [pulsar.BatchingType.Default, pulsar.BatchingType.KeyBased])
def test_batches_arrive_whole_and_in_order(classic: Any, classic_topic: str, consumer: Any, kind: Any) -> None:
    producer = classic.create_producer(
        classic_topic, batching_enabled=True, batching_type=kind, batching_max_publish_delay_ms=20
    )
    ids = send_together(producer, numbered(1000))
    assert len({message_id.entry_id() for message_id in ids}) < 1000
    assert data(receive(consumer, 1000)) == numbered(1000)
    assert nothing_more(consumer)


@pytest.mark.parametrize("compression", [pulsar.CompressionType.LZ4, pulsar.CompressionType.ZLib])
def test_payload_is_not_touched(classic: Any, classic_topic: str, consumer: Any, compression: Any) -> None:
    producer = classic.create_producer(classic_topic, compression_type=compression, producer_name="the-producer")
    content = bytes(range(256)) * 1000
    producer.send(
        content, properties={"colour": "rød"}, partition_key="a key", ordering_key="an order", event_timestamp=7
    )
    (message,) = receive(consumer, 1)
    assert message.data() == content
    assert message.properties() == {"colour": "rød"}
    assert (message.partition_key(), message.ordering_key(), message.event_timestamp()) == ("a key", "an order", 7)
    assert message.producer_name() == "the-producer"


def test_message_larger_than_a_frame_travels_in_chunks(classic: Any, classic_topic: str, consumer: Any) -> None:
    producer = classic.create_producer(classic_topic, chunking_enabled=True)
    content = bytes(range(256)) * (12 * 4096)
    send(producer, [b"before", content, b"after"])
    assert data(receive(consumer, 3)) == [b"before", content, b"after"]
    assert nothing_more(consumer)


def test_producer_with_a_name_that_is_taken_is_refused(classic: Any, classic_topic: str) -> None:
    classic.create_producer(classic_topic, producer_name="taken")
    with pytest.raises(pulsar.ProducerBusy):
        classic.create_producer(classic_topic, producer_name="taken")


def test_exclusive_producer_shuts_others_out(classic: Any, classic_topic: str) -> None:
    exclusive = classic.create_producer(classic_topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    for mode in (pulsar.ProducerAccessMode.Shared, pulsar.ProducerAccessMode.Exclusive):
        with pytest.raises((pulsar.ProducerBusy, pulsar.ProducerFenced)):
            classic.create_producer(classic_topic, access_mode=mode)
    send(exclusive, numbered(1))
    exclusive.close()
    send(classic.create_producer(classic_topic, access_mode=pulsar.ProducerAccessMode.Exclusive), numbered(1))


def test_producer_that_waits_gets_its_turn(classic: Any, classic_topic: str, consumer: Any) -> None:
    first = classic.create_producer(classic_topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    with ThreadPoolExecutor(1) as threads:
        mode = pulsar.ProducerAccessMode.WaitForExclusive
        waiting = threads.submit(classic.create_producer, classic_topic, access_mode=mode)
        send(first, [b"first"])
        assert not waiting.done()
        first.close()
        send(waiting.result(LIMIT), [b"second"])
    assert data(receive(consumer, 2)) == [b"first", b"second"]


def test_fencing_producer_takes_the_topic_over(classic: Any, classic_topic: str, consumer: Any) -> None:
    old = classic.create_producer(classic_topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    send(old, [b"old"])
    new = classic.create_producer(classic_topic, access_mode=pulsar.ProducerAccessMode.ExclusiveWithFencing)
    send(new, [b"new"])
    with pytest.raises(pulsar.PulsarException):
        old.send(b"too late")
    assert data(receive(consumer, 2)) == [b"old", b"new"]
    assert nothing_more(consumer)


def test_producer_of_the_same_name_goes_on_counting(classic: Any, classic_topic: str, consumer: Any) -> None:
    first = classic.create_producer(classic_topic, producer_name="counting")
    send(first, numbered(5))
    first.close()
    second = classic.create_producer(classic_topic, producer_name="counting")
    assert second.last_sequence_id() == 4
    second.send(b"seen before", sequence_id=4)
    second.send(b"new", sequence_id=5)
    assert data(receive(consumer, 6)) == [*numbered(5), b"new"]
    assert nothing_more(consumer)


@pytest.fixture
def thief(tmp_path: Path) -> Iterator[ReceiptThief]:
    port = ReservedPort()
    thief = ReceiptThief(port.number)
    flags = ("--listen", f"{HOST}:{port.number}", "--advertise", thief.url)
    with VelaServer.start(tmp_path / "robbed", *flags):
        yield thief
    thief.close()
    port.release()


@pytest.mark.parametrize("batching", [False, True], ids=["one by one", "in batches"])
def test_messages_are_stored_once_although_their_receipts_were_lost(thief: ReceiptThief, batching: bool) -> None:
    topic = "persistent://public/default/robbed"
    client = pulsar.Client(thief.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        consumer = client.subscribe(topic, "readers", initial_position=pulsar.InitialPosition.Earliest)
        producer = client.create_producer(topic, batching_enabled=batching, batching_max_messages=10)
        send(producer, [b"before"])
        thief.steal()
        receipts = sending(producer, numbered(40))
        wait_until(lambda: thief.stolen >= (4 if batching else 40), LIMIT)
        thief.cut()
        ids = [receipt.result(LIMIT) for receipt in receipts]
        assert len(ids) == 40
        assert data(receive(consumer, 41)) == [b"before", *numbered(40)]
        assert nothing_more(consumer)
    finally:
        client.close()
