"""`vela topics …` against a real HTTP server that answers as told."""

import json
import socket
from collections.abc import Iterator

import pytest

from layout.layouts import Layout
from layout.records import TopicRecord, encode
from tests.gateway.vela_command import AdminStub, Outcome, admin_stub, assert_one_sentence, closed_port, vela

T = "/admin/v2/scalable/public/default/orders"
NOW = 1_700_000_000_000


@pytest.fixture
def admin() -> Iterator[AdminStub]:
    with admin_stub() as stub:
        yield stub


def topics(admin: AdminStub, *arguments: str) -> Outcome:
    return vela("topics", *arguments, VELA_ADMIN_URL=admin.url)


def record(layout: Layout, **properties: str) -> bytes:
    return encode(TopicRecord(layout, properties))


def test_create_sends_segments_and_properties(admin: AdminStub) -> None:
    admin.answer("PUT", T, 204)
    outcome = topics(admin, "create", "orders", "--segments", "4", "-p", "owner=a=b", "--property", "x=ü")
    assert (outcome.code, outcome.out) == (0, "Created topic://public/default/orders with 4 segments.\n")
    [(method, target, body)] = admin.requests
    assert (method, target) == ("PUT", f"{T}?numInitialSegments=4")
    assert json.loads(body) == {"owner": "a=b", "x": "ü"}


@pytest.mark.parametrize("name", ["orders", "public/default/orders", "topic://public/default/orders"])
def test_a_topic_can_be_named_in_three_ways(admin: AdminStub, name: str) -> None:
    admin.answer("DELETE", T, 204)
    outcome = topics(admin, "delete", name)
    assert (outcome.code, outcome.out) == (0, "Deleted topic://public/default/orders.\n")


def test_delete_is_forced_only_when_told_to(admin: AdminStub) -> None:
    admin.answer("DELETE", T, 204)
    assert topics(admin, "delete", "orders", "--force").out == "Deleted topic://public/default/orders.\n"
    topics(admin, "delete", "orders")
    assert [target for _, target, _ in admin.requests] == [f"{T}?force=true", T]


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("topic://t/ns/a/stats", "t/ns/a%2Fstats"),
        ("topic://t/ns/100% ü?#", "t/ns/100%25%20%C3%BC%3F%23"),
        ("topic://t/ns/%2F", "t/ns/%252F"),
        ("topic://t/ns/..", "t/ns/%2E%2E"),
        ("topic://t/ns/.", "t/ns/%2E"),
        ("topic://t/ns/../../x", "t/ns/..%2F..%2Fx"),
    ],
)
def test_names_reach_the_server_as_one_encoded_path_part(admin: AdminStub, name: str, path: str) -> None:
    topics(admin, "delete", name)
    assert [target for _, target, _ in admin.requests] == [f"/admin/v2/scalable/{path}"]


@pytest.mark.parametrize("name", ["a/b", "topic://a", "topic://a/b/", "bad tenant/ns/x", "", "wrong://a/b/c"])
def test_a_bad_topic_name_is_one_sentence_and_no_request(admin: AdminStub, name: str) -> None:
    outcome = topics(admin, "get", name)
    assert_one_sentence(outcome)
    assert admin.requests == []


def test_list_prints_a_name_per_line_and_passes_filters(admin: AdminStub) -> None:
    names = ["topic://t/ns/a", "topic://t/ns/b"]
    admin.answer("GET", "/admin/v2/scalable/t/ns", 200, names)
    assert topics(admin, "list", "t/ns", "--property", "k=v w", "-p", "x=1").out == "topic://t/ns/a\ntopic://t/ns/b\n"
    assert admin.requests[0][1] in (
        "/admin/v2/scalable/t/ns?property=k%3Dv+w&property=x%3D1",
        "/admin/v2/scalable/t/ns?property=k%3Dv%20w&property=x%3D1",
    )
    assert json.loads(topics(admin, "list", "t/ns", "--json").out) == names


def test_list_without_a_namespace_is_about_public_default(admin: AdminStub) -> None:
    admin.answer("GET", "/admin/v2/scalable/public/default", 200, [])
    outcome = topics(admin, "list")
    assert (outcome.code, outcome.out) == (0, "")


def test_get_shows_layout_and_properties_as_a_table(admin: AdminStub) -> None:
    layout = Layout.create(2, NOW).split(0, NOW)
    admin.answer("GET", T, 200, record(layout, team="blue\x1b[2J"))
    outcome = topics(admin, "get", "orders")
    assert outcome.code == 0
    assert "topic://public/default/orders" in outcome.out
    assert "epoch 1, 3 active and 1 sealed segments" in outcome.out
    assert "team = blue" in outcome.out
    assert "\x1b" not in outcome.out
    rows = {line.split()[0]: line.split() for line in outcome.out.splitlines() if line.strip()[:1].isdigit()}
    assert rows["0"][1:6] == ["0000-7fff", "50.00%", "sealed", "2,", "3"]
    assert rows["2"][1:5] == ["0000-3fff", "25.00%", "active", "0"]


def test_get_json_keeps_what_this_version_does_not_know(admin: AdminStub) -> None:
    content = json.loads(record(Layout.create(1, NOW))) | {"future": [1]}
    admin.answer("GET", T, 200, content)
    assert json.loads(topics(admin, "get", "orders", "--json").out) == content


def test_set_properties_sends_the_whole_map(admin: AdminStub) -> None:
    admin.answer("PUT", f"{T}/properties", 204)
    outcome = topics(admin, "set-properties", "orders", "team=blue", "x=a=ü")
    assert (outcome.code, outcome.out) == (0, "topic://public/default/orders has team=blue, x=a=ü now.\n")
    [(method, target, body)] = admin.requests
    assert (method, target) == ("PUT", f"{T}/properties")
    assert json.loads(body) == {"team": "blue", "x": "a=ü"}


def test_set_properties_clears_them_only_when_told_to(admin: AdminStub) -> None:
    admin.answer("PUT", f"{T}/properties", 204)
    assert topics(admin, "set-properties", "orders").code == 2
    assert topics(admin, "set-properties", "orders", "a=b", "--clear").code == 2
    assert admin.requests == []
    outcome = topics(admin, "set-properties", "orders", "--clear")
    assert outcome.out == "topic://public/default/orders has no properties now.\n"
    assert [body for _, _, body in admin.requests] == [b"{}"]


@pytest.mark.parametrize("pairs", [["a"], ["a="], ["=b"], ["a=1", "a=2"]])
def test_set_properties_refuses_what_is_no_pair(admin: AdminStub, pairs: list[str]) -> None:
    outcome = topics(admin, "set-properties", "orders", *pairs)
    assert outcome.code == 2
    assert "KEY=VALUE" in outcome.err
    assert "--property" not in outcome.err
    assert admin.requests == []


def test_split_and_merge_say_what_came_of_it(admin: AdminStub) -> None:
    layout = Layout.create(2, NOW)
    admin.answer("POST", f"{T}/split/0", 204)
    admin.answer("POST", f"{T}/merge/0/1", 204)
    admin.answer("GET", T, 200, record(layout.split(0, NOW)))
    assert topics(admin, "split", "orders", "0").out == (
        "Split segment 0 of topic://public/default/orders into 2 and 3.\n"
    )
    admin.answer("GET", T, 200, record(layout.merge(0, 1, NOW)))
    assert topics(admin, "merge", "orders", "0", "1").out == (
        "Merged segments 0 and 1 of topic://public/default/orders into 2.\n"
    )
    admin.answer("GET", T, 404, {"reason": "gone"})
    assert topics(admin, "split", "orders", "0").out == "Split segment 0 of topic://public/default/orders.\n"


@pytest.mark.parametrize(("flag", "mark"), [("--dot", "digraph"), ("--svg", "<svg"), ("--mermaid", "graph")])
def test_graph_draws_for_other_tools(admin: AdminStub, flag: str, mark: str) -> None:
    admin.answer("GET", T, 200, record(Layout.create(2, NOW).split(0, NOW)))
    outcome = topics(admin, "graph", "orders", flag)
    assert outcome.code == 0
    assert mark in outcome.out or "flowchart" in outcome.out


def test_graph_draws_in_the_terminal(admin: AdminStub) -> None:
    admin.answer("GET", T, 200, record(Layout.create(2, NOW).split(0, NOW)))
    outcome = topics(admin, "graph", "orders")
    assert outcome.code == 0
    assert "0000-3fff" in outcome.out


def test_the_servers_reason_is_the_error(admin: AdminStub) -> None:
    admin.answer("PUT", T, 409, {"reason": "The topic exists already."})
    outcome = topics(admin, "create", "orders")
    assert (outcome.code, outcome.err) == (1, "vela: The topic exists already.\n")


def test_the_servers_reason_stays_one_harmless_line_whatever_names_it_quotes(admin: AdminStub) -> None:
    admin.answer("DELETE", T, 412, {"reason": "In use by \x1b[2Ja\nb."})
    assert topics(admin, "delete", "orders").err == "vela: In use by \\x1b[2Ja\\nb.\n"


@pytest.mark.parametrize(
    ("status", "content"),
    [
        (404, b"<html>nginx</html>"),
        (500, b""),
        (502, b"[]"),
        (400, b'{"reason": 5}'),
        (200, b"<html>"),
        (200, b'{"a":1}'),
    ],
)
def test_an_answer_of_something_else_is_one_sentence(admin: AdminStub, status: int, content: bytes) -> None:
    admin.answer("GET", "/admin/v2/scalable/public/default", status, content)
    admin.answer("GET", T, status, content)
    for arguments in (("list",), ("get", "orders"), ("graph", "orders")):
        outcome = topics(admin, *arguments)
        assert_one_sentence(outcome)
        assert "Vela" in outcome.err or "record" in outcome.err


def test_nobody_listening_is_one_sentence_with_what_to_do() -> None:
    url = f"http://127.0.0.1:{closed_port()}"
    outcome = vela("topics", "list", "--admin-url", url)
    assert outcome.code == 1
    assert outcome.err == f"vela: no Vela answers at {url}: start one with `make serve` or pass --admin-url\n"


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(admin: AdminStub) -> None:
    admin.answer("GET", "/admin/v2/scalable/public/default", 200, [])
    nowhere = f"http://127.0.0.1:{closed_port()}"
    outcome = vela(
        "topics", "list", "--admin-url", admin.url, HTTP_PROXY=nowhere, http_proxy=nowhere, ALL_PROXY=nowhere
    )
    assert outcome.code == 0


@pytest.mark.parametrize(
    "url", ["localhost:8080", "ftp://x", "http://", "http://[::1", "http://host:port", "http://a b/"]
)
def test_a_bad_admin_url_is_one_sentence(url: str) -> None:
    assert_one_sentence(vela("topics", "list", "--admin-url", url))


def test_a_server_that_does_not_answer_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.admin_client._TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        outcome = vela("topics", "list", "--admin-url", url)
    assert_one_sentence(outcome)
    assert f"{url} gave no answer within 0.1 s" in outcome.err


def test_a_server_that_speaks_no_http_is_one_sentence() -> None:
    from threading import Thread

    def babble(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        with peer:
            peer.sendall(b"\x00\x00\x00\x05garbage\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=babble, args=(listener,))
        thread.start()
        outcome = vela("topics", "list", "--admin-url", f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread.join()
    assert_one_sentence(outcome)


def test_leader_that_does_not_answer_is_told_from_the_node_that_was_asked(admin: AdminStub) -> None:
    leader = f"http://127.0.0.1:{closed_port()}"
    path = "/admin/v2/scalable/public/default/orders/split/0"
    admin.answer("POST", path, 307)
    admin.redirects[path] = leader + path
    outcome = vela("topics", "split", "orders", "0", VELA_ADMIN_URL=admin.url)
    assert_one_sentence(outcome)
    assert outcome.err.startswith(f"vela: {admin.url} says that the node at {leader} leads the topic")
