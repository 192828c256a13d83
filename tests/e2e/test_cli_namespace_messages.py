"""`vela consume --namespace` as a user sees it: topics are created, given other properties and deleted meanwhile."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.e2e.vela_process import RunningCommand, VelaServer, run_vela
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

# A command takes a second to start, and longer on a busy machine.
WITHIN = 30.0


def vela(server: VelaServer, *arguments: str) -> str:
    outcome = run_vela(*arguments, variables=server.for_clients)
    assert (outcome.code, outcome.err) == (0, "")
    return outcome.out


@pytest.mark.parametrize("kind", ["--queue", "--stream"])
def test_topics_come_into_the_filter_and_leave_it_while_messages_are_printed(
    tmp_path: Path, server: VelaServer, topic: str, kind: str
) -> None:
    first, second, other = (f"public/default/{topic}-{name}" for name in ("first", "second", "other"))
    team = f"team={topic}"
    vela(server, "topics", "create", first, "--property", team)
    vela(server, "topics", "create", other, "--property", "team=none")
    arguments = ["consume", "--namespace", "public/default", "--filter", team, "-s", "mine", "--from", "earliest"]

    def came(command: RunningCommand) -> list[tuple[str, str]]:
        shown = [json.loads(line) for line in command.lines]
        return [(it["topic"].removeprefix("topic://"), it["value"]) for it in shown]

    with RunningCommand(tmp_path / "consume", [*arguments, kind, "--json"], server.for_clients) as command:
        for name in (first, other):
            vela(server, "produce", name, "1")
        wait_until(lambda: came(command) == [(first, "1")], WITHIN)
        vela(server, "topics", "create", second, "--property", team)
        vela(server, "produce", second, "2")
        wait_until(lambda: came(command) == [(first, "1"), (second, "2")], WITHIN)
        vela(server, "topics", "set-properties", first, "team=none")
        vela(server, "topics", "delete", second, "--force")
        vela(server, "topics", "set-properties", other, team)
        wait_until(lambda: (other, "1") in came(command), WITHIN)
        assert command.running, command.err
        command.signal(signal.SIGINT)
        outcome = command.wait()
    assert (outcome.code, outcome.err) == (130, "")
    assert came(command) == [(first, "1"), (second, "2"), (other, "1")]
    # It was acknowledged, and each line begins with its topic.
    vela(server, "produce", other, "3")
    lines = vela(server, *arguments, kind, "--count", "1").splitlines()
    assert [line.split()[0] for line in lines] == [f"topic://{other}"]
    assert [line.split()[-1] for line in lines] == ["3"]


def test_a_topic_that_cannot_be_consumed_is_told_and_the_others_are_printed(server: VelaServer, topic: str) -> None:
    good, bad = (f"public/default/{topic}-{name}" for name in ("good", "bad"))
    for name in (good, bad):
        vela(server, "topics", "create", name, "--property", f"team={topic}")
        vela(server, "produce", name, "1")
    vela(server, "subscriptions", "create", bad, "mine", "--type", "stream")
    vela(server, "subscriptions", "create", good, "mine")
    outcome = run_vela(
        "consume", "--namespace", "public/default", "--filter", f"team={topic}", "-s", "mine", "--count", "1",
        variables=server.for_clients,
    )  # fmt: skip
    assert (outcome.code, outcome.out.split()[0]) == (0, f"topic://{good}")
    [complaint] = outcome.err.splitlines()
    assert complaint.startswith(f"topic://{bad} cannot be consumed and is tried again: ")
    assert "STREAM" in complaint
