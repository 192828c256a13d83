"""A server whose disk hangs while it records: those who watch notice nothing."""

import threading
from pathlib import Path

import pytest

from gateway.recorder import recording
from gateway.recorder.intake import Intake
from gateway.recorder.part_log import PartLog
from layout import records
from metadata.traces.events import Kind
from protocol.names import TopicName
from tests.gateway.recorder.recorded import events_of
from tests.support.nodes import running_node, transitions_of, until_at_epoch, viewing
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

TOPIC = TopicName.parse("topic://public/default/orders")


@pytest.mark.slow
async def test_pushes_go_on_while_the_disk_hangs_and_drops_are_counted(
    valkey: ValkeyProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flowing, hanging = threading.Event(), threading.Event()
    write = PartLog._write

    def write_when_it_flows(log: PartLog, piece: memoryview) -> int:
        hanging.set()
        flowing.wait()
        return write(log, piece)

    monkeypatch.setattr(PartLog, "_write", write_when_it_flows)
    monkeypatch.setattr(recording, "Intake", lambda: Intake(most_events=6))
    try:
        async with running_node(valkey.url, record=tmp_path) as node, viewing(node) as viewer:
            recorder = node.recorder
            assert recorder is not None
            # Before that its thread would empty the queue once more.
            await eventually(hanging.is_set, within=30)
            view = await viewer.watch(TOPIC)
            await eventually(lambda: view.updates)
            transitions = transitions_of(node)
            for epoch in range(1, 12):
                stored = await node.store.get(TOPIC)
                assert stored is not None
                await transitions.split(TOPIC, records.decode(stored.value).layout.active[0].segment_id)
                await until_at_epoch(epoch, [view])
            assert recorder.counters.dropped > 0
            assert recorder.written.events == 0
            flowing.set()

            def told() -> bool:
                events = events_of(tmp_path)
                dropped = sum(event.size or 0 for event in events if event.detail == "dropped")
                # Those that tell of leaders have none.
                epochs = [event.epoch for event in events if event.epoch is not None]
                assert (dropped, epochs[-1:]) == (recorder.counters.dropped, [11])
                return not recorder.is_dropping

            await eventually(told, within=30)
    finally:
        flowing.set()
    events = events_of(tmp_path)
    assert Kind.GAP in [event.kind for event in events if event.detail == "dropped"]
    assert [event.seq for event in events] == list(range(len(events)))
