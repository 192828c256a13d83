"""Attacks of those who open producers: their names, properties and turns, and the logs that are opened for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from benchmarks.hostile.commands import LONG, flow, frame, joined, pairs, producer, send, subscribe
from benchmarks.hostile.peers import Gone, Peer
from benchmarks.hostile.scenes import Attack, Scene
from benchmarks.readers import connect_message
from protocol.wire.pulsar_api_pb2 import MessageIdData


def properties(scene: Scene) -> Iterator[None]:
    segment = scene.segment("properties")
    metadata = pairs(scene.many(4_000_000), 10)
    peer = scene.peer()
    yield
    for number in range(scene.many(150)):
        peer.ask(producer(number, segment, metadata=metadata))
        peer.ask(frame("CLOSE_PRODUCER", producer_id=number, request_id=number))


def names(scene: Scene) -> Iterator[None]:
    segment = scene.segment("names")
    peer = scene.peer()
    yield
    for number in range(scene.many(60)):
        peer.ask(producer(number, segment, producer_name=f"{number}" + "p" * scene.many(LONG)))
        peer.ask(send(number, 0))


def initial_subscriptions(scene: Scene) -> Iterator[None]:
    segment = scene.segment("names")
    peer = scene.peer()
    yield
    for number in range(scene.many(20)):
        peer.ask(producer(number, segment, initial_subscription_name=f"{number}" + "p" * scene.many(LONG)))


def cycles(scene: Scene) -> Iterator[None]:
    """Connect, produce, acknowledge, close: what every client does, eight at a time and very often."""
    segment = scene.segment("cycles")
    ledger = scene.ledger(segment)
    yield
    number = 0
    while scene.goes_on:
        with ExitStack() as ending:
            peers = [ending.enter_context(Peer(scene.pulsar, scene.account)) for _ in range(8)]
            for at, peer in enumerate(peers):
                peer.say(subscribe(1, segment, f"subscription-{at}") + producer(1, segment))
            for peer in peers:
                peer.hear(2 - peer.answered)
                peer.say(flow(1, 10) + send(1, 0))
            for peer in peers:
                # Its receipt and a message, whoever that is of.
                peer.hear(4 - peer.answered)
                ids = [MessageIdData(ledgerId=ledger, entryId=number)]
                peer.say(frame("ACK", consumer_id=1, ack_type="Individual", message_id=ids))
                number += 1
            for peer in peers:
                peer.await_calm()


def producers_come_and_go(scene: Scene) -> Iterator[None]:
    segment = scene.segment("flood")
    peer = scene.peer()
    some = joined(
        producer(at, segment, producer_name=f"p{at}") + frame("CLOSE_PRODUCER", producer_id=at, request_id=at)
        for at in range(1_000)
    )
    yield
    while scene.goes_on:
        peer.ask(some, 1_000)


def named_producers(scene: Scene) -> Iterator[None]:
    """Each has a name of its own, which is remembered when it has gone."""
    segment = scene.segment("flood")
    peer = scene.peer()
    yield
    number = 0
    while scene.goes_on:
        some = []
        for _ in range(500):
            number += 1
            some += [
                producer(number, segment, producer_name=f"{number:01000}"),
                frame("CLOSE_PRODUCER", producer_id=number, request_id=number),
            ]
        peer.ask(joined(some), 500)


def producers_wait(scene: Scene) -> Iterator[None]:
    segment = scene.segment("turns")
    peer = scene.peer()
    count = scene.many(9_000)
    some = joined(
        producer(at, segment, producer_name=f"p{at}", producer_access_mode="WaitForExclusive") for at in range(count)
    )
    closing = joined(frame("CLOSE_PRODUCER", producer_id=at, request_id=at) for at in range(count))
    yield
    peer.ask(some, count)
    peer.ask(closing, count)


def waiting_producers_leave(scene: Scene) -> Iterator[None]:
    segment = scene.segment("turns")
    peer = scene.peer()
    count = scene.many(5_000)
    peer.ask(
        joined(
            producer(at, segment, producer_name=f"p{at}", producer_access_mode="WaitForExclusive")
            for at in range(count)
        ),
        count,
    )
    yield
    peer.close()


def crowd_of_producers(scene: Scene) -> Iterator[None]:
    segment = scene.segment("crowd")
    peer = scene.peer()
    count = scene.many(9_500)
    some = joined(producer(at, segment) for at in range(count))
    yield
    peer.ask(some, count)


def fencing(scene: Scene) -> Iterator[None]:
    segment = scene.segment("turns")
    peer = scene.peer()
    some = joined(
        producer(at, segment, producer_name=f"p{at}", producer_access_mode="ExclusiveWithFencing")
        for at in range(1_000)
    )
    yield
    while scene.goes_on:
        peer.ask(some, 1_000)


def reused_requests(scene: Scene) -> Iterator[None]:
    """The same producer opened again before it was answered, thousands of times."""
    segment = scene.segment("reused")
    some = joined([producer(1, segment)] * 2_000)
    peer = scene.peer()
    yield
    while scene.goes_on:
        peer.ask(some)
        peer.await_calm()


def many_logs(scene: Scene) -> Iterator[None]:
    """A producer at each of many logs that nobody had."""
    topic = scene.partitioned("many", 512)
    peer = scene.peer()
    frames = [producer(at, f"persistent://public/default/{topic}-partition-{at}") for at in range(scene.many(512))]
    yield
    peer.ask(joined(frames), len(frames))


def auto_created(scene: Scene) -> Iterator[None]:
    """Topics that are created by their use, as fast as they can be."""
    peer = scene.peer()
    yield
    number = 0
    while scene.goes_on:
        some = []
        for _ in range(200):
            number += 1
            some.append(producer(number, f"persistent://public/default/{scene.name('made')}-{number}"))
        peer.ask(joined(some), 200)


def connections(scene: Scene) -> Iterator[None]:
    """Connections with a producer, ended without a word."""
    segment = scene.segment("connections")
    some = connect_message() + producer(1, segment) + send(1, 1)
    yield
    while scene.goes_on:
        try:
            with Peer(scene.pulsar, scene.account, greet=False) as peer:
                peer.say(some)
        except Gone:
            continue


PRODUCING = (
    Attack("150 producers with 4 MB of properties", properties),
    Attack("60 producer names of 4.9 MB", names),
    Attack("initial subscription names of 4.9 MB", initial_subscriptions),
    Attack("connect, produce, acknowledge, close", cycles, times=8),
    Attack("producers come and go", producers_come_and_go),
    Attack("producers of ever new names", named_producers),
    Attack("9,000 producers wait for their turn", producers_wait),
    Attack("5,000 waiting producers leave at once", waiting_producers_leave),
    Attack("9,500 producers join", crowd_of_producers),
    Attack("producers fence each other off", fencing),
    Attack("one producer opened over and over", reused_requests),
    Attack("512 new logs", many_logs),
    Attack("topics created by use", auto_created, litters=True),
    Attack("connections ended without a word", connections),
)
