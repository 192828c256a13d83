"""Very many namespace watches in one process: resident memory of the server per watch, and the time that one change
takes to reach all of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.bare import bare_sender
from benchmarks.figures import Figure, Quantity
from benchmarks.processes import cpu_seconds, resident_bytes
from benchmarks.readers import Readers, namespace_message, readers
from benchmarks.server import RunningServer, running_server

NAMESPACE = "public/default"
KB = 1024
# Ids from here on take two bytes in a frame, so that all frames have the same length.
FIRST_ID = 1000
WARM_UP_CHANGES = 1
# Watches per connection and request to the readers, whose answers have a time limit.
_AT_A_TIME = 10


@dataclass(frozen=True, slots=True)
class Scale:
    """How many of everything. The warm-up comes first and stays: it pays for what is allocated only once."""

    connections: int
    warm_up_each: int
    watches_each: int
    changes: int

    @property
    def watches_each_in_all(self) -> int:
        return self.warm_up_each + self.watches_each

    @property
    def watches(self) -> int:
        return self.connections * self.watches_each_in_all

    @property
    def counted(self) -> int:
        return self.connections * self.watches_each


FULL = Scale(connections=1000, warm_up_each=10, watches_each=90, changes=5)
QUICK = Scale(connections=20, warm_up_each=2, watches_each=8, changes=2)


@dataclass(frozen=True, slots=True)
class _Pushed:
    """Seconds from the request to the last arrival, the sender's CPU meanwhile, and one of the frames."""

    wall: float
    cpu: float
    frame: bytes


def measure(quick: bool) -> list[Figure]:
    scale = QUICK if quick else FULL
    with running_server() as server, readers() as clients:
        before_all = resident_bytes(server.pid)
        clients.connect(server.pulsar_address, scale.connections)
        clients.greet(range(scale.connections))
        _open(clients, scale.connections, 0, scale.warm_up_each)
        before = resident_bytes(server.pid)
        _open(clients, scale.connections, scale.warm_up_each, scale.watches_each)
        after = resident_bytes(server.pid)
        server.await_metric("vela_namespace_watches", scale.watches)
        pushed = [_push(server, clients, scale, number) for number in range(WARM_UP_CHANGES + scale.changes)]
        queued = server.metric('vela_pushes_total{way="queued"}')
    floors = _floors(scale, pushed[-1].frame)
    memory = Figure(
        name="memory per namespace watch",
        measured=Quantity((after - before) / scale.counted / KB, "KB"),
        floor=None,
        target=None,
        notes=(
            f"{(after - before) / KB**2:.1f} MB more resident memory with {scale.watches_each} further watches on each "
            f"of {scale.connections:,} connections that had {scale.warm_up_each}, all of one namespace",
            f"with connections and everything, {scale.watches:,} watches take {(after - before_all) / KB**2:.1f} MB",
        ),
    )
    return [memory, _time_figure(scale, pushed[WARM_UP_CHANGES:], floors, queued)]


def _open(clients: Readers, connections: int, first: int, each: int) -> None:
    for start in range(first, first + each, _AT_A_TIME):
        messages = [
            namespace_message(FIRST_ID + watch, NAMESPACE)
            for watch in range(start, min(start + _AT_A_TIME, first + each))
        ]
        clients.request([(number, message) for message in messages for number in range(connections)])


def _push(server: RunningServer, clients: Readers, scale: Scale, number: int) -> _Pushed:
    clients.follow(scale.watches_each_in_all)
    cpu = cpu_seconds(server.pid)
    asked_at = time.monotonic()
    server.create_topic(f"watches-{number}", 1)
    told = clients.followed()
    arrived_at = max(at for update in told for at in update.times)
    return _Pushed(arrived_at - asked_at, cpu_seconds(server.pid) - cpu, told[0].frame)


def _floors(scale: Scale, frame: bytes) -> list[_Pushed]:
    """A bare loop over all connections, once for every watch of a connection, with the same readers."""
    with bare_sender() as sender, readers() as clients:
        clients.connect(sender.address, scale.connections)
        sender.accept(scale.connections)
        sender.load(frame)
        floors = []
        for _ in range(WARM_UP_CHANGES + scale.changes):
            clients.follow(scale.watches_each_in_all)
            asked_at = time.monotonic()
            cpu = sender.send(scale.watches_each_in_all)
            arrived_at = max(at for update in clients.followed() for at in update.times)
            floors.append(_Pushed(arrived_at - asked_at, cpu, frame))
    return floors[WARM_UP_CHANGES:]


def _time_figure(scale: Scale, pushed: Sequence[_Pushed], floors: Sequence[_Pushed], queued: float) -> Figure:
    wall, cpu = median(push.wall for push in pushed), median(push.cpu for push in pushed)
    floor_wall, floor_cpu = median(floor.wall for floor in floors), median(floor.cpu for floor in floors)
    return Figure(
        name="one change to all namespace watches",
        measured=Quantity(wall, "s"),
        floor=Quantity(floor_wall, "s"),
        target=None,
        notes=(
            f"{scale.watches:,} watches on {scale.connections:,} connections, from the admin request to the last "
            f"arrival: median of {len(pushed)} changes, {scale.watches / wall:,.0f} frames/s",
            f"the server used {cpu / scale.watches * 1e6:.2f} us of CPU a frame, {cpu / floor_cpu:.2f} times the bare "
            f"loop; frames of {len(pushed[0].frame)} bytes; {queued:,.0f} did not go out at once",
            "floor: a bare loop of `sendmsg` with as many frames of this size to as many sockets and the same readers: "
            f"{scale.watches / floor_wall:,.0f} frames/s",
        ),
    )
