"""How `vela watch topic` shows a push to people and to programs."""

import json
from datetime import UTC, datetime

import pytest

from gateway.cli.watch import as_object, describe
from layout.layouts import Layout
from protocol.wire import pulsar_api_pb2 as api
from tests.gateway.vela_command import closed_port, vela

NOW = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)


def push(layout: Layout, owner: str = "pulsar://n1:6650") -> api.CommandScalableTopicUpdate:
    update = api.CommandScalableTopicUpdate(session_id=1, resolved_topic_name="topic://public/default/t")
    update.dag.epoch = layout.epoch
    for segment in layout.segments.values():
        update.dag.segments.add(
            segment_id=segment.segment_id,
            hash_start=segment.range.start,
            hash_end=segment.range.end,
            state=api.ACTIVE if segment.is_active else api.SEALED,
            parent_ids=segment.parent_ids,
            child_ids=segment.child_ids,
            created_at_epoch=segment.created_at_epoch,
            created_at_ms=segment.created_at_ms,
        )
        if segment.is_active and owner:
            update.dag.segment_brokers.add(segment_id=segment.segment_id, broker_url=owner)
    return update


def news(before: Layout, after: Layout) -> str:
    return next(iter(describe(push(after), push(before).dag, NOW))).split("sealed  ")[1]


def test_the_first_push_shows_the_topic_and_its_active_segments_in_order() -> None:
    lines = list(describe(push(Layout.create(2, 0).split(0, 0)), None, NOW))
    assert lines[0].endswith(".678  epoch 1  3 active, 1 sealed  topic://public/default/t")
    assert [line.split() for line in lines[1:]] == [
        ["2", "0000-3fff", "pulsar://n1:6650"],
        ["3", "4000-7fff", "pulsar://n1:6650"],
        ["1", "8000-ffff", "pulsar://n1:6650"],
    ]


def test_later_pushes_say_what_happened() -> None:
    first = Layout.create(2, 0)
    split = first.split(0, 0)
    merged = split.merge(2, 3, 0)
    assert news(first, split) == "split 0 into 2, 3"
    assert news(split, merged) == "merged 2, 3 into 4"
    assert news(first, split.split(1, 0)) == "split 0 into 2, 3; split 1 into 4, 5"
    assert news(merged, merged.prune(0)) == "gone 0"
    assert news(first, first) == "owners changed"


def test_a_topic_created_anew_shows_as_new_segments() -> None:
    assert news(Layout.create(2, 0), Layout.create(3, 0)) == "new 2"


def test_many_segments_are_counted_instead_of_flooding_the_terminal() -> None:
    lines = list(describe(push(Layout.create(64, 0), owner=""), None, NOW))
    assert len(lines) == 18
    assert lines[1].endswith("no owner yet")
    assert lines[-1] == "  … and 48 more"


def test_json_uses_the_names_of_the_admin_api() -> None:
    shown = json.loads(json.dumps(as_object(push(Layout.create(1, 0).split(0, 0)), NOW)))
    assert shown["time"] == "2026-01-02T03:04:05.678Z"
    assert shown["topic"] == "topic://public/default/t"
    assert shown["epoch"] == 1
    assert shown["controllerBrokerUrl"] is None
    assert shown["segments"][1] == {
        "segmentId": 1,
        "hashRange": {"start": 0, "end": 0x7FFF},
        "state": "ACTIVE",
        "parentIds": [0],
        "childIds": [],
        "brokerUrl": "pulsar://n1:6650",
    }
    assert shown["segments"][0]["state"] == "SEALED"
    assert shown["segments"][0]["brokerUrl"] is None


def test_nobody_listening_is_one_sentence_with_what_to_do() -> None:
    url = f"pulsar://127.0.0.1:{closed_port()}"
    outcome = vela("watch", "topic", "t", "--service-url", url)
    assert outcome.code == 1
    assert outcome.err == f"vela: no Vela answers at {url}: start one with `make serve` or pass --service-url\n"


@pytest.mark.parametrize("name", ["a/b", "topic://a", ""])
def test_a_bad_topic_name_is_one_sentence(name: str) -> None:
    outcome = vela("watch", "topic", name)
    assert outcome.code == 1
    assert outcome.err.startswith("vela: ")
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("url", ["http://127.0.0.1:6650", "pulsar://host", "pulsar://host:port", "127.0.0.1:6650", ""])
def test_a_bad_service_url_is_one_sentence(url: str) -> None:
    outcome = vela("watch", "topic", "t", f"--service-url={url}")
    assert outcome.code == 1
    assert outcome.err == (f'vela: The service URL "{url}" cannot be used: give one like pulsar://127.0.0.1:6650.\n')
