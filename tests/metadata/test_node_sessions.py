"""A node's lease: held while it is renewed, given back at the end, never taken up again once it ran out."""

import time

import msgspec
import pytest
import trio
import trio.testing

from metadata import keys
from metadata.lanes import Timeouts
from metadata.node_sessions import NodeRecord, NodeSession
from metadata.store import TopicStore, open_store
from tests.support.processes import ValkeyProcess
from tests.support.topology import Topology
from tests.support.waiting import eventually

HASTY = Timeouts(connect=0.5, silence=0.2, patience=0.4)


@pytest.fixture(autouse=True)
def release_with_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer for giving a lease back than a node that stops would wait."""
    monkeypatch.setattr("metadata.node_sessions._RELEASE_LIMIT", 30.0)


def session_on(store: TopicStore, lease: float) -> NodeSession:
    return NodeSession(store, lease=lease, pulsar_url="pulsar://a:1", http_url="http://a:2")


async def test_a_session_shows_the_node_and_ends_with_it(topology: Topology) -> None:
    async with open_store(topology.url) as store:
        session = session_on(store, lease=60)
        key = keys.node_key(session.record.session)
        assert not session.held
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            await eventually(lambda: session.held)
            stored = topology.client_for(key).get(key)
            assert isinstance(stored, bytes)
            assert msgspec.json.decode(stored, type=NodeRecord) == session.record
            remaining = topology.client_for(key).pttl(key)
            assert isinstance(remaining, int)
            assert 0 < remaining <= 60_000
            nursery.cancel_scope.cancel()
        assert topology.client_for(key).exists(key) == 0


async def test_a_session_is_prolonged_again_and_again(valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    # So often that no lease comes near its end, on however busy a machine.
    monkeypatch.setattr("metadata.node_sessions._RENEWALS_PER_LEASE", 600)
    async with open_store(valkey.url) as store:
        session = session_on(store, lease=60)
        key = keys.node_key(session.record.session)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            await eventually(lambda: session.held)
            for _ in range(3):
                assert valkey.client().pexpire(key, 30_000) == 1
                await eventually(lambda: int(valkey.client().pttl(key)) > 30_000)
            assert session.held
            assert (keys.node_key(session.record.session), session.sessions_lost) == (key, 0)
            nursery.cancel_scope.cancel()


async def test_a_node_stops_believing_in_its_lease_before_the_store_does(fresh_valkey: ValkeyProcess) -> None:
    async with open_store(fresh_valkey.url, timeouts=HASTY) as store:
        session = session_on(store, lease=1.0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            await eventually(lambda: session.held)
            fresh_valkey.pause()
            await eventually(lambda: not session.held)
            fresh_valkey.resume()
            nursery.cancel_scope.cancel()


async def test_a_session_that_ran_out_is_followed_by_another(valkey: ValkeyProcess) -> None:
    async with open_store(valkey.url) as store:
        session = session_on(store, lease=0.6)
        first = session.record.session
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            await eventually(lambda: session.held)
            valkey.client().delete(keys.node_key(first))
            await eventually(lambda: session.sessions_lost and session.held)
            assert session.record.session != first
            assert valkey.client().exists(keys.node_key(first)) == 0
            nursery.cancel_scope.cancel()


async def test_a_session_that_is_renounced_ends_at_once_and_is_followed_by_another(topology: Topology) -> None:
    async with open_store(topology.url) as store, trio.open_nursery() as nursery:
        session = session_on(store, lease=600)
        first = session.record.session
        nursery.start_soon(session.run)
        await eventually(lambda: session.held)
        async with trio.open_nursery() as waiting:
            waiting.start_soon(session.wait_lost)
            await trio.testing.wait_all_tasks_blocked()
            session.renounce()
            assert not session.held
        await eventually(lambda: session.held)
        assert session.record.session != first
        assert topology.client_for(keys.node_key(first)).exists(keys.node_key(first)) == 0
        # The list is in another slot of a cluster, and is written after the lease.
        listed = topology.client_for(keys.NODES)
        await eventually(lambda: listed.hkeys(keys.NODES) == [session.record.session.encode()])
        nursery.cancel_scope.cancel()


async def test_a_node_tells_the_time_of_the_store_and_not_its_own(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    monkeypatch.setattr("time.time", lambda: real() + 86_400)
    async with open_store(topology.url) as store, trio.open_nursery() as nursery:
        session = session_on(store, lease=5)
        assert abs(session.store_ms() / 1000 - real()) > 86_000, "nobody was asked yet"
        nursery.start_soon(session.run)
        await eventually(lambda: abs(session.store_ms() / 1000 - real()) < 1)
        nursery.cancel_scope.cancel()
