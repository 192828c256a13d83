"""Scalable topics over real HTTP and a real store."""

from collections import Counter
from collections.abc import Sequence

import pytest
import trio

from controller.transitions import TopicLimits
from gateway.http.topics import SLICE
from layout.records import decode
from metadata.records import StoredTopic
from protocol.names import TopicName
from tests.gateway.http.consumers import A_DEAD_NODE, TOPIC, register
from tests.gateway.http.running import SCALABLE, Api, reason_of, running_api
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually


async def test_created_topic_can_be_read_listed_and_deleted(api: Api) -> None:
    created = await api.call("PUT", f"{SCALABLE}/orders", json={"team": "blue"}, params={"numInitialSegments": 3})
    assert (created.status_code, created.content) == (204, b"")
    got = await api.call("GET", f"{SCALABLE}/orders")
    assert got.status_code == 200
    assert got.headers["etag"] == created.headers["etag"]
    record = got.json()
    assert (record["epoch"], record["nextSegmentId"], record["properties"]) == (0, 3, {"team": "blue"})
    assert record["segments"]["0"] | {"createdAtMs": 0} == {
        "segmentId": 0,
        "hashRange": {"start": 0, "end": 21844},
        "state": "ACTIVE",
        "parentIds": [],
        "childIds": [],
        "createdAtEpoch": 0,
        "sealedAtEpoch": -1,
        "createdAtMs": 0,
        "sealedAtMs": -1,
        "entryBucketSplits": [],
        "mergeDepth": 0,
    }
    assert (await api.call("GET", SCALABLE)).json() == ["topic://public/default/orders"]
    assert (await api.call("DELETE", f"{SCALABLE}/orders")).status_code == 204
    assert (await api.call("GET", SCALABLE)).json() == []


@pytest.mark.parametrize("body", [b"", b"null", b"{}", b" \n"])
async def test_body_without_properties_may_be_anything_empty(api: Api, body: bytes) -> None:
    assert (await api.call("PUT", f"{SCALABLE}/t", content=body)).status_code == 204
    record = (await api.call("GET", f"{SCALABLE}/t")).json()
    assert (record["properties"], len(record["segments"])) == ({}, 1)


async def test_second_create_is_a_conflict(api: Api) -> None:
    await api.call("PUT", f"{SCALABLE}/t")
    response = await api.call("PUT", f"{SCALABLE}/t")
    assert response.status_code == 409
    assert "topic://public/default/t" in reason_of(response)


@pytest.mark.parametrize("count", ["0", "-1", "1.5", "1e3", "x", "", "%20", "1025", "65537", "9" * 18, "9" * 5000])
async def test_impossible_segment_count_is_refused(api: Api, count: str) -> None:
    response = await api.call("PUT", f"{SCALABLE}/t?numInitialSegments={count}")
    assert response.status_code == 412
    assert len(reason_of(response)) < 200


async def test_segment_count_given_twice_is_refused(api: Api) -> None:
    response = await api.call("PUT", f"{SCALABLE}/t?numInitialSegments=1&numInitialSegments=2")
    assert response.status_code == 412
    assert "2 times" in reason_of(response)


async def test_parameters_that_nobody_knows_are_ignored(api: Api) -> None:
    assert (await api.call("PUT", f"{SCALABLE}/t?authoritative=false&x")).status_code == 204


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b'"text"', b'{"a":1}', b'{"a":null}', b'{"a":"b"} tail', b"\xff", b"[" * 100_000, b"1" * 10_000],
)
async def test_malformed_properties_are_a_bad_request(api: Api, body: bytes) -> None:
    response = await api.call("PUT", f"{SCALABLE}/t", content=body)
    assert response.status_code == 400
    assert "JSON" in reason_of(response) or "nested" in reason_of(response)
    assert (await api.call("GET", f"{SCALABLE}/t")).status_code == 404


async def test_properties_past_their_bounds_are_refused(valkey: ValkeyProcess) -> None:
    async with running_api(valkey.url, limits=TopicLimits(max_properties=1, max_property_size=8)) as api:
        for properties in ({"a": "1", "b": "2"}, {"a": "x" * 8}, {"": "x"}):
            response = await api.call("PUT", f"{SCALABLE}/t", json=properties)
            assert response.status_code == 412
            reason_of(response)


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/t"), ("DELETE", "/t"), ("POST", "/t/split/0"), ("POST", "/t/merge/0/1")],
)
async def test_missing_topic_is_not_found(api: Api, method: str, path: str) -> None:
    response = await api.call(method, SCALABLE + path)
    assert response.status_code == 404
    assert "topic://public/default/t" in reason_of(response)


async def test_split_and_merge_answer_with_the_new_version(api: Api) -> None:
    await api.call("PUT", f"{SCALABLE}/t")
    split = await api.call("POST", f"{SCALABLE}/t/split/0")
    assert (split.status_code, split.content) == (204, b"")
    merged = await api.call("POST", f"{SCALABLE}/t/merge/1/2")
    assert merged.status_code == 204
    got = await api.call("GET", f"{SCALABLE}/t")
    assert got.headers["etag"] == merged.headers["etag"] != split.headers["etag"]
    record = decode(got.content)
    record.layout.validate()
    assert [segment.descriptor for segment in record.layout.active] == ["0000-ffff-3"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("split/9", 404),
        ("split/-1", 404),
        ("split/x", 404),
        (f"split/{'9' * 30}", 404),
        ("split/0", 412),
        ("merge/0/1", 412),
        ("merge/1/9", 404),
        ("merge/3/2", 412),
        ("merge/1/1", 412),
        ("merge/1", 404),
    ],
)
async def test_impossible_transitions_get_their_status(api: Api, path: str, status: int) -> None:
    await api.call("PUT", f"{SCALABLE}/t?numInitialSegments=3")
    await api.call("POST", f"{SCALABLE}/t/split/0")
    before = (await api.call("GET", f"{SCALABLE}/t")).content
    response = await api.call("POST", f"{SCALABLE}/t/{path}")
    assert response.status_code == status
    reason_of(response)
    assert (await api.call("GET", f"{SCALABLE}/t")).content == before


async def test_segment_of_a_single_hash_cannot_be_split(api: Api) -> None:
    await api.call("PUT", f"{SCALABLE}/t")
    lowest = 0
    for _ in range(16):
        assert (await api.call("POST", f"{SCALABLE}/t/split/{lowest}")).status_code == 204
        lowest = decode((await api.call("GET", f"{SCALABLE}/t")).content).layout.find_active(0).segment_id
    response = await api.call("POST", f"{SCALABLE}/t/split/{lowest}")
    assert response.status_code == 412
    assert "single hash" in reason_of(response)


async def test_stale_etag_fails_the_precondition(api: Api) -> None:
    first = (await api.call("PUT", f"{SCALABLE}/t")).headers["etag"]
    split = await api.call("POST", f"{SCALABLE}/t/split/0", headers={"if-match": first})
    assert split.status_code == 204
    for method, path in (("POST", "/split/1"), ("POST", "/merge/1/2"), ("DELETE", "")):
        response = await api.call(method, f"{SCALABLE}/t{path}", headers={"if-match": first})
        assert response.status_code == 412
        assert split.headers["etag"] in reason_of(response)
    deleted = await api.call("DELETE", f"{SCALABLE}/t", headers={"if-match": split.headers["etag"]})
    assert deleted.status_code == 204


@pytest.mark.parametrize("etag", ['"abc"', "x", "", '"0.0", "1.1"', '"' + "f" * 16 + '.9999999999999999999"'])
async def test_etag_that_is_none_of_ours_matches_nothing(api: Api, etag: str) -> None:
    await api.call("PUT", f"{SCALABLE}/t")
    response = await api.call("DELETE", f"{SCALABLE}/t", headers={"if-match": etag})
    assert response.status_code == 412
    reason_of(response)


async def test_star_matches_any_version(api: Api) -> None:
    await api.call("PUT", f"{SCALABLE}/t")
    assert (await api.call("DELETE", f"{SCALABLE}/t", headers={"if-match": "*"})).status_code == 204
    assert (await api.call("DELETE", f"{SCALABLE}/t", headers={"if-match": "*"})).status_code == 404


async def test_topic_goes_with_its_subscriptions_and_its_segments_storage(api: Api, valkey: ValkeyProcess) -> None:
    await api.call("PUT", f"{SCALABLE}/t?numInitialSegments=3")
    await api.call("PUT", f"{SCALABLE}/t/subscriptions/s")
    await register(api, "gone", node=A_DEAD_NODE)
    assert (await api.call("DELETE", f"{SCALABLE}/t")).status_code == 204
    await eventually(lambda: valkey.command("KEYS", "*/public/default/t*") == [])
    await eventually(lambda: valkey.command("KEYS", "/garbage/*") == [])


async def test_connected_consumers_protect_a_topic_without_force(api: Api) -> None:
    await api.call("PUT", f"{SCALABLE}/t")
    await api.call("PUT", f"{SCALABLE}/t/subscriptions/idle")
    attachment = await register(api, "c", "busy")
    for query in ("", "?force=false"):
        refused = await api.call("DELETE", f"{SCALABLE}/t{query}")
        assert refused.status_code == 412
        assert "busy" in reason_of(refused)
    assert (await api.call("DELETE", f"{SCALABLE}/t?force=2")).status_code == 412
    await api.registrations.detach(TOPIC, "busy", "c", attachment)
    assert (await api.call("DELETE", f"{SCALABLE}/t")).status_code == 204


async def test_forced_delete_does_not_mind_consumers(api: Api) -> None:
    version = (await api.call("PUT", f"{SCALABLE}/t")).headers["etag"]
    await register(api, "c")
    path = f"{SCALABLE}/t?force=true"
    stale = await api.call("DELETE", path, headers={"if-match": version.replace(".0", ".9")})
    assert stale.status_code == 412
    assert (await api.call("DELETE", path, headers={"if-match": version})).status_code == 204
    assert (await api.call("DELETE", path)).status_code == 404


async def test_one_of_many_concurrent_splits_wins(api: Api) -> None:
    await api.call("PUT", f"{SCALABLE}/t")
    statuses: Counter[int] = Counter()

    async def split() -> None:
        response = await api.call("POST", f"{SCALABLE}/t/split/0")
        statuses[response.status_code] += 1
        if response.status_code != 204:
            reason_of(response)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(split)
    assert statuses[204] == 1
    assert set(statuses) <= {204, 409, 412}
    assert (await api.call("GET", f"{SCALABLE}/t")).json()["epoch"] == 1


async def test_listing_keeps_topics_that_have_all_properties(api: Api) -> None:
    for name, properties in {
        "a": {"team": "blue", "env": "prod"},
        "b": {"team": "blue", "env": "test"},
        "c": {"team": "red", "env": "prod"},
        "d": {},
        "e": {"eq": "x=y"},
    }.items():
        await api.call("PUT", f"{SCALABLE}/{name}", json=properties)

    async def listed(*filters: str) -> list[str]:
        response = await api.call("GET", SCALABLE, params=[("property", text) for text in filters])
        assert response.status_code == 200
        return [name.rpartition("/")[2] for name in response.json()]

    assert await listed() == ["a", "b", "c", "d", "e"]
    assert await listed("team=blue") == ["a", "b"]
    assert await listed("team=blue", "env=prod") == ["a"]
    assert await listed("team=blue", "team=red") == []
    assert await listed("eq=x=y") == ["e"]
    assert await listed("none=such") == []


@pytest.mark.parametrize("text", ["team", "=blue", "team=", "=", ""])
async def test_malformed_filter_is_refused(api: Api, text: str) -> None:
    response = await api.call("GET", SCALABLE, params={"property": text})
    assert response.status_code == 412
    assert "key=value" in reason_of(response)


async def test_listing_of_a_namespace_that_does_not_exist_is_empty(api: Api) -> None:
    assert (await api.call("GET", "/admin/v2/scalable/no/where")).json() == []


async def test_without_auto_create_the_namespace_must_exist(valkey: ValkeyProcess) -> None:
    async with running_api(valkey.url, auto_create=False) as api:
        response = await api.call("PUT", f"{SCALABLE}/t")
        assert response.status_code == 404
        assert "public/default" in reason_of(response)
        await api.call("PUT", "/admin/v2/namespaces/public/default")
        assert (await api.call("PUT", f"{SCALABLE}/t")).status_code == 204


async def test_filtered_listing_reads_many_topics_in_slices(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each slice ends in a wait for the store, and there everybody else on the loop gets a turn."""
    seed = await api.transitions.create(TopicName.scalable("public", "default", "seed"), 16, {"k": "v"})
    async with trio.open_nursery() as nursery:
        for i in range(3 * SLICE + 1):
            topic = TopicName.scalable("many", "topics", f"t{i:04}")
            nursery.start_soon(api.store.create, topic, seed.value, [])
    get_many, sizes = api.store.get_many, []

    async def counting_get_many(topics: Sequence[TopicName]) -> list[StoredTopic | None]:
        sizes.append(len(topics))
        return await get_many(topics)

    monkeypatch.setattr(api.store, "get_many", counting_get_many)
    response = await api.call("GET", "/admin/v2/scalable/many/topics?property=k=v")
    assert response.json() == [f"topic://many/topics/t{i:04}" for i in range(3 * SLICE + 1)]
    assert sizes == [SLICE, SLICE, SLICE, 1]


async def test_damaged_record_is_an_error_that_says_which(api: Api) -> None:
    topic = TopicName.scalable("public", "default", "damaged")
    await api.store.create(topic, b"{not json", [])
    for method, path in (("POST", f"{SCALABLE}/damaged/split/0"), ("GET", f"{SCALABLE}?property=a=b")):
        response = await api.call(method, path)
        assert response.status_code == 500
        reason_of(response)
    assert (await api.call("DELETE", f"{SCALABLE}/damaged")).status_code == 204
