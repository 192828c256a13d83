"""Recording a real store: what the rows say, gaps and bases, disks that hang or are full, and going on with a trace."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio

from gateway.feed_switch import FeedSwitch
from gateway.recorder.following import following
from gateway.recorder.intake import Intake
from gateway.recorder.opening import Naming
from gateway.recorder.recorder import Recorder
from gateway.recorder.recording import Plan, recording
from gateway.recorder.writer import PartLimits
from layout import records
from metadata import keys
from metadata.feed import ChangeFeed
from metadata.lanes import Timeouts
from metadata.segment_logs import LogPlace, SegmentLogs
from metadata.store import TopicStore, open_store
from metadata.traces.directories import open_trace
from metadata.traces.events import Kind
from metadata.traces.pseudonyms import Pseudonyms, read_key
from protocol.names import NamespaceName, TopicName
from sessions.readback import ReadBack
from tests.gateway.recorder.recorded import Disk, events_of, value_of
from tests.metadata.traces.made_traces import changes, overwrite, record
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

NAMESPACE = NamespaceName("acme", "shop")
TOPIC = TopicName.parse("topic://acme/shop/orders")
TIMEOUTS = Timeouts(connect=3.0, silence=1.5, patience=6.0)


def numbered(number: int) -> TopicName:
    return TopicName.parse(f"topic://acme/shop/topic-{number}")


@asynccontextmanager
async def recording_store(
    url: str, plan: Plan, *, probe_interval: float = 600.0, **options: Any
) -> AsyncIterator[tuple[TopicStore, Recorder]]:
    """A recorder on its own feed, put together as the server does it."""
    async with open_store(url, timeouts=TIMEOUTS) as store:
        await store.ensure_namespace(NAMESPACE)
        async with recording(plan, store, **options) as recorder, trio.open_nursery() as nursery:
            readback = ReadBack(
                nursery=nursery,
                read=lambda topics: store.read(feed.lane, topics),
                trusted=lambda bucket: feed.trusted(bucket),
            )
            if plan.values:
                readback.add(recorder.values)
            feed = ChangeFeed(store, FeedSwitch(readback), probe_interval=probe_interval, observer=recorder)
            nursery.start_soon(feed.run)
            nursery.start_soon(recorder.run)
            await feed.wait_whole()
            await eventually(lambda: recorder.counters.bases == 1)
            yield store, recorder
            nursery.cancel_scope.cancel()


async def live_a_life(store: TopicStore, recorder: Recorder) -> list[tuple[str, int, bytes | None]]:
    """Create, split, change and delete a topic, each after the other was recorded; what happened."""
    happened: list[tuple[str, int, bytes | None]] = []
    version = await store.create(TOPIC, value_of(0), [])
    happened.append((Kind.CREATED, 0, value_of(0)))
    for value in (value_of(1), value_of(1, owner="team")):
        await written(recorder, 2 + len(happened))
        version = await store.replace(TOPIC, version, value)
        happened.append((Kind.CHANGED, version.number, value))
    await written(recorder, 2 + len(happened))
    await store.delete(TOPIC, version, [])
    happened.append((Kind.DELETED, version.number, None))
    return happened


async def written(recorder: Recorder, count: int) -> None:
    await eventually(lambda: recorder.written.events >= count)


async def test_every_change_is_recorded_in_order_with_its_value(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with recording_store(valkey.url, Plan(tmp_path)) as (store, recorder):
        happened = await live_a_life(store, recorder)
        await written(recorder, 2 + len(happened))
    events = events_of(tmp_path)
    assert [event.kind for event in events[:2]] == [Kind.GAP, Kind.BASE_END]
    assert (events[0].detail, events[0].bucket, events[1].bucket) == ("start", None, None)
    rows = events[2:]
    assert [(row.kind, row.version, row.value) for row in rows] == happened
    assert [row.epoch for row in rows] == [0, 1, 1, None]
    assert [row.size for row in rows] == [None if value is None else len(value) for _, _, value in happened]
    assert {(row.namespace, row.topic, row.bucket) for row in rows} == {
        ("acme/shop", "orders", keys.bucket_of(keys.path_of(TOPIC)))
    }
    assert len({row.incarnation for row in rows}) == 1
    assert [event.seq for event in events] == list(range(len(events)))
    assert {event.run for event in events} == {1}


async def test_owners_and_drained_segments_are_rows_without_a_record(valkey: ValkeyProcess, tmp_path: Path) -> None:
    place = LogPlace.of_segment(TOPIC, "0000-ffff-0")
    async with recording_store(valkey.url, Plan(tmp_path)) as (store, recorder):
        logs = SegmentLogs(store)
        version = await store.create(TOPIC, value_of(), ["0000-ffff-0"])
        state = await logs.state(place)
        assert state is not None
        opened = await logs.claim(place, state, "a" * 16)
        assert opened is not None
        await logs.save(opened.claim, {"s": b"1"}, drained=True)
        await logs.release(opened.claim)
        await written(recorder, 6)
    rows = events_of(tmp_path)[2:]
    assert [(row.kind, row.version, row.value) for row in rows] == [
        (Kind.CREATED, 0, value_of()),
        (Kind.OWNER, None, None),
        (Kind.DRAINED, None, None),
        (Kind.OWNER, None, None),
    ]
    assert {row.incarnation for row in rows} == {version.incarnation}


async def test_times_are_those_of_the_store_the_notification_and_the_recorder(
    valkey: ValkeyProcess, tmp_path: Path
) -> None:
    async with recording_store(valkey.url, Plan(tmp_path, values=False)) as (store, recorder):
        await store.create(TOPIC, value_of(), [])
        await written(recorder, 3)
    events = events_of(tmp_path)
    [row] = [event for event in events if event.kind == Kind.CREATED]
    assert row.arrival_us is not None
    assert row.store_ms is not None
    assert row.store_seq == 0
    assert row.arrival_us <= row.taken_us
    # The same machine, the same clock: the notification comes after the change, give or take a rounded millisecond.
    assert -5_000 < row.arrival_us - 1_000 * row.store_ms < 5_000_000
    assert all(before.taken_us <= after.taken_us for before, after in pairwise(events))


async def test_without_values_the_rows_say_how_large_they_were(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with recording_store(valkey.url, Plan(tmp_path, values=False)) as (store, recorder):
        version = await store.create(TOPIC, value_of(), [])
        await store.replace(TOPIC, version, value_of(1))
        await written(recorder, 4)
    rows = events_of(tmp_path)[2:]
    assert [(row.value, row.size, row.epoch) for row in rows] == [
        (None, len(value_of()), 0),
        (None, len(value_of(1)), 1),
    ]
    assert not open_trace(tmp_path).manifest.values


async def test_of_changes_in_one_moment_the_last_has_its_value(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with recording_store(valkey.url, Plan(tmp_path)) as (store, recorder):
        version = await store.create(TOPIC, value_of(), [])
        for epoch in (1, 2, 3):
            version = await store.replace(TOPIC, version, value_of(epoch))
        await written(recorder, 6)
    rows = events_of(tmp_path)[2:]
    assert [row.epoch for row in rows] == [0, 1, 2, 3]
    assert rows[-1].value == value_of(3)


async def test_a_change_whose_notification_was_lost_has_no_arrival(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        open_store(valkey.url) as other,
        recording_store(proxy.url, Plan(tmp_path, values=False), probe_interval=0.1) as (_, recorder),
    ):
        proxy.swallow_pushes()
        version = await other.create(TOPIC, value_of(), [])
        await written(recorder, 3)
        proxy.deliver_pushes()
        await other.replace(TOPIC, version, value_of(1))
        await written(recorder, 4)
    lost, heard = events_of(tmp_path)[2:]
    assert lost.arrival_us is None
    assert heard.arrival_us is not None


async def test_topics_that_were_there_are_the_base(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with open_store(valkey.url) as store:
        await store.ensure_namespace(NAMESPACE)
        for number in range(300):
            await store.create(numbered(number), value_of(number % 2), [])
    async with recording_store(valkey.url, Plan(tmp_path)) as (_, recorder):
        await written(recorder, 302)
    events = events_of(tmp_path)
    assert [events[0].kind, events[-1].kind] == [Kind.GAP, Kind.BASE_END]
    base = events[1:-1]
    assert {event.kind for event in base} == {Kind.BASE}
    assert {(event.topic, event.epoch, event.value) for event in base} == {
        (f"topic-{number}", number % 2, value_of(number % 2)) for number in range(300)
    }
    assert all(event.version == 0 and event.size == len(event.value or b"") for event in base)


async def test_a_lost_connection_is_a_gap_with_a_base_after_it(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        open_store(valkey.url) as other,
        recording_store(proxy.url, Plan(tmp_path)) as (_, recorder),
    ):
        proxy.refuse()
        proxy.cut()
        await other.create(TOPIC, value_of(2), [])
        proxy.accept()
        await eventually(lambda: recorder.counters.bases == 2, within=30)
    events = events_of(tmp_path)
    assert [event.kind for event in events] == [Kind.GAP, Kind.BASE_END, Kind.GAP, Kind.BASE, Kind.BASE_END]
    assert [event.detail for event in events if event.kind == Kind.GAP] == ["start", "connection"]
    assert (events[3].topic, events[3].epoch, events[3].value) == ("orders", 2, value_of(2))


async def test_a_trace_is_gone_on_with_by_the_next_recorder(valkey: ValkeyProcess, tmp_path: Path) -> None:
    for epoch in range(2):
        async with recording_store(valkey.url, Plan(tmp_path)) as (store, recorder):
            if epoch == 0:
                await store.create(TOPIC, value_of(), [])
            else:
                [stored] = await store.get_many([TOPIC])
                assert stored is not None
                await store.replace(TOPIC, stored.version, value_of(1))
            await written(recorder, 3)
    trace = open_trace(tmp_path)
    assert (trace.manifest.runs, len(trace.files), trace.logs) == (2, 2, ())
    events = events_of(tmp_path)
    assert [(event.run, event.kind) for event in events] == [
        (1, Kind.GAP),
        (1, Kind.BASE_END),
        (1, Kind.CREATED),
        (2, Kind.GAP),
        (2, Kind.BASE),
        (2, Kind.BASE_END),
        (2, Kind.CHANGED),
    ]
    assert [event.seq for event in events] == list(range(7))


async def test_a_damaged_log_of_an_earlier_recorder_costs_only_what_is_damaged(
    valkey: ValkeyProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = record(tmp_path / "trace", changes(0, 10), changes(10, 10), sealed=0)
    damaged = directory / "part-000001.log"
    overwrite(damaged, 600, b"\xff" * 20)
    content = damaged.read_bytes()
    async with recording_store(valkey.url, Plan(directory)) as (store, recorder):
        await store.create(TOPIC, value_of(), [])
        await written(recorder, 3)
        await eventually(lambda: open_trace(directory).manifest.damaged, within=30)
        await eventually(lambda: len(open_trace(directory).files) == 2, within=30)
    trace = open_trace(directory)
    [damage] = trace.manifest.damaged
    assert trace.logs == ()
    assert (directory / damage.file).read_bytes() == content
    events = events_of(directory)
    assert [event.seq for event in events] == [*range(damage.kept + 1), *range(10, 20), 20, 21, 22]
    assert [(event.run, event.detail) for event in events if event.kind == Kind.GAP] == [(1, "damaged"), (2, "start")]
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert told == [damage.sentence(directory)]


async def test_parts_are_rotated_by_size(valkey: ValkeyProcess, tmp_path: Path) -> None:
    plan = Plan(tmp_path, limits=PartLimits(1, 600.0))
    async with recording_store(valkey.url, plan) as (store, recorder):
        await written(recorder, 2)
        await store.create(TOPIC, value_of(), [])
        await written(recorder, 3)
    trace = open_trace(tmp_path)
    assert len(trace.files) >= 2
    assert trace.manifest.events == len(events_of(tmp_path)) == 3


async def test_parts_are_rotated_by_time_and_sealed_meanwhile(valkey: ValkeyProcess, tmp_path: Path) -> None:
    plan = Plan(tmp_path, limits=PartLimits(1 << 30, 0.2))
    async with recording_store(valkey.url, plan):
        await eventually(lambda: len(open_trace(tmp_path).files) == 1, within=30)


async def test_pseudonyms_stand_for_all_names(valkey: ValkeyProcess, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("0123456789abcdef")
    directory = tmp_path / "trace"
    plan = Plan(directory, naming=Naming(anonymise=True, key_file=key))
    async with recording_store(valkey.url, plan) as (store, recorder):
        await store.create(TOPIC, value_of(0, owner="team"), [])
        await written(recorder, 3)
    shown = Pseudonyms(read_key(key))
    row = events_of(directory)[-1]
    assert (row.namespace, row.topic) == (f"{shown.name('acme')}/{shown.name('shop')}", shown.name("orders"))
    assert row.value is not None
    assert records.decode(row.value).properties == {shown.name("owner"): shown.name("team")}
    assert row.size == len(value_of(0, owner="team"))
    assert open_trace(directory).manifest.anonymised


async def create_many(store: TopicStore, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        await store.create(numbered(number), value_of(), [])


async def test_a_disk_that_hangs_costs_events_and_nothing_else(
    valkey: ValkeyProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk()
    plan = Plan(tmp_path, values=False)
    async with recording_store(valkey.url, plan, intake=Intake(most_events=8), open_log=disk.open) as (store, recorder):
        await written(recorder, 2)
        disk.flowing.clear()
        await create_many(store, 1)
        # Before that the thread would empty the queue once more.
        await eventually(lambda: disk.is_hanging)
        await create_many(store, 39, start=1)
        await eventually(lambda: recorder.counters.dropped > 0)
        dropped = recorder.counters.dropped
        assert recorder.queued <= 8
        disk.flowing.set()
        # Until the base is on the disk: the queue is so short that it fills it.
        await eventually(lambda: [event.kind for event in events_of(tmp_path)].count(Kind.BASE_END) == 2)
        before = recorder.written.events
        await create_many(store, 1, start=40)
        await written(recorder, before + 1)
    events = events_of(tmp_path)
    assert [event.seq for event in events] == list(range(len(events)))
    [gap] = [event for event in events if event.detail == "dropped"]
    assert (gap.kind, gap.bucket, gap.size) == (Kind.GAP, None, recorder.counters.dropped)
    assert recorder.counters.dropped >= dropped
    after = events[gap.seq + 1 :]
    assert {event.topic for event in after if event.kind == Kind.BASE} >= {f"topic-{number}" for number in range(40)}
    assert Kind.BASE_END in [event.kind for event in after]
    assert events[-1].topic == "topic-40"
    assert open_trace(tmp_path).manifest.dropped == recorder.counters.dropped
    said = [record.getMessage() for record in caplog.records if "recorder" in record.name]
    assert len([text for text in said if "cannot keep up" in text]) == 1


async def test_a_record_that_does_not_fit_is_a_missing_value_and_no_gap(valkey: ValkeyProcess, tmp_path: Path) -> None:
    large = value_of(0, owner="x" * 5_000)
    for run in (1, 2):
        async with recording_store(valkey.url, Plan(tmp_path), intake=Intake(most_bytes=2_000)) as (store, recorder):
            # The first run finds no topics, the second those of the first, in its base.
            there = 2 * run
            await written(recorder, there)
            await store.create(numbered(10 * run), large, [])
            await store.create(numbered(10 * run + 1), value_of(), [])
            await eventually(lambda: recorder.counters.values_missing == 1)
            await written(recorder, there + 2)
            assert (recorder.counters.dropped, recorder.counters.gaps) == (0, 1)
    created = [event for event in events_of(tmp_path) if event.kind == Kind.CREATED]
    # Those of two buckets may come in either order.
    by_size = sorted(((event.size or 0, event.value) for event in created), key=lambda pair: pair[0])
    assert by_size == [(len(value_of()), value_of())] * 2 + [(len(large), None)] * 2
    assert [event.detail for event in events_of(tmp_path) if event.kind == Kind.GAP] == ["start", "start"]
    manifest = open_trace(tmp_path).manifest
    assert (manifest.dropped, manifest.values_missing) == (0, 2)


async def test_a_full_disk_is_told_once_and_tried_again_until_there_is_room(
    valkey: ValkeyProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk()
    async with recording_store(valkey.url, Plan(tmp_path), open_log=disk.open) as (store, recorder):
        await written(recorder, 2)
        disk.is_full = True
        await create_many(store, 3)
        await eventually(lambda: disk.refusals >= 3)
        assert recorder.written.events == 2
        disk.is_full = False
        await written(recorder, 5)
        assert recorder.written.errors >= 3
        assert recorder.counters.dropped == 0
    assert [event.kind for event in events_of(tmp_path)[2:]] == [Kind.CREATED] * 3
    told = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.getMessage() for record in told] == [
        f"the trace in {tmp_path} cannot be written: No space left on device; changes wait for it, and are dropped "
        "when they are too many"
    ]


async def test_what_the_disk_may_have_forgotten_is_a_gap(valkey: ValkeyProcess, tmp_path: Path) -> None:
    disk = Disk()
    async with recording_store(valkey.url, Plan(tmp_path), open_log=disk.open) as (store, recorder):
        disk.forgets = True
        await store.create(TOPIC, value_of(), [])
        await eventually(lambda: disk.refusals >= 1)
        disk.forgets = False
        await eventually(lambda: recorder.counters.bases == 2)
    events = events_of(tmp_path)
    gap = max(event.seq for event in events if event.kind == Kind.GAP)
    assert gap > 0
    assert [event.topic for event in events if event.kind == Kind.BASE] == ["orders"]
    assert events[-1].kind == Kind.BASE_END


async def test_a_store_can_be_followed_without_a_server(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with following(valkey.url, Plan(tmp_path)) as recorder, open_store(valkey.url) as other:
        await other.create(TOPIC, value_of(), [])
        await written(recorder, 3)
    assert [event.topic for event in events_of(tmp_path) if event.kind == Kind.CREATED] == ["orders"]
