"""The trace that ships with the repository, and the plan by which it was made."""

from collections import Counter
from pathlib import Path

import pytest

from metadata.traces.directories import open_trace
from metadata.traces.summary import summarise
from traces.make_sample import PROFILES, Plan

ROOT = Path(__file__).parents[3]
SAMPLE = ROOT / "traces" / "sample"


def test_the_sample_is_complete_and_has_a_few_thousand_events() -> None:
    trace = open_trace(SAMPLE)
    trace.require_complete()
    found = summarise(trace)
    assert found.events == trace.manifest.events
    assert 3_000 <= found.events <= 6_000
    assert 150 <= found.duration_us / 1e6 <= 300


def test_the_sample_has_what_there_is_to_show() -> None:
    trace = open_trace(SAMPLE)
    found = summarise(trace)
    assert {"gap", "base", "base_end", "created", "changed", "deleted"} <= found.by_kind.keys()
    assert {each.namespace for each in found.churn} == {profile.namespace for profile in PROFILES}
    assert found.gaps_by_cause == {"start": 1}
    assert found.faults.in_order
    assert (trace.manifest.runs, trace.manifest.dropped) == (1, 0)
    assert found.mean_per_s is not None
    assert found.peak_per_s > 3 * found.mean_per_s


def test_topics_of_the_sample_come_again_after_they_were_deleted() -> None:
    created: Counter[tuple[str, str]] = Counter()
    for batch in open_trace(SAMPLE).batches(["kind", "namespace", "topic"]):
        created.update((row["namespace"], row["topic"]) for row in batch.to_pylist() if row["kind"] == "created")
    assert max(created.values()) > 1


def test_the_sample_is_small_and_says_nothing_about_the_machine_that_made_it() -> None:
    files = [path for path in SAMPLE.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 400_000
    assert {path.suffix for path in files} == {".json", ".parquet"}
    for batch in open_trace(SAMPLE).batches():
        for text in map(str, batch.to_pylist()):
            assert not any(word in text for word in ("127.0.0.1", "localhost", "://", "/tmp", "/home", "/root"))


def test_the_plan_follows_from_its_seed() -> None:
    def planned(seed: int) -> object:
        plan = Plan(seed)
        return plan.base(), plan.acts(20.0)

    assert planned(5) == planned(5)
    assert planned(5) != planned(6)


@pytest.mark.parametrize("seed", range(5))
def test_the_plan_asks_for_nothing_that_the_server_would_refuse(seed: int) -> None:
    plan = Plan(seed)
    there = {act.topic for act in plan.base()}
    last: dict[str, float] = {}
    for act in plan.acts(60.0):
        assert (act.topic in there) == (act.verb != "create")
        assert act.at - last.get(act.topic, -1.0) >= 0.2
        last[act.topic] = act.at
        if act.verb in ("create", "delete"):
            there ^= {act.topic}
