"""Attacks of those who publish: messages with any metadata, and schemas."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from typing import Any

from benchmarks.hostile.commands import LONG, flow, frame, joined, pairs, producer, send, subscribe
from benchmarks.hostile.peers import PING, Peer
from benchmarks.hostile.scenes import Attack, Scene
from protocol.wire.pulsar_api_pb2 import ZLIB, EncryptionKeys, Schema


def _producer(scene: Scene, topic: str = "hostile") -> tuple[Peer, str]:
    segment = scene.segment(topic)
    peer = scene.peer()
    peer.ask(producer(1, segment))
    return peer, segment


def _key_shared(scene: Scene, segment: str, permits: int = 1_000_000) -> Peer:
    peer = scene.peer()
    for number in (1, 2):
        peer.ask(subscribe(number, segment, kind="Key_Shared"))
        peer.say(flow(number, permits))
    return peer


def _record(field: str, filling: int) -> bytes:
    record = {
        "type": "record",
        "name": "r",
        "doc": "d" * filling,
        "fields": [{"name": field, "type": ["null", "string"], "default": None}],
    }
    return json.dumps(record).encode()


def ordering_keys(scene: Scene) -> Iterator[None]:
    peer, segment = _producer(scene)
    taker = _key_shared(scene, segment)
    messages = [send(1, at, ordering_key=b"k" * scene.many(LONG)) for at in range(5)]
    yield
    for message in messages:
        peer.say(message)
    taker.hear(5)


def partition_keys(scene: Scene) -> Iterator[None]:
    """Keys that are said to be base64, and are not quite."""
    peer, segment = _producer(scene)
    taker = _key_shared(scene, segment)
    messages = [
        send(1, at, partition_key="k" * (scene.many(LONG) // 4 * 4 + 1), partition_key_b64_encoded=True)
        for at in range(5)
    ]
    yield
    for message in messages:
        peer.say(message)
    taker.hear(5)


def long_metadata(scene: Scene) -> Iterator[None]:
    """A million of everything that repeats in a message's metadata."""
    peer, segment = _producer(scene)
    taker = _key_shared(scene, segment)
    metadata: dict[str, Any] = {
        "replicate_to": [""] * scene.many(500_000),
        "properties": pairs(scene.many(1_000_000), 1),
        "encryption_keys": [EncryptionKeys(key="", value=b"")] * scene.many(200_000),
        "compacted_batch_indexes": [1] * scene.many(500_000),
    }
    messages = [send(1, at, **metadata) for at in range(3)]
    yield
    for message in messages:
        peer.say(message)
    taker.hear(3)


def batches(scene: Scene) -> Iterator[None]:
    """Tiny messages that claim to be many."""
    peer, segment = _producer(scene)
    taker = _key_shared(scene, segment)
    claims = [1, 100_000, 100_001, 2**31 - 1]
    frames = [
        send(1, at, messages=claims[at % 4], num_messages_in_batch=claims[(at // 4) % 4], partition_key=f"{at}")
        for at in range(scene.many(20_000))
    ]
    yield
    peer.say(joined(frames))
    peer.await_calm()
    taker.await_calm()


def bombs(scene: Scene) -> Iterator[None]:
    """What unfolds to a gigabyte, if anybody unfolds it."""
    peer, segment = _producer(scene)
    taker = _key_shared(scene, segment)
    payload = zlib.compress(bytes(scene.many(1_000_000_000) // 10), 9)
    frames = [
        send(1, at, payload, compression=ZLIB, uncompressed_size=2**32 - 1, num_messages_in_batch=1_000)
        for at in range(100)
    ]
    yield
    for message in frames:
        peer.say(message)
    peer.hear(100)
    taker.await_calm()


def chunks(scene: Scene) -> Iterator[None]:
    peer, segment = _producer(scene)
    taker = scene.peer()
    taker.ask(subscribe(1, segment) + subscribe(2, segment), 2)
    taker.say(flow(1, 1_000_000) + flow(2, 1_000_000))
    counts = [(0, 2**31 - 1), (-1, -1), (2**31 - 1, 2), (1, 2**31 - 1), (5, 3)]
    frames = []
    for at in range(scene.many(20_000)):
        chunk, of = counts[at % len(counts)]
        frames.append(
            send(
                1, at, chunk=True, uuid=f"{at}", chunk_id=chunk, num_chunks_from_msg=of, total_chunk_msg_size=2**31 - 1
            )
        )
    yield
    peer.say(joined(frames))
    peer.await_calm()
    taker.await_calm()


def unfinished_chunks(scene: Scene) -> Iterator[None]:
    """Nothing but first chunks, each of another message, for consumers that have no room."""
    peer, segment = _producer(scene)
    taker = scene.peer()
    taker.ask(subscribe(1, segment))
    taker.say(flow(1, 1))
    frames = [
        send(1, at, chunk=True, uuid=f"{at:01000}", chunk_id=0, num_chunks_from_msg=2, total_chunk_msg_size=2)
        for at in range(scene.many(30_000))
    ]
    yield
    peer.ask(joined(frames), len(frames))
    taker.ask(flow(1, 1_000_000) + PING)


def delays(scene: Scene) -> Iterator[None]:
    """Delivery at times that make no sense, and all in the wrong order."""
    peer, segment = _producer(scene)
    taker = scene.peer()
    taker.ask(subscribe(1, segment))
    taker.say(flow(1, 1_000_000))
    absurd = [2**63 - 1, -(2**63), -1, 0, 4_000_000_000_000]
    count = scene.many(40_000)
    frames = [
        send(1, at, deliver_at_time=absurd[at % 5] if at % 2 else 4_000_000_000_000 + count - at) for at in range(count)
    ]
    yield
    peer.say(joined(frames))
    peer.await_calm()
    taker.await_calm()


def damaged(scene: Scene) -> Iterator[None]:
    """Messages whose checksum is wrong, or whose sizes do not fit."""
    segment = scene.segment("damaged")
    good = bytearray(send(1, 1, b"x" * 1_000))
    good[-1] ^= 1
    some = joined([bytes(good)] * 500)

    def storm(peer: Peer) -> None:
        peer.ask(producer(1, segment))
        peer.ask(some)
        peer.await_calm()

    yield
    scene.again(storm)


def schemas(scene: Scene) -> Iterator[None]:
    topic = scene.topic("schemas")
    peer = scene.peer()
    filling = scene.many(8_000)
    count = scene.many(2_000)
    frames = [
        frame(
            "GET_OR_CREATE_SCHEMA",
            request_id=at,
            topic=f"topic://public/default/{topic}",
            schema=Schema(name="s", type=Schema.Avro, schema_data=_record(f"f{at}", filling)),
        )
        for at in range(count)
    ]
    yield
    peer.ask(joined(frames), count)


def deep_schemas(scene: Scene) -> Iterator[None]:
    topic = scene.topic("schemas")
    depth = scene.many(100_000)
    texts = [
        b"[" * depth + b"]" * depth,
        b'{"type":' * depth + b'"int"' + b"}" * depth,
        b'{"type":"array","items":' * 20_000 + b'"int"' + b"}" * 20_000,
        b"1" * scene.many(500_000),
        b"[" + b"1e9," * scene.many(100_000) + b"1]",
    ]
    frames = [
        frame(
            "GET_OR_CREATE_SCHEMA",
            request_id=at,
            topic=f"topic://public/default/{topic}",
            schema=Schema(name="s", type=kind, schema_data=text),
        )
        for at, (text, kind) in enumerate((text, kind) for text in texts for kind in (Schema.Avro, Schema.Json))
    ]
    peer = scene.peer()
    yield
    while scene.goes_on:
        for message in frames:
            peer.ask(message)


def wide_schemas(scene: Scene) -> Iterator[None]:
    """Records of so many fields, and unions of so many records, that comparing two takes all the steps there are."""
    topic = scene.topic("schemas")
    fields = scene.many(4_000)

    def record(turn: int) -> bytes:
        union = [
            {"type": "record", "name": f"u{at}", "fields": [{"name": f"x{turn}", "type": "int", "default": 0}]}
            for at in range(scene.many(150))
        ]
        columns: list[dict[str, object]] = [
            {"name": f"f{at}", "type": ["null", "string"], "default": None, "aliases": [f"a{at}-{turn}"]}
            for at in range(fields)
        ]
        return json.dumps({"type": "record", "name": "r", "fields": [*columns, {"name": "u", "type": union}]}).encode()

    frames = [
        frame(
            "GET_OR_CREATE_SCHEMA",
            request_id=turn,
            topic=f"topic://public/default/{topic}",
            schema=Schema(name="s", type=Schema.Avro, schema_data=record(turn)),
        )
        for turn in range(8)
    ]
    peer = scene.peer()
    yield
    while scene.goes_on:
        peer.ask(joined(frames), len(frames))


PUBLISHING = (
    Attack("ordering keys of 4.9 MB", ordering_keys),
    Attack("partition keys of 4.9 MB in bad base64", partition_keys),
    Attack("metadata of a million parts", long_metadata),
    Attack("batches that claim millions", batches),
    Attack("compressed bombs", bombs),
    Attack("absurd chunks", chunks),
    Attack("30,000 first chunks", unfinished_chunks),
    Attack("absurd delays", delays),
    Attack("damaged messages", damaged),
    Attack("2,000 schemas of 8 KB", schemas),
    Attack("deep schemas", deep_schemas),
    Attack("wide schemas", wide_schemas),
)
