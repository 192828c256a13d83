"""`vela topics …` with classic topics, against a real HTTP server that answers as told."""

import json
from collections.abc import Iterator

import pytest

from tests.gateway.vela_command import AdminStub, Outcome, admin_stub, assert_one_sentence, vela

NAME = "persistent://public/default/orders"
N = "/admin/v2/persistent/public/default"
T = f"{N}/orders"


@pytest.fixture
def admin() -> Iterator[AdminStub]:
    with admin_stub() as stub:
        yield stub


def topics(admin: AdminStub, *arguments: str) -> Outcome:
    return vela("topics", *arguments, VELA_ADMIN_URL=admin.url)


def info(partitions: int = 0, **properties: str) -> dict[str, object]:
    return {
        "name": NAME,
        "partitions": partitions,
        "sealed": False,
        "createdAtMs": 1_700_000_000_000,
        "properties": properties,
    }


def test_create_makes_a_single_topic_or_a_partitioned_one(admin: AdminStub) -> None:
    admin.answer("PUT", T, 204)
    admin.answer("PUT", f"{T}/partitions", 204)
    assert topics(admin, "create", NAME, "-p", "a=b").out == f"Created {NAME}.\n"
    assert topics(admin, "create", NAME, "--partitions", "3").out == f"Created {NAME} with 3 partitions.\n"
    (_, single, properties), (_, partitioned, body) = admin.requests
    assert (single, json.loads(properties)) == (T, {"a": "b"})
    assert (partitioned, json.loads(body)) == (f"{T}/partitions", {"partitions": 3, "properties": {}})


def test_segments_and_partitions_do_not_mix(admin: AdminStub) -> None:
    assert topics(admin, "create", NAME, "--segments", "3").code == 2
    assert topics(admin, "create", "orders", "--partitions", "3").code == 2
    assert_one_sentence(topics(admin, "partitions", "orders"))
    assert admin.requests == []


def test_list_shows_classic_topics_when_they_are_named_so(admin: AdminStub) -> None:
    admin.answer("GET", N, 200, [f"{NAME}-partition-0", "persistent://public/default/single"])
    outcome = topics(admin, "list", "persistent://public/default")
    assert outcome.out == f"{NAME}-partition-0\npersistent://public/default/single\n"
    assert json.loads(topics(admin, "list", "persistent://public/default", "--json").out)[0] == f"{NAME}-partition-0"
    assert topics(admin, "list", "persistent://public/default", "-p", "a=b").code == 2
    assert_one_sentence(topics(admin, "list", "persistent://public"))


def test_get_shows_partitions_and_properties(admin: AdminStub) -> None:
    admin.answer("GET", T, 200, info(3, owner="shop"))
    outcome = topics(admin, "get", NAME)
    assert NAME in outcome.out
    assert "3 partitions" in outcome.out
    assert "owner = shop" in outcome.out
    assert json.loads(topics(admin, "get", NAME, "--json").out)["partitions"] == 3


def test_partitions_are_shown_and_set(admin: AdminStub) -> None:
    admin.answer("GET", T, 200, info(3))
    admin.answer("POST", f"{T}/partitions", 204)
    assert topics(admin, "partitions", NAME).out == "3\n"
    assert topics(admin, "partitions", NAME, "5").out == f"{NAME} has 5 partitions now.\n"
    assert admin.requests[-1] == ("POST", f"{T}/partitions", b"5")


@pytest.mark.parametrize(("partitions", "path"), [(0, T), (2, f"{T}/partitions")])
def test_delete_takes_the_partitions_with_the_topic(admin: AdminStub, partitions: int, path: str) -> None:
    admin.answer("GET", T, 200, info(partitions))
    admin.answer("DELETE", path, 204)
    assert topics(admin, "delete", NAME, "--force").out == f"Deleted {NAME}.\n"
    assert admin.requests[-1][:2] == ("DELETE", f"{path}?force=true")


def test_a_refusal_is_one_sentence(admin: AdminStub) -> None:
    admin.answer("GET", T, 404, {"reason": "Topic not found."})
    for command in ("get", "delete", "partitions"):
        assert_one_sentence(topics(admin, command, NAME))


def test_a_topic_that_is_not_served_is_refused_here(admin: AdminStub) -> None:
    assert_one_sentence(topics(admin, "create", "non-persistent://public/default/orders"))
    assert admin.requests == []


@pytest.mark.parametrize("name", [NAME, "orders", "topic://public/default/orders"])
def test_migrate_takes_either_name(admin: AdminStub, name: str) -> None:
    path = "/admin/v2/scalable/public/default/orders/migrate"
    admin.answer("POST", path, 204)
    assert topics(admin, "migrate", name).out == "Migrated topic://public/default/orders.\n"
    topics(admin, "migrate", name, "--force")
    assert [target for _, target, _ in admin.requests] == [path, f"{path}?force=true"]
