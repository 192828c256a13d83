"""Which topic names a client's pattern stands for."""

import time

import pytest

from protocol.names import NamespaceName
from sessions.errors import BadPattern, LongPattern
from sessions.patterns import MAX_PATTERN_LENGTH, TopicPattern

NAMESPACE = NamespaceName("public", "default")


@pytest.mark.parametrize(
    ("pattern", "local", "expected"),
    [
        ("persistent://public/default/foo.*", "foo-1", True),
        ("non-persistent://public/default/foo.*", "foo-1", True),
        ("public/default/foo.*", "foo-1", True),
        ("^persistent://public/default/foo$", "foo", True),
        (r"\Qpersistent://public/default/a.b\E", "a.b", True),
        (r"\Qpersistent://public/default/a.b\E", "axb", False),
        ("public/default/foo", "foo-1", False),
        ("foo.*", "foo-1", False),
        ("public/.*/日.{2}", "日本語", True),
        (".*", "anything", True),
        ("public/default/(a|b)-[0-9]+", "b-17", True),
        # A pattern names topics, and its partitions come with a topic.
        ("public/default/foo", "foo-partition-3", True),
        ("public/default/foo-partition-.*", "foo-partition-3", False),
    ],
)
def test_a_pattern_matches_whole_names_of_topics_without_their_domain(pattern: str, local: str, expected: bool) -> None:
    assert TopicPattern(NAMESPACE, pattern).matches(local) is expected


@pytest.mark.parametrize("pattern", ["(", "a(?=b)", "topic://public/default/a", "[z-a]", r"\1"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(BadPattern):
        TopicPattern(NAMESPACE, pattern)


def test_a_pattern_may_be_as_long_as_pulsar_allows() -> None:
    assert TopicPattern(NAMESPACE, "a" * MAX_PATTERN_LENGTH)
    with pytest.raises(LongPattern):
        TopicPattern(NAMESPACE, "a" * (MAX_PATTERN_LENGTH + 1))


def test_no_pattern_takes_long() -> None:
    pattern = TopicPattern(NAMESPACE, "public/default/(a+)+(a|aa)+((a|a?)+)+$")
    began = time.process_time()
    assert not pattern.matches("a" * 1_000 + "b")
    # A backtracking matcher would not come back in a lifetime.
    assert time.process_time() - began < 5
