"""How `vela watch` shows pushes to people and to programs, and what it says when something is wrong."""

import json
from datetime import UTC, datetime

import pytest

from gateway.cli.pushes import (
    describe_change,
    describe_layout,
    describe_snapshot,
    event_as_object,
    layout_as_object,
)
from layout.layouts import Layout
from protocol.client import Change, Snapshot
from protocol.wire import pulsar_api_pb2 as api
from tests.gateway.scripted import scripted
from tests.gateway.vela_command import Outcome, closed_port, vela
from tests.protocol.client.scripted_server import (
    Peer,
    Script,
    deleted,
    diff,
    layout,
    snapshot,
    watch_refused,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)


def push(state: Layout, owner: str = "pulsar://n1:6650") -> api.CommandScalableTopicUpdate:
    update = api.CommandScalableTopicUpdate(session_id=1, resolved_topic_name="topic://public/default/t")
    update.dag.epoch = state.epoch
    for segment in state.segments.values():
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
    return next(iter(describe_layout(push(after), push(before).dag, NOW))).split("sealed  ")[1]


def test_the_first_push_shows_the_topic_and_its_active_segments_in_order() -> None:
    lines = list(describe_layout(push(Layout.create(2, 0).split(0, 0)), None, NOW))
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
    lines = list(describe_layout(push(Layout.create(64, 0), owner=""), None, NOW))
    assert len(lines) == 18
    assert lines[1].endswith("no owner yet")
    assert lines[-1] == "  … and 48 more"


def test_json_uses_the_names_of_the_admin_api() -> None:
    shown = json.loads(json.dumps(layout_as_object(push(Layout.create(1, 0).split(0, 0)), NOW)))
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


def test_a_first_snapshot_is_a_count_and_the_names() -> None:
    lines = list(describe_snapshot(Snapshot(frozenset({"topic://t/n/b", "topic://t/n/a"})), None, "t/n", NOW))
    assert lines[0].endswith(".678  2 topics in t/n")
    assert lines[1:] == ["  topic://t/n/a", "  topic://t/n/b"]
    (alone, _) = describe_snapshot(Snapshot(frozenset({"a"})), None, "t/n", NOW)
    assert alone.endswith("1 topic in t/n")


def test_many_topics_are_counted_instead_of_flooding_the_terminal() -> None:
    lines = list(describe_snapshot(Snapshot(frozenset(f"t{i:03}" for i in range(500))), None, "t/n", NOW))
    assert len(lines) == 18
    assert lines[-1] == "  … and 484 more"


def test_a_later_snapshot_says_what_came_and_went() -> None:
    lines = list(describe_snapshot(Snapshot(frozenset("bcd")), {"a", "b"}, "t/n", NOW))
    assert lines[0].endswith("3 topics in t/n, 2 came and 1 went")
    assert lines[1:] == ["  - a", "  + c", "  + d"]


def test_a_change_is_a_line_for_each_topic_with_the_time() -> None:
    lines = list(describe_change(Change(("x", "new\x1b[2J"), ("gone", "x")), NOW))
    assert all(line[12:14] == "  " and line[8:12] == ".678" for line in lines)
    assert [line[14:] for line in lines] == ["- gone", "+ x  (deleted and created again)", "+ new\\x1b[2J"]


def test_json_of_a_namespace_is_sorted_or_in_order() -> None:
    start = {"time": "2026-01-02T03:04:05.678Z", "namespace": "t/n"}
    assert event_as_object(Snapshot(frozenset("ba")), "t/n", NOW) == start | {"event": "snapshot", "topics": ["a", "b"]}
    assert event_as_object(Change(("b", "a"), ("c",)), "t/n", NOW) == start | {
        "event": "change",
        "added": ["b", "a"],
        "removed": ["c"],
    }


def watch_namespace(*scripts: Script, flags: tuple[str, ...] = ()) -> tuple[Outcome, str]:
    with scripted(*scripts) as url:
        return vela("watch", "namespace", "t/n", "--service-url", url, *flags), url


def test_watch_namespace_prints_events_as_json_until_the_server_ends_it() -> None:
    async def script(peer: Peer) -> None:
        request = await peer.open_namespace_watch()
        assert (request.namespace, request.property_filters[0].value) == ("t/n", "blue")
        await peer.send(snapshot(["b", "ä"]))
        await peer.until_read()
        await peer.send(diff(["c"]), watch_refused())
        await peer.until_gone()

    outcome, _ = watch_namespace(script, flags=("--property", "team=blue", "--json"))
    events = [json.loads(line) for line in outcome.out.splitlines()]
    # The command may find both pushes at once.
    topics = set(events[0]["topics"]).union(*(event["added"] for event in events[1:]))
    assert topics == {"b", "c", "ä"}
    assert (outcome.code, outcome.err) == (1, "vela: Close some watches first. (TooManyRequests)\n")


def test_a_lost_connection_is_told_on_standard_error_and_the_watch_goes_on() -> None:
    async def lost(peer: Peer) -> None:
        await peer.open_namespace_watch()
        await peer.send(snapshot(["a"]))
        await peer.until_read()

    async def kept(peer: Peer) -> None:
        assert (await peer.open_namespace_watch()).HasField("current_hash")
        await peer.send(snapshot(["b"]))
        await peer.until_read()
        await peer.send(watch_refused())
        await peer.until_gone()

    outcome, url = watch_namespace(lost, kept)
    lines = outcome.out.splitlines()
    assert [line[14:] for line in lines if "topic" in line] == ["1 topic in t/n", "1 topic in t/n, 1 came and 1 went"]
    assert lines[1] == "  a"
    assert outcome.err.splitlines() == [
        f"vela: lost the connection to {url}, trying again",
        f"vela: connected to {url} again",
        "vela: Close some watches first. (TooManyRequests)",
    ]


def test_a_lost_connection_of_a_topic_watch_is_told_on_standard_error_too() -> None:
    async def lost(peer: Peer) -> None:
        await peer.open_watch()
        await peer.send(layout(0))
        await peer.until_read()

    async def kept(peer: Peer) -> None:
        await peer.open_watch()
        await peer.send(deleted())
        await peer.until_gone()

    with scripted(lost, kept) as url:
        outcome = vela("watch", "topic", "t", "--service-url", url)
    assert outcome.code == 1
    assert outcome.err.splitlines() == [
        f"vela: lost the connection to {url}, trying again",
        f"vela: connected to {url} again",
        "vela: topic://public/default/t: The topic was deleted.",
    ]


@pytest.mark.parametrize("arguments", [("topic", "t"), ("namespace", "t/n")])
def test_nobody_listening_is_one_sentence_with_what_to_do(arguments: tuple[str, str]) -> None:
    url = f"pulsar://127.0.0.1:{closed_port()}"
    outcome = vela("watch", *arguments, "--service-url", url)
    assert outcome.code == 1
    assert outcome.err == f"vela: no Vela answers at {url}: start one with `make serve` or pass --service-url\n"


@pytest.mark.parametrize("name", ["a/b", "topic://a", ""])
def test_a_bad_topic_name_is_one_sentence(name: str) -> None:
    outcome = vela("watch", "topic", name)
    assert outcome.code == 1
    assert outcome.err.startswith("vela: ")
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("name", ["a", "a/b/c", "", "bad tenant/n"])
def test_a_bad_namespace_is_one_sentence(name: str) -> None:
    outcome = vela("watch", "namespace", name)
    assert outcome.code == 1
    assert outcome.err.startswith("vela: ")
    assert outcome.err.count("\n") == 1


def test_a_bad_property_is_wrong_usage() -> None:
    assert vela("watch", "namespace", "t/n", "--property", "novalue").code == 2


@pytest.mark.parametrize("url", ["http://127.0.0.1:6650", "pulsar://host", "pulsar://host:port", "127.0.0.1:6650", ""])
def test_a_bad_service_url_is_one_sentence(url: str) -> None:
    outcome = vela("watch", "topic", "t", f"--service-url={url}")
    assert outcome.code == 1
    assert outcome.err == (f'vela: The service URL "{url}" cannot be used: give one like pulsar://127.0.0.1:6650.\n')
