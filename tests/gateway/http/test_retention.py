"""The retention of namespaces and topics over real HTTP and a real store."""

import msgspec
import pytest
import trio

from controller.retention import FOR_EVER, Kept, Retention, RetentionPolicy
from metadata.errors import VersionConflict
from protocol.names import NamespaceName
from tests.gateway.http.consumers import TOPIC
from tests.gateway.http.running import SCALABLE, Api, reason_of, running_api
from tests.support.processes import ValkeyProcess

NAMESPACE = "/admin/v2/namespaces/public/default"
OF_NAMESPACE = f"{NAMESPACE}/retention"
OF_TOPIC = f"{SCALABLE}/t/retention"
BAD_BODIES = [
    b"",
    b" ",
    b"null",
    b"[]",
    b"{",
    b"{}",
    b"10",
    b'{"retentionTimeInMinutes":"10"}',
    b'{"retentionTimeInMinutes":1.5}',
    b'{"retentionTimeInMinutes":null}',
    b'{"retentionTimeInMinutes":true}',
    b'{"retentionTimeInMinutes":1,"retentionSizeInMB":"x"}',
    b'{"retentionTimeInMinutes":1e400}',
    b"\xff",
]
BAD_TIMES = [-2, 2**31, 2**63, -(2**63)]


async def test_retention_of_a_namespace_is_set_read_and_removed(api: Api) -> None:
    await api.call("PUT", NAMESPACE)
    none = await api.call("GET", OF_NAMESPACE)
    assert (none.status_code, none.content) == (204, b"")
    policy = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 512}
    posted = await api.call("POST", OF_NAMESPACE, json=policy)
    assert (posted.status_code, posted.content) == (204, b"")
    got = await api.call("GET", OF_NAMESPACE)
    assert (got.status_code, got.json()) == (200, policy)
    assert (await api.call("GET", NAMESPACE)).json() == {"retention_policies": policy}
    for _ in range(2):
        assert (await api.call("DELETE", OF_NAMESPACE)).status_code == 204
        assert (await api.call("GET", OF_NAMESPACE)).status_code == 204
    assert (await api.call("GET", NAMESPACE)).json() == {}


async def test_other_policies_stay_as_they_are(api: Api) -> None:
    policies = {"bundles": {"numBundles": 4}, "large": 2**63, "list": [], "float": 0.1}
    await api.call("PUT", NAMESPACE, json=policies)
    await api.call("POST", OF_NAMESPACE, json={"retentionTimeInMinutes": -1})
    assert (await api.call("GET", NAMESPACE)).json() == policies | {
        "retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    }
    await api.call("DELETE", OF_NAMESPACE)
    assert (await api.call("GET", NAMESPACE)).json() == policies


async def test_missing_namespace_is_not_found(api: Api) -> None:
    for response in (
        await api.call("GET", OF_NAMESPACE),
        await api.call("POST", OF_NAMESPACE, json={"retentionTimeInMinutes": 1}),
        await api.call("DELETE", OF_NAMESPACE),
    ):
        assert response.status_code == 404
        assert "public/default" in reason_of(response)
    assert await api.store.list_namespaces() == []


@pytest.mark.parametrize("body", BAD_BODIES)
async def test_malformed_body_changes_nothing(api: Api, body: bytes) -> None:
    await api.call("PUT", NAMESPACE)
    await api.call("PUT", f"{SCALABLE}/t")
    for method, path in (("POST", OF_NAMESPACE), ("PUT", OF_TOPIC)):
        response = await api.call(method, path, content=body)
        assert response.status_code == 400
        assert "JSON" in reason_of(response)
        assert (await api.call("GET", path)).status_code == 204


@pytest.mark.parametrize("minutes", BAD_TIMES)
async def test_impossible_time_is_refused(api: Api, minutes: int) -> None:
    await api.call("PUT", NAMESPACE)
    await api.call("PUT", f"{SCALABLE}/t")
    for method, path in (("POST", OF_NAMESPACE), ("PUT", OF_TOPIC)):
        response = await api.call(method, path, json={"retentionTimeInMinutes": minutes})
        assert response.status_code == 412
        assert "retentionTimeInMinutes" in reason_of(response)
        assert (await api.call("GET", path)).status_code == 204


async def test_impossible_size_is_refused(api: Api) -> None:
    await api.call("PUT", NAMESPACE)
    await api.call("PUT", f"{SCALABLE}/t")
    for method, path, size in (
        ("POST", OF_NAMESPACE, -2),
        ("POST", OF_NAMESPACE, 2**63),
        ("PUT", OF_TOPIC, -2),
        ("PUT", OF_TOPIC, 2**63),
    ):
        response = await api.call(method, path, json={"retentionTimeInMinutes": 1, "retentionSizeInMB": size})
        assert response.status_code == 412
        assert "retentionSizeInMB" in reason_of(response)
        assert (await api.call("GET", path)).status_code == 204


@pytest.mark.parametrize(
    ("retention", "status"), [("a week", 400), ({"retentionTimeInMinutes": -2}, 412), ([], 400), ({}, 400)]
)
async def test_namespace_is_not_created_with_a_retention_that_nobody_can_read(
    api: Api, retention: object, status: int
) -> None:
    response = await api.call("PUT", NAMESPACE, json={"retention_policies": retention})
    assert response.status_code == status
    reason_of(response)
    assert await api.store.list_namespaces() == []


async def test_retention_given_at_creation_is_the_one(api: Api) -> None:
    policy = {"retentionTimeInMinutes": 5, "retentionSizeInMB": -1}
    assert (await api.call("PUT", NAMESPACE, json={"retention_policies": policy})).status_code == 204
    assert (await api.call("GET", OF_NAMESPACE)).json() == policy


async def test_concurrent_writers_of_policies_do_not_undo_each_other(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody sets another policy between our read and our write."""
    await api.call("PUT", NAMESPACE)
    name = NamespaceName("public", "default")
    replace_namespace = api.store.replace_namespace

    async def replace_second(*args: object) -> None:
        monkeypatch.undo()
        await replace_namespace(name, b"{}", b'{"other":1}')
        await replace_namespace(*args)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(api.store, "replace_namespace", replace_second)
    assert (await api.call("POST", OF_NAMESPACE, json={"retentionTimeInMinutes": 7})).status_code == 204
    policies = (await api.call("GET", NAMESPACE)).json()
    assert (policies["other"], policies["retention_policies"]["retentionTimeInMinutes"]) == (1, 7)


async def test_policies_that_keep_changing_are_a_conflict(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await api.call("PUT", NAMESPACE)

    async def lose(*_: object) -> None:
        raise VersionConflict("changed")

    monkeypatch.setattr(api.store, "replace_namespace", lose)
    response = await api.call("POST", OF_NAMESPACE, json={"retentionTimeInMinutes": 7})
    assert response.status_code == 409
    assert "try again" in reason_of(response)


async def test_many_writers_at_once_all_succeed(api: Api) -> None:
    await api.call("PUT", NAMESPACE, json={"kept": True})
    statuses: list[int] = []

    async def post(minutes: int) -> None:
        statuses.append((await api.call("POST", OF_NAMESPACE, json={"retentionTimeInMinutes": minutes})).status_code)

    async with trio.open_nursery() as nursery:
        for minutes in range(10):
            nursery.start_soon(post, minutes)
    assert statuses == [204] * 10
    policies = (await api.call("GET", NAMESPACE)).json()
    assert policies["kept"] is True
    assert policies["retention_policies"]["retentionTimeInMinutes"] in range(10)


async def test_damaged_policies_are_an_error_that_says_which(api: Api) -> None:
    await api.store.create_namespace(NamespaceName("public", "default"), b'{"retention_policies":"a week"}')
    response = await api.call("GET", OF_NAMESPACE)
    assert response.status_code == 500
    assert "public/default" in reason_of(response)
    assert (await api.call("POST", OF_NAMESPACE, json={"retentionTimeInMinutes": 1})).status_code == 204
    assert (await api.call("GET", OF_NAMESPACE)).status_code == 200


async def test_retention_of_a_topic_is_set_read_and_removed(api: Api) -> None:
    await api.call("PUT", f"{SCALABLE}/t", json={"team": "blue"})
    none = await api.call("GET", OF_TOPIC)
    assert (none.status_code, none.content) == (204, b"")
    before = (await api.call("GET", f"{SCALABLE}/t")).json()
    put = await api.call("PUT", OF_TOPIC, json={"retentionTimeInMinutes": 30, "retentionSizeInMB": -1})
    assert (put.status_code, put.content) == (204, b"")
    got = await api.call("GET", OF_TOPIC)
    assert (got.status_code, got.json()) == (200, {"retentionTimeInMinutes": 30, "retentionSizeInMB": -1})
    record = await api.call("GET", f"{SCALABLE}/t")
    assert record.json() == before | {"retentionTimeInMinutes": 30}
    assert record.headers["etag"] == put.headers["etag"] == got.headers["etag"]
    assert (await api.call("PUT", OF_TOPIC, json={"retentionTimeInMinutes": 0})).status_code == 204
    assert (await api.call("GET", OF_TOPIC)).json()["retentionTimeInMinutes"] == 0
    assert (await api.call("DELETE", OF_TOPIC)).status_code == 204
    assert (await api.call("GET", OF_TOPIC)).status_code == 204
    assert (await api.call("GET", f"{SCALABLE}/t")).json() == before


async def test_stale_etag_fails_the_precondition(api: Api) -> None:
    first = (await api.call("PUT", f"{SCALABLE}/t")).headers["etag"]
    second = await api.call("PUT", OF_TOPIC, json={"retentionTimeInMinutes": 1}, headers={"if-match": first})
    assert second.status_code == 204
    for stale in (
        await api.call("PUT", OF_TOPIC, json={"retentionTimeInMinutes": 2}, headers={"if-match": first}),
        await api.call("DELETE", OF_TOPIC, headers={"if-match": first}),
    ):
        assert stale.status_code == 412
        assert second.headers["etag"] in reason_of(stale)
    assert (await api.call("GET", OF_TOPIC)).json()["retentionTimeInMinutes"] == 1


async def test_a_topic_has_a_size_of_its_own(api: Api) -> None:
    await api.call("PUT", f"{SCALABLE}/t")
    policy = {"retentionTimeInMinutes": 30, "retentionSizeInMB": 512}
    assert (await api.call("PUT", OF_TOPIC, json=policy)).status_code == 204
    assert (await api.call("GET", OF_TOPIC)).json() == policy
    assert (await api.call("GET", f"{SCALABLE}/t")).json().items() >= policy.items()
    await api.call("DELETE", OF_TOPIC)
    assert policy.keys().isdisjoint((await api.call("GET", f"{SCALABLE}/t")).json())


async def test_missing_topic_is_not_found(api: Api) -> None:
    for response in (
        await api.call("GET", OF_TOPIC),
        await api.call("PUT", OF_TOPIC, json={"retentionTimeInMinutes": 1}),
        await api.call("DELETE", OF_TOPIC),
    ):
        assert response.status_code == 404
        assert "topic://public/default/t" in reason_of(response)


async def test_topic_beats_namespace_beats_server(api: Api) -> None:
    """What is set here is what pruning goes by."""
    await api.call("PUT", f"{SCALABLE}/t")
    retention = Retention(api.store, default=1.0)

    async def kept() -> Kept:
        stored = await api.store.get(TOPIC)
        assert stored is not None
        return await retention.of(stored)

    assert await kept() == Kept(1_000)
    await api.call("POST", OF_NAMESPACE, json={"retentionTimeInMinutes": 2, "retentionSizeInMB": 0})
    assert await kept() == Kept(120_000, 0)
    await api.call("PUT", OF_TOPIC, json={"retentionTimeInMinutes": -1})
    assert await kept() == FOR_EVER
    await api.call("DELETE", OF_TOPIC)
    await api.call("DELETE", OF_NAMESPACE)
    assert await kept() == Kept(1_000)


async def test_full_store_still_lets_retention_be_changed(valkey: ValkeyProcess) -> None:
    """It may be what frees the store again."""
    async with running_api(valkey.url) as api:
        await api.call("PUT", f"{SCALABLE}/t")
        valkey.command("CONFIG", "SET", "maxmemory", "1")
        body = {"retentionTimeInMinutes": 0}
        assert (await api.call("POST", OF_NAMESPACE, json=body)).status_code == 204
        assert (await api.call("PUT", OF_TOPIC, json=body)).status_code == 204


def test_policy_is_written_as_pulsar_reads_it() -> None:
    assert msgspec.json.encode(RetentionPolicy(1, 2)) == b'{"retentionTimeInMinutes":1,"retentionSizeInMB":2}'
