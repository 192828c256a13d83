"""A map of the cluster that is wrong for a moment, as gossip makes it around every move."""

import pytest
import trio

from metadata import keys
from tests.support.nodes import running_node, topics_in_buckets, transitions_of, until_in_step, viewing
from tests.support.topology import Topology
from tests.support.waiting import eventually

TOPICS = topics_in_buckets(range(0, keys.BUCKETS, 8))
ROUNDS = 40


@pytest.mark.parametrize("topology", ["cluster"], indirect=True)
async def test_buckets_stay_followed_after_moments_of_a_wrong_map(topology: Topology) -> None:
    async with (
        running_node(topology.url) as node,
        running_node(topology.url) as other,
        viewing(node) as viewer,
    ):
        views = [await viewer.watch(topic) for topic in TOPICS]
        await until_in_step(other.store, views)
        directory = node.store.directory
        primaries = sorted(directory.primaries(), key=str)
        slots = [keys.BUCKET_SLOTS[keys.bucket_of(keys.path_of(topic))] for topic in TOPICS]
        for turn in range(ROUNDS):
            # As when a node that has not heard of a move yet is asked for the slots; the first MOVED puts it right.
            for slot in slots:
                directory.moved(slot, primaries[(turn + slot) % len(primaries)])
            await trio.lowlevel.checkpoint()
            await eventually(lambda: not node.readiness())
        for topic in TOPICS:
            await transitions_of(other).split(topic, 0)
        await until_in_step(other.store, views)
        assert not node.readiness()
