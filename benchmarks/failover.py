"""Fail-over: how long after a topic's leader was killed a consumer that comes anew gets its first assignment, which
only the next leader can give. Against the lease, during which nobody may take the place of the dead one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import redis

from benchmarks.figures import Figure, MeasurementFailed, Quantity
from benchmarks.readers import Readers, readers, subscribe_message
from benchmarks.server import QUIET, RunningServer, running_server, topic_url
from protocol.wire.pulsar_api_pb2 import BaseCommand

LEASE = 2.0
RENEWALS_PER_LEASE = 3
SETTINGS = QUIET | {"VELA_SESSION_LEASE": f"{LEASE:g}s"}
SEGMENTS = 4
SUBSCRIPTION = "failover"
# The lease, the moment that survivors wait so as not to race, and a fifth of a lease for everything else.
WORST_TARGET = 1.25


@dataclass(frozen=True, slots=True)
class Scale:
    rounds: int
    survivors: int


FULL = Scale(rounds=12, survivors=2)
QUICK = Scale(rounds=1, survivors=2)


@dataclass(frozen=True, slots=True)
class _Round:
    """Seconds: from the kill to the answer, what was left of the lease at the kill, and the same registration with a
    living leader."""

    taken: float
    lease_left: float
    undisturbed: float

    @property
    def after_lease(self) -> float:
        return self.taken - self.lease_left


def measure(quick: bool) -> list[Figure]:
    scale = QUICK if quick else FULL
    with (
        running_server(SETTINGS) as first,
        running_server(SETTINGS | {"VELA_STORE": first.store_url}) as second,
        readers() as clients,
        readers() as at_leader,
    ):
        survivors = (first, second)[: scale.survivors]
        rounds = [_round(number, scale, survivors, clients, at_leader) for number in range(scale.rounds)]
    return _figures(scale, rounds)


def _round(
    number: int, scale: Scale, survivors: Sequence[RunningServer], clients: Readers, at_leader: Readers
) -> _Round:
    """Start a node, have it lead a topic of its own, kill it, and register at a survivor."""
    topic = f"failover-{number}"
    survivor = survivors[number % len(survivors)]
    clients.connect(survivor.pulsar_address, 1)
    clients.greet(range(1))
    with running_server(SETTINGS | {"VELA_STORE": survivors[0].store_url}) as leader:
        leader.create_topic(topic, SEGMENTS)
        at_leader.connect(leader.pulsar_address, 1)
        at_leader.greet(range(1))
        at_leader.request([(0, subscribe_message(1, topic_url(topic), SUBSCRIPTION, "before"))])
        if leader.metric("vela_led_topics") != 1:
            raise MeasurementFailed("the node that was to be killed does not lead the topic")
        session = survivor.leader_of(topic)
        # Renewals come at regular times, so the kills are spread over the time between two of them.
        time.sleep(LEASE / RENEWALS_PER_LEASE * number / scale.rounds)
        lease_left = _lease_left(survivors[0], session)
        killed_at = time.monotonic()
        leader.kill()
        taken = _registered_at(clients, topic, 1, "after") - killed_at
        at_leader.disconnect()
    if survivor.leader_of(topic) in ("", session):
        raise MeasurementFailed("a consumer had its answer before the topic had another leader")
    asked_at = time.monotonic()
    undisturbed = _registered_at(clients, topic, 2, "later") - asked_at
    clients.disconnect()
    return _Round(taken, lease_left, undisturbed)


def _lease_left(server: RunningServer, session: str) -> float:
    with redis.Redis(unix_socket_path=os.fspath(server.store_socket)) as store:
        milliseconds = int(store.pttl(f"/nodes/{session}"))
    if milliseconds <= 0:
        raise MeasurementFailed("the leader that was to be killed has no lease")
    return milliseconds / 1e3


def _registered_at(clients: Readers, topic: str, consumer_id: int, name: str) -> float:
    """Register a consumer; when it had its assignment."""
    clients.send([(0, subscribe_message(consumer_id, topic_url(topic), SUBSCRIPTION, name))])
    while True:
        clients.expect()
        arrival = clients.arrived()
        command = BaseCommand.FromString(arrival.frame[8:])
        if command.type == BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE:
            continue  # to a consumer that was there before: it shares its segments with the new one
        response = command.scalableTopicSubscribeResponse
        if response.request_id != consumer_id or not response.assignment.segments:
            raise MeasurementFailed(f"a registration was answered with {command}")
        return arrival.times[0]


def _figures(scale: Scale, rounds: Sequence[_Round]) -> list[Figure]:
    taken = sorted(round_.taken for round_ in rounds)
    late = sorted(round_.after_lease for round_ in rounds)
    left = sorted(round_.lease_left for round_ in rounds)
    undisturbed = median(round_.undisturbed for round_ in rounds)
    lease = Quantity(LEASE, "s")
    return [
        Figure(
            name="fail-over after a kill, median",
            measured=Quantity(median(taken), "s"),
            floor=lease,
            target=None,
            notes=(
                f"the leader of a topic with {SEGMENTS} segments is killed, {scale.survivors} nodes are left: from "
                "SIGKILL until a consumer that registers right after it with one of these has its assignment; "
                f"rounds: {len(rounds)}, {taken[0]:.2f} to {taken[-1]:.2f} s",
                "floor: the lease, which begins anew with each of its three renewals: when they were killed, leaders "
                f"had {left[0]:.2f} to {left[-1]:.2f} s left of it",
                f"after the end of that lease it took {median(late) * 1e3:,.0f} ms in the median, "
                f"{late[0] * 1e3:,.0f} to {late[-1] * 1e3:,.0f} ms; survivors wait up to {LEASE / 20 * 1e3:.0f} ms of "
                "it so as not to race",
                f"a registration with a living leader takes {undisturbed * 1e3:,.1f} ms",
            ),
        ),
        Figure(
            name="fail-over after a kill, worst",
            measured=Quantity(taken[-1], "s"),
            floor=lease,
            target=WORST_TARGET,
            target_is_ratio=True,
            notes=("of the same kills",),
        ),
    ]
