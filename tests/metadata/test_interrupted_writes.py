"""The connection is cut between the execution of a script and its reply: every write still knows its outcome."""

from collections.abc import AsyncIterator

import pytest
import trio

from metadata import keys, scripts
from metadata.classic_records import PartitionedTopic
from metadata.classic_topics import ClassicTopics
from metadata.errors import NamespaceExists, TopicExists, VersionConflict
from metadata.node_sessions import NodeSession
from metadata.records import Version
from metadata.scripts import Script
from metadata.store import TopicStore, open_store
from protocol.names import NamespaceName, TopicName
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

TOPIC = TopicName.parse("topic://public/default/orders")


@pytest.fixture
async def proxy(valkey: ValkeyProcess) -> AsyncIterator[FaultProxy]:
    async with FaultProxy.open(*valkey.address) as proxy:
        yield proxy


@pytest.fixture
async def store(proxy: FaultProxy) -> AsyncIterator[TopicStore]:
    async with open_store(proxy.url) as store:
        yield store


def cut_replies_of(proxy: FaultProxy, script: Script, times: int = 1) -> None:
    proxy.cut_before_reply(lambda request: script.sha.encode() in request, times)


@pytest.fixture
def scripts_loaded(valkey: ValkeyProcess) -> None:
    """Scripts are loaded beforehand, so that the cut falls on the execution and not on a NOSCRIPT reply."""
    for script in scripts.ALL:
        valkey.command("SCRIPT", "LOAD", script.source)


@pytest.mark.usefixtures("scripts_loaded")
@pytest.mark.parametrize("times", [1, 3])
async def test_an_interrupted_create_succeeds_and_is_logged_once(
    valkey: ValkeyProcess, proxy: FaultProxy, store: TopicStore, times: int
) -> None:
    cut_replies_of(proxy, scripts.CREATE_TOPIC, times)
    version = await store.create(TOPIC, b"0", ["0000-ffff-0"])
    stored = await store.get(TOPIC)
    assert stored is not None
    assert stored.version == version
    assert log_length(valkey) == 1


@pytest.mark.usefixtures("scripts_loaded")
async def test_an_interrupted_replace_is_applied_once(
    valkey: ValkeyProcess, proxy: FaultProxy, store: TopicStore
) -> None:
    version = await store.create(TOPIC, b"0", ["0000-ffff-0"])
    cut_replies_of(proxy, scripts.REPLACE_TOPIC)
    after = await store.replace(TOPIC, version, b"1", created=["0000-7fff-1"], sealed=["0000-ffff-0"])
    assert after == Version(version.incarnation, 1)
    assert log_length(valkey) == 2


@pytest.mark.usefixtures("scripts_loaded")
async def test_an_interrupted_replace_is_a_success_even_if_somebody_wrote_after_it(
    valkey: ValkeyProcess, proxy: FaultProxy, store: TopicStore
) -> None:
    version = await store.create(TOPIC, b"0", [])
    async with open_store(valkey.url) as other:
        results: list[Version] = []

        async def write() -> None:
            results.append(await store.replace(TOPIC, version, b"1"))

        # Nobody gets a new connection, so that the other write falls between the execution and the second try.
        cut_replies_of(proxy, scripts.REPLACE_TOPIC)
        proxy.refuse()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await eventually(lambda: log_length(valkey) == 2)
            await other.replace(TOPIC, Version(version.incarnation, 1), b"2")
            proxy.accept()
        assert results == [Version(version.incarnation, 1)]
        assert log_length(valkey) == 3


@pytest.mark.usefixtures("scripts_loaded")
async def test_an_interrupted_delete_succeeds(valkey: ValkeyProcess, proxy: FaultProxy, store: TopicStore) -> None:
    version = await store.create(TOPIC, b"0", ["0000-ffff-0"])
    cut_replies_of(proxy, scripts.DELETE_TOPIC)
    await store.delete(TOPIC, version, ["0000-ffff-0"])
    assert await store.get(TOPIC) is None
    assert log_length(valkey) == 2


@pytest.mark.usefixtures("scripts_loaded")
@pytest.mark.parametrize(
    "script",
    [
        scripts.CREATE_CLASSIC,
        scripts.DELETE_CLASSIC,
        scripts.CREATE_PARTITIONED,
        scripts.REPLACE_PARTITIONED,
        scripts.DELETE_PARTITIONED,
    ],
    ids=lambda script: script.name,
)
async def test_every_interrupted_write_of_a_classic_topic_succeeds_and_is_logged_once(
    valkey: ValkeyProcess, proxy: FaultProxy, store: TopicStore, script: Script
) -> None:
    topics = ClassicTopics(store)
    topic = TopicName.classic("public", "default", "orders")
    cut_replies_of(proxy, script)
    await topics.create_log(topic, {})
    await topics.delete_log(topic)
    await topics.create_partitioned(topic, 1, {})
    found = await topics.get(topic)
    assert isinstance(found, PartitionedTopic)
    after = await topics.replace_partitioned(found, partitions=2)
    assert await topics.get(topic) == after
    await topics.delete_partitioned(topic)
    assert await topics.get(topic) is None
    assert log_length(valkey) == 5


@pytest.mark.usefixtures("scripts_loaded")
async def test_an_interrupted_namespace_creation_is_not_a_conflict_with_itself(
    proxy: FaultProxy, store: TopicStore
) -> None:
    namespace = NamespaceName("acme", "eu")
    cut_replies_of(proxy, scripts.CREATE_NAMESPACE)
    await store.create_namespace(namespace)
    with pytest.raises(NamespaceExists):
        await store.create_namespace(namespace)


@pytest.mark.usefixtures("scripts_loaded")
async def test_real_conflicts_stay_conflicts_when_the_reply_is_lost(
    valkey: ValkeyProcess, proxy: FaultProxy, store: TopicStore
) -> None:
    version = await store.create(TOPIC, b"0", [])
    await store.replace(TOPIC, version, b"1")
    cut_replies_of(proxy, scripts.CREATE_TOPIC)
    with pytest.raises(TopicExists):
        await store.create(TOPIC, b"2", [])
    cut_replies_of(proxy, scripts.REPLACE_TOPIC)
    with pytest.raises(VersionConflict):
        await store.replace(TOPIC, version, b"2")
    cut_replies_of(proxy, scripts.DELETE_TOPIC)
    with pytest.raises(VersionConflict):
        await store.delete(TOPIC, version, [])
    assert log_length(valkey) == 2


@pytest.mark.usefixtures("scripts_loaded")
async def test_an_interrupted_first_and_later_renewal_keep_the_node_session(
    valkey: ValkeyProcess, proxy: FaultProxy, store: TopicStore
) -> None:
    session = NodeSession(store, lease=0.9, pulsar_url="pulsar://a:1", http_url="http://a:2")
    first_id = session.record.session
    cut_replies_of(proxy, scripts.RENEW_LEASE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.run)
        await eventually(lambda: session.held)
        cut_replies_of(proxy, scripts.RENEW_LEASE)
        await eventually(lambda: proxy.cuts == 2)
        await eventually(lambda: session.held)
        assert session.record.session == first_id
        cut_replies_of(proxy, scripts.RELEASE_LEASE)
        nursery.cancel_scope.cancel()
    assert valkey.client().exists(keys.node_key(first_id)) == 0


def log_length(valkey: ValkeyProcess) -> int:
    return int(valkey.command("XLEN", keys.changes_key(keys.bucket_of(keys.path_of(TOPIC)))))
