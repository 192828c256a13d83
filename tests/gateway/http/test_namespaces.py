"""Namespaces, tenants and the cluster over HTTP."""

import pytest

from metadata.errors import NamespaceNotEmpty
from protocol.names import NamespaceName, TopicName
from tests.gateway.http.running import SCALABLE, Api, reason_of

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


async def test_forced_delete_starts_over_when_a_topic_comes_in_between(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.call("PUT", f"{SCALABLE}/first")
    delete_namespace = api.store.delete_namespace
    late = TopicName.scalable("public", "default", "late")

    async def delete_after_a_late_topic(name: NamespaceName) -> None:
        monkeypatch.undo()
        await api.transitions.create(late, 1)
        with pytest.raises(NamespaceNotEmpty):
            await delete_namespace(name)
        raise NamespaceNotEmpty(str(name))

    monkeypatch.setattr(api.store, "delete_namespace", delete_after_a_late_topic)
    assert (await api.call("DELETE", f"{NAMESPACES}/public/default?force=true")).status_code == 204
    assert await api.store.get(late) is None


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
