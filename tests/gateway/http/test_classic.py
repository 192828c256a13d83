"""Classic topics over HTTP, with Pulsar's paths and answers."""

from __future__ import annotations

import pytest

from controller.classic import Clients
from metadata.classic_records import PartitionedState, PartitionedTopic
from protocol.names import TopicName
from tests.gateway.http.running import SCALABLE, Api, reason_of, running_api
from tests.support.processes import ValkeyProcess
from tests.support.topology import Topology
from tests.support.waiting import eventually

BASE = "/admin/v2/persistent/public/default"
ORDERS = TopicName.classic("public", "default", "orders")


async def test_a_topic_is_created_read_listed_and_deleted(api: Api) -> None:
    assert (await api.call("PUT", f"{BASE}/orders", json={"owner": "shop"})).status_code == 204
    answer = (await api.call("GET", f"{BASE}/orders")).json()
    assert answer.pop("createdAtMs") > 1_600_000_000_000
    assert answer == {
        "name": "persistent://public/default/orders",
        "partitions": 0,
        "sealed": False,
        "properties": {"owner": "shop"},
    }
    metadata = (await api.call("GET", f"{BASE}/orders/partitions")).json()
    assert metadata == {"partitions": 0, "deleted": False, "properties": {"owner": "shop"}}
    assert (await api.call("GET", BASE)).json() == ["persistent://public/default/orders"]
    assert (await api.call("GET", f"{BASE}/partitioned")).json() == []
    assert (await api.call("GET", SCALABLE)).json() == []
    assert (await api.call("DELETE", f"{BASE}/orders")).status_code == 204
    assert (await api.call("GET", f"{BASE}/orders")).status_code == 404


async def test_a_partitioned_topic_is_created_grown_and_deleted(topology: Topology) -> None:
    async with running_api(topology.url) as api:
        assert (await api.call("PUT", f"{BASE}/orders/partitions", content=b"2")).status_code == 204
        assert (await api.call("GET", f"{BASE}/orders/partitions")).json()["partitions"] == 2
        assert (await api.call("POST", f"{BASE}/orders/partitions", content=b"3")).status_code == 204
        assert (await api.call("GET", f"{BASE}/orders/partitions")).json()["partitions"] == 3
        names = [f"persistent://public/default/orders-partition-{index}" for index in range(3)]
        assert (await api.call("GET", BASE)).json() == names
        assert (await api.call("GET", f"{BASE}/partitioned")).json() == ["persistent://public/default/orders"]
        assert (await api.call("GET", f"{BASE}/orders-partition-1")).json()["partitions"] == 0
        assert (await api.call("DELETE", f"{BASE}/orders/partitions")).status_code == 204
        assert (await api.call("GET", BASE)).json() == []
        assert (await api.call("GET", f"{BASE}/orders/partitions")).status_code == 404


async def test_the_number_may_come_with_properties(api: Api) -> None:
    body = {"partitions": 2, "properties": {"a": "b"}}
    headers = {"content-type": "application/vnd.partitioned-topic-metadata+json"}
    assert (await api.call("PUT", f"{BASE}/orders/partitions", json=body, headers=headers)).status_code == 204
    metadata = (await api.call("GET", f"{BASE}/orders/partitions")).json()
    assert metadata == {"partitions": 2, "deleted": False, "properties": {"a": "b"}}


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "/single", b"", 409),
        ("PUT", "/single/partitions", b"2", 409),
        ("PUT", "/many", b"", 409),
        ("PUT", "/many/partitions", b"2", 409),
        ("PUT", "/scalable", b"", 409),
        ("PUT", "/scalable/partitions", b"2", 409),
        ("PUT", "/new/partitions", b"0", 412),
        ("PUT", "/new/partitions", b"-3", 412),
        ("PUT", "/new/partitions", b"100000", 412),
        ("PUT", "/new/partitions", b"", 400),
        ("PUT", "/new/partitions", b"many", 400),
        ("PUT", "/new/partitions", b'"2"', 400),
        ("PUT", "/new/partitions", b"99999999999999999999", 400),
        ("PUT", "/new", b"[]", 400),
        ("PUT", "/new-partition-1", b"", 412),
        ("PUT", "/a%2Fb", b"", 412),
        ("PUT", "/%20new", b"", 412),
        ("POST", "/many/partitions", b"1", 412),
        ("POST", "/single/partitions", b"3", 409),
        ("POST", "/nothing/partitions", b"3", 404),
        ("DELETE", "/many", b"", 409),
        ("DELETE", "/many-partition-0", b"", 409),
        ("DELETE", "/single/partitions", b"", 409),
        ("DELETE", "/nothing", b"", 404),
        ("DELETE", "/nothing/partitions", b"", 404),
        ("DELETE", "/single?force=perhaps", b"", 412),
        ("GET", "/nothing", b"", 404),
        ("GET", "/scalable", b"", 404),
        ("GET", "/nothing/partitions", b"", 404),
    ],
)
async def test_what_cannot_be_is_refused_with_a_reason(
    api: Api, method: str, path: str, body: bytes, status: int
) -> None:
    await api.call("PUT", f"{BASE}/single")
    await api.call("PUT", f"{BASE}/many/partitions", content=b"2")
    await api.call("PUT", f"{SCALABLE}/scalable")
    response = await api.call(method, BASE + path, content=body or None)
    assert (response.status_code, bool(reason_of(response))) == (status, True)


async def test_a_scalable_topic_cannot_take_the_name_of_a_classic_one(api: Api) -> None:
    await api.call("PUT", f"{BASE}/orders")
    response = await api.call("PUT", f"{SCALABLE}/orders")
    assert response.status_code == 409
    assert "persistent://" in reason_of(response)


async def test_clients_keep_a_topic_unless_it_is_forced(valkey: ValkeyProcess) -> None:
    async def attached(topic: TopicName) -> Clients:
        return Clients(3)

    async with running_api(valkey.url, attached=attached) as api:
        await api.call("PUT", f"{BASE}/single")
        await api.call("PUT", f"{BASE}/many/partitions", content=b"2")
        for path in ("/single", "/many/partitions"):
            refused = await api.call("DELETE", BASE + path)
            assert refused.status_code == 412
            assert "force" in reason_of(refused)
            assert (await api.call("DELETE", f"{BASE}{path}?force=true")).status_code == 204


async def test_an_interrupted_deletion_can_be_seen_and_finished(api: Api) -> None:
    await api.call("PUT", f"{BASE}/orders/partitions", content=b"2")
    found = await api.classic.topics.get(ORDERS)
    assert isinstance(found, PartitionedTopic)
    await api.classic.topics.replace_partitioned(found, state=PartitionedState.DELETING)
    assert (await api.call("GET", f"{BASE}/orders/partitions")).status_code == 404
    assert (await api.call("GET", f"{BASE}/orders")).json()["partitions"] == 2
    assert (await api.call("DELETE", f"{BASE}/orders/partitions")).status_code == 204
    assert (await api.call("GET", f"{BASE}/orders")).status_code == 404


async def test_a_namespace_is_deleted_with_its_classic_topics_by_force(topology: Topology) -> None:
    async with running_api(topology.url) as api:
        base = "/admin/v2/persistent/acme/eu"
        await api.call("PUT", f"{base}/single")
        await api.call("PUT", f"{base}/many/partitions", content=b"20")
        refused = await api.call("DELETE", "/admin/v2/namespaces/acme/eu")
        assert refused.status_code == 409
        assert (await api.call("DELETE", "/admin/v2/namespaces/acme/eu?force=true")).status_code == 204
        assert (await api.call("GET", base)).json() == []
        assert (await api.call("GET", f"{base}/partitioned")).json() == []
        assert (await api.call("GET", "/admin/v2/namespaces/acme/eu")).status_code == 404


async def test_names_are_taken_as_they_are_encoded(api: Api) -> None:
    assert (await api.call("PUT", f"{BASE}/%2561%20b")).status_code == 204
    assert (await api.call("GET", BASE)).json() == ["persistent://public/default/%61 b"]
    # The word in the path means the listing, and a topic of that name is reached by encoding it.
    assert (await api.call("PUT", f"{BASE}/%70artitioned")).status_code == 204
    assert (await api.call("GET", f"{BASE}/%70artitioned")).json()["name"] == "persistent://public/default/partitioned"


async def test_a_classic_topic_is_migrated(topology: Topology) -> None:
    async with running_api(topology.url) as api:
        await api.call("PUT", f"{BASE}/many/partitions", json={"partitions": 3, "properties": {"a": "b"}})
        answer = await api.call("POST", f"{SCALABLE}/many/migrate")
        assert answer.status_code == 204
        record = await api.call("GET", f"{SCALABLE}/many")
        assert record.headers["etag"] == answer.headers["etag"]
        assert record.json()["nextSegmentId"] == 6
        assert record.json()["segments"]["2"]["legacyTopicName"] == "persistent://public/default/many-partition-2"
        assert record.json()["properties"] == {"a": "b"}
        assert (await api.call("GET", f"{BASE}/many")).json()["sealed"] is True
        again = await api.call("POST", f"{SCALABLE}/many/migrate")
        assert (again.status_code, "already scalable" in reason_of(again)) == (409, True)
        for path in ("/many/partitions", "/many-partition-0"):
            refused = await api.call("DELETE", f"{BASE}{path}")
            assert (refused.status_code, bool(reason_of(refused))) == (409, True)
        assert (await api.call("DELETE", f"{SCALABLE}/many")).status_code == 204

        async def gone() -> bool:
            lists = [(await api.call("GET", path)).json() for path in (BASE, f"{BASE}/partitioned")]
            return lists == [[], []]

        await eventually(gone)


async def test_what_cannot_be_migrated_is_refused_with_a_reason(valkey: ValkeyProcess) -> None:
    async def attached(topic: TopicName) -> Clients:
        return Clients(2)

    async with running_api(valkey.url, attached=attached) as api:
        await api.call("PUT", f"{BASE}/single")
        await api.call("PUT", f"{SCALABLE}/scalable")
        cases = {"nothing": 404, "a%2Fb": 404, "single-partition-0": 404, "scalable": 409, "single": 409}
        for name, status in cases.items():
            refused = await api.call("POST", f"{SCALABLE}/{name}/migrate")
            assert (refused.status_code, bool(reason_of(refused))) == (status, True)
        assert (await api.call("POST", f"{SCALABLE}/single/migrate?force=true")).status_code == 204


async def test_a_namespace_with_a_migrated_topic_is_deleted_by_force(valkey: ValkeyProcess) -> None:
    async with running_api(valkey.url) as api:
        await api.call("PUT", "/admin/v2/persistent/acme/eu/many/partitions", content=b"3")
        assert (await api.call("POST", "/admin/v2/scalable/acme/eu/many/migrate")).status_code == 204
        assert (await api.call("DELETE", "/admin/v2/namespaces/acme/eu?force=true")).status_code == 204
        assert (await api.call("GET", "/admin/v2/persistent/acme/eu")).json() == []
