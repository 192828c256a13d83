"""What the client of the admin API does when the node that leads a topic is not there."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from gateway import admin_client
from gateway.admin_client import AdminClient, AdminError
from protocol.names import TopicName
from tests.gateway.vela_command import AdminStub, admin_stub, assert_one_sentence, vela
from tests.support.ports import HOST, ReservedPort

TOPIC = TopicName.scalable("public", "default", "t")
SPLIT = "/admin/v2/scalable/public/default/t/split/0"


@dataclass
class Clock:
    """A clock that only pauses move; `on_pause` is told how many there were."""

    now: float = 0.0
    pauses: list[float] = field(default_factory=list)
    on_pause: Callable[[int], None] = lambda _: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        self.on_pause(len(self.pauses))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(admin_client, "time", clock)
    return clock


@pytest.fixture
def dead() -> Iterator[str]:
    """The address of a node that refuses every connection."""
    port = ReservedPort()
    yield f"http://{HOST}:{port.number}"
    port.release()


@pytest.fixture
def follower(dead: str) -> Iterator[AdminStub]:
    """A node that sends a split on to the dead one."""
    with admin_stub() as stub:
        stub.answer("POST", SPLIT, 307)
        stub.redirects[SPLIT] = f"{dead}{SPLIT}"
        yield stub


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a node whose machine answers nothing, not even with a refusal."""
    monkeypatch.setattr(admin_client, "_CONNECT_TIMEOUT", 0.5)
    with socket.create_server((HOST, 0), backlog=0) as listener, socket.create_connection(listener.getsockname()):
        # Nobody accepts: with one connection waiting the kernel lets the requests for others fall.
        yield f"http://{HOST}:{listener.getsockname()[1]}"


def lets_the_follower_lead(follower: AdminStub, after: int) -> Callable[[int], None]:
    def on_pause(pauses: int) -> None:
        if pauses == after:
            del follower.redirects[SPLIT]
            follower.answer("POST", SPLIT, 204)

    return on_pause


def test_call_that_is_sent_to_a_dead_leader_is_repeated_until_another_one_leads(
    follower: AdminStub, clock: Clock
) -> None:
    clock.on_pause = lets_the_follower_lead(follower, after=7)
    with AdminClient(follower.url) as client:
        client.split(TOPIC, 0)
    assert len(clock.pauses) == 7
    assert [target for _, target, _ in follower.requests] == [SPLIT] * 8


def test_call_that_is_sent_to_a_lost_machine_is_repeated_until_another_node_leads(
    follower: AdminStub, clock: Clock, lost: str
) -> None:
    follower.redirects[SPLIT] = f"{lost}{SPLIT}"
    clock.on_pause = lets_the_follower_lead(follower, after=2)
    with AdminClient(follower.url) as client:
        client.split(TOPIC, 0)
    assert len(clock.pauses) == 2


def test_lost_machine_of_the_node_itself_is_named_soon(lost: str, clock: Clock) -> None:
    with AdminClient(lost) as client, pytest.raises(AdminError, match="no Vela answers"):
        client.split(TOPIC, 0)
    assert clock.pauses == []


def test_command_that_is_sent_to_a_dead_leader_waits_for_another_one(follower: AdminStub, clock: Clock) -> None:
    clock.on_pause = lets_the_follower_lead(follower, after=3)
    outcome = vela("topics", "split", "t", "0", "--admin-url", follower.url)
    assert (outcome.code, outcome.err) == (0, "")
    assert len(clock.pauses) == 3


def test_dead_leader_that_stays_is_named_when_the_time_is_over(follower: AdminStub, clock: Clock, dead: str) -> None:
    with AdminClient(follower.url, timeout=10) as client, pytest.raises(AdminError) as error:
        client.split(TOPIC, 0)
    assert dead in str(error.value)
    assert error.value.status == 0
    assert 9 <= sum(clock.pauses) <= 10
    outcome = vela("topics", "split", "t", "0", "--admin-url", follower.url)
    assert_one_sentence(outcome)
    assert dead in outcome.err


def test_refused_connection_at_the_node_itself_is_not_repeated(dead: str, clock: Clock) -> None:
    with AdminClient(dead) as client, pytest.raises(AdminError, match="no Vela answers"):
        client.split(TOPIC, 0)
    assert clock.pauses == []


@pytest.mark.parametrize("status", [404, 409, 500, 503])
def test_answer_of_a_leader_that_may_have_done_it_is_not_repeated(
    follower: AdminStub, clock: Clock, status: int
) -> None:
    del follower.redirects[SPLIT]
    follower.answer("POST", SPLIT, status, {"reason": "no"})
    with AdminClient(follower.url) as client, pytest.raises(AdminError) as error:
        client.split(TOPIC, 0)
    assert (error.value.status, clock.pauses) == (status, [])
