"""The connection is cut between the execution of a script and its reply: every write still knows its outcome."""

from collections.abc import AsyncIterator

import pytest
import trio

from controller.classic import ClassicTransitions
from controller.migration import Migrations
from controller.transitions import TopicLimits
from layout.layouts import Layout
from layout.records import TopicRecord, encode
from metadata import keys, scripts
from metadata.classic_records import PartitionedTopic
from metadata.classic_topics import ClassicTopics
from metadata.cursor_requests import CursorRequest, CursorRequests
from metadata.errors import LogFenced, NamespaceExists, OutcomeUnknown, TopicExists, VersionConflict
from metadata.log_figures import Traffic
from metadata.node_sessions import NodeSession
from metadata.records import Version
from metadata.registrations import Registrations
from metadata.scripts import Script
from metadata.segment_holders import Holder, SegmentHolders
from metadata.segment_logs import Entry, LogPlace, Opened, ProducerMark, SegmentLogs
from metadata.store import TopicStore, open_store
from metadata.subscriptions import Attachment, SubscriptionType
from protocol.names import NamespaceName, TopicName
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

pytestmark = pytest.mark.also_on_redis

TOPIC = TopicName.parse("topic://public/default/orders")
PLACE = LogPlace.of_segment(TOPIC, "0000-ffff-0")
SESSION = "a" * 16


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
    await topics.create_log(topic, {}, subscriptions=[b"s"])
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
@pytest.mark.parametrize("script", [scripts.SEAL_CLASSIC, scripts.MIGRATE_TOPIC], ids=lambda script: script.name)
async def test_every_interrupted_write_of_a_migration_succeeds_once(
    valkey: ValkeyProcess, proxy: FaultProxy, store: TopicStore, script: Script
) -> None:
    topic = TopicName.classic("public", "default", "orders")
    limits = TopicLimits()
    classic = ClassicTransitions(store, limits)
    await classic.create_partitioned(topic, 2)
    before = log_length(valkey)
    cut_replies_of(proxy, script)
    stored = await Migrations(store, classic, limits).migrate(topic)
    found = await store.get(topic.canonical)
    assert found is not None
    assert found.version == stored.version
    # The mark, and then the classic and the scalable topic; partitions are logged elsewhere.
    assert log_length(valkey) == before + 3


@pytest.mark.usefixtures("scripts_loaded")
async def test_interrupted_migration_of_a_single_log_takes_its_subscriptions_along_once(
    valkey: ValkeyProcess, proxy: FaultProxy, store: TopicStore
) -> None:
    topic = TopicName.classic("public", "default", "orders")
    limits = TopicLimits()
    classic = ClassicTransitions(store, limits)
    await classic.topics.create_log(topic, {}, subscriptions=[b"one", b"two"])
    before = log_length(valkey)
    cut_replies_of(proxy, scripts.MIGRATE_TOPIC)
    stored = await Migrations(store, classic, limits).migrate(topic)
    assert proxy.cuts == 1
    found = await store.get(topic.canonical)
    assert found is not None
    assert found.version == stored.version
    assert await Registrations(store).names(TOPIC) == ["one", "two"]
    assert log_length(valkey) == before + 2


@pytest.fixture
async def registrations(store: TopicStore) -> Registrations:
    layout = Layout.create(2, 0)
    value = encode(TopicRecord(layout))
    await store.create(TOPIC, value, [segment.descriptor for segment in layout.active])
    return Registrations(store)


@pytest.mark.usefixtures("scripts_loaded")
@pytest.mark.parametrize("times", [1, 3])
async def test_every_interrupted_write_of_a_subscription_happens_once(
    valkey: ValkeyProcess, proxy: FaultProxy, store: TopicStore, registrations: Registrations, times: int
) -> None:
    cut_replies_of(proxy, scripts.CREATE_SUBSCRIPTION, times)
    made = await registrations.create_subscription(TOPIC, "queue", SubscriptionType.QUEUE, 0)
    cut_replies_of(proxy, scripts.ATTACH_CONSUMER, times)
    attached = await registrations.attach(TOPIC, "stream", SubscriptionType.STREAM, "c", Attachment(SESSION, "1" * 16))
    assert attached is not None
    assert proxy.cuts == 2 * times
    identities = await registrations.identities(TOPIC)
    assert identities["queue"] == made.settings.id
    assert identities.keys() == {"queue", "stream"}
    cut_replies_of(proxy, scripts.DELETE_SUBSCRIPTION, times)
    await registrations.delete_subscription(TOPIC, "stream")
    assert await registrations.names(TOPIC) == ["queue"]
    assert await registrations.deleted(TOPIC) == {(identities["stream"], "stream")}
    assert proxy.cuts == 2 * times + 1  # what has happened is not sent again


@pytest.mark.usefixtures("scripts_loaded")
async def test_interrupted_deletion_leaves_what_was_made_under_its_name_meanwhile(
    valkey: ValkeyProcess, proxy: FaultProxy, registrations: Registrations
) -> None:
    await registrations.create_subscription(TOPIC, "s", SubscriptionType.QUEUE, 0)
    before = log_length(valkey)
    async with open_store(valkey.url) as store:
        other = Registrations(store)
        cut_replies_of(proxy, scripts.DELETE_SUBSCRIPTION)
        proxy.refuse()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(registrations.delete_subscription, TOPIC, "s")
            await eventually(lambda: log_length(valkey) == before + 1)
            made = await other.create_subscription(TOPIC, "s", SubscriptionType.STREAM, 1)
            proxy.accept()
        assert await other.identities(TOPIC) == {"s": made.settings.id}


@pytest.mark.usefixtures("scripts_loaded")
@pytest.mark.parametrize("script", [scripts.CREATE_SUBSCRIPTION, scripts.ATTACH_CONSUMER], ids=lambda it: it.name)
async def test_subscription_that_was_deleted_before_an_interrupted_write_is_sent_again_gets_another_id(
    valkey: ValkeyProcess, proxy: FaultProxy, registrations: Registrations, script: Script
) -> None:
    """Cursors that the first one has left would count for the second one otherwise."""
    before = log_length(valkey)

    async def make() -> None:
        if script is scripts.CREATE_SUBSCRIPTION:
            await registrations.create_subscription(TOPIC, "s", SubscriptionType.STREAM, 0)
        else:
            await registrations.attach(TOPIC, "s", SubscriptionType.STREAM, "c", Attachment(SESSION, "1" * 16))

    async with open_store(valkey.url) as store:
        other = Registrations(store)
        # The first try only says that the segments have to be named.
        proxy.cut_before_reply(lambda request: script.sha.encode() in request and b"/0000-7fff-0" in request)
        async with trio.open_nursery() as nursery:
            # Nobody gets a new connection, so that the deletion falls between the execution and the next try.
            proxy.refuse()
            nursery.start_soon(make)
            await eventually(lambda: log_length(valkey) == before + 1)
            first = (await other.identities(TOPIC))["s"]
            await other.delete_subscription(TOPIC, "s")
            proxy.accept()
        assert (await other.identities(TOPIC))["s"] not in (first, "", None)


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


@pytest.fixture
async def logs(store: TopicStore) -> SegmentLogs:
    await store.create(TOPIC, b"0", ["0000-ffff-0"])
    return SegmentLogs(store)


async def claimed(logs: SegmentLogs, session: str = SESSION) -> Opened:
    state = await logs.state(PLACE)
    assert state is not None
    opened = await logs.claim(PLACE, state, session)
    assert opened is not None
    return opened


@pytest.mark.usefixtures("scripts_loaded")
@pytest.mark.parametrize("times", [1, 3])
async def test_an_interrupted_claim_and_release_happen_once_and_are_logged_once(
    valkey: ValkeyProcess, proxy: FaultProxy, store: TopicStore, logs: SegmentLogs, times: int
) -> None:
    cut_replies_of(proxy, scripts.CLAIM_SEGMENT, times)
    opened = await claimed(logs)
    assert proxy.cuts == times
    assert log_length(valkey) == 2
    stored = await store.get(TOPIC)
    assert stored is not None
    assert stored.owners == {0: SESSION}
    await logs.append(opened.claim, 0, [Entry(1, 1, b"one")], {}, 3)
    cut_replies_of(proxy, scripts.RELEASE_SEGMENT, times)
    await logs.release(opened.claim)
    assert log_length(valkey) == 3
    state = await logs.state(PLACE)
    assert state is not None
    assert (state.session, state.term, state.ledger) == ("", opened.claim.term, opened.claim.ledger)


@pytest.mark.usefixtures("scripts_loaded")
async def test_an_interrupted_claim_that_somebody_took_over_meanwhile_is_none(
    valkey: ValkeyProcess, proxy: FaultProxy, logs: SegmentLogs
) -> None:
    state = await logs.state(PLACE)
    assert state is not None
    results: list[Opened | None] = []

    async def claim() -> None:
        results.append(await logs.claim(PLACE, state, SESSION))

    async with open_store(valkey.url) as other:
        # Nobody gets a new connection, so that the other claim falls between the execution and the second try.
        cut_replies_of(proxy, scripts.CLAIM_SEGMENT)
        proxy.refuse()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(claim)
            await eventually(lambda: log_length(valkey) == 2)
            taken = await claimed(SegmentLogs(other), "b" * 16)
            proxy.accept()
    assert results == [None]
    after = await logs.state(PLACE)
    assert after is not None
    assert after.owner == taken.claim.token.decode()


@pytest.mark.usefixtures("scripts_loaded")
async def test_an_interrupted_append_is_not_sent_again_and_a_new_claim_sees_that_it_happened(
    proxy: FaultProxy, logs: SegmentLogs
) -> None:
    opened = await claimed(logs)
    cut_replies_of(proxy, scripts.APPEND_ENTRIES)
    with pytest.raises(OutcomeUnknown):
        await logs.append(opened.claim, 0, [Entry(1, 1, b"one")] * 2, {"p": ProducerMark(1, 1)}, 6)
    again = await claimed(logs)
    assert (again.state.next, again.state.size, again.producers) == (2, 6, {"p": ProducerMark(1, 1)})
    with pytest.raises(LogFenced):
        await logs.append(opened.claim, 2, [Entry(1, 1, b"late")], {}, 10)
    await logs.append(again.claim, 2, [Entry(1, 1, b"two")], {}, 9)
    assert [entry.body for entry in await logs.read(again.claim, 0, 9)] == [b"one", b"one", b"two"]


@pytest.mark.usefixtures("scripts_loaded")
async def test_interrupted_request_to_move_a_cursor_stands_once_and_goes_with_the_write_that_carries_it_out(
    valkey: ValkeyProcess, proxy: FaultProxy, store: TopicStore, logs: SegmentLogs
) -> None:
    claim = (await claimed(logs)).claim
    before = log_length(valkey)
    cut_replies_of(proxy, scripts.REQUEST_CURSOR)
    earlier = await CursorRequests(store).ask(claim.place, claim.incarnation, "s", 7)
    assert earlier is not None
    assert log_length(valkey) == before + 1
    later = await CursorRequests(store).ask(claim.place, claim.incarnation, "s", None)
    assert later is not None
    # One that has come since is still to be carried out.
    await logs.save(claim, {"s": b"1"}, carried_out={"s": CursorRequest(earlier.op, 7).entry})
    assert (await claimed(logs)).state.requests == {"s": CursorRequest(later.op, None)}
    claim = (await claimed(logs)).claim
    cut_replies_of(proxy, scripts.SAVE_CURSORS)
    await logs.save(claim, {"s": b"2"}, carried_out={"s": CursorRequest(later.op, None).entry})
    assert proxy.cuts == 2
    assert (await claimed(logs)).state.requests == {}


@pytest.mark.usefixtures("scripts_loaded")
@pytest.mark.parametrize("times", [1, 3])
async def test_interrupted_saves_and_trims_are_sent_again_until_they_happened(
    valkey: ValkeyProcess, proxy: FaultProxy, store: TopicStore, logs: SegmentLogs, times: int
) -> None:
    claim = (await claimed(logs)).claim
    marks = {"p": ProducerMark(1, 1), "q": ProducerMark(1, 1)}
    await logs.append(claim, 0, [Entry(1, 1, b"one")] * 3, marks, 9)
    cut_replies_of(proxy, scripts.SAVE_CURSORS, times)
    await logs.save(claim, {"s": b"1"}, drained=True)
    assert log_length(valkey) == 3
    await logs.save(claim, {"s": b"2"})
    cut_replies_of(proxy, scripts.FORGET_PRODUCERS, times)
    await logs.forget_producers(claim, ["p"])
    cut_replies_of(proxy, scripts.SET_TOPIC_EPOCH, times)
    await logs.set_topic_epoch(claim, 4)
    cut_replies_of(proxy, scripts.TELL_FIGURES, times)
    await logs.tell(claim, Traffic(messages_in=2.0).encode(), 60)
    cut_replies_of(proxy, scripts.TELL_HOLDER, times)
    assert await SegmentHolders(store).tell(claim, "s", "c")
    cut_replies_of(proxy, scripts.TRIM_SEGMENT, times)
    await logs.trim(claim, 2, 3)
    assert proxy.cuts == 6 * times
    assert await SegmentHolders(store).holders(store.commands, [PLACE], "s") == [Holder(claim.session, "c")]
    [standing] = await logs.standings(store.commands, claim.incarnation, [PLACE], [])
    assert standing.traffic == Traffic(messages_in=2.0)
    after = await claimed(logs)
    assert (after.cursors, after.producers) == ({"s": b"2"}, {"q": ProducerMark(1, 1)})
    assert (after.state.first, after.state.size, after.state.topic_epoch) == (2, 3, 4)


def log_length(valkey: ValkeyProcess) -> int:
    return int(valkey.command("XLEN", keys.changes_key(keys.bucket_of(keys.path_of(TOPIC)))))
