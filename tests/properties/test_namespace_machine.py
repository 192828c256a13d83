"""Random histories of writes, watches and faults: at every quiet point each watcher's set and hash are the store's."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from metadata import keys
from protocol.names import NamespaceName, TopicName
from tests.properties.loop_thread import LoopThread
from tests.properties.mirrors import Mirror
from tests.properties.peers import Peer
from tests.properties.truth import Filters
from tests.properties.world import NAMESPACES, Tally, World, open_world

T = TypeVar("T")

STEPS: Final = 30
# The whole soak; spread over its shards.
SOAK_EXAMPLES: Final = int(os.environ.get("VELA_SOAK_EXAMPLES", "2000"))
SOAK_SHARDS: Final = 20
SOAK_LOG: Final = os.environ.get("VELA_SOAK_LOG", "soak.log")
# Sorted differently by UTF-16 units and by code points, and in need of encoding in keys.
EXOTIC: Final = ("plain", "with/slash", "per%cent und blank", "\uffee", "\U0001f600")
# Requests of the node whose reply can get lost.
LOSABLE: Final = (b"EVALSHA", b"HGETALL", b"HMGET", b"XRANGE", b"XREVRANGE")
PEERS: Final = 3


def _neighbours(namespace: NamespaceName, count: int) -> list[TopicName]:
    """Topics that share one bucket."""
    names = (TopicName.scalable(namespace.tenant, namespace.namespace, f"near-{number}") for number in range(10_000))
    near = [topic for topic in names if keys.bucket_of(keys.path_of(topic)) == 7]
    return near[:count]


TOPICS: Final = [
    *(TopicName.scalable(ns.tenant, ns.namespace, local) for ns in NAMESPACES for local in EXOTIC),
    *_neighbours(NAMESPACES[0], 4),
]
# Made by watching them: nobody records when.
MADE_BY_WATCHING: Final = [TopicName.scalable("public", "default", f"wanted-{number}") for number in range(3)]
FILTERS: Final[list[Filters]] = [
    (),
    (("color", "red"),),
    (("color", "blue"), ("color", "red")),  # the last of a repeated key counts
    (("color", "red"), ("size", "large")),
    (("size", "large"), ("color", "red")),
]

topics = st.sampled_from(TOPICS)
filters = st.sampled_from(FILTERS)
writers = st.integers(0, 1)
peers = st.integers(0, PEERS - 1)
properties = st.fixed_dictionaries(
    {}, optional={"color": st.sampled_from(["red", "blue"]), "size": st.sampled_from(["large", "small"])}
)
knowledge = st.sampled_from(["nothing", "truth", "00c0ffee", ""])
# A number that picks among whatever is open when its turn comes.
picks = st.integers(0, 50)


class NamespaceMachine(RuleBasedStateMachine):
    """A thin layer over `World`: each rule is one call on its loop, after which nobody may have complained."""

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self.tally = tally
        self.broken = False
        self.bursts = 0
        self.loop: LoopThread[World] = LoopThread(partial(open_world, tally))
        self.world = self.loop.subject

    def do(self, function: Callable[..., Awaitable[None]], *args: object) -> None:
        try:
            self.loop.call(function, *args)
            self.world.check()
        except BaseException:
            self.broken = True
            raise

    def disturb(self, fault: Callable[..., Awaitable[None]], *args: object) -> None:
        self.tally.faults += 1
        self.do(fault, *args)

    @initialize(here=st.lists(topics, max_size=4, unique=True), has=properties)
    def begin(self, here: list[TopicName], has: Mapping[str, str]) -> None:
        """Some topics, and on every peer some watches, of which some share a group."""

        async def begin() -> None:
            for topic in here:
                await self.world.create(1, topic, has)
            for number in range(PEERS):
                peer = await self.world.peer(number)
                for wanted in FILTERS[number : number + 3]:
                    await self.world.open_watch(peer, NAMESPACES[0], wanted, knows="nothing")
                await self.world.open_watch(peer, NAMESPACES[1], FILTERS[number], knows="")
                await peer.watch_topic(TOPICS[number], create=False)

        self.do(begin)

    # Writes.

    @rule(writer=writers, topic=topics, has=properties)
    def create(self, writer: int, topic: TopicName, has: Mapping[str, str]) -> None:
        self.do(self.world.create, writer, topic, has)

    @rule(writer=writers, topic=topics)
    def delete(self, writer: int, topic: TopicName) -> None:
        self.do(self.world.delete, writer, topic)

    @rule(writer=writers, topic=topics, has=properties)
    def recreate(self, writer: int, topic: TopicName, has: Mapping[str, str]) -> None:
        self.do(self.world.delete, writer, topic)
        self.do(self.world.create, writer, topic, has)

    @rule(writer=writers, topic=topics, has=properties)
    def change_properties(self, writer: int, topic: TopicName, has: Mapping[str, str]) -> None:
        self.do(self.world.put_properties, writer, topic, has)

    @rule(writer=writers, topic=topics)
    def split(self, writer: int, topic: TopicName) -> None:
        self.do(self.world.split, writer, topic)

    @rule(writer=writers, count=st.integers(2, 60), bulky=st.booleans(), has=properties, waits=st.booleans())
    def burst(self, writer: int, count: int, bulky: bool, has: Mapping[str, str], waits: bool) -> None:
        """Bulky names fill the buffers of a peer that does not read, and make snapshots of many frames."""
        # Only so many: megabytes through buffers of a few kilobytes would measure nothing but the peers.
        local = f"burst-{self.bursts}-{'x' * (900 if bulky and self.bursts < 5 else 0)}"
        made = [TopicName.scalable("public", "default", f"{local}{number}") for number in range(count)]
        self.bursts += 1
        if waits:
            self.do(self.world.burst, writer, made, has)
        else:
            self.do(self.world.burst_in_background, writer, made, has)

    # Watches.

    @rule(peer=peers, namespace=st.sampled_from([NAMESPACES[0], *NAMESPACES]), wanted=filters, knows=knowledge)
    def open_watch(self, peer: int, namespace: NamespaceName, wanted: Filters, knows: str) -> None:
        async def open_it() -> None:
            await self.world.open_watch(await self.world.peer(peer), namespace, wanted, knows=knows)

        self.do(open_it)

    @rule(pick=picks)
    def close_watch(self, pick: int) -> None:
        for peer, mirror in _one_of(self.world.mirrors(), pick):
            self.do(peer.close, mirror.watch_id)

    @rule(pick=picks, wanted=filters, knows=knowledge)
    def replace_watch(self, pick: int, wanted: Filters, knows: str) -> None:
        async def replace_it(peer: Peer, mirror: Mirror) -> None:
            await self.world.open_watch(peer, mirror.namespace, wanted, knows=knows, watch_id=mirror.watch_id)

        for peer, mirror in _one_of(self.world.mirrors(), pick):
            self.do(replace_it, peer, mirror)

    @rule(peer=peers)
    def reconnect(self, peer: int) -> None:
        self.do(self.world.reconnect, peer)

    @rule(peer=peers, topic=st.sampled_from(TOPICS + MADE_BY_WATCHING))
    def watch_topic(self, peer: int, topic: TopicName) -> None:
        async def watch_it() -> None:
            await (await self.world.peer(peer)).watch_topic(topic, create=topic in MADE_BY_WATCHING)

        if topic in MADE_BY_WATCHING:
            self.world.leave_unrecorded(topic)
        self.do(watch_it)

    @rule(pick=picks)
    def close_topic_watch(self, pick: int) -> None:
        open_views = [(peer, session_id) for peer in self.world.peers for session_id in list(peer.views)]
        for peer, session_id in _one_of(open_views, pick):
            self.do(peer.close_topic, session_id)

    # Faults. Those of a kind share a rule, so that there are about as many as writes.

    @rule(entirely=st.booleans())
    def cut_store_connections(self, entirely: bool) -> None:
        self.disturb(self.world.refuse if entirely else self.world.cut)

    @rule(at_the_source=st.booleans())
    def lose_bells(self, at_the_source: bool) -> None:
        self.disturb(self.world.clear_flag if at_the_source else self.world.swallow_bells)

    @rule()
    def stall_store(self) -> None:
        self.disturb(self.world.stall)

    @rule(forgetful=st.booleans())
    def restart_store(self, forgetful: bool) -> None:
        self.disturb(self.world.roll_back if forgetful else self.world.restart)

    @rule()
    def recover(self) -> None:
        """The store can be reached again, while peers and bells may still be stuck."""
        self.do(self.world.recover)

    @rule()
    def copy_data(self) -> None:
        self.do(self.world.copy_data)

    @rule(name=st.sampled_from(LOSABLE), times=st.integers(1, 3))
    def lose_replies(self, name: bytes, times: int) -> None:
        self.disturb(self.world.lose_replies, name, times)

    @rule(length=st.integers(0, 2))
    def trim_logs(self, length: int) -> None:
        self.disturb(self.world.trim, TOPICS, length)

    @rule(peer=peers)
    def stop_reading(self, peer: int) -> None:
        self.disturb(self.world.stop_reading, peer)

    @rule(peer=peers)
    def read_on(self, peer: int) -> None:
        self.do(self.world.read_on, peer)

    # Time.

    @rule(milliseconds=st.integers(1, 200))
    def let_time_pass(self, milliseconds: int) -> None:
        self.do(self.world.let_pass, milliseconds / 1000)

    @rule()
    def settle(self) -> None:
        self.do(self.world.settle)

    def teardown(self) -> None:
        try:
            if not self.broken:
                self.do(self.world.settle)
                self.do(self.world.end)
        finally:
            self.loop.close()


def _one_of(candidates: Sequence[T], pick: int) -> Sequence[T]:
    """The one that is picked, none of none. What is open depends on the moment, so no precondition can ask for it."""
    return [candidates[pick % len(candidates)]] if candidates else []


def run(tally: Tally, examples: int, **chosen: Any) -> None:
    """Not shrunk: the same steps at another moment are another history, so a shorter one proves nothing."""

    class Counted(NamespaceMachine):
        def __init__(self) -> None:
            super().__init__(tally)

    run_state_machine_as_test(
        Counted,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            **chosen,
        ),
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_watchers_hold_what_the_store_says_at_every_quiet_point() -> None:
    tally = Tally()
    run(tally, 12, derandomize=True)
    print(tally)
    assert tally.frames.keys() >= {"snapshot", "diff", "DAG"}


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("shard", range(SOAK_SHARDS))
def test_watchers_hold_what_the_store_says_over_thousands_of_histories(
    shard: int,
) -> None:
    tally = Tally()
    began = time.monotonic()
    outcome = "failed"
    try:
        run(tally, max(1, SOAK_EXAMPLES // SOAK_SHARDS), derandomize=False)
        outcome = "passed"
    finally:
        # A file, because what the processes of a parallel run print is lost.
        with open(SOAK_LOG, "a") as log:
            log.write(f"shard {shard} {outcome}: {time.monotonic() - began:.0f} s, {tally}\n")
