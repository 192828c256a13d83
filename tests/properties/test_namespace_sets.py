"""Histories of namespace watches that chance seldom makes: changes in the middle of a listing, bursts, late joiners."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import pytest
import trio

from controller.transitions import TopicLimits, Transitions
from metadata import keys
from metadata.store import open_store
from protocol.names import NamespaceName, TopicName
from tests.properties.mirrors import Diff, Mirror
from tests.properties.peers import Peer, joined
from tests.properties.truth import Filters, read_truth, selected
from tests.support.nodes import CONVERGENCE_LIMIT, running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

NAMESPACE: Final = NamespaceName("public", "default")
RED: Final[Filters] = (("color", "red"),)
# Far beyond the length of any test: only bells and gaps can make the node look.
NEVER: Final = 600.0
# So long that a held reply is not taken for a lost connection.
PATIENT: Final = 20.0


def topic(local: str) -> TopicName:
    return TopicName.scalable(NAMESPACE.tenant, NAMESPACE.namespace, local)


@asynccontextmanager
async def writing(server: ValkeyProcess, *, change_log_length: int = 10_000) -> AsyncIterator[Transitions]:
    """A writer that nothing stands in the way of."""
    async with open_store(server.url, change_log_length=change_log_length) as store:
        yield Transitions(store, TopicLimits())


async def create_all(
    changes: Transitions, topics: list[TopicName], properties: Mapping[str, str], at_once: int
) -> None:
    remaining = iter(topics)

    async def create_next() -> None:
        for name in remaining:
            await changes.create(name, 1, properties)

    async with trio.open_nursery() as nursery:
        for _ in range(at_once):
            nursery.start_soon(create_next)


async def opened(peer: Peer, watch_id: int, filters: Filters = ()) -> Mirror:
    mirror = Mirror(watch_id, NAMESPACE, filters)
    await peer.open(mirror)
    return mirror


async def until_in_step(server: ValkeyProcess, mirrors: list[Mirror], within: float = CONVERGENCE_LIMIT) -> None:
    truth = await trio.to_thread.run_sync(read_truth, server, [NAMESPACE])

    def in_step() -> bool:
        for mirror in mirrors:
            expected = selected(truth, NAMESPACE, mirror.filters)
            assert mirror.known
            assert mirror.topics == expected, f"{mirror}: {len(mirror.topics)} told, {len(expected)} are there"
        return True

    await eventually(in_step, within)


async def test_a_change_in_the_middle_of_the_first_listing_is_not_missed(valkey: ValkeyProcess) -> None:
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        running_node(proxy.url, probe_interval=NEVER, store_timeout=PATIENT) as node,
        writing(valkey) as changes,
        joined(node) as peer,
    ):
        for number in range(40):
            await changes.create(topic(f"old-{number}"), 1, {"color": "red", "round": "all"})
        mirrors = []
        for number in range(12):
            # Every round is a group of its own, caught a little later in its listing.
            mirrors.append(await opened(peer, number, (*RED, ("size", str(number)))))
            mirrors.append(await opened(peer, 100 + number, (("round", "all"), ("color", "red"))))
            await trio.sleep(number * 0.001)
            proxy.stall()
            await changes.create(topic(f"new-{number}"), 1, {"color": "red", "size": str(number)})
            await changes.delete(topic(f"old-{number}"))
            await changes.update_properties(topic(f"old-{39 - number}"), {"color": "red", "size": str(number)})
            proxy.resume()
            await until_in_step(valkey, mirrors)
            await peer.close(100 + number)
            mirrors.pop()
        assert all(mirror.snapshots == 1 for mirror in mirrors)


async def test_a_property_change_moves_a_topic_into_the_watches_it_fits_and_out_of_the_others(
    valkey: ValkeyProcess,
) -> None:
    orders = topic("orders")
    async with running_node(valkey.url, probe_interval=NEVER) as node, joined(node) as peer:
        changes = transitions_of(node)
        everything, red = await opened(peer, 1), await opened(peer, 2, RED)
        await until_in_step(valkey, [everything, red])
        await changes.create(orders, 1, {"color": "blue"})
        await until_in_step(valkey, [everything, red])
        await changes.update_properties(orders, {"color": "red", "size": "large"})
        await until_in_step(valkey, [everything, red])
        # Changes that move nothing.
        await changes.update_properties(orders, {"color": "red"})
        await changes.split(orders, 0)
        await changes.update_properties(orders, {})
        await until_in_step(valkey, [everything, red])
        name = frozenset({str(orders)})
        assert everything.diffs == [Diff(added=name, removed=frozenset())]
        assert red.diffs == [Diff(name, frozenset()), Diff(frozenset(), name)]


async def test_a_topic_that_was_made_anew_is_told_as_gone_and_come(valkey: ValkeyProcess) -> None:
    orders = topic("orders")
    async with running_node(valkey.url, probe_interval=NEVER, coalesce=0.2) as node, joined(node) as peer:
        changes = transitions_of(node)
        await changes.create(orders, 1, {"color": "red"})
        mirrors = [await opened(peer, 1), await opened(peer, 2, RED)]
        await until_in_step(valkey, mirrors)
        # The first change after quiet goes out at once; what follows within the window is one diff.
        await changes.create(topic("other"), 1, {"color": "red"})
        await eventually(lambda: all(mirror.diffs for mirror in mirrors))
        await changes.delete(orders)
        await changes.create(orders, 1, {"color": "red"})
        await eventually(lambda: all(len(mirror.diffs) > 1 for mirror in mirrors))
        name = frozenset({str(orders)})
        assert [mirror.diffs[1:] for mirror in mirrors] == [[Diff(added=name, removed=name)]] * 2
        await until_in_step(valkey, mirrors)


@pytest.mark.slow
@pytest.mark.parametrize("count", [3_000, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_a_burst_of_thousands_of_creations_reaches_all_watchers_in_few_frames(
    valkey: ValkeyProcess, count: int
) -> None:
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(running_node(valkey.url))
        changes = await stack.enter_async_context(writing(valkey))
        peers = [await stack.enter_async_context(joined(node)) for _ in range(20)]
        mirrors = [await opened(peer, 1, RED if number % 2 else ()) for number, peer in enumerate(peers)]
        await eventually(lambda: all(mirror.known for mirror in mirrors))
        evaluations = node.namespaces.counters.evaluations
        await create_all(changes, [topic(f"topic-{number}") for number in range(count)], {"color": "red"}, at_once=50)
        await until_in_step(valkey, mirrors, within=60)
        assert all(mirror.snapshots == 1 and len(mirror.diffs) < count / 10 for mirror in mirrors)
        # One group of the two has filters, and ten watchers in it cost what one does.
        assert node.namespaces.counters.evaluations - evaluations < 2 * count


@pytest.mark.slow
@pytest.mark.parametrize("filters", [(), RED])
async def test_who_joins_in_a_burst_gets_a_snapshot_and_the_diffs_that_follow_it(
    valkey: ValkeyProcess, filters: Filters
) -> None:
    """Each mirror complains about a repeat; a gap would show at the end, and a step back is a removal or a snapshot."""
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(running_node(valkey.url, coalesce=0.01))
        changes = await stack.enter_async_context(writing(valkey))
        peers = [await stack.enter_async_context(joined(node)) for _ in range(5)]
        names = [topic(f"topic-{number}") for number in range(1_500)]
        mirrors: list[Mirror] = []
        done = trio.Event()

        async def burst() -> None:
            await create_all(changes, names, {"color": "red"}, at_once=20)
            done.set()

        stack.enter_context(trio.fail_after(100))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(burst)
            while not done.is_set():
                mirrors.append(await opened(peers[len(mirrors) % len(peers)], len(mirrors), filters))
                await trio.sleep(0.01)
        await until_in_step(valkey, mirrors)
        assert len(mirrors) > 10
        assert all(mirror.snapshots == 1 for mirror in mirrors)
        assert not any(diff.removed for mirror in mirrors for diff in mirror.diffs)


async def test_changes_in_a_log_that_was_empty_are_not_missed_when_it_is_trimmed_before_it_is_read(
    valkey: ValkeyProcess,
) -> None:
    bucket = keys.bucket_of(keys.path_of(topic("first")))
    near = next(
        name
        for name in (topic(f"near-{number}") for number in range(10_000))
        if keys.bucket_of(keys.path_of(name)) == bucket
    )
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        running_node(proxy.url, store_timeout=PATIENT) as node,
        writing(valkey, change_log_length=100) as changes,
        joined(node) as peer,
    ):
        mirror = await opened(peer, 1)
        await eventually(lambda: mirror.known)
        proxy.stall()
        await changes.create(topic("first"), 1)
        await changes.create(near, 1)
        for number in range(300):
            await changes.update_properties(near, {"number": str(number)})
        proxy.resume()
        await until_in_step(valkey, [mirror])


async def test_a_change_is_not_missed_when_its_bell_is_lost_and_its_log_is_emptied_again(valkey: ValkeyProcess) -> None:
    """Neither the bell nor the tail tells: the log is as empty as it was before."""
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        running_node(proxy.url) as node,
        writing(valkey) as changes,
        joined(node) as peer,
    ):
        mirror = await opened(peer, 1)
        await eventually(lambda: mirror.known)
        proxy.swallow_pushes()
        proxy.stall()
        await changes.create(topic("orders"), 1)
        valkey.client().xtrim(keys.changes_key(keys.bucket_of(keys.path_of(topic("orders")))), 0, approximate=False)
        proxy.resume()
        await eventually(lambda: proxy.swallowed > 0)
        proxy.deliver_pushes()
        await until_in_step(valkey, [mirror])
