"""Where an attack takes place: the server's ports, how much of everything, and what the attacker has opened there."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Final

from benchmarks.hostile.commands import frame, joined, producer, send, subscribe
from benchmarks.hostile.peers import Account, Gone, Peer
from benchmarks.readers import Address, connect_message, watch_message
from benchmarks.server import segment_urls
from protocol.framing import Frame, FrameDecoder

SCALABLE: Final = "/admin/v2/scalable/public/default"
CLASSIC: Final = "/admin/v2/persistent/public/default"
_REQUEST_LIMIT = 60.0
# Of what an attack has in a full run.
_QUICK_SHARE: Final = 100


class Scene:
    """Attacks take what they need from here, so that it ends with them."""

    def __init__(self, pulsar: Address, http: Address, stem: str, *, quick: bool) -> None:
        """`stem` tells what is made here from what other attacks on the same server made."""
        self.pulsar = pulsar
        self.http = http
        self._stem = stem
        self.account = Account()
        self._quick = quick
        self._peers: list[Peer] = []

    def many(self, count: int) -> int:
        """So many, or so long, and far fewer in a quick run."""
        return max(2, count // _QUICK_SHARE) if self._quick else count

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self.account.ends_at

    def peer(self, *, greet: bool = True, deaf: bool = False) -> Peer:
        """A connection that stays until the attack is over."""
        peer = Peer(self.pulsar, self.account, greet=greet, deaf=deaf)
        self._peers.append(peer)
        return peer

    def again(self, act: Callable[[Peer], None], *, deaf: bool = False) -> None:
        """Do it until the time is up, on a new connection whenever the server has closed the last."""
        while self.goes_on:
            try:
                with Peer(self.pulsar, self.account, deaf=deaf) as peer:
                    while self.goes_on:
                        act(peer)
            except Gone:
                # A server that closes at once should not be measured by how fast we come back.
                time.sleep(0.01)

    def name(self, name: str) -> str:
        """What nothing else on this server is called."""
        return f"{self._stem}-{name}"

    def segment(self, name: str) -> str:
        """The segment of a new topic that has one."""
        return segment_urls(self.topic(name), 1)[0]

    def topic(self, name: str, segments: int = 1) -> str:
        """The local name of a new topic."""
        local = self.name(name)
        self.request("PUT", f"{SCALABLE}/{local}?numInitialSegments={segments}")
        return local

    def filled(self, count: int) -> tuple[str, int]:
        """A new segment with so many small messages, and what their ids begin with."""
        segment = self.segment("filled")
        with Peer(self.pulsar, self.account) as peer:
            peer.ask(producer(1, segment))
            peer.ask(joined(send(1, number) for number in range(count)), count)
        return segment, self.ledger(segment)

    def ledger(self, segment: str) -> int:
        """What the ids of a segment's messages begin with."""
        frames = connect_message() + subscribe(1, segment, "asking", "Exclusive", durable=False)
        with socket.create_connection(self.pulsar, timeout=_REQUEST_LIMIT) as sock:
            sock.sendall(frames)
            decoder = FrameDecoder()
            while True:
                for found in decoder.receive(sock.recv(65_536)):
                    assert isinstance(found, Frame)
                    if found.command.HasField("success"):
                        sock.sendall(frame("GET_LAST_MESSAGE_ID", consumer_id=1, request_id=2))
                    if found.command.HasField("getLastMessageIdResponse"):
                        return found.command.getLastMessageIdResponse.last_message_id.ledgerId

    def topics(self, namespace: str, names: Iterable[str]) -> None:
        """New topics of one segment each, made on the way that takes no request of HTTP for each."""
        with Peer(self.pulsar, self.account) as peer:
            asked = 0
            for number, name in enumerate(names):
                peer.say(watch_message(number, f"topic://{namespace}/{self.name(name)}"))
                asked += 1
            peer.hear(asked - peer.answered)

    def partitioned(self, name: str, partitions: int) -> str:
        """The local name of a new classic topic of so many logs."""
        local = self.name(name)
        self.request("PUT", f"{CLASSIC}/{local}/partitions", str(partitions))
        return local

    def logs(self) -> None:
        """Some two thousand logs of classic topics, which attacks share."""
        for number in range(4):
            self.request("PUT", f"{CLASSIC}/logs-{number}/partitions", str(self.many(500)))

    def request(self, method: str, path: str, body: str | None = None) -> int:
        """The status of the answer, which is read to its end."""
        connection = self.http_peer()
        try:
            return self.ask(connection, method, path, body)
        finally:
            connection.close()

    def ask(self, connection: HTTPConnection, method: str, path: str, body: str | None = None) -> int:
        """The same on a connection that stays."""
        connection.request(method, path, body, {} if body is None else {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.read()
        self.account.answers[f"HTTP {response.status}"] += 1
        return response.status

    def http_peer(self) -> HTTPConnection:
        return HTTPConnection(*self.http, timeout=max(1.0, min(_REQUEST_LIMIT, self.account.left)))

    def close(self) -> None:
        """Leave, with everything at once."""
        for peer in self._peers:
            peer.close()
        self._peers.clear()


@dataclass(frozen=True, slots=True)
class Attack:
    """What it does up to its `yield` is preparation; what comes then is the attack. A server may refuse any of it."""

    name: str
    act: Callable[[Scene], Iterator[None]]
    # Whether others who use the admin API are looked at, too.
    is_http: bool = False
    # How many times as long as others it takes: what adds up slowly is not seen in a moment.
    times: int = 1
    # Whether it leaves topics behind that would be in the way of the next.
    litters: bool = False
