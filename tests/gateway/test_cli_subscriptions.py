"""`vela subscriptions …` against a real HTTP server that answers as told."""

import json
import time
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
import typer

from gateway.cli.subscriptions import moment_ago
from tests.gateway.vela_command import AdminStub, Outcome, admin_stub, assert_one_sentence, vela

T = "/admin/v2/scalable/public/default/orders/subscriptions"
NAME = "topic://public/default/orders"


@pytest.fixture
def admin() -> Iterator[AdminStub]:
    with admin_stub() as stub:
        yield stub


def subscriptions(admin: AdminStub, *arguments: str) -> Outcome:
    return vela("subscriptions", *arguments, VELA_ADMIN_URL=admin.url)


def asked(admin: AdminStub) -> list[tuple[str, str]]:
    return [(method, target) for method, target, _ in admin.requests]


def test_list_shows_types_consumers_and_age(admin: AdminStub) -> None:
    content = {
        "billing": {"type": "STREAM", "createdAtMs": 1_700_000_000_000, "consumers": 2},
        "[b]\x1b": {"type": "CHECKPOINT", "createdAtMs": 0, "consumers": 0, "future": 1},
        "new": {"type": None, "createdAtMs": 0, "consumers": 0},
    }
    admin.answer("GET", T, 200, content)
    lines = [line.split() for line in subscriptions(admin, "list", "orders").out.splitlines()]
    assert lines == [
        ["subscription", "type", "consumers", "created"],
        ["billing", "stream", "2", "2023-11-14", "22:13:20Z"],
        [r"[b]\x1b", "checkpoint", "0"],
        ["new", "open", "0"],
    ]
    assert json.loads(subscriptions(admin, "list", "orders", "--json").out) == content


def test_list_of_none_is_empty(admin: AdminStub) -> None:
    admin.answer("GET", T, 200, {})
    outcome = subscriptions(admin, "list", "orders")
    assert (outcome.code, outcome.out) == (0, "")
    assert subscriptions(admin, "list", "orders", "--json").out == "{}\n"


@pytest.mark.parametrize(
    ("flags", "kind"),
    [(["--type", "queue"], "queue"), (["-t", "STREAM"], "stream"), (["--type", "Queue"], "queue")],
)
def test_create_sends_the_type(admin: AdminStub, flags: list[str], kind: str) -> None:
    admin.answer("PUT", f"{T}/billing", 204)
    outcome = subscriptions(admin, "create", "orders", "billing", *flags)
    assert (outcome.code, outcome.out) == (0, f"{NAME} has the {kind} subscription billing now.\n")
    assert asked(admin) == [("PUT", f"{T}/billing?type={kind.upper()}")]


def test_create_without_a_type_leaves_it_to_the_first_consumer(admin: AdminStub) -> None:
    admin.answer("PUT", f"{T}/billing", 204)
    outcome = subscriptions(admin, "create", "orders", "billing")
    assert (outcome.code, outcome.out) == (0, f"{NAME} has the subscription billing now.\n")
    assert asked(admin) == [("PUT", f"{T}/billing")]


def test_delete_needs_no_force(admin: AdminStub) -> None:
    admin.answer("DELETE", f"{T}/billing", 204)
    outcome = subscriptions(admin, "delete", "orders", "billing")
    assert (outcome.code, outcome.out) == (0, f"Deleted subscription billing of {NAME}.\n")
    assert asked(admin) == [("DELETE", f"{T}/billing")]


def test_seek_to_a_timestamp(admin: AdminStub) -> None:
    admin.answer("POST", f"{T}/billing/seek", 204)
    outcome = subscriptions(admin, "seek", "orders", "billing", "--timestamp", "1700000000000")
    assert outcome.out == f"Subscription billing of {NAME} goes on from 2023-11-14 22:13:20Z.\n"
    outcome = subscriptions(admin, "seek", "orders", "billing", "--timestamp", "0")
    assert outcome.out == f"Subscription billing of {NAME} goes on from the beginning.\n"
    assert [target for _, target in asked(admin)] == [
        f"{T}/billing/seek?timestamp=1700000000000",
        f"{T}/billing/seek?timestamp=0",
    ]


def test_seek_to_a_while_ago_counts_from_now(admin: AdminStub) -> None:
    admin.answer("POST", f"{T}/billing/seek", 204)
    earliest = time.time_ns() // 1_000_000
    assert subscriptions(admin, "seek", "orders", "billing", "--to", "1h").code == 0
    latest = time.time_ns() // 1_000_000
    [(_, target)] = asked(admin)
    [timestamp] = parse_qs(urlsplit(target).query)["timestamp"]
    assert earliest <= int(timestamp) + 3_600_000 <= latest


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0s", 0), ("90s", 90), ("30m", 1_800), ("1h", 3_600), ("1.5h", 5_400), ("5d", 432_000), ("2w", 1_209_600)],
)
def test_how_long_ago_in_every_unit(text: str, seconds: int) -> None:
    assert moment_ago(text, 2_000_000_000_000) == 2_000_000_000_000 - seconds * 1_000


def test_nothing_is_before_1970() -> None:
    assert moment_ago("999999999999999w", 2_000_000_000_000) == 0


@pytest.mark.parametrize("text", ["", "5", "h", "-1h", "1 h", "1H", "1ms", "1h30m", "1e3s", "nan", "١h", "1h\n"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="give one like 30m, 1h or 5d"):
        moment_ago(text, 2_000_000_000_000)


def test_skip_all(admin: AdminStub) -> None:
    admin.answer("POST", f"{T}/billing/skip-all", 204)
    outcome = subscriptions(admin, "skip-all", "orders", "billing")
    assert outcome.out == f"Subscription billing of {NAME} has skipped everything.\n"
    assert asked(admin) == [("POST", f"{T}/billing/skip-all")]


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("a/seek", "a%2Fseek"),
        ("100% ü?#", "100%25%20%C3%BC%3F%23"),
        ("%2F", "%252F"),
        ("..", "%2E%2E"),
        (".", "%2E"),
        ("../../x", "..%2F..%2Fx"),
        ("-x", "-x"),
    ],
)
def test_names_reach_the_server_as_one_encoded_path_part(admin: AdminStub, name: str, path: str) -> None:
    for arguments in (["create"], ["delete"], ["skip-all"], ["seek", "--to", "1h"]):
        subscriptions(admin, *arguments, "--", "orders", name)
    assert [urlsplit(target).path for _, target in asked(admin)] == [
        f"{T}/{path}",
        f"{T}/{path}",
        f"{T}/{path}/skip-all",
        f"{T}/{path}/seek",
    ]


@pytest.mark.parametrize("arguments", [["create"], ["delete"], ["skip-all"], ["seek", "--to", "1h"]])
@pytest.mark.parametrize("name", ["", " ", "\udc80"])
def test_a_name_that_cannot_be_is_one_sentence_and_no_request(
    admin: AdminStub, arguments: list[str], name: str
) -> None:
    assert_one_sentence(subscriptions(admin, *arguments, "orders", name))
    assert admin.requests == []


def test_a_bad_topic_name_is_one_sentence_and_no_request(admin: AdminStub) -> None:
    for arguments in (["list"], ["create", "s"], ["delete", "s"], ["skip-all", "s"], ["seek", "s", "--to", "1h"]):
        assert_one_sentence(subscriptions(admin, arguments[0], "a/b", *arguments[1:]))
    assert admin.requests == []


@pytest.mark.parametrize(("status", "content"), [(404, b"<html>"), (500, b""), (200, b"<"), (200, b"[]"), (200, b"1")])
def test_an_answer_of_something_else_is_one_sentence(admin: AdminStub, status: int, content: bytes) -> None:
    admin.answer("GET", T, status, content)
    for flags in ([], ["--json"]):
        outcome = subscriptions(admin, "list", "orders", *flags)
        assert_one_sentence(outcome)
        assert "Vela" in outcome.err


def test_the_servers_reason_is_the_error(admin: AdminStub) -> None:
    admin.answer("DELETE", f"{T}/billing", 412, {"reason": "It has consumers."})
    outcome = subscriptions(admin, "delete", "orders", "billing")
    assert (outcome.code, outcome.out, outcome.err) == (1, "", "vela: It has consumers.\n")
