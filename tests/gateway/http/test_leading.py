"""What only the leader of a topic does, asked of two nodes on one store."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import trio

from gateway.admin_client import AdminClient
from gateway.node import Node
from protocol.names import TopicName
from tests.gateway.http.running import JSON, SCALABLE, reason_of
from tests.support.consumers import LIMIT, registering, until_shared
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

TOPIC = TopicName.scalable("public", "default", "t")
# Nothing in the names or the query may be lost on the way.
ODD_TOPIC = TopicName.scalable("public", "default", "a/b c?%2F;ü")
ODD_SUBSCRIPTION = "x/y z#ü"


@dataclass
class Pair:
    """Two nodes on one store; `leader` is the one that the tests let lead first."""

    leader: Node
    follower: Node
    client: httpx.AsyncClient

    async def ask(self, node: Node, method: str, path: str, **kwargs: Any) -> httpx.Response:
        return await self.client.request(method, node.http_url + path, headers=JSON, **kwargs)

    async def let_lead(self, topic: TopicName, segments: int = 1) -> None:
        await transitions_of(self.leader).create(topic, segments)
        await self.leader.leaders.lead(topic)

    async def listed(self, node: Node) -> list[dict[str, Any]]:
        response = await self.ask(node, "GET", "/admin/v2/nodes")
        assert response.status_code == 200
        found: list[dict[str, Any]] = response.json()
        return found


@asynccontextmanager
async def ready_node(store_url: str) -> AsyncIterator[Node]:
    """A node that is sure of its session, with a lease that a busy machine does not let run out."""
    async with running_node(store_url, session_lease=6.0) as node:
        await eventually(lambda: node.session.held, within=LIMIT)
        yield node


@pytest.fixture
async def pair(valkey: ValkeyProcess) -> AsyncIterator[Pair]:
    async with (
        ready_node(valkey.url) as follower,
        ready_node(valkey.url) as leader,
        httpx.AsyncClient(timeout=30, trust_env=False) as client,
    ):
        yield Pair(leader, follower, client)


def path_of(topic: TopicName) -> str:
    return f"{SCALABLE}/{quote(topic.local, safe='')}"


async def test_follower_sends_who_wants_a_split_to_the_leader(pair: Pair) -> None:
    await pair.let_lead(TOPIC)
    path = f"{path_of(TOPIC)}/split/0?authoritative=false"
    sent_on = await pair.ask(pair.follower, "POST", path)
    assert sent_on.status_code == 307
    assert sent_on.headers["location"] == pair.leader.http_url + path
    assert pair.leader.http_url in reason_of(sent_on)
    assert not pair.follower.leaders.leads(TOPIC)
    followed = await pair.client.send(sent_on.next_request) if sent_on.next_request else sent_on
    assert followed.status_code == 204
    assert (await pair.ask(pair.follower, "GET", path_of(TOPIC))).json()["epoch"] == 1


@pytest.mark.parametrize(
    "path",
    [
        f"{path_of(ODD_TOPIC)}/split/0",
        f"{path_of(ODD_TOPIC)}/merge/0/1?x=%2F%20+&y=%C3%BC",
        f"{path_of(ODD_TOPIC)}/subscriptions/{quote(ODD_SUBSCRIPTION, safe='')}/seek?timestamp=5",
        f"{path_of(ODD_TOPIC)}/subscriptions/{quote(ODD_SUBSCRIPTION, safe='')}/skip-all",
        "/admin/v2/segments/public/default/{}/0000-7fff-0/subscription/{}/seek?timestamp=5".format(
            quote(ODD_TOPIC.local, safe=""), quote(ODD_SUBSCRIPTION, safe="")
        ),
        "/admin/v2/segments/public/default/{}/0000-7fff-0/subscription/{}/skip-all".format(
            quote(ODD_TOPIC.local, safe=""), quote(ODD_SUBSCRIPTION, safe="")
        ),
    ],
)
async def test_redirect_keeps_path_and_query_as_they_were_sent(pair: Pair, path: str) -> None:
    await pair.let_lead(ODD_TOPIC, segments=2)
    created = await pair.ask(
        pair.follower, "PUT", f"{path_of(ODD_TOPIC)}/subscriptions/{quote(ODD_SUBSCRIPTION, safe='')}"
    )
    assert created.status_code == 204
    sent_on = await pair.ask(pair.follower, "POST", path)
    assert (sent_on.status_code, sent_on.headers["location"]) == (307, pair.leader.http_url + path)
    assert (await pair.ask(pair.follower, "POST", path, follow_redirects=True)).status_code == 204


async def test_what_needs_no_leader_is_done_by_whoever_is_asked(pair: Pair) -> None:
    await pair.let_lead(TOPIC, segments=2)
    topic = path_of(TOPIC)
    for method, path, status in (
        ("GET", "", 200),
        ("GET", "/stats", 200),
        ("PUT", "/subscriptions/s", 204),
        ("GET", "/subscriptions", 200),
        ("DELETE", "/subscriptions/s", 204),
        ("GET", "/properties", 200),
        ("GET", "/retention", 204),
        ("DELETE", "/retention", 204),
        ("DELETE", "", 204),
    ):
        assert (await pair.ask(pair.follower, method, topic + path)).status_code == status


async def test_refusals_are_those_of_the_leader(pair: Pair) -> None:
    await pair.let_lead(TOPIC)
    for path, status in (("split/9", 404), ("merge/0/0", 412), ("subscriptions/s/skip-all", 404)):
        response = await pair.ask(pair.follower, "POST", f"{path_of(TOPIC)}/{path}", follow_redirects=True)
        assert response.status_code == status
        reason_of(response)
    missing = await pair.ask(pair.follower, "POST", f"{SCALABLE}/missing/split/0")
    assert missing.status_code == 404
    # What is wrong with a request as such needs no leader to be said.
    bad = await pair.ask(pair.follower, "POST", f"{path_of(TOPIC)}/subscriptions/s/seek")
    assert bad.status_code == 412


async def test_topic_without_a_leader_is_led_by_whoever_is_asked_first(pair: Pair) -> None:
    await transitions_of(pair.leader).create(TOPIC, 1)
    assert (await pair.ask(pair.follower, "POST", f"{path_of(TOPIC)}/split/0")).status_code == 204
    sent_on = await pair.ask(pair.leader, "POST", f"{path_of(TOPIC)}/merge/1/2")
    assert sent_on.headers["location"].startswith(pair.follower.http_url)


async def test_follower_takes_over_from_a_leader_that_ended(valkey: ValkeyProcess) -> None:
    async with ready_node(valkey.url) as follower, httpx.AsyncClient(timeout=30, trust_env=False) as client:
        async with ready_node(valkey.url) as leader:
            pair = Pair(leader, follower, client)
            await pair.let_lead(TOPIC)
            assert (await pair.ask(follower, "POST", f"{path_of(TOPIC)}/split/0")).status_code == 307

            async def sees_both() -> bool:
                return len(await pair.listed(follower)) == 2

            await eventually(sees_both, within=LIMIT)

        async def splits() -> bool:
            return (await pair.ask(follower, "POST", f"{path_of(TOPIC)}/split/0")).status_code == 204

        await eventually(splits, within=LIMIT)
        assert follower.leaders.leads(TOPIC)

        async def is_alone() -> bool:
            return [(node["self"], node["leads"]) for node in await pair.listed(follower)] == [(True, 1)]

        await eventually(is_alone, within=LIMIT)


async def test_of_many_splits_at_both_nodes_one_wins(pair: Pair) -> None:
    await transitions_of(pair.leader).create(TOPIC, 1)
    statuses: Counter[int] = Counter()

    async def split(node: Node) -> None:
        response = await pair.ask(node, "POST", f"{path_of(TOPIC)}/split/0", follow_redirects=True)
        statuses[response.status_code] += 1

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(split, (pair.leader, pair.follower)[number % 2])
    assert statuses[204] == 1
    assert set(statuses) <= {204, 409, 412, 503}
    assert (await pair.ask(pair.leader, "GET", path_of(TOPIC))).json()["epoch"] == 1


async def test_admin_client_follows_to_the_leader(pair: Pair) -> None:
    await pair.let_lead(ODD_TOPIC)

    def split() -> None:
        with AdminClient(pair.follower.http_url) as client:
            client.split(ODD_TOPIC, 0)

    await trio.to_thread.run_sync(split)
    assert (await pair.ask(pair.leader, "GET", path_of(ODD_TOPIC))).json()["epoch"] == 1


async def test_all_nodes_show_the_same_statistics_and_never_old_ones(pair: Pair) -> None:
    await pair.let_lead(TOPIC, segments=2)
    async with registering(pair.leader.pulsar_url) as near, registering(pair.follower.pulsar_url) as far:
        consumers = [await near.subscribed(TOPIC, "s", "near"), await far.subscribed(TOPIC, "s", "far")]
        await until_shared(consumers, {0, 1})
        split = await pair.ask(pair.follower, "POST", f"{path_of(TOPIC)}/split/0", follow_redirects=True)
        assert split.status_code == 204
        await until_shared(consumers, {1, 2, 3})
        shown = [
            (await pair.ask(node, "GET", f"{path_of(TOPIC)}/stats")).json() for node in (pair.leader, pair.follower)
        ]
        assert shown[0] == shown[1]
        assert shown[0]["layout"]["epoch"] == 1
        assert shown[0]["leader"]["httpUrl"] == pair.leader.http_url
        assert shown[0]["leader"]["session"] == pair.leader.session.record.session
        found = {consumer["consumerName"]: consumer for consumer in shown[0]["subscriptions"]["s"]["consumers"]}
        assert {name: set(consumer["segmentIds"]) for name, consumer in found.items()} == {
            consumer.name: consumer.ids for consumer in consumers
        }
        assert all(consumer["connected"] and consumer["address"] for consumer in found.values())


async def test_consumer_is_shown_as_disconnected_when_its_connection_is_gone(pair: Pair) -> None:
    await pair.let_lead(TOPIC)
    async with registering(pair.leader.pulsar_url) as connection:
        await connection.subscribed(TOPIC, "s", "c")

        async def connected() -> list[bool]:
            stats = (await pair.ask(pair.follower, "GET", f"{path_of(TOPIC)}/stats")).json()
            return [consumer["connected"] for consumer in stats["subscriptions"]["s"]["consumers"]]

        assert await connected() == [True]
        connection.disconnect()

        async def is_gone() -> bool:
            return await connected() == [False]

        await eventually(is_gone, within=LIMIT)


async def test_connected_consumers_keep_their_topic_unless_forced(pair: Pair) -> None:
    await pair.let_lead(TOPIC)
    async with registering(pair.leader.pulsar_url) as connection:
        consumer = await connection.subscribed(TOPIC, "s", "c")
        for query in ("", "?force=false"):
            refused = await pair.ask(pair.follower, "DELETE", f"{path_of(TOPIC)}{query}")
            assert refused.status_code == 412
            assert "force" in reason_of(refused)
        assert (await pair.ask(pair.follower, "DELETE", f"{path_of(TOPIC)}?force=true")).status_code == 204
        await eventually(lambda: consumer.ids == set(), within=LIMIT)
    assert (await pair.ask(pair.leader, "GET", path_of(TOPIC))).status_code == 404


async def test_nodes_are_listed_by_each_with_itself_first(pair: Pair) -> None:
    await pair.let_lead(TOPIC)
    await pair.let_lead(TopicName.scalable("public", "default", "u"))

    for node, other in ((pair.leader, pair.follower), (pair.follower, pair.leader)):

        async def sees_both(node: Node = node) -> bool:
            return len(await pair.listed(node)) == 2

        await eventually(sees_both, within=LIMIT)
        leads = {pair.leader.http_url: 2, pair.follower.http_url: 0}
        assert await pair.listed(node) == [
            {
                "session": one.session.record.session,
                "pulsarUrl": one.pulsar_url,
                "httpUrl": one.http_url,
                "self": one is node,
                "leads": leads[one.http_url],
            }
            for one in (node, other)
        ]
