"""Each attack beside a healthy client, against that client alone, and the server's memory after it against before."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

import redis

from benchmarks.figures import Figure, Quantity
from benchmarks.hostile.attacker import Attacker, Deed, attacker
from benchmarks.hostile.attacks import ATTACKS
from benchmarks.hostile.healthy import Delays, Healthy, healthy
from benchmarks.hostile.scenes import Attack
from benchmarks.processes import cpu_seconds, resident_bytes
from benchmarks.server import QUIET, RunningServer, running_server, segment_urls

# Milliseconds that a healthy client may wait longer at p99. Requests of the admin API wait for their turn by design.
TARGET = 50.0
GET_TARGET = 250.0
# Megabytes that may stay: what the first use of everything takes, and what the allocator does not give back.
MEMORY_TARGET = 20.0
MEGABYTE = 2**20
TOPIC = "healthy"
_PATH = f"/admin/v2/scalable/public/default/{TOPIC}"
# Of the healthy client.
_CONNECTIONS = 2
_LEAVE_LIMIT = 10.0
# Megabytes by which a server may have grown in all to be attacked once more.
_REUSED = 30.0


@dataclass(frozen=True, slots=True)
class Scale:
    """In seconds: how long the client is measured alone, how long an attack may take, how long after it the client is
    still measured, and how long memory may take to come back."""

    alone: float
    attack: float
    after: float
    settle: float


FULL = Scale(alone=1.0, attack=2.0, after=0.3, settle=5.0)
QUICK = Scale(alone=0.2, attack=0.2, after=0.1, settle=0.2)


def measure(quick: bool) -> list[Figure]:
    return [figure for figures in measured(list(ATTACKS.values()), quick) for figure in figures]


def measured(attacks: Sequence[Attack], quick: bool) -> Iterator[list[Figure]]:
    """The figures of one attack after another."""
    scale = QUICK if quick else FULL
    left = deque(attacks)
    with healthy() as client, attacker() as enemy:
        while left:
            with running_server(QUIET) as server:
                server.create_topic(TOPIC, 1)
                client.open(server.pulsar_address, server.http_address, _PATH, segment_urls(TOPIC, 1)[0])
                fresh = resident_bytes(server.pid)
                is_fit = True
                while left and is_fit:
                    attack = left.popleft()
                    trial = _try(attack, server, client, enemy, scale, quick)
                    yield _figures(attack, trial)
                    # What one attack leaves behind must not be there for the next, nor hide what that one leaves.
                    grown = trial.memory.after - fresh
                    is_fit = quick or not (
                        attack.litters or trial.lingering or trial.beside.losses or grown > _REUSED * MEGABYTE
                    )


@dataclass(frozen=True, slots=True)
class _Memory:
    """In bytes."""

    before: int
    most: int
    after: int
    store_before: int
    store_after: int


@dataclass(frozen=True, slots=True)
class _Trial:
    """All that was seen of one attack."""

    alone: Delays
    beside: Delays
    deed: Deed
    memory: _Memory
    cpu: float  # seconds that the server used during the attack
    lingering: int  # connections that the server had not let go of
    unready: str  # why the preparation ended early, if it did


def _try(attack: Attack, server: RunningServer, client: Healthy, enemy: Attacker, scale: Scale, quick: bool) -> _Trial:
    client.begin()
    time.sleep(scale.alone)
    alone = client.end()
    before, store_before = resident_bytes(server.pid), _store_bytes(server)
    unready = enemy.prepare(attack.name, server.pulsar_address, server.http_address, quick)
    cpu = cpu_seconds(server.pid)
    client.begin()
    deed = enemy.attack(scale.attack * attack.times)
    time.sleep(scale.after)
    beside = client.end()
    cpu = cpu_seconds(server.pid) - cpu
    most = _most_bytes(server.pid)
    lingering, after = _settled(server, before + round(MEMORY_TARGET * MEGABYTE), scale.settle)
    memory = _Memory(before, most, after, store_before, _store_bytes(server))
    return _Trial(alone, beside, deed, memory, cpu, lingering, unready)


def _settled(server: RunningServer, enough: int, seconds: float) -> tuple[int, int]:
    """How many of the attacker's connections the server still has, which it gets some time for, and its resident memory
    a moment later."""
    deadline = time.monotonic() + _LEAVE_LIMIT
    while (lingering := round(server.metric("vela_connections")) - _CONNECTIONS) > 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    deadline = time.monotonic() + seconds
    while (there := resident_bytes(server.pid)) > enough and time.monotonic() < deadline:
        time.sleep(0.1)
    return max(0, lingering), there


def _most_bytes(pid: int) -> int:
    """The most that was ever resident."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"the kernel does not tell the largest resident memory of process {pid}")


def _store_bytes(server: RunningServer) -> int:
    with redis.Redis(unix_socket_path=str(server.store_socket)) as store:
        return int(store.info("memory")["used_memory"])


def _figures(attack: Attack, trial: _Trial) -> list[Figure]:
    alone, beside, memory = trial.alone, trial.beside, trial.memory
    kinds = [("PING", (beside.pings, alone.pings, TARGET)), ("SEND", (beside.sends, alone.sends, TARGET))]
    if attack.is_http:
        kinds.append(("GET", (beside.gets, alone.gets, GET_TARGET)))
    figures = [_delay(f"{attack.name}: {kind}, p99", *rest) for kind, rest in kinds]
    figures.append(
        Figure(
            name=f"{attack.name}: memory after",
            measured=Quantity(memory.after / MEGABYTE, "MB"),
            floor=Quantity(memory.before / MEGABYTE, "MB"),
            target=memory.before / MEGABYTE + MEMORY_TARGET,
            notes=tuple(_notes(trial)),
        )
    )
    return figures


def _delay(name: str, beside: Sequence[float], alone: Sequence[float], allowed: float) -> Figure:
    floor = _p99(alone)
    return Figure(
        name=name,
        measured=Quantity(_p99(beside), "ms"),
        floor=Quantity(floor, "ms"),
        target=floor + allowed,
        notes=(f"longest {max(beside) * 1e3:,.1f} ms, alone {max(alone) * 1e3:,.1f} ms",),
    )


def _p99(delays: Sequence[float]) -> float:
    """In milliseconds."""
    return quantiles(delays, n=100, method="inclusive")[98] * 1e3


def _notes(trial: _Trial) -> Iterator[str]:
    memory, deed = trial.memory, trial.deed
    account = deed.account
    answers = ", ".join(f"{count:,} {kind}" for kind, count in account.answers.most_common(5)) or "none"
    yield (
        f"at most {memory.most / MEGABYTE:,.0f} MB so far; the store has {memory.store_after / MEGABYTE:,.0f} MB after "
        f"{memory.store_before / MEGABYTE:,.0f} MB"
    )
    yield (
        f"the attack took {deed.seconds:.1f} s, and {trial.cpu:.1f} s of the server's CPU: "
        f"{account.sent / MEGABYTE:,.1f} MB sent, {account.connections:,} connections made, {account.closed:,} closed "
        f"by the server, answers: {answers}"
    )
    if trial.unready:
        yield f"its preparation ended early: {trial.unready}"
    if deed.ended:
        yield f"it ended early: {deed.ended}"
    if trial.lingering:
        yield f"{trial.lingering} of its connections were still there {_LEAVE_LIMIT:g} s after its end"
    if trial.beside.losses:
        yield f"the healthy client lost {trial.beside.losses} connections or answers"
