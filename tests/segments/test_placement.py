"""Every node comes to the same answer, and nodes that come or go move only what they must."""

from __future__ import annotations

from collections import Counter

from segments.placement import choose

LOGS = [f"segment://public/default/t{number}/0000-ffff-0" for number in range(600)]
NODES = ["aaaa", "bbbb", "cccc"]


def test_order_in_which_nodes_are_known_does_not_matter() -> None:
    assert [choose(log, NODES) for log in LOGS] == [choose(log, reversed(NODES)) for log in LOGS]


def test_logs_are_spread_evenly() -> None:
    counts = Counter(choose(log, NODES) for log in LOGS)
    assert all(150 < counts[node] < 250 for node in NODES)


def test_only_logs_of_a_node_that_left_move() -> None:
    before = {log: choose(log, NODES) for log in LOGS}
    after = {log: choose(log, NODES[:2]) for log in LOGS}
    assert all(after[log] == node for log, node in before.items() if node != "cccc")


def test_without_nodes_there_is_no_answer() -> None:
    assert choose(LOGS[0], []) is None
