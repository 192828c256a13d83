"""Names of namespaces, topics and segments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidName
from protocol.names import (
    MAX_LOCAL_NAME_BYTES,
    MAX_NAMESPACE_LENGTH,
    MAX_TENANT_LENGTH,
    NamespaceName,
    SegmentName,
    TopicName,
)
from protocol.wire import pulsar_api_pb2 as api

ORDERS = TopicName("topic", "public", "default", "orders")
LONGEST = "x" * MAX_LOCAL_NAME_BYTES


# ---- Namespaces


def test_namespace_prints_as_it_was_written() -> None:
    namespace = NamespaceName.parse("acme/eu-west")
    assert namespace == NamespaceName("acme", "eu-west")
    assert str(namespace) == "acme/eu-west"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "acme",
        "acme/",
        "/eu",
        "acme/eu/",
        "/acme/eu",
        "acme/cluster/eu",
        "acme//eu",
        "ac me/eu",
        "acme/e%75",
        "acme/eü",
        "acme/eu\n",
        "acme/\0",
        "acme/e٣",
        "topic://acme/eu",
        "x" * (MAX_TENANT_LENGTH + 1) + "/eu",
        "acme/" + "x" * (MAX_NAMESPACE_LENGTH + 1),
    ],
)
def test_bad_namespace_is_refused(text: str) -> None:
    with pytest.raises(InvalidName):
        NamespaceName.parse(text)


def test_every_allowed_character_stands_in_tenant_and_namespace() -> None:
    assert NamespaceName.parse("a-=:._Z9/a-=:._Z9").tenant == "a-=:._Z9"
    assert NamespaceName.parse("x" * MAX_TENANT_LENGTH + "/" + "y" * MAX_NAMESPACE_LENGTH)


# ---- Topics


def test_partitions_and_their_topics_lead_to_each_other() -> None:
    topic = TopicName.classic("t", "n", "a-partition-1-b")
    assert str(topic.partition_at(12)) == "persistent://t/n/a-partition-1-b-partition-12"
    assert topic.partition_at(12).partition == 12
    assert topic.partition_at(12).base == topic
    assert topic.base is topic


@pytest.mark.parametrize(
    ("text", "domain", "tenant", "namespace", "local"),
    [
        ("topic://public/default/orders", "topic", "public", "default", "orders"),
        ("topic://t/n/a/b/c", "topic", "t", "n", "a/b/c"),
        ("topic://t/n/a/stats", "topic", "t", "n", "a/stats"),
        ("topic://t/n/注文 😀", "topic", "t", "n", "注文 😀"),
        ("topic://t/n/%2F", "topic", "t", "n", "%2F"),
        ("topic://t/n/" + LONGEST, "topic", "t", "n", LONGEST),
        ("persistent://t/n/x", "persistent", "t", "n", "x"),
        ("non-persistent://t/n/x", "non-persistent", "t", "n", "x"),
        ("segment://t/n/x/0000-ffff-0", "segment", "t", "n", "x/0000-ffff-0"),
        ("segment://t/n/a/b/8000-ffff-12", "segment", "t", "n", "a/b/8000-ffff-12"),
    ],
)
def test_full_name_is_taken_apart_and_printed(text: str, domain: str, tenant: str, namespace: str, local: str) -> None:
    topic = TopicName.parse(text)
    assert topic == TopicName(domain, tenant, namespace, local)
    assert str(topic) == text
    assert topic.namespace_name == NamespaceName(tenant, namespace)


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("orders", "persistent://public/default/orders"),
        ("acme/eu/orders", "persistent://acme/eu/orders"),
        ("with space", "persistent://public/default/with space"),
        ("a:b", "persistent://public/default/a:b"),
    ],
)
def test_short_form_is_persistent(text: str, full: str) -> None:
    assert str(TopicName.parse(text)) == full


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "\t\n",
        "/",
        "a/b",
        "a/b/",
        "/a/b",
        "a/b/c/d",
        "://t/n/x",
        "queue://t/n/x",
        "Topic://t/n/x",
        " topic://t/n/x",
        "topic://",
        "topic://t",
        "topic://t/n",
        "topic://t/n/",
        "topic://t/n/ ",
        "topic:///n/x",
        "topic://t//x",
        "topic:////",
        "topic://t/n//x",
        "topic://t/n/a//b",
        "topic://t/n/a://b",
        "topic://t/n/x/",
        "topic://t t/n/x",
        "topic://t/ñ/x",
        "topic://t\n/n/x",
        "topic://t/n\n/x",
        "topic://t/n/\ud800",
        "topic://t/n/" + LONGEST + "x",
        "topic://t/n/" + "注" * (MAX_LOCAL_NAME_BYTES // 3 + 1),
        "topic://" + "t" * (MAX_TENANT_LENGTH + 1) + "/n/x",
        "topic://t/" + "n" * (MAX_NAMESPACE_LENGTH + 1) + "/x",
        "persistent://t/n",
        "persistent://t/n/c/x",
        "persistent://t/c/n/x/y",
        "non-persistent://t/n/c/x",
        "persistent://t/n/" + "注" * (MAX_LOCAL_NAME_BYTES // 3 + 1),
        "segment://t/n/x",
        "segment://t/n/0000-ffff-0",
        "segment://t/n//0000-ffff-0",
        "segment://t/n/ /0000-ffff-0",
        "segment://t/n/x/0000-ffff",
        "segment://t/n/x/0-ffff-0",
        "segment://t/n/x/0000-FFFF-0",
        "segment://t/n/x/0000-10000-0",
        "segment://t/n/x/8000-7fff-0",
        "segment://t/n/x/0000-ffff-00",
        "segment://t/n/x/0000-ffff--1",
        "segment://t/n/x/0000-ffff-+1",
        "segment://t/n/x/0000-ffff-٣",
        "segment://t/n/x/0000-ffff-0\n",
        f"segment://t/n/x/0000-ffff-{2**63}",
        "segment://t/n/x/0000-ffff-" + "9" * 5000,
        "segment://t/n/" + LONGEST + "x/0000-ffff-0",
        "persistent://t/n/" + LONGEST + "x-partition-0",
    ],
)
def test_bad_topic_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidName) as caught:
        TopicName.parse(text)
    assert caught.value.server_error == api.InvalidTopicName == 17
    assert caught.value.http_status == 412


@pytest.mark.parametrize("text", ["topic://t/n/" + "x" * 1_000_000, "x/" * 500_000, "\0\ud800://" * 1_000])
def test_refusal_of_an_odd_name_is_short_and_printable(text: str) -> None:
    with pytest.raises(InvalidName) as caught:
        TopicName.parse(text)
    assert len(str(caught.value)) < 1000
    assert str(caught.value).isprintable()


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_is_a_name_or_refused(text: str) -> None:
    for candidate in (text, "topic://t/n/" + text, "segment://t/n/" + text, "persistent://" + text):
        try:
            topic = TopicName.parse(candidate)
        except InvalidName:
            continue
        assert TopicName.parse(str(topic)) == topic
        assert topic.canonical.domain == "topic"
        assert topic.canonical.canonical == topic.canonical


@pytest.mark.parametrize(
    ("text", "partition"),
    [
        ("persistent://t/n/x-partition-0", 0),
        ("persistent://t/n/x-partition-17", 17),
        ("topic://t/n/x-partition-3", 3),
        ("topic://t/n/a\nb-partition-3", 3),
        ("persistent://t/n/x-partition-2147483647", 2147483647),
        ("persistent://t/n/x-partition-1-partition-2", 2),
        ("persistent://t/n/x", None),
        ("persistent://t/n/x-partition-", None),
        ("persistent://t/n/x-partition-01", None),
        ("persistent://t/n/x-partition-00", None),
        ("persistent://t/n/x-partition--1", None),
        ("persistent://t/n/x-partition-+1", None),
        ("persistent://t/n/x-partition-1\n", None),
        ("persistent://t/n/x-partition-٣", None),
        ("persistent://t/n/x-partition-1a", None),
        ("persistent://t/n/x-partition-2147483648", None),
        ("persistent://t/n/-partition-1", None),
        ("persistent://t/n/x-Partition-1", None),
        ("segment://t/n/x/0000-ffff-0", None),
    ],
)
def test_partition_is_a_plain_number_at_the_end(text: str, partition: int | None) -> None:
    assert TopicName.parse(text).partition == partition


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("topic://t/n/orders", "topic://t/n/orders"),
        ("topic://t/n/a b~", "topic://t/n/a b~"),
        ("topic://t/n/x-partition-3", "topic://t/n/x-partition-3"),
        ("orders", "topic://public/default/orders"),
        ("persistent://t/n/orders", "topic://t/n/orders"),
        ("non-persistent://t/n/orders", "topic://t/n/orders"),
        ("persistent://t/n/x-partition-3", "topic://t/n/x"),
        ("persistent://t/n/x-partition-03", "topic://t/n/x-partition-03"),
        ("persistent://t/n/a b", "topic://t/n/a b"),
        ("persistent://t/n/a+b", "topic://t/n/a+b"),
        ("persistent://t/n/*-._", "topic://t/n/*-._"),
        ("persistent://t/n/~!'()", "topic://t/n/~!'()"),
        ("persistent://t/n/%2F", "topic://t/n/%2F"),
        ("persistent://t/n/é", "topic://t/n/é"),
        ("segment://t/n/orders/0000-7fff-1", "topic://t/n/orders"),
        (f"segment://t/n/{LONGEST}/0000-7fff-{2**63 - 1}", "topic://t/n/" + LONGEST),
        (f"persistent://t/n/{LONGEST}-partition-2147483647", "topic://t/n/" + LONGEST),
        ("segment://t/n/a b/c/0000-7fff-1", "topic://t/n/a b/c"),
    ],
)
def test_canonical_name_is_the_one_a_layout_is_found_under(text: str, canonical: str) -> None:
    assert str(TopicName.parse(text).canonical) == canonical


def test_parts_make_a_checked_scalable_name() -> None:
    assert TopicName.scalable("public", "default", "orders") == ORDERS
    for parts in [("", "n", "x"), ("t", "n/m", "x"), ("t", "n", ""), ("t", "n", "a//b")]:
        with pytest.raises(InvalidName):
            TopicName.scalable(*parts)


@pytest.mark.parametrize("local", ["orders", "a b", "a/b", "注文", "%00", "-", "😀"])
def test_ordinary_name_is_creatable(local: str) -> None:
    TopicName.scalable("t", "n", local).check_creatable()


@pytest.mark.parametrize("local", [" x", "x ", "\u3000x", "a\0b", "a\nb", "\x7fa", "a\x9fb", "\x1b[31m"])
def test_name_with_control_characters_or_outer_space_is_not_creatable(local: str) -> None:
    topic = TopicName.scalable("t", "n", local)
    with pytest.raises(InvalidName):
        topic.check_creatable()


@pytest.mark.parametrize("local", [".", "..", "a/../b", "./a", "a/.", "x-partition-0", "a/b-partition-12"])
def test_name_that_could_not_be_managed_or_watched_is_not_creatable(local: str) -> None:
    topic = TopicName.scalable("t", "n", local)
    with pytest.raises(InvalidName):
        topic.check_creatable()


def test_names_are_values() -> None:
    assert len({ORDERS, TopicName.parse(str(ORDERS)), TopicName.parse("orders")}) == 2
    assert min(NamespaceName("b", "a"), NamespaceName("a", "b")).tenant == "a"


# ---- Segments


@pytest.mark.parametrize(
    ("text", "segment"),
    [
        ("segment://public/default/orders/0000-ffff-0", SegmentName(ORDERS, 0, 0xFFFF, 0)),
        ("segment://public/default/orders/8000-80ff-12", SegmentName(ORDERS, 0x8000, 0x80FF, 12)),
        (
            f"segment://t/n/a/b/00ab-00ab-{2**63 - 1}",
            SegmentName(TopicName.scalable("t", "n", "a/b"), 0xAB, 0xAB, 2**63 - 1),
        ),
        (
            f"segment://t/n/{LONGEST}/0000-ffff-0",
            SegmentName(TopicName.scalable("t", "n", LONGEST), 0, 0xFFFF, 0),
        ),
    ],
)
def test_segment_is_taken_apart_and_printed(text: str, segment: SegmentName) -> None:
    assert SegmentName.parse(text) == segment
    assert str(segment) == text
    assert text.endswith("/" + segment.descriptor)


@pytest.mark.parametrize("text", ["orders", str(ORDERS), "persistent://t/n/0000-ffff-0", "segment://t/n/x"])
def test_other_names_are_not_segments(text: str) -> None:
    with pytest.raises(InvalidName):
        SegmentName.parse(text)


@pytest.mark.parametrize(
    ("start", "end", "segment_id"), [(1, 0, 0), (-1, 5, 0), (0, 0x10000, 0), (0, 1, -1), (0, 1, 2**63)]
)
def test_impossible_segment_is_refused(start: int, end: int, segment_id: int) -> None:
    with pytest.raises(InvalidName):
        SegmentName(ORDERS, start, end, segment_id)


def test_only_scalable_topics_have_segments() -> None:
    with pytest.raises(InvalidName):
        SegmentName(TopicName.parse("persistent://t/n/x"), 0, 1, 0)
