"""Listings of many groups: read once for all that wait, and damaged only where the damage is."""

from __future__ import annotations

from metadata import keys
from protocol.names import NamespaceName, TopicName
from tests.faults.namespace_views import stored_names, viewing_namespaces
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

DEFAULT = NamespaceName("public", "default")


def topic(name: str) -> TopicName:
    return TopicName.scalable("public", "default", name)


def one_per_bucket(prefix: str) -> dict[int, TopicName]:
    found: dict[int, TopicName] = {}
    number = 0
    while len(found) < keys.BUCKETS:
        name = topic(f"{prefix}-{number}")
        found.setdefault(keys.bucket_of(keys.path_of(name)), name)
        number += 1
    return found


async def test_groups_that_come_together_share_their_reads_and_each_gets_its_own_set(valkey: ValkeyProcess) -> None:
    groups, kinds = 60, 3
    async with running_node(valkey.url) as node, viewing_namespaces(node) as viewer:
        changes = transitions_of(node)
        for number in range(30):
            await changes.create(topic(f"t-{number}"), 1, {"kind": str(number % kinds), "number": str(number)})
        filters = [{"kind": str(number % kinds), "number": str(number)} for number in range(groups)]
        views = [await viewer.watch(filters=wanted) for wanted in filters]
        await eventually(lambda: all(view.held is not None for view in views), within=30)
        for view in views:
            assert view.held == await stored_names(node.store, view)
        assert node.namespaces.counters.groups == groups
        # By itself each group would read every bucket once.
        assert node.namespaces.counters.listings < groups * keys.BUCKETS / 2


async def test_a_damaged_index_costs_the_changes_of_its_own_bucket_only(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url) as node, viewing_namespaces(node) as viewer:
        changes = transitions_of(node)
        view = await viewer.watch()
        await eventually(lambda: view.held == set())
        damaged = keys.index_key(5, DEFAULT)
        valkey.client().set(damaged, "none of ours")
        gaps = node.feed.counters.gaps.total()
        valkey.command("CLIENT", "KILL", "TYPE", "pubsub")
        await eventually(lambda: node.feed.counters.gaps.total() > gaps and node.feed.whole)
        fresh = {bucket: name for bucket, name in one_per_bucket("fresh").items() if bucket != 5}
        for name in fresh.values():
            await changes.create(name, 1)
        await eventually(lambda: view.held == {str(name) for name in fresh.values()}, within=30)
        # Repaired, it is as if nothing had been.
        valkey.client().delete(damaged)
        await changes.create(one_per_bucket("fresh")[5], 1)
        await eventually(lambda: view.held is not None and len(view.held) == keys.BUCKETS, within=30)
