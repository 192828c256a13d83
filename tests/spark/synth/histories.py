"""Whether what a trace tells about topics can have happened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from metadata.keys import bucket_of, path_of
from protocol.names import NamespaceName, TopicName

EVENT = ("created", "changed", "deleted")


def check_history(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Go through the events of one namespace in their order; how many there were of each kind."""
    live: dict[str, Mapping[str, Any]] = {}
    incarnations: set[str] = set()
    counts = dict.fromkeys((*EVENT, "base"), 0)
    last_seq = last_taken = last_arrival = -1
    last_store = (-1, -1)
    for row in rows:
        counts[row["kind"]] += 1
        assert row["run"] == 1
        assert row["seq"] > last_seq
        assert row["taken_us"] >= last_taken
        last_seq, last_taken = row["seq"], row["taken_us"]
        space = NamespaceName.parse(row["namespace"])
        name = TopicName.scalable(space.tenant, space.namespace, row["topic"])
        name.check_creatable()
        assert row["bucket"] == bucket_of(path_of(name))
        assert row["value"] is None
        known = live.get(row["topic"])
        match row["kind"]:
            case "base":
                assert not any(counts[kind] for kind in EVENT)
                assert known is None
                assert row["incarnation"] not in incarnations
                assert row["size"] > 0
                live[row["topic"]] = row
                incarnations.add(row["incarnation"])
                continue
            case "created":
                assert known is None
                assert row["incarnation"] not in incarnations
                assert (row["version"], row["epoch"]) == (0, 0)
                assert row["size"] > 0
                live[row["topic"]] = row
                incarnations.add(row["incarnation"])
            case "changed":
                assert known is not None
                assert row["incarnation"] == known["incarnation"]
                assert row["version"] == known["version"] + 1
                assert row["epoch"] in (known["epoch"], known["epoch"] + 1)
                assert row["size"] > 0
                live[row["topic"]] = row
            case "deleted":
                assert known is not None
                assert (row["incarnation"], row["version"]) == (known["incarnation"], known["version"])
                del live[row["topic"]]
        assert row["arrival_us"] > last_arrival
        assert row["store_ms"] * 1_000 <= row["arrival_us"] <= row["taken_us"]
        assert (row["store_ms"], row["store_seq"]) > last_store
        last_arrival, last_store = row["arrival_us"], (row["store_ms"], row["store_seq"])
    return counts
