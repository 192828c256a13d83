"""What it costs to lead topics while nothing happens to them: resident memory of the node that leads them, and the
commands that it sends to the store. Against a bare task for each of them, and against the same node while the same
topics have no leader.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import redis
import trio
import trio.testing

from benchmarks.children import child
from benchmarks.creators import creators
from benchmarks.figures import Figure, MeasurementFailed, Quantity
from benchmarks.processes import cpu_seconds, resident_bytes
from benchmarks.readers import Readers, readers, subscribe_message
from benchmarks.server import RunningServer, running_server, topic_url

NAMESPACE = "public/default"
SUBSCRIPTION = "idle"
KB = 1024
CONNECTIONS = 10
MEMBERS = 2
# A node looks after itself at times that it varies a little, so two that do the same differ by some percent.
COMMANDS_TARGET = 1.25
# Consumers per request to the readers, whose answers have a time limit.
_AT_A_TIME = 500
_CALM = 2.0
_CALM_LIMIT = 120.0


@dataclass(frozen=True, slots=True)
class Scale:
    """How many of everything. The warm-up comes first and stays: it pays for what is allocated only once.

    In `seconds` a node does everything at least once that it does by the clock, with the default settings.
    """

    topics: int
    warm_up: int
    further: int
    seconds: float

    @property
    def led(self) -> int:
        return self.warm_up + self.topics


FULL = Scale(topics=10_000, warm_up=500, further=2000, seconds=60.0)
QUICK = Scale(topics=200, warm_up=20, further=50, seconds=4.0)


@dataclass(frozen=True, slots=True)
class _Idle:
    """What a node did in a while, by the store's count and the kernel's; the last two are per second."""

    commands: Counter[str]
    seconds: float
    bytes_sent: float  # by the store
    cpu: float

    @property
    def rate(self) -> float:
        return self.commands.total() / self.seconds

    def __str__(self) -> str:
        each = ", ".join(f"{name} {count / self.seconds:.1f}" for name, count in self.commands.most_common(5))
        return f"{each}; {self.bytes_sent / KB:.1f} KB/s from the store, {self.cpu * 1e3:.1f} ms/s of CPU"


def measure(quick: bool) -> list[Figure]:
    scale = QUICK if quick else FULL
    task = _bare_tasks(scale)
    with running_server() as server:
        empty = _idle(server, scale.seconds)
    with running_server() as server, readers() as clients, creators(server.http_address) as creating:
        creating.create(NAMESPACE, [_topic(number) for number in range(scale.led)])
        _check_leads(server, 0)
        unled = _idle(server, scale.seconds)
        clients.connect(server.pulsar_address, CONNECTIONS)
        clients.greet(range(CONNECTIONS))
        _register(clients, range(scale.warm_up), 0)
        _calm_down(server)
        before = resident_bytes(server.pid)
        _register(clients, range(scale.warm_up, scale.led), 0)
        _calm_down(server)
        leading = resident_bytes(server.pid) - before
        _check_leads(server, scale.led)
        idle = _idle(server, scale.seconds)
        _check_leads(server, scale.led)
        before_further = resident_bytes(server.pid)
        _register(clients, range(scale.further), 1)
        _calm_down(server)
        further = resident_bytes(server.pid) - before_further
    return [
        Figure(
            name="memory per led topic",
            measured=Quantity(leading / scale.topics / KB, "KB"),
            floor=Quantity(task / scale.topics / KB, "KB"),
            target=None,
            notes=(
                f"idle, with one segment and one consumer each: {leading / KB**2:.1f} MB more resident memory with "
                f"{scale.topics:,} topics that were led beside {scale.warm_up}; the consumers are on {CONNECTIONS} "
                "connections with the same node and are in the figure",
                f"a second consumer of a led topic takes {further / scale.further / KB:.2f} KB, measured with "
                f"{scale.further:,} of them",
                "floor: a bare trio task that waits for an event",
            ),
        ),
        Figure(
            name="store commands of an idle node",
            measured=Quantity(idle.rate, "/s"),
            floor=Quantity(unled.rate, "/s"),
            target=COMMANDS_TARGET,
            target_is_ratio=True,
            notes=(
                f"while nothing happens for {scale.seconds:g} s to {scale.led:,} topics that it leads; the difference "
                f"to the floor is {(idle.rate - unled.rate) / scale.led:+.4f} commands a second and topic",
                f"leading them: {idle}",
                f"floor: the same topics without a leader: {unled}",
                f"a node without any topic: {empty.rate:.1f}/s ({empty})",
            ),
        ),
    ]


def _topic(number: int) -> str:
    return f"idle-{number:05}"


def _register(clients: Readers, topics: range, member: int) -> None:
    """One further consumer for each of these topics."""
    for start in range(topics.start, topics.stop, _AT_A_TIME):
        messages = []
        for number in range(start, min(start + _AT_A_TIME, topics.stop)):
            consumer_id = number * MEMBERS + member
            message = subscribe_message(consumer_id, topic_url(_topic(number)), SUBSCRIPTION, f"consumer-{member}")
            messages.append((number % CONNECTIONS, message))
        clients.request(messages)


def _calm_down(server: RunningServer) -> None:
    """Return when no leader has looked at its topic for a while."""
    deadline = time.monotonic() + _CALM_LIMIT
    rounds = -1.0
    while (now := server.metric("vela_leader_rounds_total")) != rounds:
        if time.monotonic() > deadline:
            raise MeasurementFailed(f"leaders found something to do for {_CALM_LIMIT:g} s")
        rounds = now
        time.sleep(_CALM)


def _check_leads(server: RunningServer, expected: int) -> None:
    there = server.metric("vela_led_topics")
    if there != expected:
        raise MeasurementFailed(f"the server leads {there:.0f} topics, not {expected}")


def _idle(server: RunningServer, seconds: float) -> _Idle:
    with redis.Redis(unix_socket_path=os.fspath(server.store_socket)) as store:
        commands, sent, cpu = _calls(store), _bytes_sent(store), cpu_seconds(server.pid)
        started_at = time.monotonic()
        time.sleep(seconds)
        cpu = cpu_seconds(server.pid) - cpu
        seconds = time.monotonic() - started_at
        sent = _bytes_sent(store) - sent
        commands = _calls(store) - commands
    return _Idle(commands, seconds, sent / seconds, cpu / seconds)


def _calls(store: redis.Redis) -> Counter[str]:
    """How often each command was called so far, also by scripts; INFO is ours."""
    stats: dict[str, Any] = store.info("commandstats")
    return Counter(
        {
            name: stat["calls"]
            for key, stat in stats.items()
            if (name := key.removeprefix("cmdstat_")) not in ("info", "client|setinfo")
        }
    )


def _bytes_sent(store: redis.Redis) -> int:
    return int(store.info("stats")["total_net_output_bytes"])


def _bare_tasks(scale: Scale) -> int:
    """Resident memory of as many tasks that wait."""
    with child(_tasks_main) as process:
        process.ask(scale.warm_up)
        before = resident_bytes(process.pid)
        process.ask(scale.topics)
        return resident_bytes(process.pid) - before


def _tasks_main(pipe: Connection) -> None:
    trio.run(_start_tasks, pipe)


async def _start_tasks(pipe: Connection) -> None:
    async with trio.open_nursery() as nursery:
        while True:
            await trio.lowlevel.wait_readable(pipe.fileno())
            try:
                count = pipe.recv()[0]
            except EOFError:
                nursery.cancel_scope.cancel()
                return
            for _ in range(count):
                nursery.start_soon(trio.Event().wait)
            await trio.testing.wait_all_tasks_blocked()
            pipe.send(None)
