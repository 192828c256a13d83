"""`vela namespaces …` and `vela nodes` against a real HTTP server that answers as told."""

import json
import re
from collections.abc import Iterator

import pytest

from tests.gateway.vela_command import AdminStub, Outcome, admin_stub, assert_one_sentence, vela

NODES = "/admin/v2/nodes"


@pytest.fixture
def admin() -> Iterator[AdminStub]:
    with admin_stub() as stub:
        yield stub


def namespaces(admin: AdminStub, *arguments: str) -> Outcome:
    return vela("namespaces", *arguments, VELA_ADMIN_URL=admin.url)


def nodes(admin: AdminStub, *arguments: str) -> Outcome:
    return vela("nodes", *arguments, VELA_ADMIN_URL=admin.url)


def test_list_goes_through_all_tenants(admin: AdminStub) -> None:
    admin.answer("GET", "/admin/v2/tenants", 200, ["a", "gone", "public"])
    admin.answer("GET", "/admin/v2/namespaces/a", 200, ["a/x", "a/y"])
    # It went with its last namespace after the tenants were listed.
    admin.answer("GET", "/admin/v2/namespaces/gone", 404, {"reason": "Tenant does not exist."})
    admin.answer("GET", "/admin/v2/namespaces/public", 200, ["public/default"])
    assert namespaces(admin, "list").out == "a/x\na/y\npublic/default\n"
    assert json.loads(namespaces(admin, "list", "--json").out) == ["a/x", "a/y", "public/default"]


def test_list_of_one_tenant(admin: AdminStub) -> None:
    admin.answer("GET", "/admin/v2/namespaces/a", 200, ["a/x"])
    admin.answer("GET", "/admin/v2/namespaces/b", 404, {"reason": "Tenant does not exist."})
    assert namespaces(admin, "list", "a").out == "a/x\n"
    assert namespaces(admin, "list", "b").err == "vela: Tenant does not exist.\n"


def test_list_does_not_leave_out_a_tenant_that_cannot_be_read(admin: AdminStub) -> None:
    admin.answer("GET", "/admin/v2/tenants", 200, ["a"])
    admin.answer("GET", "/admin/v2/namespaces/a", 503, {"reason": "The store is out of reach."})
    outcome = namespaces(admin, "list")
    assert (outcome.code, outcome.out, outcome.err) == (1, "", "vela: The store is out of reach.\n")


def test_create_and_delete(admin: AdminStub) -> None:
    path = "/admin/v2/namespaces/t/ns"
    admin.answer("PUT", path, 204)
    admin.answer("DELETE", path, 204)
    assert namespaces(admin, "create", "t/ns").out == "Created t/ns.\n"
    assert namespaces(admin, "delete", "t/ns").out == "Deleted t/ns.\n"
    assert namespaces(admin, "delete", "t/ns", "--force").out == "Deleted t/ns with all its topics.\n"
    assert [(method, target) for method, target, _ in admin.requests] == [
        ("PUT", path),
        ("DELETE", path),
        ("DELETE", f"{path}?force=true"),
    ]


@pytest.mark.parametrize(
    "arguments", [("create", "t"), ("create", "a b/c"), ("delete", "t/ns/x"), ("list", "a/b"), ("list", "a b")]
)
def test_a_bad_name_is_one_sentence_and_no_request(admin: AdminStub, arguments: tuple[str, ...]) -> None:
    assert_one_sentence(namespaces(admin, *arguments))
    assert admin.requests == []


def test_nodes_are_told_apart_from_the_one_that_answers(admin: AdminStub) -> None:
    content = [
        {"session": "5e55", "pulsarUrl": "pulsar://a:1", "httpUrl": "http://a:2", "self": True, "leads": 7},
        {"session": "0123", "pulsarUrl": "pulsar://b:1", "httpUrl": "http://b:2", "self": False, "leads": None},
    ]
    admin.answer("GET", NODES, 200, content)
    lines = [re.split(r"\s{2,}", line.strip()) for line in nodes(admin).out.splitlines()]
    assert lines == [
        ["session", "self", "binary protocol", "admin API", "leads"],
        ["5e55", "yes", "pulsar://a:1", "http://a:2", "7"],
        ["0123", "pulsar://b:1", "http://b:2", "?"],
    ]
    assert json.loads(nodes(admin, "--json").out) == content


@pytest.mark.parametrize(
    ("status", "content"), [(404, b"<html>"), (500, b""), (200, b"<"), (200, b"{}"), (200, b"[1]")]
)
def test_an_answer_of_something_else_is_one_sentence(admin: AdminStub, status: int, content: bytes) -> None:
    for path in (NODES, "/admin/v2/tenants", "/admin/v2/namespaces/a"):
        admin.answer("GET", path, status, content)
    for outcome in (nodes(admin), nodes(admin, "--json"), namespaces(admin, "list"), namespaces(admin, "list", "a")):
        assert_one_sentence(outcome)
        assert "Vela" in outcome.err


def test_retention_of_a_namespace_is_shown_set_and_left_to_the_server(admin: AdminStub) -> None:
    path = "/admin/v2/namespaces/t/ns/retention"
    admin.answer("GET", path, 200, {"retentionTimeInMinutes": 90, "retentionSizeInMB": -1})
    admin.answer("POST", path, 204)
    admin.answer("DELETE", path, 204)
    assert namespaces(admin, "retention", "t/ns").out == (
        "t/ns keeps sealed segments until they are consumed, and 90 minutes at least.\n"
    )
    assert namespaces(admin, "retention", "t/ns", "--minutes", "-1").out == "t/ns keeps sealed segments for ever.\n"
    assert namespaces(admin, "retention", "t/ns", "--clear").out == (
        "t/ns keeps sealed segments as long as the server says.\n"
    )
    assert [(method, body) for method, _, body in admin.requests] == [
        ("GET", b""),
        ("POST", b'{"retentionTimeInMinutes":-1}'),
        ("DELETE", b""),
    ]


def test_retention_by_size_is_shown_and_set_with_a_time(admin: AdminStub) -> None:
    path = "/admin/v2/namespaces/t/ns/retention"
    admin.answer("GET", path, 200, {"retentionTimeInMinutes": -1, "retentionSizeInMB": 5})
    admin.answer("POST", path, 204)
    said = "t/ns keeps sealed segments for ever. What was consumed goes earlier where a segment is larger than 5 MB.\n"
    assert namespaces(admin, "retention", "t/ns").out == said
    assert namespaces(admin, "retention", "t/ns", "--minutes", "-1", "--megabytes", "5").out == said
    assert admin.requests[-1][2] == b'{"retentionTimeInMinutes":-1,"retentionSizeInMB":5}'
    assert "--minutes" in namespaces(admin, "retention", "t/ns", "--megabytes", "5").err
