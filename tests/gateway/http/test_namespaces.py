"""Namespaces, tenants and the cluster over HTTP."""

from typing import Any

import pytest
import trio

from gateway.http.namespaces import SLICE
from metadata.errors import StoreUnavailable
from protocol.names import NamespaceName, TopicName
from tests.gateway.http.consumers import register
from tests.gateway.http.running import SCALABLE, Api, reason_of, running_api
from tests.support.processes import ValkeyProcess
from tests.support.valkeys import Topology
from tests.support.waiting import eventually

NAMESPACES = "/admin/v2/namespaces"


async def test_namespace_lives_from_put_to_delete(api: Api) -> None:
    assert (await api.call("PUT", f"{NAMESPACES}/acme/shop")).status_code == 204
    got = await api.call("GET", f"{NAMESPACES}/acme/shop")
    assert (got.status_code, got.json()) == (200, {})
    again = await api.call("PUT", f"{NAMESPACES}/acme/shop")
    assert again.status_code == 409
    assert "acme/shop" in reason_of(again)
    assert (await api.call("DELETE", f"{NAMESPACES}/acme/shop")).status_code == 204
    for method in ("GET", "DELETE"):
        response = await api.call(method, f"{NAMESPACES}/acme/shop")
        assert response.status_code == 404
        reason_of(response)


async def test_policies_are_kept(api: Api) -> None:
    policies = {"bundles": {"numBundles": 4}, "large": 2**63, "list": [], "float": 0.1}
    assert (await api.call("PUT", f"{NAMESPACES}/acme/shop", json=policies)).status_code == 204
    assert (await api.call("GET", f"{NAMESPACES}/acme/shop")).json() == policies


@pytest.mark.parametrize("body", [b"[]", b"{", b"1", b'{"a":' * 50_000])
async def test_policies_must_be_a_json_object(api: Api, body: bytes) -> None:
    response = await api.call("PUT", f"{NAMESPACES}/acme/shop", content=body)
    assert response.status_code == 400
    reason_of(response)


async def test_namespace_with_topics_is_only_deleted_by_force(api: Api) -> None:
    for name in ("a", "b%2Fc"):
        await api.call("PUT", f"{SCALABLE}/{name}")
    refused = await api.call("DELETE", f"{NAMESPACES}/public/default")
    assert refused.status_code == 409
    assert "force" in reason_of(refused)
    for word in ("false", "False"):
        assert (await api.call("DELETE", f"{NAMESPACES}/public/default?force={word}")).status_code == 409
    assert (await api.call("DELETE", f"{NAMESPACES}/public/default?force=maybe")).status_code == 412
    assert (await api.call("DELETE", f"{NAMESPACES}/public/default?force=true")).status_code == 204
    assert await api.store.list_topics(NamespaceName("public", "default")) == []
    assert (await api.call("DELETE", f"{NAMESPACES}/public/default?force=true")).status_code == 404


async def test_forced_delete_takes_many_topics_with_all_that_is_theirs(api: Api, valkey: ValkeyProcess) -> None:
    topics = [TopicName.scalable("acme", "shop", f"t{number}") for number in range(3 * SLICE + 1)]
    async with trio.open_nursery() as nursery:
        for topic in topics:
            nursery.start_soon(api.transitions.create, topic, 2)
    await api.transitions.create(TopicName.scalable("acme", "shop2", "t0"), 1)
    await register(api, "c", topic=topics[0])
    assert (await api.call("DELETE", f"{NAMESPACES}/acme/shop?force=true")).status_code == 204
    assert await api.store.list_topics(NamespaceName("acme", "shop")) == []
    assert await api.store.list_topics(NamespaceName("acme", "shop2")) == ["t0"]
    assert (await api.call("GET", f"{NAMESPACES}/acme/shop")).status_code == 404

    def left() -> list[bytes]:
        found: list[bytes] = [key for key in valkey.command("KEYS", "*/acme/shop*") if b"/acme/shop2/" not in key]
        return [key for key in found if not key.endswith(b"/acme/shop2")]

    await eventually(lambda: left() == [])


async def test_no_topic_is_created_while_its_namespace_is_deleted(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["a", "b", "c"]
    for name in names:
        await api.call("PUT", f"{SCALABLE}/{name}")
    delete = api.transitions.delete
    refusals: list[str] = []

    async def delete_while_others_create(topic: TopicName) -> None:
        response = await api.call("PUT", f"{SCALABLE}/late-{topic.local}")
        assert response.status_code == 409
        refusals.append(reason_of(response))
        # What is there still is there.
        assert (await api.call("PUT", f"{SCALABLE}/{topic.local}")).status_code == 409
        # Other namespaces are not concerned.
        assert (await api.call("PUT", f"/admin/v2/scalable/public/other/{topic.local}")).status_code == 204
        await delete(topic)

    monkeypatch.setattr(api.transitions, "delete", delete_while_others_create)
    assert (await api.call("DELETE", f"{NAMESPACES}/public/default?force=true")).status_code == 204
    assert len(refusals) == 3
    assert all("public/default is being deleted" in reason for reason in refusals)
    assert (await api.call("GET", "/admin/v2/scalable/public/other")).json() == [
        f"topic://public/other/{name}" for name in names
    ]
    # A creation brings the namespace back, as one that never was.
    assert (await api.call("PUT", f"{SCALABLE}/late")).status_code == 204
    assert (await api.call("GET", SCALABLE)).json() == ["topic://public/default/late"]


STEPS = ["close_namespace", "list_topics", "delete", "delete_namespace", "reopen_namespace"]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
async def test_interrupted_forced_delete_is_finished_by_the_next_one(
    api: Api, valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch, step: str, moment: str
) -> None:
    for name in ("a", "b"):
        await api.call("PUT", f"{SCALABLE}/{name}")
    interrupt(api, monkeypatch, step, moment)
    broken = await api.call("DELETE", f"{NAMESPACES}/public/default?force=true")
    assert broken.status_code == 503
    reason_of(broken)
    monkeypatch.undo()
    marks = valkey.command("KEYS", "/closed/*")
    assert len(marks) == (0 if (step, moment) in {(STEPS[0], "before"), (STEPS[-1], "after")} else 128)
    exists = (await api.call("GET", f"{NAMESPACES}/public/default")).status_code == 200
    if marks and exists:
        assert (await api.call("PUT", f"{SCALABLE}/late")).status_code == 409
    finished = await api.call("DELETE", f"{NAMESPACES}/public/default?force=true")
    assert finished.status_code == (204 if marks or exists else 404)
    assert valkey.command("KEYS", "/closed/*") == []
    assert (await api.call("GET", f"{NAMESPACES}/public/default")).status_code == 404
    assert await api.store.list_topics(NamespaceName("public", "default")) == []
    assert (await api.call("PUT", f"{SCALABLE}/late")).status_code == 204


@pytest.mark.parametrize("creation", [f"{NAMESPACES}/public/default", f"{SCALABLE}/late"])
async def test_namespace_created_anew_takes_topics_although_its_deletion_was_interrupted(
    api: Api, valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch, creation: str
) -> None:
    await api.call("PUT", f"{SCALABLE}/a")
    interrupt(api, monkeypatch, "reopen_namespace", "before")
    assert (await api.call("DELETE", f"{NAMESPACES}/public/default?force=true")).status_code == 503
    monkeypatch.undo()
    assert (await api.call("PUT", creation)).status_code == 204
    assert valkey.command("KEYS", "/closed/*") == []
    assert (await api.call("PUT", f"{SCALABLE}/later")).status_code == 204


async def test_existing_namespace_cannot_be_opened_by_creating_it_again(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.call("PUT", f"{SCALABLE}/a")
    interrupt(api, monkeypatch, "list_topics", "before")
    await api.call("DELETE", f"{NAMESPACES}/public/default?force=true")
    monkeypatch.undo()
    assert (await api.call("PUT", f"{NAMESPACES}/public/default")).status_code == 409
    assert (await api.call("PUT", f"{SCALABLE}/b")).status_code == 409


async def test_concurrent_forced_deletes_end_in_the_same_place(api: Api, valkey: ValkeyProcess) -> None:
    for number in range(SLICE):
        await api.call("PUT", f"{SCALABLE}/t{number}")
    statuses: list[int] = []

    async def delete() -> None:
        statuses.append((await api.call("DELETE", f"{NAMESPACES}/public/default?force=true")).status_code)

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(delete)
    assert set(statuses) <= {204, 404}
    assert 204 in statuses
    assert valkey.command("KEYS", "/closed/*") == []
    assert (await api.call("GET", SCALABLE)).json() == []


async def test_full_store_can_be_relieved_of_a_namespace(api: Api, valkey: ValkeyProcess) -> None:
    for name in ("a", "b"):
        await api.call("PUT", f"{SCALABLE}/{name}")
    valkey.command("CONFIG", "SET", "maxmemory", "1")
    assert (await api.call("DELETE", f"{NAMESPACES}/public/default?force=true")).status_code == 204
    assert (await api.call("GET", SCALABLE)).json() == []


def interrupt(api: Api, monkeypatch: pytest.MonkeyPatch, step: str, moment: str) -> None:
    """Let this step of a forced delete fail as if the store went away, before or after it has done its work."""
    target: Any = api.transitions if step == "delete" else api.store
    real = getattr(target, step)

    async def fail(*args: Any) -> None:
        if moment == "after":
            await real(*args)
        raise StoreUnavailable("The store does not serve this now.")

    monkeypatch.setattr(target, step, fail)


async def test_namespaces_of_a_tenant_are_listed(api: Api) -> None:
    for name in ("acme/shop", "acme/depot", "acme2/shop"):
        await api.call("PUT", f"{NAMESPACES}/{name}")
    assert (await api.call("GET", f"{NAMESPACES}/acme")).json() == ["acme/depot", "acme/shop"]
    missing = await api.call("GET", f"{NAMESPACES}/nobody")
    assert missing.status_code == 404
    reason_of(missing)


async def test_tenants_come_with_their_namespaces(api: Api) -> None:
    for name in ("acme/shop", "acme/depot", "zoo/x"):
        await api.call("PUT", f"{NAMESPACES}/{name}")
    assert (await api.call("GET", "/admin/v2/tenants")).json() == ["acme", "zoo"]
    assert (await api.call("GET", "/admin/v2/tenants/acme")).json() == {
        "adminRoles": [],
        "allowedClusters": ["standalone"],
    }
    missing = await api.call("GET", "/admin/v2/tenants/nobody")
    assert missing.status_code == 404
    reason_of(missing)


async def test_there_is_one_cluster(api: Api) -> None:
    assert (await api.call("GET", "/admin/v2/clusters")).json() == ["standalone"]


async def test_every_kind_of_store_carries_the_controllers_operations(topology: Topology) -> None:
    """Each script must find all of its keys in one slot."""
    async with running_api(topology.url) as api:
        for number in range(SLICE + 1):
            assert (await api.call("PUT", f"{SCALABLE}/t{number}")).status_code == 204
        topic = f"{SCALABLE}/t0"
        retention = {"retentionTimeInMinutes": 5}
        for method, path, options in (
            ("POST", f"{topic}/split/0", {}),
            ("PUT", f"{topic}/subscriptions/s", {}),
            ("POST", f"{topic}/subscriptions/s/seek?timestamp=0", {}),
            ("PUT", f"{topic}/retention", {"json": retention}),
            ("POST", f"{NAMESPACES}/public/default/retention", {"json": retention}),
        ):
            assert (await api.call(method, path, **options)).status_code == 204
        assert (await api.call("GET", f"{topic}/stats")).json()["layout"]["epoch"] == 1
        assert (await api.call("GET", "/admin/v2/nodes")).json()[0]["leads"] == 1
        assert (await api.call("DELETE", f"{NAMESPACES}/public/default?force=true")).status_code == 204
        assert not await api.store.is_closed(NamespaceName("public", "default"))
        assert (await api.call("GET", SCALABLE)).json() == []
