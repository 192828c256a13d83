"""Where a subscription begins, and that deleting it ends it, as the commands of a user show it."""

from __future__ import annotations

import pytest

from tests.e2e.vela_process import VelaServer, run_vela

pytestmark = pytest.mark.slow


def vela(server: VelaServer, *arguments: str) -> str:
    outcome = run_vela(*arguments, variables=server.for_clients)
    assert (outcome.code, outcome.err) == (0, "")
    return outcome.out


def consumed(server: VelaServer, topic: str, *arguments: str) -> list[str]:
    """The values of the messages that a consumer gets until it leaves."""
    said = vela(server, "consume", topic, "-s", "s", *arguments)
    return [line.split()[-1] for line in said.splitlines()]


@pytest.mark.parametrize("kind", ["--stream", "--queue"])
def test_latest_is_when_the_subscription_begins_although_a_sealed_segment_has_messages(
    server: VelaServer, topic: str, kind: str
) -> None:
    vela(server, "topics", "create", topic)
    vela(server, "topics", "retention", topic, "--minutes", "60")
    vela(server, "produce", topic, "a", "b", "c")
    vela(server, "topics", "split", topic, "0")
    # It leaves at once, before it has opened a child or even the sealed segment.
    assert consumed(server, topic, kind, "--from", "latest", "--timeout", "1ms") == []
    vela(server, "produce", topic, "1", "2", "3", "4", "5")
    got = consumed(server, topic, kind, "--from", "latest", "--count", "5", "--timeout", "20s")
    assert sorted(got) == ["1", "2", "3", "4", "5"]
    assert consumed(server, topic, kind, "--from", "latest", "--timeout", "500ms") == []


@pytest.mark.parametrize("kind", ["--stream", "--queue"])
def test_deleted_subscription_begins_anew_under_the_same_name(server: VelaServer, topic: str, kind: str) -> None:
    vela(server, "topics", "create", topic)
    vela(server, "produce", topic, "1", "2", "3", "--key", "k")
    whole = (kind, "--from", "earliest", "--count", "3", "--timeout", "20s")
    assert consumed(server, topic, *whole) == ["1", "2", "3"]
    vela(server, "subscriptions", "delete", topic, "s")
    assert vela(server, "subscriptions", "list", topic) == ""
    assert consumed(server, topic, *whole) == ["1", "2", "3"]
