"""Attacks of those who take messages: acknowledgements, redeliveries, positions."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.hostile.commands import LONG, as_many, flow, frame, joined, producer, send, subscribe
from benchmarks.hostile.peers import PING, Peer
from benchmarks.hostile.scenes import Attack, Scene
from protocol.wire.pulsar_api_pb2 import STICKY, IntRange, KeySharedMeta, MessageIdData

# The most that a field without a sign of 32 bits says.
_MOST = 2**32 - 1


def _at_filled(scene: Scene, count: int) -> tuple[Peer, int]:
    """A consumer of such a segment, from its first message on."""
    segment, ledger = scene.filled(count)
    peer = scene.peer()
    peer.ask(subscribe(1, segment, initialPosition="Earliest"))
    return peer, ledger


def _ids(count: int, ledger: int = 0, step: int = 1, **fields: object) -> list[MessageIdData]:
    return [MessageIdData(ledgerId=ledger, entryId=number * step, **fields) for number in range(count)]  # type: ignore[arg-type]  # any field


def stray_acks(scene: Scene) -> Iterator[None]:
    segment, ledger = scene.filled(scene.many(60_000))
    peer = scene.peer()
    count = scene.many(3_000)
    for number in range(count):
        peer.say(subscribe(number, segment, initialPosition="Earliest"))
    peer.hear(count - peer.answered)
    message = frame(
        "ACK", consumer_id=0, ack_type="Individual", message_id=_ids(scene.many(60_000), ledger), request_id=9
    )
    yield
    peer.ask(message)
    peer.await_calm()


def id_lists(scene: Scene) -> Iterator[None]:
    peer, ledger = _at_filled(scene, 1_000)
    ids = as_many(MessageIdData(ledgerId=ledger, entryId=5), scene.many(LONG))
    message = frame("ACK", consumer_id=1, ack_type="Individual", message_id=ids)
    yield
    while scene.goes_on:
        peer.ask(message + PING)


def ack_sets(scene: Scene) -> Iterator[None]:
    peer, ledger = _at_filled(scene, 1_000)
    ids = [
        MessageIdData(ledgerId=ledger, entryId=number % 1_000, ack_set=[1] * 100)
        for number in range(scene.many(23_000))
    ]
    message = frame("ACK", consumer_id=1, ack_type="Individual", message_id=ids)
    yield
    for _ in range(5):
        peer.ask(message + PING)


def one_long_ack_set(scene: Scene) -> Iterator[None]:
    """For an entry that has a single message."""
    peer, ledger = _at_filled(scene, 1_000)
    words = [1] * scene.many(2_400_000)
    messages = [
        frame(
            "ACK",
            consumer_id=1,
            ack_type="Individual",
            message_id=[MessageIdData(ledgerId=ledger, entryId=at, ack_set=words)],
        )
        for at in range(4)
    ]
    yield
    for message in messages:
        peer.ask(message + PING)


def half_messages(scene: Scene) -> Iterator[None]:
    """The first chunks of messages are acknowledged while their second ones wait."""
    segment = scene.segment("chunks")
    ledger = scene.ledger(segment)
    count = scene.many(3_000)
    peer = scene.peer()
    for number, (start, end), room in ((1, (0, 65_000), count), (2, (65_500, 65_535), 1_000)):
        sharing = KeySharedMeta(keySharedMode=STICKY, hashRanges=[IntRange(start=start, end=end)])
        peer.ask(subscribe(number, segment, kind="Key_Shared", keySharedMeta=sharing))
        peer.say(flow(number, room))
    # One sends the first chunks and another the second ones, or they would not be in order.
    sender = scene.peer()
    for part in (1, 2):
        sender.ask(producer(part, segment))
        some = (
            send(part, at, chunk=True, uuid=f"{at}", chunk_id=part - 1, num_chunks_from_msg=2, partition_key="k")
            for at in range(count)
        )
        sender.ask(joined(some), count)
    message = frame("ACK", consumer_id=1, ack_type="Individual", message_id=_ids(count, ledger), request_id=9)
    yield
    peer.ask(message + PING)
    peer.await_calm()


def deep_ids(scene: Scene) -> Iterator[None]:
    """Ids of a first chunk inside ids of a first chunk, as deep as parsers go."""
    deep = MessageIdData(ledgerId=0, entryId=0)
    for _ in range(90):
        deep = MessageIdData(ledgerId=0, entryId=0, first_chunk_message_id=deep)
    segment, _ = scene.filled(10)
    message = frame("ACK", consumer_id=1, ack_type="Individual", message_id=[deep] * scene.many(5_000))
    peer = scene.peer()
    peer.ask(subscribe(1, segment))
    yield
    while scene.goes_on:
        peer.ask(message + PING)


def redeliveries(scene: Scene) -> Iterator[None]:
    peer, ledger = _at_filled(scene, 1_000)
    ids = as_many(MessageIdData(ledgerId=ledger, entryId=500), scene.many(LONG))
    message = frame("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1, message_ids=ids)
    yield
    for _ in range(5):
        peer.ask(message + PING)


def redeliver_all(scene: Scene) -> Iterator[None]:
    """Again and again what one holds, as soon as it came."""
    count = scene.many(20_000)
    peer, _ = _at_filled(scene, count)
    peer.ask(flow(1, count), count)
    message = frame("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1)
    yield
    while scene.goes_on:
        peer.ask(joined([message, flow(1, _MOST)] * 10), 10)


def holes(scene: Scene) -> Iterator[None]:
    """Every second message is acknowledged, each in a request that is answered."""
    count = scene.many(40_000)
    peer, ledger = _at_filled(scene, count)
    messages = [
        frame(
            "ACK",
            consumer_id=1,
            ack_type="Individual",
            message_id=[MessageIdData(ledgerId=ledger, entryId=at)],
            request_id=at,
        )
        for at in range(1, count, 2)
    ]
    yield
    peer.ask(joined(messages), len(messages))


def seeks(scene: Scene) -> Iterator[None]:
    segment, _ = scene.filled(1_000)

    def storm(peer: Peer) -> None:
        peer.say(subscribe(1, segment))
        peer.hear(1)
        peer.ask(joined(frame("SEEK", consumer_id=1, request_id=at, message_publish_time=at) for at in range(200)))
        peer.await_calm()

    yield
    scene.again(storm)


def last_ids(scene: Scene) -> Iterator[None]:
    segment, _ = scene.filled(1_000)
    peer = scene.peer()
    peer.ask(subscribe(1, segment))
    some = joined(frame("GET_LAST_MESSAGE_ID", consumer_id=1, request_id=at) for at in range(4_000))
    yield
    while scene.goes_on:
        peer.ask(some, 4_000)


def ids_of_everything(scene: Scene) -> Iterator[None]:
    """Commands for consumers and producers that are not there, and the same request ids over and over."""
    some = joined(
        joined(
            [
                frame("ACK", consumer_id=at, ack_type="Cumulative", message_id=_ids(3), request_id=1),
                frame("SEEK", consumer_id=at, request_id=1, message_publish_time=2**63),
                frame("UNSUBSCRIBE", consumer_id=at, request_id=1),
                frame("CLOSE_CONSUMER", consumer_id=at, request_id=1),
                frame("CLOSE_PRODUCER", producer_id=at, request_id=1),
                frame("GET_LAST_MESSAGE_ID", consumer_id=at, request_id=1),
                send(at, 1),
            ]
        )
        for at in range(1_000)
    )

    yield
    scene.again(lambda peer: peer.ask(some, 6_000))


ACKNOWLEDGING = (
    Attack("60,000 acknowledgements beside 3,000 consumers", stray_acks),
    Attack("first chunks acknowledged", half_messages),
    Attack("5 MB of ids acknowledged", id_lists),
    Attack("5 MB of ack sets", ack_sets),
    Attack("one ack set of 2.4 million words", one_long_ack_set),
    Attack("5 MB of redeliveries", redeliveries),
    Attack("redelivery of everything in a loop", redeliver_all),
    Attack("every second message acknowledged", holes),
    Attack("seek storm", seeks),
    Attack("GET_LAST_MESSAGE_ID storm", last_ids),
    Attack("ids that nobody has", ids_of_everything),
    Attack("ids nested ninety deep", deep_ids),
)
