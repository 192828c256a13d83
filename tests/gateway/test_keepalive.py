"""Handshake timeouts and keep-alive turns, with the time as an argument."""

from gateway.keepalive import Roster
from sessions.counters import CloseReason
from sessions.outbox import Outbox


class Recorded:
    outbox: Outbox

    def __init__(self, address: str = "127.0.0.1") -> None:
        self.address = address
        self.closed: list[CloseReason] = []
        self.beats = 0

    def close(self, reason: CloseReason) -> None:
        self.closed.append(reason)

    def beat(self) -> None:
        self.beats += 1


def roster() -> Roster:
    return Roster(handshake_timeout=10, keep_alive=30)


def test_client_that_does_not_connect_in_time_is_closed() -> None:
    clients, late = roster(), Recorded()
    clients.add(late, now=100)
    clients.tick(109.9)
    assert not late.closed
    clients.tick(110)
    assert late.closed == [CloseReason.HANDSHAKE_TIMEOUT]
    clients.tick(200)
    assert len(late.closed) == 1


def test_connected_client_is_asked_once_per_interval() -> None:
    clients, client = roster(), Recorded()
    clients.add(client, now=0)
    clients.settle(client, now=5)
    beats = []
    for now in range(0, 100, 5):
        clients.tick(now)
        beats.append(client.beats)
    assert beats.index(1) * 5 == 35
    assert beats.index(2) * 5 == 65
    assert not client.closed


def test_client_that_left_is_neither_counted_nor_looked_after() -> None:
    clients, first, second = roster(), Recorded(), Recorded()
    clients.add(first, now=0)
    clients.add(second, now=0)
    clients.settle(second, now=1)
    assert len(clients) == len(list(clients)) == 2
    clients.discard(first)
    clients.discard(second)
    clients.settle(first, now=1)  # its CONNECT was handled after it had been closed
    assert len(clients) == 0
    clients.tick(1000)
    assert (first.closed, second.beats) == ([], 0)


def test_crowd_is_served_in_turns() -> None:
    clients = roster()
    crowd = [Recorded() for _ in range(200)]
    for client in crowd:
        clients.add(client, now=0)
        clients.settle(client, now=0)
    turns = 1
    while clients.tick(30):
        turns += 1
    assert turns > 2
    assert all(client.beats == 1 for client in crowd)


def test_connections_are_counted_by_address_until_they_are_gone() -> None:
    clients, late, other = roster(), Recorded("10.0.0.1"), Recorded("10.0.0.2")
    clients.add(late, now=0)
    clients.add(other, now=0)
    clients.tick(10)
    assert (clients.count_from("10.0.0.1"), clients.count_from("10.0.0.2")) == (1, 1)
    clients.discard(late)
    assert (clients.count_from("10.0.0.1"), clients.count_from("10.0.0.2")) == (0, 1)
