"""`vela topics stats`, `consumers` and `retention` against a real HTTP server that answers as told."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from layout.layouts import Layout
from layout.records import TopicRecord, encode
from tests.gateway.vela_command import AdminStub, Outcome, admin_stub, assert_one_sentence, vela, vela_in_terminal

T = "/admin/v2/scalable/public/default/orders"
NAME = "topic://public/default/orders"
URL = "pulsar://10.0.0.1:6650"


@pytest.fixture
def admin() -> Iterator[AdminStub]:
    with admin_stub() as stub:
        yield stub


def topics(admin: AdminStub, *arguments: str) -> Outcome:
    return vela("topics", *arguments, VELA_ADMIN_URL=admin.url)


def segment(segment_id: int, hashes: str, *, parents: tuple[int, ...] = (), children: tuple[int, ...] = ()) -> Any:
    return {
        "name": f"segment://public/default/orders/{hashes}-{segment_id}",
        "state": "SEALED" if children else "ACTIVE",
        "parentIds": parents,
        "childIds": children,
        "entryBuckets": 1,
        "ownerBroker": URL,
    }


def consumer(name: str, *segment_ids: int, connected: bool = True) -> Any:
    return {
        "consumerName": name,
        "connected": connected,
        "segmentIds": segment_ids,
        "address": "10.0.0.7",
        "connectedSince": "2026-11-16T06:40:12.345Z" if connected else None,
    }


def stats(**subscriptions: Any) -> dict[str, Any]:
    """Of a topic of two segments, the first of which was split."""
    return {
        "layout": {
            "epoch": 7,
            "segments": {
                "0": segment(0, "0000-7fff", children=(2, 3)),
                "1": segment(1, "8000-ffff"),
                "2": segment(2, "0000-3fff", parents=(0,)),
                "3": segment(3, "4000-7fff", parents=(0,)),
            },
        },
        "leader": {"session": "5e55", "pulsarUrl": URL, "httpUrl": "http://10.0.0.1:8080", "term": 12},
        "subscriptions": subscriptions,
        "storageSize": 5,
    }


def subscription(kind: str, *consumers: Any, drained: tuple[int, ...] = ()) -> Mapping[str, Any]:
    return {"type": kind, "consumers": consumers, "drainedSegmentIds": drained, "msgBacklog": 9}


def rows(outcome: Outcome) -> list[list[str]]:
    """The cells of every line; two spaces part them."""
    assert (outcome.code, outcome.err) == (0, "")
    return [re.split(r"\s{2,}", line.strip()) for line in outcome.out.splitlines()]


def test_stats_say_who_leads_who_owns_and_who_subscribes(admin: AdminStub) -> None:
    billing = subscription("STREAM", consumer("a", 1), consumer("b", 2, connected=False), drained=(0,))
    admin.answer("GET", f"{T}/stats", 200, stats(billing=billing, mails=subscription("QUEUE", consumer("q"))))
    shown = rows(topics(admin, "stats", "orders"))
    assert shown[:5] == [
        [NAME],
        ["epoch 7, 3 active and 1 sealed segments"],
        ["5 B stored, 0 producers, 0 messages/s in (0 B/s), 0 out (0 B/s)"],
        [f"led by {URL}, http://10.0.0.1:8080"],
        ["session 5e55, term 12"],
    ]
    assert ["0", "0000-7fff", "sealed", "0 B", "0", "0", URL] in shown
    assert ["2", "0000-3fff", "active", "0 B", "0", "0", URL] in shown
    # Segment 3 is without a consumer; 0 is too, but there is nothing left in it.
    assert shown[-3:] == [
        ["subscription", "type", "backlog", "unacked", "out/s", "connected", "free segments"],
        ["billing", "stream", "9", "0", "0", "1 of 2", "1"],
        ["mails", "queue", "9", "0", "0", "1 of 1"],
    ]


def test_stats_say_what_is_stored_and_what_goes_through(admin: AdminStub) -> None:
    busy = {"msgBacklog": 1_234_567, "unackedMessages": 50_000, "msgRateOut": 12_345.6}
    content = stats(billing={**subscription("STREAM"), **busy}) | {
        "producers": [{"producerName": "shop", "msgRateIn": 1.5}],
        "storageSize": 3 << 30,
        "msgRateIn": 2.25,
        "byteRateIn": 2_048.0,
        "msgRateOut": 12_345.6,
        "byteRateOut": 5_000_000.0,
    }
    content["layout"]["segments"]["1"] |= {"storageSize": 3 << 30, "msgRateIn": 2.25, "msgRateOut": 0.01}
    content["layout"]["segments"]["2"] |= {"entryBuckets": 4}
    admin.answer("GET", f"{T}/stats", 200, content)
    shown = rows(topics(admin, "stats", "orders"))
    assert shown[2] == ["3 GB stored, 1 producer, 2.2 messages/s in (2 KB/s), 12,346 out (4.77 MB/s)"]
    assert ["segment", "range", "state", "buckets", "stored", "in/s", "out/s", "owner"] in shown
    assert ["1", "8000-ffff", "active", "1", "3 GB", "2.2", "<0.1", URL] in shown
    assert shown[-1] == ["billing", "stream", "1,234,567", "50,000", "12,346", "0 of 0", "4"]


def test_stats_fit_a_terminal_of_eighty_columns(admin: AdminStub) -> None:
    admin.answer("GET", f"{T}/stats", 200, stats(billing=subscription("STREAM", consumer("a", 1, 2, 3))))
    lines = vela_in_terminal(80, "topics", "stats", "orders", VELA_ADMIN_URL=admin.url).out.splitlines()
    assert lines[-1].split() == ["billing", "stream", "9", "0", "0", "1", "of", "1", "1"]
    assert [line.split()[0] for line in lines if URL in line][-4:] == ["0", "1", "2", "3"]


def test_a_drained_segment_is_not_one_that_nobody_has(admin: AdminStub) -> None:
    billing = subscription("STREAM", consumer("a", 1, 2, 3), drained=(0,))
    admin.answer("GET", f"{T}/stats", 200, stats(billing=billing))
    assert "nobody" not in topics(admin, "consumers", "orders").out
    shown = json.loads(topics(admin, "consumers", "orders", "--json").out)
    assert shown["subscriptions"]["billing"]["unassignedSegmentIds"] == []


def test_stats_of_a_topic_that_nobody_leads(admin: AdminStub) -> None:
    content = stats() | {"leader": None}
    for found in content["layout"]["segments"].values():
        found["ownerBroker"] = None
    admin.answer("GET", f"{T}/stats", 200, content)
    shown = rows(topics(admin, "stats", "orders"))
    assert ["nobody leads it now"] in shown
    assert ["1", "8000-ffff", "active", "0 B", "0", "0", "none"] in shown
    assert shown[-1] == ["no subscriptions"]


def test_stats_json_is_what_the_server_said(admin: AdminStub) -> None:
    content = stats(billing=subscription("STREAM")) | {"future": ["ü"]}
    admin.answer("GET", f"{T}/stats", 200, content)
    outcome = topics(admin, "stats", "orders", "--json")
    assert json.loads(outcome.out) == json.loads(json.dumps(content))
    assert "ü" in outcome.out


def test_consumers_shows_who_has_which_segment_and_what_nobody_has(admin: AdminStub) -> None:
    billing = subscription("STREAM", consumer("a", 2, 1), consumer("b", connected=False), consumer("c", 0, 9))
    admin.answer("GET", f"{T}/stats", 200, stats(billing=billing, quiet=subscription("STREAM")))
    assert rows(topics(admin, "consumers", "orders")) == [
        ["subscription", "type", "consumer", "connected", "segments", "address", "since"],
        ["billing", "stream", "a", "yes", "2 0000-3fff, 1 8000-ffff", "10.0.0.7", "2026-11-16 06:40:12Z"],
        ["billing", "stream", "b", "no", "none", "10.0.0.7"],
        ["billing", "stream", "c", "yes", "9 pruned, 0 0000-7fff sealed", "10.0.0.7", "2026-11-16 06:40:12Z"],
        ["billing", "stream", "nobody", "3 4000-7fff"],
        ["quiet", "stream", "nobody", "2 0000-3fff, 0 0000-7fff sealed, 3 4000-7fff, 1 8000-ffff"],
    ]


def test_consumers_of_a_queue_share_all_segments(admin: AdminStub) -> None:
    both = stats(mails=subscription("QUEUE", consumer("a"), consumer("b")), idle=subscription("QUEUE"))
    admin.answer("GET", f"{T}/stats", 200, both)
    shown = rows(topics(admin, "consumers", "orders"))
    assert [row[2:5] for row in shown[1:3]] == [["a", "yes", "all, shared"], ["b", "yes", "all, shared"]]
    assert shown[3:] == [["idle", "queue", "nobody"]]


def test_consumers_of_one_subscription(admin: AdminStub) -> None:
    both = stats(one=subscription("STREAM", consumer("a", 1, 2, 3, 0)), two=subscription("STREAM", consumer("b")))
    admin.answer("GET", f"{T}/stats", 200, both)
    assert [row[0] for row in rows(topics(admin, "consumers", "orders", "--subscription", "one"))[1:]] == ["one"]
    missing = topics(admin, "consumers", "orders", "-s", "three")
    assert_one_sentence(missing)
    assert missing.err == f"vela: {NAME} has no subscription three: see `vela subscriptions list`.\n"


def test_consumers_without_any_subscription(admin: AdminStub) -> None:
    admin.answer("GET", f"{T}/stats", 200, stats())
    assert topics(admin, "consumers", "orders").out == f"{NAME} has no subscriptions.\n"
    assert json.loads(topics(admin, "consumers", "orders", "--json").out)["subscriptions"] == {}


def test_consumers_json_adds_what_nobody_has(admin: AdminStub) -> None:
    content = stats(s=subscription("STREAM", consumer("a", 1)), q=subscription("QUEUE"), other=subscription("STREAM"))
    admin.answer("GET", f"{T}/stats", 200, content)
    said = json.loads(json.dumps(content))
    found = json.loads(topics(admin, "consumers", "orders", "--json").out)
    assert found["layout"] == said["layout"]
    assert found["subscriptions"] == {
        "s": said["subscriptions"]["s"] | {"unassignedSegmentIds": [0, 2, 3]},
        "q": said["subscriptions"]["q"] | {"unassignedSegmentIds": []},
        "other": said["subscriptions"]["other"] | {"unassignedSegmentIds": [0, 1, 2, 3]},
    }
    assert set(json.loads(topics(admin, "consumers", "orders", "-s", "q", "--json").out)["subscriptions"]) == {"q"}


def test_names_are_neither_markup_nor_commands_to_the_terminal(admin: AdminStub) -> None:
    odd = "[red]a[/] :smile: \x1b[2J\n日本"
    admin.answer("GET", f"{T}/stats", 200, stats(**{odd: subscription("STREAM", consumer(odd, 1))}))
    shown = r"[red]a[/] :smile: \x1b[2J\n日本"
    assert topics(admin, "consumers", "orders").out.count(shown) == 3
    assert topics(admin, "stats", "orders").out.count(shown) == 1
    assert r"subscription \x1b[2J:" in topics(admin, "consumers", "orders", "-s", "\x1b[2J").err


def test_a_row_stays_one_line_in_a_pipe(admin: AdminStub) -> None:
    content = stats(all=subscription("STREAM", consumer("a", *range(1024))))
    content["layout"]["segments"] = {
        str(index): segment(index, f"{index * 64:04x}-{index * 64 + 63:04x}") for index in range(1024)
    }
    admin.answer("GET", f"{T}/stats", 200, content)
    lines = topics(admin, "consumers", "orders").out.splitlines()
    assert len(lines) == 2
    assert "1023 ffc0-ffff" in lines[1]


def crowded() -> Any:
    checkpoint = subscription("CHECKPOINT", consumer("a-reader-with-a-name-of-its-own", 0, 1, 2))
    stream = subscription("STREAM", consumer("worker-1", 1), consumer("worker-2", 2, connected=False))
    return stats(**{"a-subscription-with-a-long-name": checkpoint, "billing": stream, "mails": subscription("QUEUE")})


@pytest.mark.parametrize("columns", [40, 60, 72, 80, 99, 100, 120])
@pytest.mark.parametrize("command", ["stats", "consumers", "get"])
def test_a_terminal_is_never_too_narrow_for_a_table(admin: AdminStub, columns: int, command: str) -> None:
    admin.answer("GET", f"{T}/stats", 200, crowded())
    admin.answer(
        "GET", T, 200, encode(TopicRecord(Layout.create(2, 1_700_000_000_000).split(0, 1_700_000_000_000), {}))
    )

    def shown(width: int) -> list[str]:
        return vela_in_terminal(width, "topics", command, "orders", VELA_ADMIN_URL=admin.url).out.splitlines()

    narrow = shown(columns)
    assert max(map(len, narrow)) <= columns
    # Folded, not cut: the same characters in other places.
    roomy = shown(99 if columns < 100 else 200)
    assert Counter("".join(narrow).replace(" ", "")) == Counter("".join(roomy).replace(" ", ""))


def test_consumers_in_a_narrow_terminal_name_each_subscription_once(admin: AdminStub) -> None:
    admin.answer("GET", f"{T}/stats", 200, crowded())
    narrow = vela_in_terminal(80, "topics", "consumers", "orders", "-s", "billing", VELA_ADMIN_URL=admin.url).out
    assert [line.split()[:4] for line in narrow.splitlines()] == [
        ["subscription", "consumer", "connected", "segments"],
        ["billing", "worker-1", "yes", "1"],
        ["stream", "06:40:12Z"],
        ["worker-2", "no", "2", "0000-3fff"],
        ["nobody", "0", "0000-7fff", "sealed"],
        ["3", "4000-7fff"],
    ]


@pytest.mark.parametrize(
    ("status", "content", "kept"),
    [
        (204, None, "as long as its namespace says"),
        (200, {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}, "for ever"),
        (200, {"retentionTimeInMinutes": 0}, "until they are consumed, and the server's message_age at least"),
        (200, {"retentionTimeInMinutes": 1}, "until they are consumed, and 1 minute at least"),
        (200, {"retentionTimeInMinutes": 90}, "until they are consumed, and 90 minutes at least"),
    ],
)
def test_retention_is_told_in_a_sentence(admin: AdminStub, status: int, content: Any, kept: str) -> None:
    admin.answer("GET", f"{T}/retention", status, content)
    assert topics(admin, "retention", "orders").out == f"{NAME} keeps sealed segments {kept}.\n"


@pytest.mark.parametrize("minutes", [-1, 0, 90])
def test_retention_is_set_in_minutes(admin: AdminStub, minutes: int) -> None:
    admin.answer("PUT", f"{T}/retention", 204)
    assert topics(admin, "retention", "orders", "--minutes", str(minutes)).code == 0
    [(method, target, body)] = admin.requests
    assert (method, target, json.loads(body)) == ("PUT", f"{T}/retention", {"retentionTimeInMinutes": minutes})


def test_retention_is_left_to_the_namespace_again(admin: AdminStub) -> None:
    admin.answer("DELETE", f"{T}/retention", 204)
    outcome = topics(admin, "retention", "orders", "--clear")
    assert outcome.out == f"{NAME} keeps sealed segments as long as its namespace says.\n"
    assert [(method, target) for method, target, _ in admin.requests] == [("DELETE", f"{T}/retention")]


@pytest.mark.parametrize(
    ("status", "content"),
    [
        (404, b"<html>nginx</html>"),
        (500, b""),
        (400, b'{"reason": 5}'),
        (200, b"<html>"),
        (200, b'{"a":1}'),
        (200, b"[]"),
        (200, b"\xff"),
        (200, b'{"layout": {"epoch": 0, "segments": {"x": {}}}, "subscriptions": {}}'),
    ],
)
def test_an_answer_of_something_else_is_one_sentence(admin: AdminStub, status: int, content: bytes) -> None:
    admin.answer("GET", f"{T}/stats", status, content)
    admin.answer("GET", f"{T}/retention", status, content)
    for arguments in (("stats",), ("stats", "--json"), ("consumers",), ("consumers", "--json"), ("retention",)):
        outcome = topics(admin, arguments[0], "orders", *arguments[1:])
        assert_one_sentence(outcome)
        assert "Vela" in outcome.err
