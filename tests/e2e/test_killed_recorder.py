"""The promise about time: whatever was changed more than a second before a recorder is killed is in its trace."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from itertools import count, cycle
from pathlib import Path

import pytest
import trio

from metadata import keys
from metadata.store import TopicStore, open_store
from metadata.traces.events import Kind
from metadata.traces.manifest import MANIFEST
from protocol.names import NamespaceName, TopicName
from tests.e2e.vela_process import RunningCommand, VelaServer, run_vela
from tests.gateway.recorder.recorded import events_of, value_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

NAMESPACE = NamespaceName("acme", "shop")
TOPICS = [TopicName.scalable(NAMESPACE.tenant, NAMESPACE.namespace, f"topic-{number}") for number in range(20)]
PROMISED_MS = 1_000
# A change each 10 ms, so that there is always one that is just too young.
PACE = 0.01
# Long enough for several rounds of the writer, and in the server's case for parts to be closed and sealed.
FLOW = 2.5

# Bucket, and the id of an entry in its change log.
Entry = tuple[int, int, int]
Start = Callable[[Path, str, Path], RunningCommand]


def record_beside(directory: Path, url: str, trace: Path) -> RunningCommand:
    return RunningCommand(directory, ["trace", "record", "--store", url, "--out", str(trace)], {})


def record_in_server(directory: Path, url: str, trace: Path) -> RunningCommand:
    """With parts so short that the kill may come while one is closed or sealed."""
    return VelaServer(directory, "--store", url, "--record", str(trace), "--record-part-time", "1s")


async def write_steadily(store: TopicStore) -> None:
    """Change one topic after the other, each when it is due."""
    versions = {topic: await store.create(topic, value_of(), []) for topic in TOPICS}
    started = trio.current_time()
    for number, topic in zip(count(1), cycle(TOPICS), strict=False):
        await trio.sleep_until(started + number * PACE)
        versions[topic] = await store.replace(topic, versions[topic], value_of(0, number=str(number)))


def written(valkey: ValkeyProcess) -> set[Entry]:
    """All entries of the change logs."""
    found = set()
    with valkey.client() as client:
        for bucket in range(keys.BUCKETS):
            for number, _ in client.xrange(keys.changes_key(bucket)):
                ms, _, place = number.decode().partition("-")
                found.add((bucket, int(ms), int(place)))
    return found


def recorded(trace: Path) -> set[Entry]:
    return {
        (event.bucket, event.store_ms, event.store_seq)
        for event in events_of(trace)
        if event.bucket is not None and event.store_ms is not None and event.store_seq is not None
    }


def is_recording(trace: Path) -> bool:
    """It has begun, and its base is there."""
    return (trace / MANIFEST).exists() and any(event.kind == Kind.BASE_END for event in events_of(trace))


async def kill_under_flow(valkey: ValkeyProcess, start: Start, directory: Path, trace: Path) -> float:
    """Record while changes are made, and kill the recorder amid them; when that was, in milliseconds since 1970."""
    with start(directory, valkey.url, trace) as recorder:
        await eventually(lambda: recorder.lines, within=30)
        await eventually(lambda: is_recording(trace), within=30)
        async with open_store(valkey.url) as store, trio.open_nursery() as nursery:
            await store.ensure_namespace(NAMESPACE)
            nursery.start_soon(write_steadily, store)
            await trio.sleep(FLOW)
            killed_ms = time.time() * 1e3
            recorder.signal(signal.SIGKILL)
            nursery.cancel_scope.cancel()
        recorder.wait()
    return killed_ms


@pytest.mark.parametrize("start", [record_beside, record_in_server])
async def test_what_is_older_than_a_second_when_the_recorder_is_killed_is_in_the_trace(
    valkey: ValkeyProcess, tmp_path: Path, start: Start
) -> None:
    trace = tmp_path / "trace"
    killed_ms = await kill_under_flow(valkey, start, tmp_path / "process", trace)
    sealed = run_vela("trace", "seal", str(trace))
    assert (sealed.code, sealed.err) == (0, "")
    entries = written(valkey)
    due = {entry for entry in entries if entry[1] < killed_ms - PROMISED_MS}
    assert len(due) > 50  # even where the machine is too busy for the pace
    # It was killed amid the flow, and not after it.
    assert max(ms for _, ms, _ in entries) > killed_ms - PROMISED_MS / 4
    assert due - recorded(trace) == set()
