"""Attacks of those who only connect: frames that are cut off, unknown, nested, or out of place."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from benchmarks.hostile.commands import LONG, command, frame, joined
from benchmarks.hostile.peers import PING, Gone, Peer
from benchmarks.hostile.scenes import Attack, Scene
from benchmarks.readers import connect_message
from protocol.wire.pulsar_api_pb2 import BaseCommand

_TWO_SIZES = struct.Struct(">II")
_FRAME = 5_242_880


def _framed(data: bytes) -> bytes:
    return _TWO_SIZES.pack(4 + len(data), len(data)) + data


def half_frames(scene: Scene) -> Iterator[None]:
    announced = _TWO_SIZES.pack(_FRAME, _FRAME - 4)
    filling = bytes(scene.many(_FRAME - 100))
    peers = [scene.peer() for _ in range(scene.many(200))]
    yield
    for peer in peers:
        try:
            peer.say(announced + filling)
        except Gone:
            continue
    while scene.goes_on:
        with Peer(scene.pulsar, scene.account) as peer:
            peer.await_calm()


def trickled_frames(scene: Scene) -> Iterator[None]:
    """A byte at a time."""
    peers = [scene.peer() for _ in range(50)]
    message = frame("AUTH_RESPONSE", client_version="v" * 10_000)
    yield
    for at in range(len(message)):
        if not scene.goes_on:
            break
        for peer in peers:
            peer.say(message[at : at + 1])


def unknown(scene: Scene) -> Iterator[None]:
    some = joined([_framed(b"\x08\x63"), _framed(b"\x08\xff\xff\x03")] * 5_000)
    yield
    scene.again(lambda peer: peer.ask(some + PING))


def tiny_fields(scene: Scene) -> Iterator[None]:
    """Millions of fields that nobody knows, in one command."""
    data = command("PING").SerializeToString() + b"\xc0\x3e\x01" * scene.many(1_600_000)
    unknown_too = b"\x08\x63" + b"\xc0\x3e\x01" * scene.many(1_600_000)
    yield
    scene.again(lambda peer: peer.ask(_framed(data) + _framed(unknown_too) + PING, 2))


def repeated_bodies(scene: Scene) -> Iterator[None]:
    """The body of a command a million times over, which parsers merge."""
    one = command("SEEK", consumer_id=1, request_id=1).SerializeToString()[2:]
    data = b"\x08\x1c" + one * (scene.many(LONG) // len(one))
    yield
    scene.again(lambda peer: peer.ask(_framed(data) + PING))


def all_bodies(scene: Scene) -> Iterator[None]:
    """Every command with nothing in it, each on a connection of its own, as it may cost that."""
    messages = [_framed(BaseCommand(type=number).SerializePartialToString()) for number in BaseCommand.Type.values()]
    yield
    while scene.goes_on:
        for message in messages:
            try:
                with Peer(scene.pulsar, scene.account) as peer:
                    peer.say(message)
                    peer.await_calm()
            except Gone:
                continue


def nested(scene: Scene) -> Iterator[None]:
    """Groups within groups, which are skipped by descending into them."""
    deep = b"\xc3\x3e" * scene.many(2_000_000)
    yield
    scene.again(lambda peer: peer.ask(_framed(b"\x08\x12\x92\x01\x00" + deep) + PING))


def twice(scene: Scene) -> Iterator[None]:
    yield
    while scene.goes_on:
        try:
            with Peer(scene.pulsar, scene.account) as peer:
                peer.say(connect_message())
                peer.await_calm()
        except Gone:
            continue


def signs_of_life(scene: Scene) -> Iterator[None]:
    some = joined([frame("PONG")] * 20_000)
    yield
    scene.again(lambda peer: peer.ask(some + PING))


def pings_unread(scene: Scene) -> Iterator[None]:
    """Questions by somebody who does not read the answers."""
    some = PING * 20_000
    yield
    peers = [scene.peer(deaf=True) for _ in range(20)]
    for peer in peers:
        peer.say(some)


def pings(scene: Scene) -> Iterator[None]:
    some = PING * 10_000
    yield
    scene.again(lambda peer: peer.ask(some, 10_000))


def unsupported(scene: Scene) -> Iterator[None]:
    some = joined(
        frame("NEW_TXN", request_id=at)
        + frame("ADD_PARTITION_TO_TXN", request_id=at, partitions=["p"] * 50)
        + frame("AUTH_RESPONSE", client_version="v" * 1_000)
        for at in range(1_000)
    )
    yield
    scene.again(lambda peer: peer.ask(some, 3_000))


def long_and_unsupported(scene: Scene) -> Iterator[None]:
    message = frame("ADD_PARTITION_TO_TXN", request_id=1, partitions=["p"] * scene.many(1_600_000))
    yield
    scene.again(lambda peer: peer.ask(message))


def no_text(scene: Scene) -> Iterator[None]:
    """Strings that are not UTF-8, and a version of the client as long as it may be."""
    bad = frame("GET_SCHEMA", request_id=1, topic="x" * 100).replace(b"x" * 100, b"\xff" * 100)
    yield
    while scene.goes_on:
        try:
            with Peer(scene.pulsar, scene.account, greet=False) as peer:
                peer.say(frame("CONNECT", client_version="v" * 16_000, protocol_version=2**31 - 1))
                peer.say(bad)
                peer.await_calm()
        except Gone:
            continue


def silent(scene: Scene) -> Iterator[None]:
    """Connections that say nothing at all."""
    yield
    for _ in range(scene.many(2_000)):
        scene.peer(greet=False)


CONNECTING = (
    Attack("200 connections stopped inside a frame of 5 MB", half_frames),
    Attack("frames that trickle", trickled_frames),
    Attack("unknown commands", unknown),
    Attack("1.6 million unknown fields", tiny_fields),
    Attack("a body a million times over", repeated_bodies),
    Attack("every command with nothing in it", all_bodies),
    Attack("2 million nested groups", nested),
    Attack("CONNECT twice", twice),
    Attack("PONG flood", signs_of_life),
    Attack("PING flood", pings),
    Attack("PING flood that nobody reads", pings_unread),
    Attack("commands that are not supported", unsupported),
    Attack("5 MB of a command that is not supported", long_and_unsupported),
    Attack("text that is none", no_text),
    Attack("2,000 silent connections", silent),
)
