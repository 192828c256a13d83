"""Single segments over real HTTP and a real store."""

from collections.abc import Callable

import httpx
import pytest
import trio

from gateway.admin_client import AdminClient, AdminError
from metadata import keys
from metadata.subscriptions import InitialPosition, SubscriptionType
from protocol.names import SegmentName, TopicName
from tests.gateway.http.consumers import TOPIC, RecordingSegments, register
from tests.gateway.http.running import SCALABLE, Api, reason_of, running_api
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

SEGMENTS = "/admin/v2/segments/public/default/t"
SEALED, ACTIVE, UNKNOWN = "0000-ffff-0", "0000-7fff-1", "0000-7fff-9"


@pytest.fixture
async def split(api: Api) -> Api:
    """A topic with one sealed and two active segments, and a subscription."""
    await api.call("PUT", f"{SCALABLE}/t")
    await api.call("POST", f"{SCALABLE}/t/split/0")
    await api.call("PUT", f"{SCALABLE}/t/subscriptions/s")
    return api


async def refused(response: httpx.Response, status: int) -> str:
    assert response.status_code == status, response.text
    return reason_of(response)


async def test_segment_of_the_layout_is_there_already(split: Api) -> None:
    for _ in range(2):
        for descriptor in (SEALED, ACTIVE):
            assert (await split.call("PUT", f"{SEGMENTS}/{descriptor}")).status_code == 204


async def test_named_subscriptions_are_created_with_an_open_type(split: Api) -> None:
    for _ in range(2):
        assert (await split.call("PUT", f"{SEGMENTS}/{ACTIVE}", json=["s", "a/b", "a/b"])).status_code == 204
        assert (await split.call("PUT", f"{SEGMENTS}/{SEALED}/subscription/late")).status_code == 204
    state = await split.registrations.state(split.store.commands, TOPIC)
    assert state is not None
    made = state.subscriptions
    assert set(made) == {"s", "a/b", "late"}
    for name in ("a/b", "late"):
        assert made[name].is_open
        assert made[name].settings.from_start
        assert made[name].position is InitialPosition.EARLIEST
    assert (await split.call("GET", f"{SEGMENTS}/{ACTIVE}/subscription/a%2Fb/backlog")).content == b"0"


async def test_listed_subscription_that_exists_begins_where_its_consumer_will_say(split: Api) -> None:
    await register(split, "c", "streamed", kind=SubscriptionType.STREAM)
    assert (await split.call("PUT", f"{SEGMENTS}/{ACTIVE}", json=["streamed"])).status_code == 204
    assert (await split.call("PUT", f"{SEGMENTS}/{ACTIVE}/subscription/streamed")).status_code == 204
    state = await split.registrations.state(split.store.commands, TOPIC)
    assert state is not None
    streamed = state.subscriptions["streamed"]
    assert (streamed.type, streamed.is_open, streamed.position) == (SubscriptionType.STREAM, False, None)


async def test_refused_list_of_subscriptions_creates_none_of_them(split: Api) -> None:
    await register(split, "c", "group", kind=SubscriptionType.CHECKPOINT)
    path = keys.path_of(TOPIC)
    slot, subscriptions = keys.BUCKET_SLOTS[keys.bucket_of(path)], keys.subscriptions_key(path)
    await split.store.commands.call(slot, "HSET", subscriptions, "torn", "QUEUE {")
    before = await split.registrations.names(TOPIC)
    segment = f"{SEGMENTS}/{ACTIVE}"
    assert "blank" in await refused(await split.call("PUT", segment, json=["new", " "]), 412)
    assert "CHECKPOINT" in await refused(await split.call("PUT", segment, json=["new", "group"]), 409)
    assert "cannot be read" in await refused(await split.call("PUT", segment, json=["new", "torn"]), 500)
    many = [f"new-{number}" for number in range(1000)]
    assert "limit" in await refused(await split.call("PUT", segment, json=many), 412)
    await refused(await split.call("PUT", f"{SEGMENTS}/{UNKNOWN}", json=["new"]), 412)
    assert await split.registrations.names(TOPIC) == before


@pytest.mark.parametrize("descriptor", [UNKNOWN, "0000-3fff-1", "0000-ffff-1", f"0000-ffff-{2**63 - 1}"])
async def test_segment_that_the_layout_does_not_know_cannot_be_made(split: Api, descriptor: str) -> None:
    before = (await split.call("GET", f"{SCALABLE}/t")).content
    assert "splitting" in await refused(await split.call("PUT", f"{SEGMENTS}/{descriptor}"), 412)
    assert (await split.call("GET", f"{SCALABLE}/t")).content == before


@pytest.mark.parametrize("body", [b"{", b"{}", b"[1]", b'"s"', b"\xff", b"[" * 100_000])
async def test_malformed_list_of_subscriptions_is_a_bad_request(split: Api, body: bytes) -> None:
    await refused(await split.call("PUT", f"{SEGMENTS}/{ACTIVE}", content=body), 400)


async def test_only_a_sealed_segment_is_terminated(split: Api) -> None:
    for _ in range(2):
        assert (await split.call("POST", f"{SEGMENTS}/{SEALED}/terminate")).status_code == 204
    assert "split or merge" in await refused(await split.call("POST", f"{SEGMENTS}/{ACTIVE}/terminate"), 409)
    assert UNKNOWN in await refused(await split.call("POST", f"{SEGMENTS}/{UNKNOWN}/terminate"), 404)


async def test_only_a_segment_outside_the_layout_is_deleted(split: Api) -> None:
    for query in ("", "?force=true"):
        for descriptor in (ACTIVE, SEALED):
            assert "layout" in await refused(await split.call("DELETE", f"{SEGMENTS}/{descriptor}{query}"), 409)
    assert (await split.call("DELETE", f"{SEGMENTS}/{UNKNOWN}")).status_code == 204
    assert (await split.call("DELETE", f"{SEGMENTS}-missing/{UNKNOWN}")).status_code == 204
    await refused(await split.call("DELETE", f"{SEGMENTS}/{UNKNOWN}?force=x"), 412)


async def test_deleting_a_pruned_segment_clears_its_storage_away(split: Api) -> None:
    stored = await split.store.get(TOPIC)
    assert stored is not None
    await split.transitions.prune(stored, [0])
    path = keys.path_of(TOPIC)
    key = keys.segment_key(path, SEALED)

    async def is_gone() -> bool:
        return not await split.store.commands.call(keys.BUCKET_SLOTS[keys.bucket_of(path)], "EXISTS", key)

    assert not await is_gone()
    assert (await split.call("DELETE", f"{SEGMENTS}/{SEALED}")).status_code == 204
    await eventually(is_gone)
    assert (await split.call("DELETE", f"{SEGMENTS}/{SEALED}")).status_code == 204


async def test_cursors_are_there_with_the_subscription_of_the_topic(split: Api) -> None:
    for descriptor in (SEALED, ACTIVE):
        cursor = f"{SEGMENTS}/{descriptor}/subscription"
        for method in ("PUT", "DELETE"):
            assert (await split.call(method, f"{cursor}/s")).status_code == 204
        assert "no subscription" in await refused(await split.call("DELETE", f"{cursor}/unknown"), 404)
        backlog = await split.call("GET", f"{cursor}/s/backlog")
        assert (backlog.status_code, backlog.content) == (200, b"0")
        assert backlog.headers["content-type"] == "application/json"
        await refused(await split.call("GET", f"{cursor}/unknown/backlog"), 404)
    for method, suffix in (
        ("PUT", ""),
        ("DELETE", ""),
        ("GET", "/backlog"),
        ("POST", "/seek?timestamp=1"),
        ("POST", "/skip-all"),
    ):
        unknown = await split.call(method, f"{SEGMENTS}/{UNKNOWN}/subscription/s{suffix}")
        assert UNKNOWN in await refused(unknown, 404)
        missing = await split.call(method, f"{SEGMENTS}-missing/{ACTIVE}/subscription/s{suffix}")
        assert "topic://public/default/t-missing" in await refused(missing, 404)
        blank = await split.call(method, f"{SEGMENTS}/{ACTIVE}/subscription/%20{suffix}")
        assert "blank" in await refused(blank, 412)


async def test_checkpoint_group_has_no_cursors(split: Api) -> None:
    await register(split, "c", "group", kind=SubscriptionType.CHECKPOINT)
    for method, suffix in (("PUT", ""), ("GET", "/backlog"), ("POST", "/skip-all")):
        await refused(await split.call(method, f"{SEGMENTS}/{ACTIVE}/subscription/group{suffix}"), 409)


async def test_single_segment_is_moved_as_it_was_said(valkey: ValkeyProcess) -> None:
    segments = RecordingSegments()
    async with running_api(valkey.url, segments=segments) as api:
        await api.call("PUT", f"{SCALABLE}/t")
        await api.call("POST", f"{SCALABLE}/t/split/0")
        await api.call("PUT", f"{SCALABLE}/t/subscriptions/a%2Fb")
        cursor = f"{SEGMENTS}/{SEALED}/subscription/a%2Fb"
        assert (await api.call("POST", f"{cursor}/seek?timestamp=77")).status_code == 204
        assert (await api.call("POST", f"{cursor}/skip-all")).status_code == 204
        assert segments.moves == [("a/b", SEALED, 77), ("a/b", SEALED, None)]
        for query in ("", "?timestamp=soon"):
            assert "timestamp" in await refused(await api.call("POST", f"{cursor}/seek{query}"), 412)


@pytest.mark.parametrize(
    "descriptor",
    [
        "x",
        "0",
        "0000-ffff",
        "0000-ffff-",
        "0000-ffff-x",
        "0000-ffff--1",
        "0000-FFFF-0",
        "ffff-0000-0",
        "0-ffff-0",
        "0000-ffff-00",
        f"0000-ffff-{2**63}",
        "%20",
        "a%2F0000-ffff-0",
        "0000-ffff-0%2F",
        "0000-ffff-%D9%A0",
    ],
)
async def test_bad_descriptor_is_refused(split: Api, descriptor: str) -> None:
    segment = f"{SEGMENTS}/{descriptor}"
    for method, suffix in (
        ("PUT", ""),
        ("DELETE", ""),
        ("POST", "/terminate"),
        ("PUT", "/subscription/s"),
        ("DELETE", "/subscription/s"),
        ("GET", "/subscription/s/backlog"),
        ("POST", "/subscription/s/seek?timestamp=1"),
        ("POST", "/subscription/s/skip-all"),
    ):
        assert len(await refused(await split.call(method, segment + suffix), 412)) < 300


async def test_segment_of_a_topic_with_a_slash_in_its_name(api: Api) -> None:
    await api.transitions.create(TopicName.scalable("public", "default", "a/0000-ffff-0"), 1)
    path = "/admin/v2/segments/public/default/a%2F0000-ffff-0/0000-ffff-0"
    assert (await api.call("PUT", path)).status_code == 204
    assert (await api.call("POST", f"{path}/terminate")).status_code == 409


async def test_missing_topic_is_not_found(api: Api) -> None:
    for method, suffix in (("PUT", ""), ("POST", "/terminate")):
        await refused(await api.call(method, f"{SEGMENTS}/{ACTIVE}{suffix}"), 404)


async def test_the_client_has_the_same_calls_and_is_told_the_same_refusals(split: Api) -> None:
    topic = TopicName.scalable("public", "default", "t")
    sealed, active = SegmentName(topic, 0, 0xFFFF, 0), SegmentName(topic, 0, 0x7FFF, 1)

    def call() -> list[int]:
        refused = []
        with AdminClient(f"http://{split.address.host}:{split.address.port}") as client:
            client.create_segment(active, ["s", "new"])
            client.terminate_segment(sealed)
            client.delete_segment(SegmentName(topic, 0, 0x7FFF, 9))
            attempts: list[Callable[[], None]] = [
                lambda: client.create_segment(active, [" "]),
                lambda: client.create_segment(SegmentName(topic, 0, 0x7FFF, 9)),
                lambda: client.terminate_segment(active),
                lambda: client.delete_segment(sealed, force=True),
            ]
            for attempt in attempts:
                with pytest.raises(AdminError) as error:
                    attempt()
                refused.append(error.value.status)
        return refused

    assert await trio.to_thread.run_sync(call) == [412, 412, 409, 409]
    assert await split.registrations.names(TOPIC) == ["new", "s"]
