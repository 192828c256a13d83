"""Attacks of those who subscribe: crowds of consumers, their names, ranges and permits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from benchmarks.hostile.commands import LONG, flow, frame, joined, pairs, producer, send, subscribe
from benchmarks.hostile.peers import PING, Peer
from benchmarks.hostile.scenes import Attack, Scene
from protocol.wire.pulsar_api_pb2 import STICKY, IntRange, KeySharedMeta

# The most that a field without a sign of 32 bits says.
_MOST = 2**32 - 1


def _crowd(scene: Scene, count: int, kind: str, name: str = "") -> tuple[Peer, str]:
    """So many consumers of one subscription, on one connection."""
    segment = scene.segment("crowd")
    peer = scene.peer()
    for number in range(count):
        peer.say(subscribe(number, segment, kind=kind, consumer_name=name or f"consumer-{number}"))
    peer.hear(count - peer.answered)
    return peer, segment


def long_consumer_name(scene: Scene) -> Iterator[None]:
    segment = scene.segment("name")
    peer = scene.peer()
    message = subscribe(1, segment, kind="Key_Shared", consumer_name="n" * scene.many(1_000_000))
    yield
    peer.ask(message)


def crowd_leaves(scene: Scene) -> Iterator[None]:
    peer, _ = _crowd(scene, scene.many(9_500), "Shared")
    yield
    peer.close()


def key_shared_crowd_leaves(scene: Scene) -> Iterator[None]:
    peer, _ = _crowd(scene, scene.many(2_000), "Key_Shared")
    yield
    peer.close()


def key_shared_joins(scene: Scene) -> Iterator[None]:
    yield
    _crowd(scene, scene.many(1_000), "Key_Shared")


def same_name(scene: Scene) -> Iterator[None]:
    yield
    _crowd(scene, scene.many(9_500), "Key_Shared", name="same")


def failover_crowd(scene: Scene) -> Iterator[None]:
    yield
    _crowd(scene, scene.many(3_000), "Failover")


def exclusive_queue(scene: Scene) -> Iterator[None]:
    """All but one wait for a place, on a classic log as readers do."""
    yield
    _crowd(scene, scene.many(3_000), "Exclusive")


def priorities(scene: Scene) -> Iterator[None]:
    """A level of its own for each."""
    segment = scene.segment("levels")
    peer = scene.peer()
    count = scene.many(5_000)
    some = joined(subscribe(at, segment, priority_level=count - at) for at in range(count))
    yield
    peer.ask(some, count)


def failover_crowd_leaves(scene: Scene) -> Iterator[None]:
    peer, _ = _crowd(scene, scene.many(5_000), "Failover")
    yield
    peer.close()


def permits_of_a_crowd(scene: Scene) -> Iterator[None]:
    count = scene.many(9_500)
    peer, _ = _crowd(scene, count, "Shared")
    some = joined(flow(number, 1) for number in range(count))
    yield
    while scene.goes_on:
        peer.ask(some + PING)


def key_shared_beside_waiting(scene: Scene) -> Iterator[None]:
    """Consumers come and go while twenty thousand messages wait for one that has no room."""
    segment = scene.segment("waiting")
    peer = scene.peer()
    # The first has all keys but one, and room for nothing; the other has room and gets nothing.
    for number, (start, end), room in ((1, (0, 65_000), 1), (2, (65_500, 65_535), 1_000)):
        sharing = KeySharedMeta(keySharedMode=STICKY, hashRanges=[IntRange(start=start, end=end)])
        peer.ask(subscribe(number, segment, kind="Key_Shared", keySharedMeta=sharing))
        peer.say(flow(number, room))
    sender = scene.peer()
    sender.ask(producer(1, segment))
    count = scene.many(20_000)
    sender.ask(joined(send(1, number, partition_key=f"{number}") for number in range(count)), count)
    sharing = KeySharedMeta(keySharedMode=STICKY, hashRanges=[IntRange(start=65_100, end=65_100)])
    yield
    while scene.goes_on:
        peer.ask(subscribe(3, segment, kind="Key_Shared", keySharedMeta=sharing))
        peer.ask(frame("CLOSE_CONSUMER", consumer_id=3, request_id=4))


def sticky_ranges(scene: Scene) -> Iterator[None]:
    segment = scene.segment("ranges")
    peer = scene.peer()
    ranges = [IntRange(start=number % 65_536, end=number % 65_536) for number in range(scene.many(480_000))]
    message = subscribe(
        1, segment, kind="Key_Shared", keySharedMeta=KeySharedMeta(keySharedMode=STICKY, hashRanges=ranges)
    )
    yield
    for _ in range(3):
        peer.ask(message)


def permits(scene: Scene) -> Iterator[None]:
    segment, _ = scene.filled(1_000)
    peer = scene.peer()
    peer.ask(subscribe(1, segment))
    some = joined([flow(1, _MOST), flow(1, 0), flow(1, 2**31), flow(77, 5)] * 2_000)
    yield
    while scene.goes_on:
        peer.ask(some + PING)


def stats(scene: Scene) -> Iterator[None]:
    peer, _ = _crowd(scene, scene.many(2_000), "Shared")
    some = joined(frame("CONSUMER_STATS", consumer_id=1, request_id=at) for at in range(4_000))
    yield
    while scene.goes_on:
        peer.ask(some, 4_000)


def subscriptions(scene: Scene) -> Iterator[None]:
    segment = scene.segment("subscriptions")
    peer = scene.peer()
    count = scene.many(5_000)
    some = joined(subscribe(at, segment, f"subscription-{at}") for at in range(count))
    yield
    peer.ask(some, count)


def message_to_all(scene: Scene) -> Iterator[None]:
    """Messages for a thousand subscriptions that all have room."""
    segment = scene.segment("subscriptions")
    peer = scene.peer()
    count = scene.many(1_000)
    for at in range(count):
        peer.say(subscribe(at, segment, f"subscription-{at}"))
    peer.hear(count - peer.answered)
    # Not before: room for a consumer that is not there yet is none.
    peer.say(joined(flow(at, 100_000) for at in range(count)))
    sender = scene.peer()
    sender.ask(producer(1, segment))
    yield
    number = 0
    while scene.goes_on:
        sender.say(joined(send(1, number + at) for at in range(100)))
        number += 100
        peer.hear(100 * count)


def consumers_come_and_go(scene: Scene) -> Iterator[None]:
    segment = scene.segment("flood")
    peer = scene.peer()
    some = joined(
        subscribe(at, segment) + frame("CLOSE_CONSUMER", consumer_id=at, request_id=10_000 + at) for at in range(1_000)
    )
    yield
    while scene.goes_on:
        peer.ask(some, 1_000)


def readers_come_and_go(scene: Scene) -> Iterator[None]:
    """Subscriptions that are not durable, each with a name of its own."""
    segment = scene.segment("flood")
    peer = scene.peer()
    yield
    number = 0
    while scene.goes_on:
        some = []
        for _ in range(200):
            number += 1
            some.append(subscribe(number, segment, f"reader-{number}", "Exclusive", durable=False))
            some.append(frame("CLOSE_CONSUMER", consumer_id=number, request_id=number))
        peer.ask(joined(some), 200)


def long_subscription_names(scene: Scene) -> Iterator[None]:
    segment = scene.segment("long")
    numbers = itertools.count()

    def storm(peer: Peer) -> None:
        number = next(numbers)
        peer.ask(subscribe(number, segment, f"{number}" + "s" * scene.many(LONG)))

    yield
    scene.again(storm)


def long_properties(scene: Scene) -> Iterator[None]:
    segment = scene.segment("long")
    properties = pairs(scene.many(4_000_000), 10)
    message = subscribe(1, segment, metadata=properties, subscription_properties=[])

    def storm(peer: Peer) -> None:
        peer.ask(message)

    yield
    scene.again(storm)


CONSUMING = (
    Attack("Key_Shared consumer name of 1 MB", long_consumer_name),
    Attack("9,500 consumers leave at once", crowd_leaves),
    Attack("2,000 Key_Shared consumers leave at once", key_shared_crowd_leaves),
    Attack("1,000 Key_Shared consumers join", key_shared_joins),
    Attack("9,500 Key_Shared consumers of one name", same_name),
    Attack("3,000 Failover consumers join", failover_crowd),
    Attack("3,000 consumers wait for an Exclusive place", exclusive_queue),
    Attack("5,000 Failover consumers leave at once", failover_crowd_leaves),
    Attack("5,000 consumers of as many priorities", priorities),
    Attack("FLOW flood of 9,500 consumers", permits_of_a_crowd),
    Attack("Key_Shared consumers come and go beside 20,000 messages", key_shared_beside_waiting),
    Attack("5 MB of sticky ranges", sticky_ranges),
    Attack("permits of all sizes", permits),
    Attack("CONSUMER_STATS storm beside 2,000 consumers", stats),
    Attack("5,000 subscriptions of one log", subscriptions),
    Attack("messages for 1,000 subscriptions", message_to_all),
    Attack("consumers come and go", consumers_come_and_go),
    Attack("readers come and go", readers_come_and_go),
    Attack("subscription names of 4.9 MB", long_subscription_names),
    Attack("consumers with 4 MB of properties", long_properties),
)
