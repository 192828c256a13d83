"""Nodes killed in the middle of splits and merges: every transition has happened whole or not at all."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest
import trio

from layout.layouts import Layout
from tests.e2e.controller_cluster import (
    SETTLE_LIMIT,
    ControllerCluster,
    host_and_port,
    running_cluster,
)
from tests.e2e.vela_process import SCALABLE
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

NODES: Final = 3
TOPICS: Final = tuple(f"kills-{number}" for number in range(8))
# Operations on one topic at the same time, each on segments of its own.
SIMULTANEOUS: Final = 2
# A kill comes while at least so many wait for their answers.
IN_FLIGHT: Final = 8
# Layouts are kept between these numbers of active segments, so that there is always something to split and to merge.
FEWEST, MOST = 3, 8
# What a node may answer that cannot do it now; nothing has happened then.
REFUSED: Final = frozenset({409, 503})


@dataclass(slots=True)
class Operation:
    """One split or merge, sent once: a client that does not retry, but goes where it is sent."""

    topic: str
    action: str  # as in the path, "split/3"
    seals: tuple[int, ...]
    url: str  # of the node that is asked; changes with a redirection
    sent: bool = False  # to the node that is asked now
    status: int | None = None
    ended: bool = False

    @property
    def in_flight(self) -> bool:
        return self.sent and not self.ended

    @property
    def interrupted(self) -> bool:
        """Sent, and not answered: it may have happened."""
        return self.sent and self.ended and self.status is None

    def send(self, stream: trio.SocketStream) -> None:
        """At once and whole, so that many of them are on their way before anything else happens."""
        path, host = f"{SCALABLE}/{self.topic}/{self.action}", urlsplit(self.url).netloc
        head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode()
        assert os.write(stream.socket.fileno(), head) == len(head)
        self.sent = True

    async def run(self, stream: trio.SocketStream, progressed: Callable[[], None] = lambda: None) -> None:
        """Wait for the answer to what was sent."""
        try:
            while self.status is None:
                await self._take_answer(stream)
                if self.status is None:
                    self.sent = False
                    await stream.aclose()
                    stream = await trio.open_tcp_stream(*host_and_port(self.url))
                    self.send(stream)
                    progressed()
        except (OSError, trio.BrokenResourceError):
            pass
        finally:
            self.ended = True
            await stream.aclose()
        progressed()

    async def _take_answer(self, stream: trio.SocketStream) -> None:
        answer = b""
        while b"\r\n\r\n" not in answer:
            data = await stream.receive_some()
            if not data:
                raise trio.BrokenResourceError("hung up without an answer")
            answer += data
        first, *headers = answer.partition(b"\r\n\r\n")[0].decode().split("\r\n")
        status = int(first.split()[1])
        if status == 307:
            location = next(line.split(": ", 1)[1] for line in headers if line.lower().startswith("location: "))
            assert urlsplit(location).path == f"{SCALABLE}/{self.topic}/{self.action}"
            self.url = f"http://{urlsplit(location).netloc}"
        else:
            self.status = status


@dataclass(slots=True)
class Tally:
    kills: int = 0
    mid_operation: int = 0  # kills between the sending and the answer of at least one operation
    interrupted: Counter[str] = field(default_factory=Counter)  # operations without an answer: done or not done
    statuses: Counter[int] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"{self.kills} kills, {self.mid_operation} of them between send and reply of an operation; "
            f"interrupted operations: {dict(self.interrupted)}; answers: {dict(self.statuses)}"
        )


class Assault:
    """Rounds of operations on all topics and nodes, in the middle of each of which a node is killed."""

    def __init__(self, cluster: ControllerCluster, nursery: trio.Nursery, chance: random.Random) -> None:
        self.tally = Tally()
        self._cluster = cluster
        self._nursery = nursery
        self._chance = chance
        self._ready = set(range(NODES))

    async def prepare(self) -> None:
        for number, topic in enumerate(TOPICS):
            await self._cluster.create(topic, segments=4, at=number % NODES)

    async def round(self) -> None:
        # One stays to see what is left, one dies.
        await eventually(lambda: len(self._ready) >= 2, within=SETTLE_LIMIT)
        operations = list(self._plan_all())
        with trio.fail_after(SETTLE_LIMIT):
            await self._run(operations)
        self.tally.mid_operation += any(it.interrupted for it in operations)
        for operation in operations:
            self._check_outcome(operation)
        for topic in TOPICS:
            self._cluster.look(topic).check()
        async with trio.open_nursery() as nursery:
            for topic in TOPICS:
                nursery.start_soon(self._operate_once_more, topic)

    async def _run(self, operations: Sequence[Operation]) -> None:
        """Send all, and kill a node when some of the answers have come."""
        answers = self._chance.randint(0, len(operations) - IN_FLIGHT)
        killed = False

        def progressed() -> None:
            # Called at every step and not from a task of its own, which might come too late on a busy machine.
            nonlocal killed
            if killed or sum(it.ended for it in operations) < answers:
                return
            waiting = [it.url for it in operations if it.in_flight]
            # A node that nobody waits for would die between operations.
            victims = [index for index in sorted(self._ready) if self._cluster.nodes[index].http_url in waiting]
            if len(waiting) >= IN_FLIGHT and victims:
                killed = True
                self._kill(self._chance.choice(victims))

        streams = [await trio.open_tcp_stream(*host_and_port(it.url)) for it in operations]
        async with trio.open_nursery() as nursery:
            for operation, stream in zip(operations, streams, strict=True):
                operation.send(stream)
                nursery.start_soon(operation.run, stream, progressed)
            progressed()

    def _kill(self, index: int) -> None:
        self._cluster.nodes[index].kill()
        self._ready.discard(index)
        self.tally.kills += 1
        self._nursery.start_soon(self._revive, index)

    async def _revive(self, index: int) -> None:
        await self._cluster.start_again(index)
        self._ready.add(index)

    def _plan_all(self) -> Iterator[Operation]:
        nodes = [self._cluster.nodes[index] for index in sorted(self._ready)]
        self._chance.shuffle(nodes)
        number = 0
        for topic in TOPICS:
            taken: set[int] = set()
            for _ in range(SIMULTANEOUS):
                number += 1
                yield self._plan(topic, nodes[number % len(nodes)].http_url, taken)

    def _plan(self, topic: str, url: str, taken: set[int]) -> Operation:
        layout = self._cluster.look(topic).layout
        splits = [(s.segment_id,) for s in layout.active if s.range.size > 1]
        merges = [(left.segment_id, right.segment_id) for left, right in pairwise(layout.active)]
        count = len(layout.active)
        fitting = [*(splits if count < MOST else ()), *(merges if count > FEWEST else ())]
        chosen = self._chance.choice([ids for ids in fitting if taken.isdisjoint(ids)])
        taken.update(chosen)
        verb = "split" if len(chosen) == 1 else "merge"
        return Operation(topic, "/".join([verb, *map(str, chosen)]), chosen, url)

    def _check_outcome(self, operation: Operation) -> None:
        layout = self._cluster.look(operation.topic).layout
        happened = [not _is_active(layout, segment_id) for segment_id in operation.seals]
        assert len(set(happened)) == 1, f"{operation} happened by half"
        if operation.status is None:
            assert operation.interrupted or not happened[0], f"{operation} happened unsent"
            self.tally.interrupted["done" if happened[0] else "not done"] += 1
            return
        self.tally.statuses[operation.status] += 1
        assert operation.status == 204 or operation.status in REFUSED, operation
        assert happened[0] == (operation.status == 204), operation

    async def _operate_once_more(self, topic: str) -> None:
        """The next operation works, at the latest when the lease of the node that was killed has ended."""

        async def done() -> bool:
            node = self._cluster.nodes[self._chance.choice(sorted(self._ready))]
            operation = self._plan(topic, node.http_url, set())
            stream = await trio.open_tcp_stream(*host_and_port(node.http_url))
            operation.send(stream)
            await operation.run(stream)
            if operation.status != 204:
                await trio.sleep(0.1)
            return operation.status == 204

        await eventually(done, within=SETTLE_LIMIT)
        self._cluster.look(topic).check()


def _is_active(layout: Layout, segment_id: int) -> bool:
    segment = layout.segments.get(segment_id)
    return segment is not None and segment.is_active


async def assault(directory: Path, kills: int, seed: int) -> Tally:
    """Go on until so many kills have hit an operation between its sending and its answer."""
    async with running_cluster(directory, NODES, "--session-lease", "1s") as cluster, trio.open_nursery() as nursery:
        attack = Assault(cluster, nursery, random.Random(seed))
        await attack.prepare()
        while attack.tally.mid_operation < kills:
            try:
                await attack.round()
            except AssertionError as error:
                raise AssertionError(f"{error}; seed {seed}, after {attack.tally}") from error
        return attack.tally


async def test_kill_in_the_middle_of_operations_leaves_every_topic_whole(tmp_path: Path) -> None:
    """W6, W10: nothing is stranded, and nothing half-done is left."""
    seed = random.randrange(1 << 32)
    tally = await assault(tmp_path, 10, seed)
    print(f"seed {seed}: {tally}")


@pytest.mark.soak
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("shard", range(20))
async def test_a_thousand_kills_leave_every_topic_whole(tmp_path: Path, shard: int) -> None:
    tally = await assault(tmp_path, 50, seed=shard)
    print(f"shard {shard}: {tally}")
    # Both ways to be interrupted were seen, or this has tested less than it says.
    assert min(tally.interrupted["done"], tally.interrupted["not done"]) > 0
