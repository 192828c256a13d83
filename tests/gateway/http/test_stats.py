"""A topic's statistics over real HTTP and a real store."""

from metadata import keys
from metadata.records import Leader
from metadata.subscriptions import SubscriptionType
from protocol.names import TopicName
from tests.gateway.http.consumers import A_DEAD_NODE, TOPIC, register
from tests.gateway.http.running import HTTP_URL, PULSAR_URL, SCALABLE, Api, reason_of
from tests.support.waiting import eventually

STATS = f"{SCALABLE}/t/stats"
NO_RATES = {
    "msgRateIn": 0,
    "byteRateIn": 0,
    "msgRateOut": 0,
    "byteRateOut": 0,
    "averageMsgSize": 0,
    "storageSize": 0,
    "backlogSize": 0,
}


NOTHING_GOES_THROUGH = {
    "storageSize": 0,
    "backlogSize": 0,
    "producerCount": 0,
    "msgRateIn": 0.0,
    "byteRateIn": 0.0,
    "msgRateOut": 0.0,
    "byteRateOut": 0.0,
}


async def test_topic_that_nobody_uses_shows_its_layout(api: Api) -> None:
    await api.call("PUT", f"{SCALABLE}/t?numInitialSegments=2")
    response = await api.call("GET", STATS)
    assert response.status_code == 200
    assert response.json() == NO_RATES | {
        "layout": {
            "epoch": 0,
            "segments": {
                "0": {
                    "name": "segment://public/default/t/0000-7fff-0",
                    "state": "ACTIVE",
                    "parentIds": [],
                    "childIds": [],
                    "entryBuckets": 1,
                    "ownerBroker": None,
                }
                | NOTHING_GOES_THROUGH,
                "1": {
                    "name": "segment://public/default/t/8000-ffff-1",
                    "state": "ACTIVE",
                    "parentIds": [],
                    "childIds": [],
                    "entryBuckets": 1,
                    "ownerBroker": None,
                }
                | NOTHING_GOES_THROUGH,
            },
        },
        "leader": None,
        "producers": [],
        "subscriptions": {},
        "epoch": 0,
        "totalSegments": 2,
        "activeSegments": 2,
        "sealedSegments": 0,
        "segments": {
            "0": {"name": "segment://public/default/t/0000-7fff-0", "state": "ACTIVE"},
            "1": {"name": "segment://public/default/t/8000-ffff-1", "state": "ACTIVE"},
        },
    }


async def test_split_is_seen_at_once_with_the_leader_that_did_it(api: Api) -> None:
    """W26: stats are those of the store, whichever node is asked."""
    await api.call("PUT", f"{SCALABLE}/t")
    await api.call("POST", f"{SCALABLE}/t/split/0")
    stats = (await api.call("GET", STATS)).json()
    segments = stats["layout"]["segments"]
    assert stats["layout"]["epoch"] == 1
    assert [(s["state"], s["parentIds"], s["childIds"]) for s in segments.values()] == [
        ("SEALED", [], [1, 2]),
        ("ACTIVE", [0], []),
        ("ACTIVE", [0], []),
    ]
    leader = stats["leader"]
    assert leader.pop("term") > 0
    assert leader == {"session": api.session.record.session, "pulsarUrl": PULSAR_URL, "httpUrl": HTTP_URL}


async def test_leader_whose_node_is_gone_is_none(api: Api) -> None:
    await api.call("PUT", f"{SCALABLE}/t")
    gone = Leader(A_DEAD_NODE, 1, "nonce", "pulsar://gone.example:6650", "http://gone.example:8080")
    path = keys.path_of(TOPIC)
    slot = keys.BUCKET_SLOTS[keys.bucket_of(path)]
    await api.store.commands.call(slot, "HSET", keys.record_key(path), "leader", gone.fence)
    stats = (await api.call("GET", STATS)).json()
    assert stats["leader"] is None


async def test_consumers_are_shown_with_their_segments_and_whether_they_are_connected(api: Api) -> None:
    await api.call("PUT", f"{SCALABLE}/t?numInitialSegments=3")
    await api.call("PUT", f"{SCALABLE}/t/subscriptions/q?type=QUEUE")
    await register(api, "here")
    await register(api, "there", node=A_DEAD_NODE)
    await register(api, "reader", "group", kind=SubscriptionType.CHECKPOINT)
    left = await register(api, "left", "group", kind=SubscriptionType.CHECKPOINT)
    await api.registrations.detach(TOPIC, "group", "left", left)
    before = (await api.call("GET", STATS)).json()["subscriptions"]["s"]
    assert [consumer["segmentIds"] for consumer in before["consumers"]] == [[], []]
    await api.leaders.lead(TOPIC)

    async def assigned() -> bool:
        subscriptions = (await api.call("GET", STATS)).json()["subscriptions"]
        consumers = subscriptions["s"]["consumers"] + subscriptions["group"]["consumers"]
        return all(consumer["segmentIds"] for consumer in consumers)

    await eventually(assigned)
    subscriptions = (await api.call("GET", STATS)).json()["subscriptions"]
    assert {name: found["type"] for name, found in subscriptions.items()} == {
        "group": "CHECKPOINT",
        "q": "QUEUE",
        "s": "STREAM",
    }
    assert subscriptions["q"] == {
        "type": "QUEUE",
        "msgBacklog": 0,
        "backlogSize": 0,
        "delayedMessageCount": 0,
        "unackedMessages": 0,
        "msgRateOut": 0,
        "byteRateOut": 0,
        "msgRateRedeliver": 0,
        "messageAckRate": 0,
        "segments": {},
        "consumers": [],
        "drainedSegmentIds": [],
        "consumerCount": 0,
    }
    here, there = subscriptions["s"]["consumers"]
    assert sorted(here["segmentIds"] + there["segmentIds"]) == [0, 1, 2]
    assert here | {"segmentIds": []} == {
        "consumerName": "here",
        "connected": True,
        "segmentIds": [],
        "address": "192.0.2.7:4711",
        "connectedSince": "2026-11-16T03:35:32.256Z",
        "msgRateOut": 0,
        "byteRateOut": 0,
        "unackedMessages": 0,
        "availablePermits": 0,
        "clientVersion": None,
    }
    assert (there["connected"], there["connectedSince"]) == (False, None)
    assert subscriptions["s"]["segments"]["0"] == {
        "msgBacklog": 0,
        "backlogSize": 0,
        "delayedMessageCount": 0,
        "unackedMessages": 0,
        "msgRateOut": 0,
        "byteRateOut": 0,
        "msgRateRedeliver": 0,
        "messageAckRate": 0,
        "consumerCount": 1,
    }
    reader, gone = sorted(subscriptions["group"]["consumers"], key=lambda consumer: not consumer["connected"])
    assert (reader["consumerName"], gone["consumerName"], gone["connected"]) == ("reader", "left", False)


async def test_missing_topic_and_bad_name_are_refused(api: Api) -> None:
    missing = await api.call("GET", STATS)
    assert missing.status_code == 404
    assert "topic://public/default/t" in reason_of(missing)
    bad = await api.call("GET", f"{SCALABLE}/%20/stats")
    assert bad.status_code == 412
    reason_of(bad)


async def test_topic_named_like_the_stats_of_another_has_its_own(api: Api) -> None:
    await api.transitions.create(TopicName.scalable("public", "default", "a/stats"), 2)
    assert (await api.call("GET", f"{SCALABLE}/a/stats")).status_code == 404
    assert len((await api.call("GET", f"{SCALABLE}/a%2Fstats/stats")).json()["layout"]["segments"]) == 2


async def test_legacy_segment_is_shown_under_the_name_that_it_had(api: Api) -> None:
    created = await api.transitions.create(TOPIC, 1)
    value = created.value.replace(
        b'"entryBucketSplits":[]', b'"legacyTopicName":"persistent://public/default/old","entryBucketSplits":[100,200]'
    )
    await api.store.replace(TOPIC, created.version, value)
    segment = (await api.call("GET", STATS)).json()["layout"]["segments"]["0"]
    assert (segment["name"], segment["entryBuckets"]) == ("persistent://public/default/old", 3)
