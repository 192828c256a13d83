"""Messages in chunks: all of one go to one receiver, in order, whatever becomes of it."""

import random

import pytest

from metadata.log_entries import StoredEntry
from segments.cursors import Cursor
from segments.dispatch import Delivery, Dispatcher, Kind
from segments.dispatch.chunks import Parts
from segments.entry_metadata import traits_of
from tests.segments.dispatch.staged import NOW, StagedLog, StagedReceiver, dispatcher_of, indexes

Deliveries = list[Delivery[StagedReceiver]]
either_kind = pytest.mark.parametrize("kind", [Kind.SHARED, Kind.KEY_SHARED])


def name_of(entry: StoredEntry) -> str | None:
    return traits_of(entry).chunked


def takers(deliveries: Deliveries, uuid: str) -> list[str]:
    """Who got the chunks of a message, in the order in which they were handed out."""
    return [delivery.receiver.name for delivery in deliveries if name_of(delivery.entry) == uuid]


@either_kind
def test_all_chunks_of_a_message_go_to_one_receiver_in_order(kind: Kind) -> None:
    one, other = StagedReceiver("a"), StagedReceiver("b")
    dispatcher, log = dispatcher_of(kind, one, other, permits=100), StagedLog()
    chunks = {f"m{number}": log.append_chunks(f"m{number}", 5) for number in range(10)}
    deliveries = log.pump(dispatcher)
    for uuid, expected in chunks.items():
        assert len(set(takers(deliveries, uuid))) == 1
        assert [d.entry.index for d in deliveries if name_of(d.entry) == uuid] == expected
    assert {name for uuid in chunks for name in takers(deliveries, uuid)} == {"a", "b"}


def test_interleaved_messages_of_several_producers_stay_together() -> None:
    receivers = [StagedReceiver(name) for name in "abc"]
    dispatcher, log = dispatcher_of(Kind.SHARED, *receivers, permits=100), StagedLog()
    for chunk in range(4):
        for uuid in "xyz":
            log.append_chunks(uuid, 4, [chunk])
        log.append()
    deliveries = log.pump(dispatcher)
    assert indexes(deliveries) == list(range(16))
    assert [len(set(takers(deliveries, uuid))) for uuid in "xyz"] == [1, 1, 1]


def test_chunk_waits_for_its_receiver_while_others_go_on() -> None:
    one, other = StagedReceiver("a"), StagedReceiver("b")
    dispatcher, log = dispatcher_of(Kind.SHARED, one), StagedLog()
    dispatcher.flow(one, 1)
    first, second, third = log.append_chunks("m", 3)
    assert indexes(log.pump(dispatcher), one) == [first]
    dispatcher.add(other)
    dispatcher.flow(other, 10)
    log.append(3)
    assert indexes(log.pump(dispatcher), other) == [3, 4, 5]
    dispatcher.flow(one, 1)
    assert indexes(log.pump(dispatcher)) == [second]
    dispatcher.flow(one, 5)
    assert indexes(log.pump(dispatcher), one) == [third]


def test_chunk_that_was_acknowledged_while_it_waited_is_not_delivered() -> None:
    one, other = StagedReceiver("a"), StagedReceiver("b")
    dispatcher, log = dispatcher_of(Kind.SHARED, one, other), StagedLog()
    dispatcher.flow(one, 1)
    first, second, third = log.append_chunks("m", 3)
    assert indexes(log.pump(dispatcher), one) == [first]
    dispatcher.flow(other, 10)
    assert log.pump(dispatcher) == []
    # As a part of a batch, whose size is not known before it is read: it is all there was of it.
    assert dispatcher.ack(one, second, (0b10,))
    dispatcher.flow(one, 10)
    assert indexes(log.pump(dispatcher)) == [third]
    for index in (first, third):
        dispatcher.ack(one, index)
    assert dispatcher.unacked(one) == 0
    assert dispatcher.cursor.mark == log.end - 1


def test_parts_tell_of_which_messages_there_are_any() -> None:
    parts = Parts()
    for index, name in enumerate("xxyxy"):
        parts.add(index, name)
    assert parts.discard(4) == "y"
    assert parts.discard(4) is None
    assert (parts[1], 4 in parts, parts.has_of("y")) == ("x", False, True)
    parts.drop_below(3)
    assert (len(parts), parts.has_of("x"), parts.has_of("y")) == (1, True, False)
    parts.clear()
    assert not parts.has_of("x")


@either_kind
def test_whole_message_goes_to_another_when_its_receiver_is_lost_in_the_middle(kind: Kind) -> None:
    one, other = StagedReceiver("a"), StagedReceiver("b")
    dispatcher, log = dispatcher_of(kind, one), StagedLog()
    dispatcher.flow(one, 2)
    chunks = log.append_chunks("m", 4)
    assert indexes(log.pump(dispatcher), one) == chunks[:2]
    dispatcher.add(other)
    dispatcher.flow(other, 10)
    log.pump(dispatcher)
    dispatcher.remove(one)
    assert indexes(log.pump(dispatcher), other) == chunks


@either_kind
def test_one_chunk_asked_for_again_brings_all_of_them(kind: Kind) -> None:
    one, other = StagedReceiver("a"), StagedReceiver("b")
    dispatcher, log = dispatcher_of(kind, one, other, permits=100), StagedLog()
    chunks = log.append_chunks("m", 4)
    log.append(1)
    holder = next(d.receiver for d in log.pump(dispatcher) if d.entry.index == chunks[0])
    for asked in ([chunks[3]], [chunks[1], chunks[0]], None):
        dispatcher.redeliver(holder, asked)
        again = [d for d in log.pump(dispatcher) if name_of(d.entry)]
        assert indexes(again) == chunks
        assert len({d.receiver for d in again}) == 1
        assert len({d.redeliveries for d in again}) == 1
        holder = again[0].receiver


def test_chunks_fetched_before_their_receiver_was_lost_do_not_come_first() -> None:
    one, other = StagedReceiver("a"), StagedReceiver("b")
    dispatcher, log = dispatcher_of(Kind.SHARED, one), StagedLog()
    dispatcher.flow(one, 1)
    chunks = log.append_chunks("m", 3)
    log.pump(dispatcher)
    dispatcher.add(other)
    dispatcher.flow(other, 10)
    fetched = log.fetch(dispatcher)
    assert fetched[0].index == chunks[1]
    dispatcher.remove(one)
    deliveries = [*dispatcher.offer(fetched, NOW), *log.pump(dispatcher)]
    assert indexes(deliveries, other) == chunks


@either_kind
def test_message_that_was_never_finished_holds_nothing_up(kind: Kind) -> None:
    one, other = StagedReceiver("a"), StagedReceiver("b")
    dispatcher, log = dispatcher_of(kind, one, other, permits=100), StagedLog()
    begun = log.append_chunks("m", 3, [0, 1])
    log.append(20)
    deliveries = log.pump(dispatcher)
    assert sorted(indexes(deliveries)) == list(range(22))
    for delivery in deliveries:
        assert dispatcher.ack(delivery.receiver, delivery.entry.index)
    assert dispatcher.cursor.mark == 21
    again = log.append_chunks("m", 3, [2])
    assert indexes(log.pump(dispatcher)) == again, "somebody has to get it, and say what is wrong with it"
    assert begun == [0, 1]


def test_rest_of_a_message_whose_beginning_is_gone_goes_to_one_receiver() -> None:
    dispatcher: Dispatcher[StagedReceiver] = Dispatcher(Kind.SHARED, Cursor(), 2)
    log = StagedLog()
    log.append_chunks("m", 6)
    for receiver in (StagedReceiver("a"), StagedReceiver("b")):
        dispatcher.add(receiver)
        dispatcher.flow(receiver, 10)
    deliveries = log.pump(dispatcher)
    assert indexes(deliveries) == [2, 3, 4, 5]
    assert len(set(takers(deliveries, "m"))) == 1


def test_chunks_whose_key_moves_in_the_middle_stay_with_who_has_begun() -> None:
    """Else the former owner waits for the rest, and the rest for its acknowledgement."""
    one = StagedReceiver("a")
    dispatcher, log = dispatcher_of(Kind.KEY_SHARED, one, permits=1_000), StagedLog()
    halves = {f"m{number}": log.append_chunks(f"m{number}", 2, [0]) for number in range(40)}
    log.pump(dispatcher)
    other = StagedReceiver("b")
    dispatcher.add(other)
    dispatcher.flow(other, 1_000)
    rest = [index for uuid in halves for index in log.append_chunks(uuid, 2, [1])]
    assert indexes(log.pump(dispatcher), one) == rest
    log.append_chunks("m0", 2, [0])
    for index in range(80):
        assert dispatcher.ack(one, index)
    assert indexes(log.pump(dispatcher)) == [80]


def test_hostile_ids_cost_no_more_than_short_ones() -> None:
    dispatcher, log = dispatcher_of(Kind.SHARED, StagedReceiver("a"), StagedReceiver("b"), permits=10), StagedLog()
    log.append_chunks("x" * 100_000, 3)
    deliveries = log.pump(dispatcher)
    assert len({d.receiver for d in deliveries}) == 1
    assert {len(name_of(d.entry) or "") for d in deliveries} == {64}


@pytest.mark.parametrize("seed", range(20))
@either_kind
def test_every_message_can_be_put_together_whatever_receivers_do(kind: Kind, seed: int) -> None:
    """Receivers put messages together as clients do: a chunk out of order is of no use to them."""
    chance = random.Random(seed)
    dispatcher, log = dispatcher_of(kind), StagedLog()
    sizes: dict[str, int] = {}
    chunk_of: dict[int, tuple[str, int]] = {}
    got: dict[StagedReceiver, dict[str, list[int]]] = {}
    done: set[str] = set()

    def publish() -> None:
        """Several messages of several producers at once."""
        sent = {f"m{len(sizes) + number}": chance.randint(2, 5) for number in range(chance.randint(1, 3))}
        sizes.update(sent)
        order = [uuid for uuid, size in sent.items() for _ in range(size)]
        chance.shuffle(order)
        for place, uuid in enumerate(order):
            chunk = order[:place].count(uuid)
            [index] = log.append_chunks(uuid, sizes[uuid], [chunk])
            chunk_of[index] = uuid, chunk

    def receive(deliveries: Deliveries) -> None:
        for delivery in deliveries:
            uuid, chunk = chunk_of[delivery.entry.index]
            has = got[delivery.receiver].setdefault(uuid, [])
            if chunk == 0:
                has.clear()
            assert chunk == len(has), f"chunk {chunk} of {uuid} follows {len(has)} others"
            has.append(delivery.entry.index)

    def settle(receiver: StagedReceiver) -> None:
        for uuid, has in list(got[receiver].items()):
            if len(has) == sizes[uuid]:
                del got[receiver][uuid]
                if chance.random() < 0.7:
                    done.add(uuid)
                    for index in has:
                        dispatcher.ack(receiver, index)
                else:
                    dispatcher.redeliver(receiver, chance.sample(has, chance.randint(1, len(has))))

    def join() -> None:
        receiver = StagedReceiver(f"c{chance.random()}")
        got[receiver] = {}
        dispatcher.add(receiver)

    for _ in range(150):
        match chance.randrange(6):
            case 0:
                publish()
            case 1 if len(got) < 4:
                join()
            case 2 if got:
                dispatcher.flow(chance.choice(list(got)), chance.randint(1, 4))
            case 3 if got:
                settle(chance.choice(list(got)))
            case 4 if got and chance.random() < 0.3:
                gone = chance.choice(list(got))
                dispatcher.remove(gone)
                del got[gone]
            case _:
                fetched = log.fetch(dispatcher)
                if got and chance.random() < 0.3:
                    settle(chance.choice(list(got)))
                receive(dispatcher.offer(fetched, NOW))
    if not got:
        join()
    for _ in range(200):
        for receiver in got:
            dispatcher.flow(receiver, 10)
        receive(log.pump(dispatcher))
        for receiver in got:
            settle(receiver)
    assert done == set(sizes)
    assert dispatcher.cursor.mark == log.end - 1
