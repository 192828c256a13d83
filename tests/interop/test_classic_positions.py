"""The `pulsar-client` of PyPI goes to places in a persistent topic: readers, seeks, and the last message."""

import time
from typing import Any

import pulsar
import pytest

from tests.interop.classic import data, keep, nothing_more, numbered, read, receive, send, send_together
from tests.support.waiting import wait_until


def a_moment_between() -> int:
    """A time in ms that lies after all that was and before all that will be."""
    now = int(time.time() * 1000) + 1
    wait_until(lambda: time.time() * 1000 >= now + 2)
    return now + 1


def test_reader_reads_from_the_start_and_goes_on(classic: Any, classic_topic: str) -> None:
    producer = classic.create_producer(classic_topic)
    send(producer, numbered(10))
    reader = classic.create_reader(classic_topic, pulsar.MessageId.earliest)
    assert read(reader, 10) == numbered(10)
    assert not reader.has_message_available()
    send(producer, numbered(3, "more"))
    assert reader.has_message_available()
    assert read(reader, 3) == numbered(3, "more")


def test_reader_from_the_end_sees_only_what_follows(classic: Any, classic_topic: str) -> None:
    producer = classic.create_producer(classic_topic)
    send(producer, numbered(5))
    reader = classic.create_reader(classic_topic, pulsar.MessageId.latest)
    assert not reader.has_message_available()
    send(producer, numbered(5, "later"))
    assert read(reader, 5) == numbered(5, "later")


@pytest.mark.parametrize("inclusive", [False, True], ids=["after", "from"])
@pytest.mark.parametrize("batching", [False, True], ids=["one by one", "in batches"])
def test_reader_starts_at_a_message(classic: Any, classic_topic: str, inclusive: bool, batching: bool) -> None:
    producer = classic.create_producer(classic_topic, batching_enabled=batching, batching_max_messages=5)
    ids = send_together(producer, numbered(20))
    kept = pulsar.MessageId.deserialize(ids[7].serialize())
    reader = classic.create_reader(classic_topic, kept, start_message_id_inclusive=inclusive)
    rest = numbered(20)[7 if inclusive else 8 :]
    assert read(reader, len(rest)) == rest
    assert not reader.has_message_available()


def test_readers_leave_no_subscription_behind(classic: Any, classic_topic: str) -> None:
    send(classic.create_producer(classic_topic), numbered(5))
    for _ in range(2):
        reader = classic.create_reader(classic_topic, pulsar.MessageId.earliest)
        assert read(reader, 5) == numbered(5)
        reader.close()


def test_reader_seeks(classic: Any, classic_topic: str) -> None:
    ids = send(classic.create_producer(classic_topic), numbered(10))
    reader = classic.create_reader(classic_topic, pulsar.MessageId.earliest)
    assert read(reader, 10) == numbered(10)
    reader.seek(ids[4])
    assert read(reader, 5) == numbered(10)[5:]


def test_seek_to_a_message_delivers_what_follows_it(classic: Any, classic_topic: str) -> None:
    consumer = classic.subscribe(classic_topic, "readers")
    ids = send(classic.create_producer(classic_topic), numbered(10))
    assert data(receive(consumer, 10)) == numbered(10)
    consumer.seek(ids[4])
    assert data(receive(consumer, 5)) == numbered(10)[5:]
    assert nothing_more(consumer)


@pytest.mark.parametrize(("place", "expected"), [("earliest", numbered(10)), ("latest", [])])
def test_seek_to_an_end(classic: Any, classic_topic: str, place: str, expected: list[bytes]) -> None:
    consumer = classic.subscribe(classic_topic, "readers")
    send(classic.create_producer(classic_topic), numbered(10))
    assert data(receive(consumer, 3, settle=keep)) == numbered(10)[:3]
    consumer.seek(getattr(pulsar.MessageId, place))
    assert data(receive(consumer, len(expected))) == expected
    assert nothing_more(consumer)


def test_seek_to_a_time_delivers_what_is_younger(classic: Any, classic_topic: str) -> None:
    consumer = classic.subscribe(classic_topic, "readers")
    producer = classic.create_producer(classic_topic)
    send(producer, numbered(10, "before"))
    between = a_moment_between()
    send(producer, numbered(10, "after"))
    assert len(receive(consumer, 20)) == 20
    consumer.seek(between)
    assert data(receive(consumer, 10)) == numbered(10, "after")
    assert nothing_more(consumer)


def test_seek_brings_back_what_was_acknowledged_for_all_consumers(classic: Any, classic_topic: str) -> None:
    kind = pulsar.ConsumerType.Shared
    consumers = [classic.subscribe(classic_topic, "readers", kind) for _ in range(2)]
    send(classic.create_producer(classic_topic), numbered(20))
    assert sorted(data([*receive(consumers[0], 10), *receive(consumers[1], 10)])) == numbered(20)
    consumers[0].seek(pulsar.MessageId.earliest)
    again: list[bytes] = []

    def all_came() -> bool:
        for consumer in consumers:
            again.extend(data(receive(consumer, 20, within=0.2)))
        return len(again) >= 20

    wait_until(all_came, 20)
    assert sorted(again) == numbered(20)


def test_last_message_id_is_that_of_the_last_message(classic: Any, classic_topic: str) -> None:
    consumer = classic.subscribe(classic_topic, "readers")
    ids = send(classic.create_producer(classic_topic), numbered(3))
    last = consumer.get_last_message_id()
    assert (last.ledger_id(), last.entry_id()) == (ids[-1].ledger_id(), ids[-1].entry_id())
