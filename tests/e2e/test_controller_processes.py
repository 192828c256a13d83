"""Leaders and registered consumers over several real nodes, while nodes, the store and the network fail."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio

from metadata import keys
from tests.e2e.controller_cluster import (
    GRACE,
    LEASE,
    SETTLE_LIMIT,
    ControllerCluster,
    DagView,
    Team,
    path_of,
    running_cluster,
)
from tests.e2e.peers import full
from tests.support.consumers import connect_consumers, stays, until_shared
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

TOPIC = "orders"
# For outages that have to outlast both of them.
HASTY = ("--session-lease", "1s", "--consumer-grace", "3s")
LONGER_THAN_HASTY = 5.5


@asynccontextmanager
async def team_at_work(
    directory: Path, *flags: str, nodes: int = 3, consumers: int = 5, segments: int = 12, proxied: bool = False
) -> AsyncIterator[tuple[ControllerCluster, Team, trio.Nursery]]:
    """Consumers `c0`, `c1`, … spread over the nodes, who share the segments of one topic."""
    async with (
        running_cluster(directory, nodes, *flags, proxied=proxied) as cluster,
        trio.open_nursery() as nursery,
    ):
        await cluster.create(TOPIC, segments)
        team = Team(cluster, nursery, TOPIC)
        for number in range(consumers):
            await team.join(f"c{number}", at=number % nodes)
        if consumers:
            await team.until_settled()
        yield cluster, team, nursery
        await team.exercise()
        for name, connection in team.connections.items():
            assert not connection.complaints, f"{name}: {connection.complaints}"
        nursery.cancel_scope.cancel()


def view_at(cluster: ControllerCluster, nursery: trio.Nursery, index: int) -> DagView:
    view = DagView()
    nursery.start_soon(view.run, cluster.nodes[index], TOPIC)
    return view


async def evictions(cluster: ControllerCluster) -> float:
    running = [index for index, node in enumerate(cluster.nodes) if node.running]
    return sum([await cluster.metric(index, "vela_consumers_evicted_total") for index in running])


async def leaders_of(cluster: ControllerCluster) -> list[float]:
    """How many topics each running node believes to lead."""
    running = [index for index, node in enumerate(cluster.nodes) if node.running]
    return [await cluster.metric(index, "vela_led_topics") for index in running]


async def until_one_leader(cluster: ControllerCluster, topics: int = 1) -> None:
    """Wait until nobody believes to lead what another one leads."""

    async def agreed() -> bool:
        assert sum(await leaders_of(cluster)) == topics
        return True

    await eventually(agreed, within=SETTLE_LIMIT)


# Nodes that die.


@pytest.mark.parametrize("returning", ["at once", "after the take-over"])
async def test_death_of_the_leader_moves_no_segment(tmp_path: Path, returning: str) -> None:
    async with team_at_work(tmp_path) as (cluster, team, nursery):
        dead = cluster.led_by(TOPIC)
        before = cluster.leader_of(TOPIC)
        assert before is not None
        others = [index for index in range(3) if index != dead]
        views = [view_at(cluster, nursery, index) for index in others]
        await eventually(lambda: all(view.controllers == [before.pulsar_url] for view in views))
        generation, told, pushes = cluster.generation(TOPIC, "sub"), team.told(), team.pushes()
        orphans = team.at(dead)
        assert orphans
        cluster.nodes[dead].kill()
        if returning == "after the take-over":
            await cluster.until_led(TOPIC, otherwise_than=before)
        for number, name in enumerate(orphans):
            consumer = await team.join(name, at=others[number % 2])
            assert consumer.ids == told[name]
            pushes[name] = 0
        await cluster.until_led(TOPIC, otherwise_than=before)
        await team.until_settled()
        for view in views:
            await eventually(partial(view.shows_only_later_leaders, cluster.leader_of(TOPIC), than=before))
        # The whole grace: whoever is not where the leader thinks is evicted by then.
        await stays(lambda: team.told() == told and team.pushes() == pushes, GRACE + 1)
        assert cluster.generation(TOPIC, "sub") == generation
        assert await evictions(cluster) == 0
        await until_one_leader(cluster)


@pytest.mark.soak
async def test_death_of_one_leader_after_the_other_moves_no_segment(tmp_path: Path) -> None:
    async with team_at_work(tmp_path) as (cluster, team, _):
        told, generation = team.told(), cluster.generation(TOPIC, "sub")
        for _ in range(2):
            dead = cluster.led_by(TOPIC)
            before = cluster.leader_of(TOPIC)
            cluster.nodes[dead].kill()
            last = next(index for index, node in enumerate(cluster.nodes) if node.running)
            for name in team.at(dead):
                assert (await team.join(name, at=last)).ids == told[name]
            await cluster.until_led(TOPIC, otherwise_than=before)
        await team.until_settled()
        assert team.told() == told
        assert cluster.generation(TOPIC, "sub") == generation


@pytest.mark.soak
async def test_consumers_that_die_with_their_node_are_evicted_after_their_grace(tmp_path: Path) -> None:
    async with team_at_work(tmp_path, *HASTY) as (cluster, team, _):
        dead = cluster.led_by(TOPIC)
        stayed = {name: team.told()[name] for name in team.members if name not in team.at(dead)}
        pushes = team.pushes()
        cluster.nodes[dead].kill()
        for name in team.at(dead):
            team.lose(name)
        await team.until_settled()
        # Everybody keeps what they had, and gets some of what became free.
        assert all(stayed[name] <= ids for name, ids in team.told().items())
        assert all(count <= pushes[name] + 1 for name, count in team.pushes().items())


async def test_leader_that_is_stopped_in_order_is_replaced_before_its_lease_ends(tmp_path: Path) -> None:
    long = ("--session-lease", "2m", "--prune-interval", "1h")
    async with team_at_work(tmp_path, *long) as (cluster, team, _):
        stopped = cluster.led_by(TOPIC)
        before, told = cluster.leader_of(TOPIC), team.told()
        cluster.nodes[stopped].signal(signal.SIGTERM)
        await eventually(lambda: not cluster.nodes[stopped].running, within=SETTLE_LIMIT)
        # Well before the lease would end, or others look at it: that is every third of it.
        await cluster.until_led(TOPIC, otherwise_than=before, within=30)
        for name in team.at(stopped):
            consumer = await team.join(name, at=(stopped + 1) % 3)
            assert consumer.ids == told[name]
        await team.until_settled()
        assert team.told() == told


async def test_consumers_of_a_stopped_leader_resume_at_other_nodes(tmp_path: Path) -> None:
    async with team_at_work(tmp_path, "--session-lease", "2m") as (cluster, team, _):
        stopped = cluster.led_by(TOPIC)
        before, told, generation = cluster.leader_of(TOPIC), team.told(), cluster.generation(TOPIC, "sub")
        cluster.nodes[stopped].signal(signal.SIGTERM)
        for name in team.at(stopped):
            await eventually(partial(getattr, team.connections[name], "hung_up"), within=SETTLE_LIMIT)
            consumer = await team.join(name, at=(stopped + 1) % 3)
            assert consumer.ids == told[name]
        await cluster.until_led(TOPIC, otherwise_than=before)
        await team.until_settled()
        assert team.told() == told
        assert cluster.generation(TOPIC, "sub") == generation
        assert cluster.nodes[stopped].wait().code == 0


# Nodes that pause.


async def test_leader_that_was_paused_past_its_lease_steps_down(tmp_path: Path) -> None:
    async with team_at_work(tmp_path) as (cluster, team, nursery):
        paused = cluster.led_by(TOPIC)
        before = cluster.leader_of(TOPIC)
        assert before is not None
        others = [index for index in range(3) if index != paused]
        view = view_at(cluster, nursery, paused)
        await eventually(lambda: view.controllers == [before.pulsar_url])
        cluster.nodes[paused].pause()
        await cluster.until_led(TOPIC, otherwise_than=before)
        for number, index in enumerate(others):
            await team.join(f"late-{number}", at=index)
        # What the new leader decided, of which the consumers of the paused node have not heard.
        decided = await eventually(lambda: _decided(cluster, team), within=SETTLE_LIMIT)
        deaf = team.at(paused)
        await eventually(lambda: all(team.told()[name] == decided[name] for name in decided if name not in deaf))
        pushes = team.pushes()
        cluster.nodes[paused].resume()
        await team.until_settled()
        assert team.told() == decided
        await eventually(lambda: view.shows_only_later_leaders(cluster.leader_of(TOPIC), than=before))
        await until_one_leader(cluster)
        # Each of them was told once, and nobody anything else since.
        for name in team.at(paused):
            pushes[name] += 1
        assert all(count <= pushes[name] for name, count in team.pushes().items())
        settled = team.pushes()
        await stays(lambda: team.pushes() == settled, GRACE + 1)
        assert await cluster.metric(paused, "vela_node_sessions_lost_total") >= 1
        assert await evictions(cluster) == 0


def _decided(cluster: ControllerCluster, team: Team) -> dict[str, set[int]]:
    """The stored assignments, once they are fair."""
    stored = {name: set(consumer.segments) for name, consumer in cluster.consumers(TOPIC, team.subscription).items()}
    sizes = sorted(map(len, stored.values()))
    assert stored.keys() == team.members.keys()
    assert sum(sizes) == 12
    assert sizes[-1] - sizes[0] <= 1
    return stored


@pytest.mark.soak
async def test_leaders_paused_while_consumers_come_and_go_leave_one_leader(tmp_path: Path) -> None:
    async with team_at_work(tmp_path, *HASTY) as (cluster, team, _):
        for _ in range(3):
            paused = cluster.led_by(TOPIC)
            before = cluster.leader_of(TOPIC)
            others = [index for index in range(3) if index != paused]
            async with coming_and_going(team, others):
                # In the middle of deciding, most likely: there is always something to decide.
                generation = cluster.generation(TOPIC, "sub")
                await eventually(partial(_is_past, cluster, generation + 2), within=SETTLE_LIMIT)
                cluster.nodes[paused].pause()
                await cluster.until_led(TOPIC, otherwise_than=before)
                cluster.nodes[paused].resume()
            await team.until_settled()
            await until_one_leader(cluster)


@asynccontextmanager
async def coming_and_going(team: Team, nodes: list[int]) -> AsyncIterator[None]:
    """Another consumer registers and leaves again and again, at these nodes in turn, until the end of the block."""
    enough = trio.Event()

    async def come_and_go() -> None:
        number = 0
        while not enough.is_set():
            number += 1
            guest = await team.join(f"guest-{number}", at=nodes[number % len(nodes)])
            await team.connections[guest.name].leave(guest)
            team.lose(guest.name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(come_and_go)
        yield
        enough.set()


def _is_past(cluster: ControllerCluster, generation: int) -> bool:
    return cluster.generation(TOPIC, "sub") > generation


async def test_split_that_a_paused_leader_was_sent_is_made_once(tmp_path: Path) -> None:
    async with team_at_work(tmp_path, nodes=2) as (cluster, team, nursery):
        paused = cluster.led_by(TOPIC)
        before = cluster.leader_of(TOPIC)
        epoch = cluster.look(TOPIC).layout.epoch
        statuses: list[int] = []

        async def split() -> None:
            statuses.append((await cluster.operate(TOPIC, "split/0", at=paused)).status_code)

        cluster.nodes[paused].pause()
        nursery.start_soon(split)
        await cluster.until_led(TOPIC, otherwise_than=before)
        assert cluster.look(TOPIC).layout.epoch == epoch
        cluster.nodes[paused].resume()
        await eventually(lambda: statuses, within=SETTLE_LIMIT)
        assert statuses == [204]
        await team.until_settled()
        assert len(cluster.look(TOPIC).layout.active) == 13
        await until_one_leader(cluster)


@pytest.mark.soak
async def test_consumers_of_a_node_that_was_paused_past_their_grace_come_back_with_it(tmp_path: Path) -> None:
    async with team_at_work(tmp_path, *HASTY) as (cluster, team, _):
        paused = cluster.led_by(TOPIC)
        before = cluster.leader_of(TOPIC)
        absent = set(team.at(paused))
        cluster.nodes[paused].pause()
        await cluster.until_led(TOPIC, otherwise_than=before)
        await eventually(lambda: not absent & cluster.consumers(TOPIC, "sub").keys(), within=SETTLE_LIMIT)
        cluster.nodes[paused].resume()
        await team.until_settled()
        await until_one_leader(cluster)
        assert max(map(len, team.told().values())) <= 3


# Races.


async def test_nodes_that_race_for_a_topic_end_with_one_leader(tmp_path: Path) -> None:
    topics = [f"race-{number}" for number in range(20)]
    segments = range(5)
    async with running_cluster(tmp_path, 3) as cluster, trio.open_nursery() as nursery:
        for topic in topics:
            await cluster.create(topic, len(segments))
        connections = [await connect_consumers(nursery, node.pulsar_url) for node in cluster.nodes]
        for start in range(0, len(topics), 5):
            # Five topics at a time, and at each of them three consumers at every node.
            racing = topics[start : start + 5]
            for number in range(3):
                for connection, node in zip(connections, "abc", strict=True):
                    commands = [connection.subscription(full(t), "sub", f"{node}{number}")[1] for t in racing]
                    await connection.send(*commands)
        for index, topic in enumerate(topics):
            # A connection's consumers stand in the order of the loops above.
            block, place = divmod(index, 5)
            picked = [c.consumers[15 * block + 5 * number + place] for c in connections for number in range(3)]
            await until_shared(picked, segments, within=SETTLE_LIMIT)
            assert {consumer.error for consumer in picked} == {None}
            cluster.led_by(topic)
            assert _takes(cluster, topic) == 1
        assert sum(await leaders_of(cluster)) == len(topics)
        for connection in connections:
            assert not connection.complaints
        nursery.cancel_scope.cancel()


def _takes(cluster: ControllerCluster, topic: str) -> int:
    """How often somebody became or ceased to be the leader of a topic."""
    path = path_of(topic)
    entries = cluster.store.command("XRANGE", keys.changes_key(keys.bucket_of(path)), "-", "+")
    said = [list(fields.values()) for _, fields in entries]
    return sum(path.encode() in words and b"controller" in words for words in said)


async def test_first_subscribe_works_on_every_node_whoever_leads(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 3) as cluster, trio.open_nursery() as nursery:
        for number in range(6):
            topic = f"anywhere-{number}"
            await cluster.create(topic, 3, at=number % 3)
            first, *others = ((number + shift) % 3 for shift in range(3))
            team = Team(cluster, nursery, topic)
            await team.join("first", at=first)
            assert cluster.led_by(topic) == first
            for index in others:
                await team.join(f"at-{index}", at=index)
                # Another subscription of the same topic, whose first consumer comes where nobody leads.
                apart = Team(cluster, nursery, topic, f"only-{index}")
                await apart.join("alone", at=index)
                assert apart.told() == {"alone": {0, 1, 2}}
            await team.until_settled()
            assert cluster.led_by(topic) == first
        nursery.cancel_scope.cancel()


async def test_first_subscribe_works_while_the_leader_is_dead_and_not_missed_yet(tmp_path: Path) -> None:
    async with team_at_work(tmp_path) as (cluster, team, _):
        dead = cluster.led_by(TOPIC)
        cluster.nodes[dead].kill()
        others = [index for index in range(3) if index != dead]
        newcomers = [await team.begin_to_join(f"new-{index}", at=index) for index in others]
        await eventually(lambda: all(newcomer.answered for newcomer in newcomers), within=SETTLE_LIMIT)
        assert [newcomer.error for newcomer in newcomers] == [None, None]
        for name in team.at(dead):
            await team.join(name, at=others[0])
        await team.until_settled()


async def test_operations_work_on_every_node_whoever_leads(tmp_path: Path) -> None:
    async with team_at_work(tmp_path, segments=3) as (cluster, team, _):
        for round_number in range(2):
            for index in range(3):
                active = [segment.segment_id for segment in cluster.look(TOPIC).layout.active]
                answer = await cluster.operate(TOPIC, f"split/{active[0]}", at=index)
                assert answer.status_code == 204, answer.text
                await team.until_settled()
                active = [segment.segment_id for segment in cluster.look(TOPIC).layout.active]
                answer = await cluster.operate(TOPIC, f"merge/{active[1]}/{active[2]}", at=(index + round_number) % 3)
                assert answer.status_code == 204, answer.text
                await team.until_settled()
        await until_one_leader(cluster)


# The store.


async def test_restart_of_the_store_moves_no_segment(tmp_path: Path) -> None:
    async with team_at_work(tmp_path) as (cluster, team, _):
        told, pushes, generation = team.told(), team.pushes(), cluster.generation(TOPIC, "sub")
        for _ in range(3):
            await cluster.restart_store()
            await team.until_settled()
        await stays(lambda: team.told() == told and team.pushes() == pushes, GRACE + 1)
        assert cluster.generation(TOPIC, "sub") == generation
        assert await evictions(cluster) == 0
        await team.join("new", at=1)
        await team.until_settled()


@pytest.mark.parametrize(
    ("outage", "length"),
    [
        ("cut", LONGER_THAN_HASTY),
        *(
            pytest.param(way, length, marks=pytest.mark.soak)
            for way, length in (
                ("paused", LONGER_THAN_HASTY),
                ("killed", LONGER_THAN_HASTY),
                ("stalled", LONGER_THAN_HASTY),
                ("killed", 30.0),
                ("stalled", 30.0),
            )
        ),
    ],
)
async def test_nobody_is_evicted_because_the_store_was_away(tmp_path: Path, outage: str, length: float) -> None:
    async with team_at_work(tmp_path, *HASTY, proxied=outage in ("stalled", "cut")) as (cluster, team, _):
        told, pushes, generation = team.told(), team.pushes(), cluster.generation(TOPIC, "sub")
        await _take_away(cluster, outage)
        # That it is away for long is what this is about.
        await trio.sleep(length)
        await _bring_back(cluster, outage)
        await team.until_settled()
        await stays(lambda: team.told() == told and team.pushes() == pushes, LONGER_THAN_HASTY)
        assert cluster.generation(TOPIC, "sub") == generation
        assert await evictions(cluster) == 0
        await until_one_leader(cluster)


@pytest.mark.soak
async def test_consumer_that_left_while_the_store_was_away_is_evicted_after_its_grace(tmp_path: Path) -> None:
    async with team_at_work(tmp_path, *HASTY) as (cluster, team, _):
        await _take_away(cluster, "paused")
        await trio.sleep(LONGER_THAN_HASTY)
        team.lose("c1")
        newcomer = await team.begin_to_join("new", at=2)
        await _bring_back(cluster, "paused")
        await eventually(lambda: newcomer.answered, within=SETTLE_LIMIT)
        await team.until_settled()
        assert await evictions(cluster) == 1


async def _take_away(cluster: ControllerCluster, outage: str) -> None:
    match outage:
        case "paused":
            cluster.store.pause()
        case "killed":
            cluster.store.kill()
        case "stalled":
            for proxy in cluster.proxies:
                proxy.stall()
        case "cut":
            for proxy in cluster.proxies:
                proxy.refuse()
                proxy.cut()


async def _bring_back(cluster: ControllerCluster, outage: str) -> None:
    match outage:
        case "paused":
            cluster.store.resume()
        case "killed":
            await trio.to_thread.run_sync(cluster.store.start)
        case "stalled":
            for proxy in cluster.proxies:
                proxy.resume()
        case "cut":
            for proxy in cluster.proxies:
                proxy.accept()


async def test_store_that_lost_its_latest_writes_ends_with_every_segment_at_one_consumer(tmp_path: Path) -> None:
    async with team_at_work(tmp_path) as (cluster, team, _):
        cluster.copy_store()
        for number in range(3):
            await team.join(f"late-{number}", at=number)
        assert (await cluster.operate(TOPIC, "split/3", at=1)).status_code == 204
        assert (await cluster.operate(TOPIC, "merge/7/8", at=2)).status_code == 204
        await team.until_settled()
        await cluster.roll_back_store()
        assert len(cluster.look(TOPIC).layout.active) == 12
        await team.until_settled()
        await until_one_leader(cluster)
        settled = team.told()
        await stays(lambda: team.told() == settled, GRACE + 1)
        assert await evictions(cluster) == 0


@pytest.mark.soak
async def test_store_that_forgot_a_leader_ends_with_one(tmp_path: Path) -> None:
    async with team_at_work(tmp_path) as (cluster, team, _):
        first = cluster.led_by(TOPIC)
        before = cluster.leader_of(TOPIC)
        cluster.copy_store()
        cluster.nodes[first].pause()
        second = await cluster.until_led(TOPIC, otherwise_than=before)
        assert second != first
        cluster.nodes[first].resume()
        await team.until_settled()
        # Now the record names the first node again, under a session that is gone.
        await cluster.roll_back_store()
        await team.until_settled()
        await until_one_leader(cluster)


@pytest.mark.soak
async def test_consumer_that_came_back_before_the_store_lost_that_write_is_served(tmp_path: Path) -> None:
    async with team_at_work(tmp_path) as (cluster, team, _):
        cluster.copy_store()
        for name in team.at(0):
            team.connections[name].disconnect()
            await team.join(name, at=1)
        await team.until_settled()
        await cluster.roll_back_store()
        await team.exercise(within=30)


async def test_consumers_of_a_subscription_that_the_store_lost_are_registered_anew(tmp_path: Path) -> None:
    # So long a lease that no session is lost, and nobody is registered anew because of that.
    async with team_at_work(tmp_path, "--session-lease", "1m", consumers=0) as (cluster, team, _):
        cluster.copy_store()
        for number in range(3):
            await team.join(f"c{number}", at=number)
        await team.until_settled()
        await cluster.roll_back_store()
        await team.until_settled(within=30)


@pytest.mark.soak
@pytest.mark.parametrize("way", ["leaves", "is gone"])
async def test_consumer_that_went_before_the_store_lost_that_write_does_not_stay(tmp_path: Path, way: str) -> None:
    # So long a lease that the session under which it was registered outlives all of this.
    flags = ("--session-lease", "1m", "--consumer-grace", "2s")
    async with team_at_work(tmp_path, *flags) as (cluster, team, _):
        cluster.copy_store()
        if way == "leaves":
            await team.connections["c1"].leave(team.members["c1"])
        team.lose("c1")
        await team.until_settled()
        await cluster.roll_back_store()
        assert "c1" in cluster.consumers(TOPIC, "sub")
        await team.until_settled(within=30)


# The network.


@pytest.mark.soak
@pytest.mark.parametrize("way", ["cut", "stalled"])
async def test_topics_of_a_node_without_its_store_are_led_by_others_until_it_is_back(tmp_path: Path, way: str) -> None:
    async with team_at_work(tmp_path, proxied=True) as (cluster, team, nursery):
        lonely = cluster.led_by(TOPIC)
        before, told, pushes = cluster.leader_of(TOPIC), team.told(), team.pushes()
        assert before is not None
        view = view_at(cluster, nursery, lonely)
        await eventually(lambda: view.controllers == [before.pulsar_url])
        _isolate(cluster, lonely, way)
        assert await cluster.until_led(TOPIC, otherwise_than=before) != lonely
        await trio.sleep(LEASE)
        _heal(cluster, lonely, way)
        await team.until_settled()
        await until_one_leader(cluster)
        await stays(lambda: team.told() == told and team.pushes() == pushes, GRACE + 1)
        await eventually(lambda: view.shows_only_later_leaders(cluster.leader_of(TOPIC), than=before))
        assert await evictions(cluster) == 0


@pytest.mark.soak
@pytest.mark.parametrize("way", ["cut", "stalled"])
async def test_consumers_of_a_node_without_its_store_come_back_after_their_grace(tmp_path: Path, way: str) -> None:
    async with team_at_work(tmp_path, *HASTY, proxied=True) as (cluster, team, _):
        lonely = cluster.led_by(TOPIC)
        absent = set(team.at(lonely))
        _isolate(cluster, lonely, way)
        await eventually(lambda: not absent & cluster.consumers(TOPIC, "sub").keys(), within=SETTLE_LIMIT)
        others = {name: set(consumer.segments) for name, consumer in cluster.consumers(TOPIC, "sub").items()}
        assert Counter(i for ids in others.values() for i in ids) == Counter(range(12))
        _heal(cluster, lonely, way)
        # By the same connections, of which none was lost.
        await team.until_settled()
        await until_one_leader(cluster)


async def test_consumers_that_come_while_their_node_has_no_store_stay_registered(tmp_path: Path) -> None:
    async with team_at_work(tmp_path, *HASTY, proxied=True) as (cluster, team, _):
        _isolate(cluster, 1, "stalled")
        for number in range(20):
            await team.begin_to_join(f"new-{number}", at=1)
            # So that some of them are in the middle of every attempt to reach the store, and of every pause.
            await trio.sleep(0.1)
        _heal(cluster, 1, "stalled")
        await team.until_settled()
        # Whoever was entered under a session that has ended is evicted by then.
        await stays(lambda: cluster.consumers(TOPIC, "sub").keys() == team.members.keys(), LONGER_THAN_HASTY)
        assert await evictions(cluster) == 0


def _isolate(cluster: ControllerCluster, index: int, way: str) -> None:
    if way == "cut":
        cluster.proxies[index].refuse()
        cluster.proxies[index].cut()
    else:
        cluster.proxies[index].stall()


def _heal(cluster: ControllerCluster, index: int, way: str) -> None:
    if way == "cut":
        cluster.proxies[index].accept()
    else:
        cluster.proxies[index].resume()


# Everything together.


class Chaos:
    """Faults of all kinds, one to three at a time, after which everybody must end with what is theirs."""

    def __init__(self, cluster: ControllerCluster, team: Team, chance: random.Random) -> None:
        self.done: list[str] = []
        self._cluster = cluster
        self._team = team
        self._chance = chance
        self._newcomers = 0
        self._troubled: set[int] = set()  # nodes that something is happening to

    async def round(self) -> None:
        faults = [self._kill, self._pause, self._stall, self._cut, self._deafen, self._restart_store, self._pause_store]
        async with trio.open_nursery() as nursery:
            for fault in self._chance.sample(faults, k=self._chance.randint(1, 3)):
                nursery.start_soon(fault)
            for _ in range(self._chance.randint(0, 4)):
                await trio.sleep(self._chance.uniform(0, 1))
                nursery.start_soon(self._chance.choice([self._join, self._join, self._lose, self._leave, self._split]))
        self._troubled.clear()
        # Not before the store is back: a node does not start without one.
        for index, node in enumerate(self._cluster.nodes):
            if not node.running:
                await self._cluster.start_again(index)
        for name in list(self._team.members):
            if self._team.connections[name].hung_up:
                await self._team.join(name, at=self._chance.randrange(3))
        await self._team.until_settled()
        await self._team.exercise()
        await until_one_leader(self._cluster)
        await self._merge()

    def _node(self) -> int | None:
        """One that nothing else happens to at the same time."""
        free = [index for index in range(3) if index not in self._troubled]
        if not free:
            return None
        index = self._chance.choice(free)
        self._troubled.add(index)
        return index

    def _span(self) -> float:
        """From less than a lease to more than a lease and a grace."""
        return self._chance.choice([0.3, 1.5, 3.0, 6.0]) * self._chance.uniform(0.8, 1.2)

    async def _kill(self) -> None:
        if (index := self._node()) is not None:
            self.done.append(f"kill {index}")
            self._cluster.nodes[index].kill()
            await trio.sleep(self._span())

    async def _pause(self) -> None:
        if (index := self._node()) is not None:
            self.done.append(f"pause {index}")
            self._cluster.nodes[index].pause()
            await trio.sleep(self._span())
            self._cluster.nodes[index].resume()

    async def _stall(self) -> None:
        await self._disconnect("stalled")

    async def _cut(self) -> None:
        await self._disconnect("cut")

    async def _disconnect(self, way: str) -> None:
        if (index := self._node()) is not None:
            self.done.append(f"{way} {index}")
            _isolate(self._cluster, index, way)
            await trio.sleep(self._span())
            _heal(self._cluster, index, way)

    async def _deafen(self) -> None:
        index = self._chance.randrange(3)
        self.done.append(f"deafen {index}")
        self._cluster.proxies[index].swallow_pushes()
        await trio.sleep(self._span())
        self._cluster.proxies[index].deliver_pushes()

    async def _restart_store(self) -> None:
        self.done.append("restart store")
        await self._cluster.restart_store()

    async def _pause_store(self) -> None:
        self.done.append("pause store")
        self._cluster.store.pause()
        await trio.sleep(self._span())
        self._cluster.store.resume()

    async def _join(self) -> None:
        reachable = [index for index in range(3) if index not in self._troubled]
        if reachable:
            self._newcomers += 1
            await self._team.begin_to_join(f"n{self._newcomers}", at=self._chance.choice(reachable))

    async def _lose(self) -> None:
        if len(self._team.members) > 2:
            self._team.lose(self._chance.choice(sorted(self._team.members)))

    async def _leave(self) -> None:
        healthy = sorted(name for name in self._team.members if self._team.places[name] not in self._troubled)
        if len(self._team.members) > 2 and healthy:
            name = self._chance.choice(healthy)
            with trio.move_on_after(1):
                await self._team.connections[name].unsubscribe(self._team.members[name].consumer_id)
            # Said or not: it does not come back.
            self._team.lose(name)

    async def _split(self) -> None:
        index = self._chance.randrange(3)
        segment = self._chance.choice(sorted(self._last_seen))
        with trio.move_on_after(2):
            try:
                await self._cluster.operate(TOPIC, f"split/{segment}", at=index)
            except httpx.HTTPError:
                pass  # what became of it is seen when all is quiet

    @property
    def _last_seen(self) -> set[int]:
        return set().union(*(consumer.ids for consumer in self._team.members.values() if consumer.answered))

    async def _merge(self) -> None:
        """Keep the layout small enough to go on."""
        while len(active := self._cluster.look(TOPIC).layout.active) > 16:
            pairs = f"{active[0].segment_id}/{active[1].segment_id}"
            assert (await self._cluster.operate(TOPIC, f"merge/{pairs}")).status_code == 204


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(10))
async def test_whatever_happens_everybody_ends_with_what_is_theirs(tmp_path: Path, seed: int) -> None:
    async with team_at_work(tmp_path, *HASTY, proxied=True) as (cluster, team, _):
        chaos = Chaos(cluster, team, random.Random(seed))
        for _ in range(12):
            try:
                await chaos.round()
            except AssertionError as error:
                raise AssertionError(f"{error}; seed {seed}, after {chaos.done}") from error
