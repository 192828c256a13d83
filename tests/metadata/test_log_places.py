"""Where logs live: in the slot of their topic, and each in a place of its own."""

import pytest

from metadata import keys
from metadata.log_places import LogPlace
from protocol.names import SegmentName, TopicName

TOPIC = TopicName.scalable("acme", "eu", "orders")
NAMES = ["orders", "a/b", "ä%2Fö", "{b000}", "0000-ffff-0", "a/0000-ffff-0", "orders-partition-3", "%"]


@pytest.mark.parametrize("name", NAMES)
def test_all_keys_of_a_log_share_the_slot_of_its_topic(name: str) -> None:
    topic = TopicName.scalable("acme", "eu", name)
    place = LogPlace.of_segment(topic, "0000-7fff-12")
    record = keys.record_key(keys.path_of(topic))
    found = [place.key, *keys.storage_keys(place.key, "f" * 16), keys.ledgers_key(place.bucket)]
    assert {keys.slot_of(key) for key in found} == {place.slot, keys.slot_of(record)}
    assert place.segment_id == 12
    assert SegmentName.parse(place.name) == SegmentName(topic, 0, 0x7FFF, 12)


def test_no_two_logs_share_a_key() -> None:
    places = [LogPlace.of_segment(TopicName.scalable("acme", "eu", n), d) for n in NAMES for d in ("0-1-0", "0-1-1")]
    places += [LogPlace.of_classic(TopicName("persistent", "acme", "eu", n)) for n in NAMES if "/" not in n]
    found = [
        key
        for place in places
        for incarnation in ("e" * 16, "f" * 16)
        for key in (place.log(incarnation), place.cursors(incarnation), place.producers(incarnation))
    ]
    found += [place.key for place in places]
    assert len(set(found)) == len(found)


def test_a_partition_of_a_classic_topic_is_a_log_of_its_own() -> None:
    first, second = (
        LogPlace.of_classic(TopicName.parse(f"persistent://acme/eu/orders-partition-{number}")) for number in (0, 1)
    )
    assert first.name == "persistent://acme/eu/orders-partition-0"
    assert first.key == b"/classic/{b%03d}/acme/eu/orders-partition-0" % first.bucket
    assert first.segment_id is None
    assert first.key != second.key
