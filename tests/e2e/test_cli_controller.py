"""Subscriptions, consumers, nodes and namespaces at the command line, against running servers with real consumers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.controller_cluster import running_cluster
from tests.e2e.vela_process import Outcome, VelaServer, run_vela
from tests.gateway.vela_command import assert_one_sentence, vela
from tests.support.consumers import CHECKPOINT, registering, until_shared
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

# Nothing waits for this long; it is for a machine with other work.
LIMIT = 60.0


class CommandLine:
    """The commands with the addresses of one server.

    They run in this process: to start one for each would take longer than all that they do.
    """

    def __init__(self, server: VelaServer) -> None:
        self._variables = server.for_clients

    def done(self, *arguments: str) -> str:
        outcome = vela(*arguments, **self._variables)
        assert (outcome.code, outcome.err) == (0, ""), outcome
        return outcome.out

    def rows(self, *arguments: str) -> list[list[str]]:
        """The cells of a table below its headings."""
        return [re.split(r"\s{2,}", line.strip()) for line in self.done(*arguments).splitlines()[1:]]

    def json(self, *arguments: str) -> Any:
        return json.loads(self.done(*arguments, "--json"))

    def refused(self, *arguments: str) -> str:
        outcome = vela(*arguments, **self._variables)
        assert_one_sentence(outcome)
        return outcome.err


def test_commands_as_a_user_starts_them(server: VelaServer, topic: str) -> None:
    server.create(topic)
    name, odd = f"topic://public/default/{topic}", "日本 / ü"
    created = run_vela("subscriptions", "create", topic, odd, "--type", "stream", variables=server.for_clients)
    assert created == Outcome(0, f"{name} has the stream subscription {odd} now.\n", "")
    shown = run_vela("topics", "consumers", topic, variables=server.for_clients)
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.splitlines()[1].split() == ["日本", "/", "ü", "stream", "nobody", "0", "0000-ffff"]
    refused = run_vela("subscriptions", "delete", topic, "nope", variables=server.for_clients)
    assert (refused.code, refused.out) == (1, "")
    assert "has no subscription nope" in refused.sentence


def test_subscription_from_its_creation_to_its_end(server: VelaServer, topic: str) -> None:
    cli, name = CommandLine(server), f"topic://public/default/{topic}"
    server.create(topic, segments=2)
    assert cli.done("subscriptions", "list", topic) == ""
    assert cli.done("subscriptions", "create", topic, "billing") == f"{name} has the subscription billing now.\n"
    assert [row[:3] for row in cli.rows("subscriptions", "list", topic)] == [["billing", "open", "0"]]
    assert cli.done("subscriptions", "create", topic, "billing", "--type", "stream") == (
        f"{name} has the stream subscription billing now.\n"
    )
    cli.done("subscriptions", "create", topic, "mails", "--type", "queue")
    assert "QUEUE" in cli.refused("subscriptions", "create", topic, "mails", "--type", "stream")

    assert [row[:3] for row in cli.rows("subscriptions", "list", topic)] == [
        ["billing", "stream", "0"],
        ["mails", "queue", "0"],
    ]
    listed = cli.json("subscriptions", "list", topic)
    assert {found: listed[found]["type"] for found in listed} == {"billing": "STREAM", "mails": "QUEUE"}

    for how in (["--to", "1h"], ["--to", "0s"], ["--timestamp", "0"]):
        assert "goes on from" in cli.done("subscriptions", "seek", topic, "billing", *how)
    assert "has skipped everything" in cli.done("subscriptions", "skip-all", topic, "mails")
    for verb in (["seek", "--to", "1h"], ["skip-all"], ["delete"]):
        assert "no subscription nope" in cli.refused("subscriptions", *verb, topic, "nope")

    assert cli.done("subscriptions", "delete", topic, "mails") == f"Deleted subscription mails of {name}.\n"
    assert [row[0] for row in cli.rows("subscriptions", "list", topic)] == ["billing"]


async def test_consumers_are_shown_with_their_segments(server: VelaServer, topic: str) -> None:
    cli, name = CommandLine(server), f"topic://public/default/{topic}"
    server.create(topic, segments=4)
    cli.done("subscriptions", "create", topic, "quiet", "--type", "stream")
    async with registering(server.pulsar_url) as gone, registering(server.pulsar_url) as there:
        first = await there.subscribed(name, "billing", "worker-1")
        second = await gone.subscribed(name, "billing", "worker-2")
        reader = await there.subscribed(name, "backup", "reader", kind=CHECKPOINT)
        await until_shared([first, second], range(4), within=LIMIT)
        await until_shared([reader], range(4), within=LIMIT)

        rows = {(row[0], row[2]): row for row in cli.rows("topics", "consumers", topic)}
        assert list(rows) == [
            ("backup", "reader"),
            ("billing", "worker-1"),
            ("billing", "worker-2"),
            ("quiet", "nobody"),
        ]
        ranges = {0: "0 0000-3fff", 1: "1 4000-7fff", 2: "2 8000-bfff", 3: "3 c000-ffff"}
        for consumer in (first, second):
            row = rows["billing", consumer.name]
            assert row[1:5] == [
                "stream",
                consumer.name,
                "yes",
                ", ".join(ranges[each] for each in sorted(consumer.ids)),
            ]
            assert row[5] == "127.0.0.1"
            assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", row[6])
        assert rows["backup", "reader"][1:5] == ["checkpoint", "reader", "yes", ", ".join(ranges.values())]
        assert rows["quiet", "nobody"] == ["quiet", "stream", "nobody", ", ".join(ranges.values())]
        chosen = cli.json("topics", "consumers", topic, "--subscription", "quiet")
        assert chosen["subscriptions"]["quiet"]["unassignedSegmentIds"] == [0, 1, 2, 3]

        stats = cli.done("topics", "stats", topic)
        assert f"led by {server.pulsar_url}, {server.http_url}" in stats
        assert "epoch 0, 4 active and 0 sealed segments" in stats
        assert "checkpoint group" in cli.refused("subscriptions", "seek", topic, "backup", "--to", "1h").lower()

        gone.disconnect()

        def is_shown_as_gone() -> bool:
            found = cli.json("topics", "stats", topic)["subscriptions"]["billing"]["consumers"]
            connected = {consumer["consumerName"]: consumer["connected"] for consumer in found}
            return connected == {"worker-1": True, "worker-2": False}

        assert await eventually(is_shown_as_gone, within=LIMIT)
        [absent] = [row for row in cli.rows("topics", "consumers", topic) if row[2] == "worker-2"]
        # It keeps them for its grace.
        assert absent[3:5] == ["no", ", ".join(ranges[each] for each in sorted(second.ids))]


async def test_subscription_in_use_is_deleted_and_a_topic_in_use_only_with_force(
    server: VelaServer, topic: str
) -> None:
    cli, name = CommandLine(server), f"topic://public/default/{topic}"
    server.create(topic)
    async with registering(server.pulsar_url) as connection:
        await connection.subscribed(name, "one", "a")
        await connection.subscribed(name, "two", "b")
        assert cli.done("subscriptions", "delete", topic, "one") == f"Deleted subscription one of {name}.\n"
        assert "subscription two" in cli.refused("topics", "delete", topic)
        assert cli.done("topics", "delete", topic, "--force") == f"Deleted {name}.\n"
    for verb in (["topics", "stats"], ["topics", "consumers"], ["topics", "retention"], ["subscriptions", "list"]):
        assert "topic not found" in cli.refused(*verb, topic).lower()


@pytest.mark.parametrize("odd", ["a/seek", "100% ü?#&+", "..", "%2F", "日本 [red]", "-x"])
def test_names_with_every_kind_of_character_work(server: VelaServer, topic: str, odd: str) -> None:
    cli = CommandLine(server)
    # A local name may not be a path element that HTTP clients fold away; the name of a subscription may.
    name = f"topic://public/default/{topic}-{odd}"
    cli.done("topics", "create", name)
    created = cli.done("subscriptions", "create", "--type", "stream", "--", name, odd)
    assert created == f"{name} has the stream subscription {odd} now.\n"
    assert list(cli.json("subscriptions", "list", name)) == [odd]
    cli.done("subscriptions", "seek", "--to", "30m", "--", name, odd)
    cli.done("subscriptions", "skip-all", "--", name, odd)
    assert [row[:3] for row in cli.rows("topics", "consumers", name)] == [[odd, "stream", "nobody"]]
    assert odd in cli.done("topics", "stats", name)
    cli.done("subscriptions", "delete", "--", name, odd)
    assert cli.json("subscriptions", "list", name) == {}
    cli.done("topics", "delete", name)


def test_retention_of_a_topic(server: VelaServer, topic: str) -> None:
    cli = CommandLine(server)
    server.create(topic)
    sentence = f"topic://public/default/{topic} keeps sealed segments "
    for flags, kept in (
        ([], "as long as its namespace says"),
        (["--minutes", "90"], "until they are consumed, and 90 minutes at least"),
        (["--minutes", "-1"], "for ever"),
        (["--clear"], "as long as its namespace says"),
    ):
        assert cli.done("topics", "retention", topic, *flags) == f"{sentence}{kept}.\n"
        assert cli.done("topics", "retention", topic) == f"{sentence}{kept}.\n"
    assert "minutes up to" in cli.refused("topics", "retention", topic, "--minutes", str(2**40))


def test_namespace_from_its_creation_to_its_end(server: VelaServer, topic: str) -> None:
    cli, tenant = CommandLine(server), topic
    name = f"{tenant}/shop"
    assert cli.done("namespaces", "create", name) == f"Created {name}.\n"
    assert "exists" in cli.refused("namespaces", "create", name)
    assert {name, "public/default"} <= set((cli.done("namespaces", "list")).splitlines())
    assert cli.json("namespaces", "list", tenant) == [name]
    cli.done("topics", "create", f"{name}/orders")
    assert "still has topics" in cli.refused("namespaces", "delete", name)
    assert cli.done("namespaces", "delete", name, "--force") == f"Deleted {name} with all its topics.\n"
    assert name not in (cli.done("namespaces", "list")).splitlines()
    assert "does not exist" in cli.refused("namespaces", "delete", name)


async def test_every_node_takes_every_command(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 2) as cluster:
        await cluster.create("orders", 2)
        async with registering(cluster.nodes[0].pulsar_url) as connection:
            await connection.subscribed("topic://public/default/orders", "billing", "worker")
            leader = await cluster.until_led("orders")
            there, elsewhere = (CommandLine(cluster.nodes[index]) for index in (leader, 1 - leader))

            def all_are_known() -> bool:
                return all(len(cli.json("nodes")) == 2 for cli in (there, elsewhere))

            assert await eventually(all_are_known, within=LIMIT)
            for cli, leads in ((there, {True: 1, False: 0}), (elsewhere, {True: 0, False: 1})):
                assert {node["self"]: node["leads"] for node in cli.json("nodes")} == leads
                assert [row[1] == "yes" for row in cli.rows("nodes")] == [True, False]

            # Only the leader can do these; it is found through any node.
            assert "into 2 and 3" in elsewhere.done("topics", "split", "orders", "0")
            assert "goes on from" in elsewhere.done("subscriptions", "seek", "orders", "billing", "--to", "5d")
            assert "has skipped" in elsewhere.done("subscriptions", "skip-all", "orders", "billing")
            assert "into 4" in elsewhere.done("topics", "merge", "orders", "2", "3")
            answers = [cli.json("topics", "stats", "orders") for cli in (there, elsewhere)]
            assert [answer["leader"]["pulsarUrl"] for answer in answers] == [cluster.nodes[leader].pulsar_url] * 2
