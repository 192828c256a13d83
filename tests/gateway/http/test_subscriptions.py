"""Subscriptions over real HTTP and a real store."""

from urllib.parse import quote

import httpx
import pytest

from metadata.errors import Fenced
from metadata.subscriptions import SubscriptionType
from tests.gateway.http.consumers import TOPIC, RecordingSegments, register
from tests.gateway.http.running import SCALABLE, Api, reason_of, running_api
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

SUBSCRIPTIONS = f"{SCALABLE}/t/subscriptions"

ODD_NAMES = [
    "a/b",
    "/",
    "a/seek",
    "seek",
    "skip-all",
    "a%2Fb",
    "%",
    "grüße",
    "😀",
    "a b",
    " a",
    "a+b",
    "a?b#c&d",
    "line\nbreak",
    "\0",
    "c:x",
    "x" * 1024,
    "ü" * 512,
]


async def refused(response: httpx.Response, status: int) -> str:
    assert response.status_code == status, response.text
    return reason_of(response)


async def test_subscription_lives_from_put_to_delete(api: Api) -> None:
    await api.call("PUT", f"{SCALABLE}/t")
    assert (await api.call("GET", SUBSCRIPTIONS)).json() == {}
    created = await api.call("PUT", f"{SUBSCRIPTIONS}/s?type=STREAM")
    assert (created.status_code, created.content) == (204, b"")
    assert (await api.call("PUT", f"{SUBSCRIPTIONS}/q?type=QUEUE")).status_code == 204
    listed = await api.call("GET", SUBSCRIPTIONS)
    assert listed.status_code == 200
    content = listed.json()
    assert list(content) == ["q", "s"]
    assert content["q"].pop("createdAtMs") > 1_600_000_000_000
    assert content["s"].pop("createdAtMs") > 1_600_000_000_000
    assert content == {"q": {"type": "QUEUE", "consumers": 0}, "s": {"type": "STREAM", "consumers": 0}}
    assert (await api.call("DELETE", f"{SUBSCRIPTIONS}/s")).status_code == 204
    assert list((await api.call("GET", SUBSCRIPTIONS)).json()) == ["q"]
    assert "list those" in await refused(await api.call("DELETE", f"{SUBSCRIPTIONS}/s"), 404)


async def test_creating_again_changes_nothing_and_another_type_is_a_conflict(api: Api) -> None:
    await api.call("PUT", f"{SCALABLE}/t")
    await api.call("PUT", f"{SUBSCRIPTIONS}/s?type=STREAM")
    before = (await api.call("GET", SUBSCRIPTIONS)).content
    for suffix in ("", "?type=STREAM"):
        assert (await api.call("PUT", f"{SUBSCRIPTIONS}/s{suffix}")).status_code == 204
    assert "STREAM" in await refused(await api.call("PUT", f"{SUBSCRIPTIONS}/s?type=QUEUE"), 409)
    assert (await api.call("GET", SUBSCRIPTIONS)).content == before


@pytest.mark.parametrize("kind", ["STREAM", "QUEUE"])
async def test_one_without_a_type_is_open_until_a_type_is_named(api: Api, kind: str) -> None:
    await api.call("PUT", f"{SCALABLE}/t")
    for _ in range(2):
        assert (await api.call("PUT", f"{SUBSCRIPTIONS}/s")).status_code == 204
        assert (await api.call("GET", SUBSCRIPTIONS)).json()["s"]["type"] is None
        assert (await api.call("GET", f"{SCALABLE}/t/stats")).json()["subscriptions"]["s"]["type"] is None
    assert (await api.call("PUT", f"{SUBSCRIPTIONS}/s?type={kind}")).status_code == 204
    assert (await api.call("PUT", f"{SUBSCRIPTIONS}/s")).status_code == 204
    assert (await api.call("GET", SUBSCRIPTIONS)).json()["s"]["type"] == kind
    assert (await api.call("GET", f"{SCALABLE}/t/stats")).json()["subscriptions"]["s"]["type"] == kind


async def test_a_registered_consumer_settles_the_type_of_an_open_one(api: Api) -> None:
    await api.call("PUT", f"{SCALABLE}/t")
    await api.call("PUT", f"{SUBSCRIPTIONS}/s")
    await register(api, "c", "s")
    assert (await api.call("GET", SUBSCRIPTIONS)).json()["s"]["type"] == "STREAM"


async def test_name_of_a_checkpoint_group_is_taken(api: Api) -> None:
    await api.call("PUT", f"{SCALABLE}/t")
    await register(api, "c", "group", kind=SubscriptionType.CHECKPOINT)
    for query in ("?type=STREAM", "?type=QUEUE", ""):
        assert "CHECKPOINT" in await refused(await api.call("PUT", f"{SUBSCRIPTIONS}/group{query}"), 409)
    assert (await api.call("GET", SUBSCRIPTIONS)).json()["group"]["type"] == "CHECKPOINT"


@pytest.mark.parametrize("query", ["type=SHARED", "type=", "type=stream", "type=CHECKPOINT", "type=QUEUE&type=QUEUE"])
async def test_unknown_type_is_refused(api: Api, query: str) -> None:
    await api.call("PUT", f"{SCALABLE}/t")
    await refused(await api.call("PUT", f"{SUBSCRIPTIONS}/s?{query}"), 412)
    assert (await api.call("GET", SUBSCRIPTIONS)).json() == {}


async def test_missing_topic_is_not_found(api: Api) -> None:
    for method, path in (
        ("GET", ""),
        ("PUT", "/s"),
        ("DELETE", "/s"),
        ("POST", "/s/seek?timestamp=1"),
        ("POST", "/s/skip-all"),
    ):
        assert "topic://public/default/t" in await refused(await api.call(method, SUBSCRIPTIONS + path), 404)


async def test_consumers_are_counted_and_do_not_keep_their_subscription_from_being_deleted(api: Api) -> None:
    await api.call("PUT", f"{SCALABLE}/t")
    await register(api, "one")
    await register(api, "two")
    assert (await api.call("GET", SUBSCRIPTIONS)).json()["s"]["consumers"] == 2
    await refused(await api.call("DELETE", f"{SUBSCRIPTIONS}/s?force=perhaps"), 412)
    assert (await api.call("DELETE", f"{SUBSCRIPTIONS}/s")).status_code == 204
    assert (await api.call("GET", SUBSCRIPTIONS)).json() == {}


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_odd_name_survives_every_operation(api: Api, name: str) -> None:
    await api.call("PUT", f"{SCALABLE}/t")
    path = f"{SUBSCRIPTIONS}/{quote(name, safe='')}"
    assert (await api.call("PUT", path)).status_code == 204
    assert list((await api.call("GET", SUBSCRIPTIONS)).json()) == [name]
    assert (await api.call("POST", f"{path}/seek?timestamp=0")).status_code == 204
    assert (await api.call("POST", f"{path}/skip-all")).status_code == 204
    assert list((await api.call("GET", f"{SCALABLE}/t/stats")).json()["subscriptions"]) == [name]
    assert (await api.call("DELETE", path)).status_code == 204


@pytest.mark.parametrize("part", ["%20", "%09%0A", "x" * 1025, "%C3%BC" * 513, "%E2%80%83"])
async def test_blank_or_long_name_is_refused(api: Api, part: str) -> None:
    await api.call("PUT", f"{SCALABLE}/t")
    for method, suffix in (("PUT", ""), ("DELETE", ""), ("POST", "/seek?timestamp=1"), ("POST", "/skip-all")):
        response = await api.call(method, f"{SUBSCRIPTIONS}/{part}{suffix}")
        assert len(await refused(response, 412)) < 200


@pytest.mark.parametrize("query", ["", "?timestamp=", "?timestamp=x", "?timestamp=-1", "?timestamp=1.5"])
async def test_seek_needs_a_moment(api: Api, query: str) -> None:
    await api.call("PUT", f"{SCALABLE}/t")
    await api.call("PUT", f"{SUBSCRIPTIONS}/s")
    assert "timestamp" in await refused(await api.call("POST", f"{SUBSCRIPTIONS}/s/seek{query}"), 412)


async def test_moving_an_unknown_subscription_is_not_found(api: Api) -> None:
    await api.call("PUT", f"{SCALABLE}/t")
    for suffix in ("seek?timestamp=1", "skip-all"):
        assert "no subscription s" in await refused(await api.call("POST", f"{SUBSCRIPTIONS}/s/{suffix}"), 404)


async def test_checkpoint_group_has_nothing_to_move(api: Api) -> None:
    await api.call("PUT", f"{SCALABLE}/t")
    await register(api, "c", "group", kind=SubscriptionType.CHECKPOINT)
    for suffix in ("seek?timestamp=1", "skip-all"):
        assert "CHECKPOINT" in await refused(await api.call("POST", f"{SUBSCRIPTIONS}/group/{suffix}"), 409)


async def test_seek_and_skip_all_reach_every_segment(valkey: ValkeyProcess) -> None:
    segments = RecordingSegments()
    async with running_api(valkey.url, segments=segments) as api:
        await api.call("PUT", f"{SCALABLE}/t?numInitialSegments=2")
        await api.call("POST", f"{SCALABLE}/t/split/0")
        await api.call("PUT", f"{SUBSCRIPTIONS}/s")
        assert (await api.call("POST", f"{SUBSCRIPTIONS}/s/seek?timestamp=0")).status_code == 204
        descriptors = ["0000-7fff-0", "8000-ffff-1", "0000-3fff-2", "4000-7fff-3"]
        assert segments.moves == [("s", descriptor, 0) for descriptor in descriptors]
        segments.moves.clear()
        assert (await api.call("POST", f"{SUBSCRIPTIONS}/s/skip-all")).status_code == 204
        assert segments.moves == [("s", descriptor, None) for descriptor in descriptors]
        segments.moves.clear()
        far = 10**17
        assert (await api.call("POST", f"{SUBSCRIPTIONS}/s/seek?timestamp={far}")).status_code == 204
        assert {move[1]: move[2] for move in segments.moves} == {
            "0000-7fff-0": None,
            "8000-ffff-1": far,
            "0000-3fff-2": far,
            "4000-7fff-3": far,
        }


async def test_seek_back_gates_the_children_of_a_drained_segment_again(valkey: ValkeyProcess) -> None:
    segments = RecordingSegments(drained={0})
    async with running_api(valkey.url, segments=segments) as api:
        await api.call("PUT", f"{SCALABLE}/t")
        await api.call("POST", f"{SCALABLE}/t/split/0")
        await register(api, "c")
        (await api.leaders.lead(TOPIC)).wake()

        async def assigned() -> list[int]:
            [consumer] = (await api.call("GET", f"{SCALABLE}/t/stats")).json()["subscriptions"]["s"]["consumers"]
            return sorted(consumer["segmentIds"])

        async def has(segment_ids: list[int]) -> bool:
            return await assigned() == segment_ids

        await eventually(lambda: has([1, 2]))
        segments.are_drained.clear()
        assert (await api.call("POST", f"{SUBSCRIPTIONS}/s/seek?timestamp=0")).status_code == 204
        await eventually(lambda: has([0]))
        segments.are_drained.add(0)
        assert (await api.call("POST", f"{SUBSCRIPTIONS}/s/skip-all")).status_code == 204
        await eventually(lambda: has([1, 2]))


async def test_lead_that_cannot_be_had_now_is_503(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await api.call("PUT", f"{SCALABLE}/t")
    await api.call("PUT", f"{SUBSCRIPTIONS}/s")

    async def contended(*_: object) -> None:
        raise Fenced("Others contend for the lead: try again.")

    monkeypatch.setattr(api.leaders, "lead", contended)
    for path in ("split/0", "merge/0/1", "subscriptions/s/seek?timestamp=1", "subscriptions/s/skip-all"):
        response = await api.call("POST", f"{SCALABLE}/t/{path}")
        await refused(response, 503)
        assert response.headers["retry-after"] == "1"


async def test_full_store_takes_no_new_subscription_and_lets_old_ones_go(valkey: ValkeyProcess) -> None:
    async with running_api(valkey.url) as api:
        await api.call("PUT", f"{SCALABLE}/t")
        await api.call("PUT", f"{SUBSCRIPTIONS}/s")
        valkey.command("CONFIG", "SET", "maxmemory", "1")
        await refused(await api.call("PUT", f"{SUBSCRIPTIONS}/more"), 507)
        assert (await api.call("POST", f"{SUBSCRIPTIONS}/s/seek?timestamp=0")).status_code == 204
        assert (await api.call("DELETE", f"{SUBSCRIPTIONS}/s")).status_code == 204
