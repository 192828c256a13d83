"""A store behind a proxy, a node on it, writers beside it and peers on the node, with all that can happen to them.

Whatever happened, `settle` ends the trouble and insists that everybody then holds what the store says.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio

from controller.transitions import TopicLimits, TransitionError, Transitions
from gateway.node import Node
from layout.errors import LayoutError
from metadata import keys
from metadata.errors import StoreError, TopicExists, TopicMissing
from metadata.store import TopicStore, open_store
from protocol.hashing import topic_set_hash
from protocol.names import NamespaceName, TopicName
from protocol.wire import pulsar_api_pb2 as api
from tests.faults.writers import a_split
from tests.properties.mirrors import Mirror
from tests.properties.peers import Peer, join
from tests.properties.tracebacks import complaining_about_tracebacks
from tests.properties.truth import Filters, Stored, Truth, matches, read_truth, selected
from tests.support.nodes import View, running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

PROBE_INTERVAL: Final = 0.1
DELETION_NOTICE: Final = 0.2
# What is guaranteed once writes and faults have ended.
PROMISED: Final = PROBE_INTERVAL + 1.0
# Far more than that: this is a verdict on whether, and the figures that are kept say when.
CONVERGENCE_LIMIT: Final = 30.0
_POLL_PAUSE: Final = 0.03
# The smallest that the settings allow, so that sets of a few long names do not fit one frame.
MESSAGE_SIZE: Final = 16 * 1024
# Small enough that a peer that does not read is soon noticed to be slow.
SMALL_BUFFER: Final = 4_096

NAMESPACES: Final = (NamespaceName("public", "default"), NamespaceName("acme", "orders"))


@dataclass(slots=True)
class Tally:
    """What a run of many worlds added up to."""

    worlds: int = 0
    writes: int = 0
    refused: int = 0
    faults: int = 0
    frames: Counter[str] = field(default_factory=Counter)  # by the kind of event
    settled: int = 0
    silences: int = 0
    # Seconds from each quiet point until those were in step who had read all the time, and until all were.
    waits_of_readers: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    gaps: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"{self.worlds} histories, {self.writes} writes, {self.refused} refused, {self.faults} faults, "
            f"{self.frames['snapshot']} snapshots, {self.frames['diff']} diffs, {self.frames['DAG']} DAGs, "
            f"{self.settled} quiet points, {self.silences} silences; in step after {_shown(self.waits)}, without those "
            f"that had not been reading {_shown(self.waits_of_readers)}; gaps {dict(self.gaps)}"
        )


def _shown(waits: list[float]) -> str:
    ordered = sorted(waits) or [0.0]
    late = sum(wait > PROMISED for wait in ordered)
    return (
        f"{ordered[len(ordered) // 2]:.2f} s (median), {ordered[int(len(ordered) * 0.99)]:.2f} s (p99), "
        f"{ordered[-1]:.2f} s (most), {late} over {PROMISED:g} s"
    )


class Complaints(Exception):
    """Somebody saw what must never be. Not an assertion: waiting does not make it good."""


class World:
    def __init__(
        self,
        server: ValkeyProcess,
        proxy: FaultProxy,
        node: Node,
        other: TopicStore,
        nursery: trio.Nursery,
        tally: Tally,
    ) -> None:
        self.server = server
        self.proxy = proxy
        self.node = node
        self.nursery = nursery
        self.tally = tally
        self.complaints: list[str] = []
        self.peers: list[Peer] = []
        self._prober: Peer | None = None
        self._stores = (node.store, other)
        self._changes = (transitions_of(node), Transitions(other, TopicLimits()))
        self._away = False
        self._writing = 0
        self._watch_ids = 0
        self._copy: Path | None = None
        self._truth: Truth = {}
        # Per topic what it was since the last quiet point, first what it was then; None where nobody can know.
        self._past: dict[str, list[Stored | None] | None] = {}
        self._unrecorded: set[str] = set()
        self._written_before: set[str] = set()
        self._readers_in_step_at: float | None = None
        self._rolled_back = False

    # Writes. Through the node itself, which has its troubles with the store, or through another one that has not.

    async def create(self, writer: int, topic: TopicName, properties: Mapping[str, str]) -> None:
        async def write(changes: Transitions) -> Stored | None:
            made = await changes.create(topic, 1, properties)
            return Stored(made.version.incarnation, dict(properties), b"")

        await self._write(writer, topic, write)

    async def delete(self, writer: int, topic: TopicName) -> None:
        async def write(changes: Transitions) -> Stored | None:
            await changes.delete(topic)
            return None

        await self._write(writer, topic, write)

    async def put_properties(self, writer: int, topic: TopicName, properties: Mapping[str, str]) -> None:
        async def write(changes: Transitions) -> Stored | None:
            changed = await changes.update_properties(topic, properties)
            return Stored(changed.version.incarnation, dict(properties), b"")

        await self._write(writer, topic, write)

    async def split(self, writer: int, topic: TopicName) -> None:
        """A change that no namespace watch may notice."""

        async def write(changes: Transitions) -> Stored | None:
            stored = await self._store(writer).get(topic)
            if stored is None:
                raise TopicMissing(f"{topic} is not there")
            await changes.split(topic, a_split(stored))
            past = self._history(topic)
            return past[-1] if past else None

        await self._write(writer, topic, write)

    async def burst(self, writer: int, topics: list[TopicName], properties: Mapping[str, str]) -> None:
        """Many creations at once."""
        async with trio.open_nursery() as nursery:
            for topic in topics:
                nursery.start_soon(self.create, writer, topic, properties)

    async def burst_in_background(self, writer: int, topics: list[TopicName], properties: Mapping[str, str]) -> None:
        """Returns at once; half of what comes goes again, while other things happen."""

        async def come_and_go() -> None:
            await self.burst(writer, topics, properties)
            async with trio.open_nursery() as nursery:
                for topic in topics[::2]:
                    nursery.start_soon(self.delete, writer, topic)
            self._writing -= 1

        self._writing += 1
        self.nursery.start_soon(come_and_go)

    async def _write(
        self, writer: int, topic: TopicName, write: Callable[[Transitions], Awaitable[Stored | None]]
    ) -> None:
        try:
            outcome = await write(self._changes[self._writer(writer)])
        except (TopicExists, TopicMissing):
            self.tally.refused += 1
        except (StoreError, LayoutError, TransitionError):
            self.tally.refused += 1
            self._past[str(topic)] = None
        else:
            self.tally.writes += 1
            past = self._history(topic)
            if past is not None:
                past.append(outcome)

    def leave_unrecorded(self, topic: TopicName) -> None:
        """Others than the writers here will write this topic."""
        self._unrecorded.add(str(topic))

    def _history(self, topic: TopicName) -> list[Stored | None] | None:
        return self._past.setdefault(str(topic), [self._truth.get(str(topic))])

    def _writer(self, writer: int) -> int:
        # A node that has no store has only its patience to lose.
        return 1 if self._away else writer

    def _store(self, writer: int) -> TopicStore:
        return self._stores[self._writer(writer)]

    # Watches.

    async def peer(self, number: int) -> Peer:
        while len(self.peers) <= number:
            self.peers.append(await self._join())
        return self.peers[number]

    def mirrors(self) -> list[tuple[Peer, Mirror]]:
        return [(peer, mirror) for peer in self.peers for mirror in peer.watches]

    async def open_watch(
        self,
        peer: Peer,
        namespace: NamespaceName,
        filters: Filters,
        *,
        knows: str,
        watch_id: int | None = None,
    ) -> None:
        """`knows`: "nothing" sends no hash; "truth" that of what the store says now; anything else is sent as it is."""
        if watch_id is None:
            self._watch_ids += 1
            watch_id = self._watch_ids
        if knows == "truth":
            truth = await self._read_truth()
            mirror = Mirror(watch_id, namespace, filters, base=selected(truth, namespace, filters))
        elif knows == "nothing":
            mirror = Mirror(watch_id, namespace, filters)
        else:
            mirror = Mirror(watch_id, namespace, filters, wrong_hash=knows)
        await peer.open(mirror)

    async def reconnect(self, number: int) -> None:
        """The connection breaks, and its client comes back with what it knows."""
        gone = self.peers[number]
        gone.disconnect()
        peer = self.peers[number] = await self._join()
        for mirror in gone.watches:
            base = mirror.topics if mirror.known else None
            await peer.open(Mirror(mirror.watch_id, mirror.namespace, mirror.filters, base=base))
        for view in gone.views.values():
            if not view.errors:
                await peer.watch_topic(view.topic, create=False)

    async def _join(self) -> Peer:
        return await join(self.nursery, self.node, self.complaints, self.tally.frames, receive_buffer=SMALL_BUFFER)

    # Faults.

    async def cut(self) -> None:
        self.proxy.cut()

    async def refuse(self) -> None:
        self.proxy.refuse()
        self.proxy.cut()
        self._away = True

    async def stall(self) -> None:
        self.proxy.stall()
        self._away = True

    async def recover(self) -> None:
        self.proxy.accept()
        self.proxy.resume()
        self._away = False

    async def swallow_bells(self) -> None:
        self.proxy.swallow_pushes()

    async def lose_replies(self, command: bytes, times: int) -> None:
        """The node's next such commands are executed and their connections cut instead of answered."""
        self.proxy.cut_before_reply(lambda request: command in request, times)

    async def stop_reading(self, peer: int) -> None:
        self.peers[peer].stop_reading()

    async def read_on(self, peer: int) -> None:
        self.peers[peer].read_on()

    async def clear_flag(self) -> None:
        self.server.client().config_set("notify-keyspace-events", "")

    async def trim(self, topics: list[TopicName], length: int) -> None:
        """The logs of these topics' buckets lose all but so many entries."""
        for bucket in {keys.bucket_of(keys.path_of(topic)) for topic in topics}:
            self.server.client().xtrim(keys.changes_key(bucket), maxlen=length, approximate=False)

    async def restart(self) -> None:
        self.server.kill()
        await trio.to_thread.run_sync(self.server.start)

    async def copy_data(self) -> None:
        """Keep what is on the store's disk now; it writes through at once, so that is all it has answered."""
        if self._copy is not None:
            shutil.rmtree(self._copy)
        self._copy = self.server.directory / "copy"
        shutil.copytree(self.server.directory / "appendonlydir", self._copy)

    async def roll_back(self) -> None:
        """The store comes back without its latest writes, as after a fail-over to a replica that had not got them."""
        if self._copy is None:
            return
        self.server.kill()
        shutil.rmtree(self.server.directory / "appendonlydir")
        shutil.copytree(self._copy, self.server.directory / "appendonlydir")
        await trio.to_thread.run_sync(self.server.start)
        self._rolled_back = True

    async def let_pass(self, seconds: float) -> None:
        await trio.sleep(seconds)

    # Quiet points.

    async def settle(self) -> None:
        await self._calm()
        quiet_at = trio.current_time()
        self._readers_in_step_at = None
        [truth] = await eventually(self._in_step_soon, within=CONVERGENCE_LIMIT)
        self.tally.waits.append(trio.current_time() - quiet_at)
        assert self._readers_in_step_at is not None
        self.tally.waits_of_readers.append(self._readers_in_step_at - quiet_at)
        self.tally.settled += 1
        for peer in self.peers:
            await peer.round_trip()
        await self._check_silence(truth)
        # Still, or again: nothing may have moved since.
        assert await self._in_step() == [truth]
        self._check_nothing_else_told()
        self.check()
        self._truth = truth
        # After a roll-back anything may be told late.
        self._written_before = {*self._past, *(truth if self._rolled_back else ())}
        self._past = {}
        self._rolled_back = False
        for _, mirror in self.mirrors():
            mirror.anchor()
        for peer in self.peers:
            peer.has_stalled = False

    def check(self) -> None:
        if self.complaints:
            raise Complaints("\n".join(self.complaints))

    async def _calm(self) -> None:
        """End all faults but those that the node itself has to mend."""
        await self.recover()
        self.proxy.deliver_pushes()
        await self.lose_replies(b"", times=0)
        for peer in self.peers:
            peer.read_on()
        await eventually(lambda: not self._writing, within=CONVERGENCE_LIMIT)

    async def _read_truth(self) -> Truth:
        async def read() -> list[Truth]:
            return [await trio.to_thread.run_sync(read_truth, self.server, NAMESPACES)]

        # While somebody writes, an index and the records read after it may disagree.
        [truth] = await eventually(read)
        return truth

    async def _in_step_soon(self) -> list[Truth]:
        # Reading everything at every poll would keep the store and the loop busy with nothing else.
        await trio.sleep(_POLL_PAUSE)
        return await self._in_step()

    async def _in_step(self) -> list[Truth]:
        """What the store says, if everybody holds just that."""
        self.check()
        assert not self.node.readiness()
        truth = await self._read_truth()
        for stalled in (False, True):
            self._check_peers([peer for peer in self.peers if peer.has_stalled is stalled], truth)
            if self._readers_in_step_at is None:
                self._readers_in_step_at = trio.current_time()
        self._check_told(truth)
        return [truth]

    def _check_peers(self, peers: list[Peer], truth: Truth) -> None:
        for peer in peers:
            for mirror in peer.watches:
                expected = selected(truth, mirror.namespace, mirror.filters)
                assert mirror.known, f"{mirror} has heard nothing"
                assert peer.mirrors.get(mirror.watch_id) is mirror
                assert mirror.topics == expected, f"{mirror}: {_difference(mirror.topics, expected)}"
                assert mirror.hash == topic_set_hash(expected)
            for view in peer.views.values():
                _check_view(view, truth)

    async def _check_silence(self, truth: Truth) -> None:
        """Who comes back with the right hash is told nothing, and is listened to."""
        if self._prober is None:
            self._prober = await self._join()
        before = self.node.namespaces.counters.hash_matches
        groups = {(mirror.namespace, mirror.filters) for _, mirror in self.mirrors()}
        for number, (namespace, filters) in enumerate(groups):
            base = selected(truth, namespace, filters)
            await self._prober.open(Mirror(number, namespace, filters, base=base, silent=True))
        await self._prober.round_trip()
        # Perhaps more: others may have come with the right hash while the store was away.
        await eventually(
            lambda: self.node.namespaces.counters.hash_matches >= before + len(groups), within=CONVERGENCE_LIMIT
        )
        for number in range(len(groups)):
            await self._prober.close(number)
        await self._prober.round_trip()
        self.tally.silences += len(groups)

    def _check_told(self, truth: Truth) -> None:
        """Everybody knows what changed since the last quiet point, also that a topic was made anew."""
        for _, mirror in self.mirrors():
            if mirror.named is not None:
                for name in _names(mirror, self._truth, truth):
                    before, now = _seen(mirror, self._truth.get(name)), _seen(mirror, truth.get(name))
                    assert before == now or name in mirror.named, f"{mirror} was not told that {name} is another one"

    def _check_nothing_else_told(self) -> None:
        """No diff named a topic that was the same all the time.

        Left out are topics that were written before the last quiet point as well: that one was made anew just before
        it may be told just after it, since its name shows no difference to wait for.
        """
        if self._rolled_back:
            return
        for _, mirror in self.mirrors():
            for name in mirror.named or ():
                past = self._past.get(name, [self._truth.get(name)])
                if past is None or name in self._unrecorded or name in self._written_before:
                    continue
                assert len({_seen(mirror, state) for state in past}) > 1, f"{mirror} was told about {name} for nothing"

    async def end(self) -> None:
        """All peers leave, and nothing of them may stay."""
        for peer in (*self.peers, self._prober):
            if peer is not None:
                peer.disconnect()
        self.tally.gaps += self.node.feed.counters.gaps
        node = self.node

        def nothing_left() -> bool:
            watching, groups = node.namespaces.counters.watches, node.namespaces.counters.groups
            left = (node.counters.connections, watching, groups, node.hub.counters.watches, node.counters.outbox_bytes)
            assert left == (0, 0, 0, 0, 0), f"connections, watches, groups, DAG watches, bytes left: {left}"
            return True

        await eventually(nothing_left)


def _names(mirror: Mirror, *truths: Truth) -> set[str]:
    return {name for truth in truths for name in truth if name.startswith(f"topic://{mirror.namespace}/")}


def _seen(mirror: Mirror, state: Stored | None) -> str | None:
    """What a topic is to a watch: one of its members, in some incarnation, or nothing."""
    return state.incarnation if state is not None and matches(mirror.filters, state.properties) else None


def _difference(told: set[str], expected: frozenset[str]) -> str:
    return f"{len(told)} told, {sorted(expected - told)[:3]} missing, {sorted(told - expected)[:3]} too many"


def _check_view(view: View, truth: Truth) -> None:
    """A DAG watch shows its topic as it is, or has ended because there was none."""
    assert view.updates, f"the watch of {view.topic} has heard nothing"
    if view.errors:
        assert view.errors == [api.TopicNotFound], f"{view.topic}: {view.last}"
        return
    stored = truth.get(str(view.topic))
    assert stored is not None, f"{view.topic} is gone and its watch still open"
    assert view.last == view.expected(stored.value), f"{view.topic}: told {view.epochs[-3:]}"


@asynccontextmanager
async def open_world(tally: Tally) -> AsyncIterator[World]:
    with ValkeyProcess(appendfsync="always").start() as server:
        async with (
            FaultProxy.open(*server.address) as proxy,
            running_node(
                proxy.url,
                probe_interval=PROBE_INTERVAL,
                deletion_notice=DELETION_NOTICE,
                max_message_size=MESSAGE_SIZE,
                coalesce=0.02,
            ) as node,
            open_store(server.url) as other,
            trio.open_nursery() as nursery,
        ):
            tally.worlds += 1
            world = World(server, proxy, node, other, nursery, tally)
            with complaining_about_tracebacks(world.complaints):
                yield world
            nursery.cancel_scope.cancel()
