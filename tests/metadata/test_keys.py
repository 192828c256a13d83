"""Keys: every key of a topic in the slot of its bucket, and names that come back as they went in."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from metadata import keys
from protocol.errors import InvalidName
from protocol.names import NamespaceName, TopicName

LOCAL_NAMES = st.text(min_size=1, max_size=40)


@given(LOCAL_NAMES)
def test_a_path_leads_back_to_its_topic_and_all_keys_share_a_slot(local: str) -> None:
    try:
        topic = TopicName("topic", "t", "n", local)
    except InvalidName:
        return
    path = keys.path_of(topic)
    assert keys.topic_at(path) == topic
    bucket = keys.bucket_of(path)
    of_topic = (
        keys.record_key(path),
        keys.segment_key(path, "0000-ffff-0"),
        keys.index_key(bucket, NamespaceName("t", "n")),
        keys.changes_key(bucket),
        keys.bell_key(bucket),
        keys.marker_key(bucket),
    )
    assert {keys.slot_of(key) for key in of_topic} == {keys.BUCKET_SLOTS[bucket]}


def test_domains_of_one_name_share_their_place() -> None:
    assert keys.path_of(TopicName.parse("persistent://t/n/a b")) == keys.path_of(TopicName.parse("topic://t/n/a b"))


def test_the_bucket_of_a_name_is_fixed_for_ever() -> None:
    # Stored data lie where these say: a change here loses every topic that exists.
    assert keys.bucket_of("public/default/orders") == 10
    assert keys.bucket_of("public/default/a%2Fb") == 112
    assert keys.record_key("public/default/orders") == b"/topics/{b010}/public/default/orders"


def test_names_spread_over_the_buckets() -> None:
    found = Counter(keys.bucket_of(f"public/default/topic-{n}") for n in range(12_800))
    assert len(found) == keys.BUCKETS
    assert max(found.values()) < 160


def test_only_change_logs_ring_a_bucket() -> None:
    assert keys.bucket_of_changes_key(keys.changes_key(17)) == 17
    assert keys.bucket_of_changes_key(keys.bell_key(17)) is None
    assert keys.bucket_of_changes_key(b"/changes/{b999}") is None
