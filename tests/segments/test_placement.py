"""Every node comes to the same answer, and nodes that come or go move only what they must."""

from __future__ import annotations

from collections import Counter

from metadata.node_sessions import NodeRecord
from segments.placement import candidates, choose, url_of

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


def test_owner_that_lives_is_where_its_log_is() -> None:
    nodes = [NodeRecord(session, f"pulsar://{session}:1", "") for session in NODES]
    assert {url_of(log, "bbbb", nodes) for log in LOGS} == {"pulsar://bbbb:1"}
    for log in LOGS:
        assert url_of(log, "dead", nodes) == url_of(log, "", nodes) == f"pulsar://{choose(log, NODES)}:1"


def test_nobody_is_sent_to_a_node_whose_address_is_not_known() -> None:
    nodes = [NodeRecord("aaaa", "pulsar://aaaa:1", ""), NodeRecord("bbbb", "", "")]
    assert {url_of(log, owner, nodes) for log in LOGS for owner in ("", "bbbb")} == {"pulsar://aaaa:1"}
    assert [node.session for node in candidates(nodes)] == ["aaaa"]
