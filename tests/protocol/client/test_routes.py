"""Which segment or partition a key goes to."""

from __future__ import annotations

import pytest

from protocol.client import ServerMisbehaved
from protocol.client.routes import Route, Routes, active_routes, all_routes
from protocol.hashing import murmur3_32
from protocol.wire import pulsar_api_pb2 as api
from tests.protocol.client.producer_scripts import layout_of


def update(*segments: tuple[int, ...]) -> api.CommandScalableTopicUpdate:
    return layout_of(segments, 0, 1).scalableTopicUpdate


# Worked examples of Pulsar's own clients, for four equal segments.
@pytest.mark.parametrize(
    ("key", "segment_id"),
    [("", 0), ("a", 0), ("order-42", 1), ("customer-99", 3), ("key-0", 3), ("key-1", 2), ("user:1001", 2), ("été", 0)],
)
def test_keys_go_where_clients_of_pulsar_5_send_them(key: str, segment_id: int) -> None:
    quarters = [(index, index * 0x4000, index * 0x4000 + 0x3FFF) for index in range(4)]
    routes = active_routes(update(*quarters))
    route = routes.at(routes.position(murmur3_32(key.encode())))
    assert route is not None
    assert route.segment_id == segment_id


def test_the_name_of_a_segment_is_made_of_its_topic_range_and_id() -> None:
    ((route, state),) = all_routes(update((5, 0x8000, 0xFFFF, 1)))
    assert route == Route("segment://public/default/t/8000-ffff-5", 0x8000, 0xFFFF, 5)
    assert state == api.SEALED


def test_a_segment_that_was_a_topic_keeps_its_name() -> None:
    told = update((5, 0x8000, 0xFFFF))
    told.dag.segments[0].legacy_topic_name = "persistent://public/default/t-partition-1"
    ((route, _),) = all_routes(told)
    assert (route.topic, route.is_legacy) == ("persistent://public/default/t-partition-1", True)


def test_sealed_segments_are_not_routes() -> None:
    routes = active_routes(update((0, 0, 0xFFFF, 1), (1, 0, 0x7FFF)))
    assert [route.segment_id for route in routes.in_order] == [1]


def test_a_hole_in_the_ring_has_no_route() -> None:
    routes = active_routes(update((1, 0x1000, 0x7FFF), (2, 0x9000, 0xFFFF)))
    assert [routes.at(position) is None for position in (0, 0x1000, 0x8000, 0x9000)] == [True, False, True, False]
    assert Routes.to_segments(()).at(0) is None


@pytest.mark.parametrize("segment", [(1, 0x8000, 0x7FFF), (1, 0, 0x1_0000)])
def test_segments_that_cannot_be_are_the_servers_fault(segment: tuple[int, ...]) -> None:
    with pytest.raises(ServerMisbehaved, match="segments that cannot be"):
        active_routes(update(segment))


def test_a_layout_without_the_name_of_its_topic_is_the_servers_fault() -> None:
    told = update((0, 0, 0xFFFF))
    told.ClearField("resolved_topic_name")
    with pytest.raises(ServerMisbehaved):
        active_routes(told)


def test_partitions_are_numbered_and_every_key_has_one() -> None:
    routes = Routes.to_partitions("persistent://t/n/x", 3)
    assert [route.topic for route in routes.in_order] == [f"persistent://t/n/x-partition-{index}" for index in range(3)]
    positions = {routes.position(murmur3_32(b"%d" % number)) for number in range(100)}
    assert positions == {0, 1, 2}
    assert all(routes.at(position) is not None for position in positions)


def test_a_topic_without_partitions_is_its_own_route() -> None:
    routes = Routes.to_partitions("persistent://t/n/x", 0)
    assert [route.topic for route in routes.in_order] == ["persistent://t/n/x"]
    assert routes.at(routes.position(murmur3_32(b"any"))) is routes.in_order[0]
