"""Nodes come and go: of many watched topics only those are told whose segments have moved, and other tasks go on."""

from __future__ import annotations

from typing import Final

import trio
import trio.testing

from layout.layouts import Layout
from metadata import keys
from protocol.names import TopicName
from protocol.wire import pulsar_api_pb2 as api
from sessions.dag import encode_tail, with_brokers
from sessions.points import Point
from sessions.whereabouts import Whereabouts

HERE: Final = "pulsar://here:1"
THERE: Final = "pulsar://there:1"
SEGMENTS: Final = 2


class Cluster:
    """Where logs are, as a test says it."""

    def __init__(self) -> None:
        self.moved: set[str] = set()  # logs
        self.dead: set[str] = set()  # sessions
        self.asked = 0

    def url(self, log: str, owner: str) -> str:
        self.asked += 1
        if owner:
            return HERE if owner in self.dead else THERE
        return THERE if log in self.moved else HERE


def watched(number: int, cluster: Cluster, owners: dict[int, str] | None = None) -> Point:
    topic = TopicName.scalable("public", "default", f"t{number}")
    point = Point(keys.path_of(topic))
    point.watched = 1
    point.owners = owners or {}
    places = Whereabouts([], cluster.url, lambda _: None)
    point.tail = encode_tail(
        Layout.create(SEGMENTS, 0),
        name=str(topic),
        owner_url=lambda segment: places.of(topic, segment, point.owners.get(segment.segment_id, "")),
        controller_url=HERE,
    )
    return point


def urls(point: Point) -> list[str]:
    update = api.CommandScalableTopicUpdate()
    assert point.tail is not None
    update.MergeFromString(point.tail)
    assert update.resolved_topic_name == str(point.topic)
    return [broker.broker_url for broker in update.dag.segment_brokers]


async def test_only_topics_whose_segments_moved_are_told_and_other_tasks_run_between() -> None:
    cluster = Cluster()
    points = [
        {point.path: point for number in range(100) for point in [watched(bucket * 100 + number, cluster)]}
        for bucket in range(100)
    ]
    told: list[Point] = []
    places = Whereabouts(points, cluster.url, told.append)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(places.run)
        await trio.testing.wait_all_tasks_blocked()
        cluster.moved = {f"segment://public/default/t{number}/8000-ffff-1" for number in range(0, 10_000, 10)}
        cluster.asked = 0
        places.nodes_changed()
        nursery.start_soon(others)
        with trio.fail_after(30):
            while cluster.asked < 10_000 * SEGMENTS:
                await trio.lowlevel.checkpoint()
        assert cluster.asked == 10_000 * SEGMENTS
        nursery.cancel_scope.cancel()
    assert {str(point.topic) for point in told} == {
        f"topic://public/default/t{number}" for number in range(0, 10_000, 10)
    }
    assert all(urls(point) == [HERE, THERE] for point in told)
    assert turns > 10_000 * SEGMENTS / 128


async def test_segments_of_a_dead_owner_are_told_elsewhere_and_back_is_told_too() -> None:
    cluster = Cluster()
    point = watched(1, cluster, {0: "a", 1: "b"})
    told: list[list[str]] = []
    places = Whereabouts([{point.path: point}], cluster.url, lambda point: told.append(urls(point)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(places.run)
        for dead in ({"a"}, {"a"}, {"a", "b"}, set[str]()):
            cluster.dead = dead
            places.nodes_changed()
            places.nodes_changed()
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert told == [[HERE, THERE], [HERE, HERE], [THERE, THERE]]


async def test_topic_that_was_not_found_or_is_not_watched_any_more_is_left_alone() -> None:
    cluster = Cluster()
    missing, left = watched(1, cluster), watched(2, cluster)
    missing.forget()
    left.watched = 0
    told: list[Point] = []
    places = Whereabouts([{missing.path: missing, left.path: left}], cluster.url, told.append)
    cluster.moved = {f"segment://public/default/t{number}/8000-ffff-1" for number in (1, 2)}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(places.run)
        places.nodes_changed()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert told == []


def test_dag_of_a_classic_topic_has_no_places() -> None:
    tail = encode_tail(Layout.create(SEGMENTS, 0), name="topic://a/b/c", owner_url=None, controller_url=None)
    assert with_brokers(tail, lambda segment: THERE) is tail
