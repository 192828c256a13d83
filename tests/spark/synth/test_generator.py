from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from metadata.traces.order import OrderFaults, check_order
from spark.profiles import Bursts, Load, TopicsPerNamespace
from spark.synth.distances import median
from spark.synth.generator import FIRST_US, SCHEMA, bookends, generate
from spark.synth.model import HOUR_US, NamespaceModel, Surroundings, quantiles_of
from spark.synth.profile_model import DELAY_US, LAGS, model_of
from tests.spark.synth.histories import check_history

LOAD = Load(
    topics=TopicsPerNamespace(mean=20, spread=0.5),
    churn=20,
    recreated=0.5,
    changes=10,
    split_rate=5,
    bursts=Bursts(0.7, 6),
)
AROUND = Surroundings(seed=1, namespaces=10, duration_us=2 * HOUR_US, lags=LAGS, delay_us=DELAY_US)


def rows_of(model: NamespaceModel, around: Surroundings = AROUND, index: int = 3) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for batch in generate(model, f"tenant/ns-{index}", index, around):
        batch.validate(full=True)
        assert batch.schema == SCHEMA
        rows.extend(batch.to_pylist())
    return rows


@pytest.mark.parametrize("seed", range(5))
def test_histories_are_legal(seed: int) -> None:
    counts = check_history(rows_of(model_of(LOAD, seed, 3), msgspec.structs.replace(AROUND, seed=seed)))
    assert min(counts.values()) > 0


def test_histories_with_lifetimes_and_repeated_changes_are_legal() -> None:
    model = msgspec.structs.replace(
        model_of(LOAD, 1, 3), lifetimes=quantiles_of([1e6, 1e8, 1e9]), lasting=0.1, again=0.5, fewest=0, most=40
    )
    check_history(rows_of(model))


def test_the_same_seed_gives_the_same_events_and_another_does_not() -> None:
    model = model_of(LOAD, 1, 3)
    assert rows_of(model) == rows_of(model)
    assert rows_of(model) != rows_of(model, msgspec.structs.replace(AROUND, seed=2))


def test_a_longer_trace_begins_as_the_shorter_one() -> None:
    model = model_of(LOAD, 1, 3)
    longer = rows_of(model, msgspec.structs.replace(AROUND, duration_us=3 * HOUR_US))
    shorter = rows_of(model)
    assert longer[: len(shorter)] == shorter
    assert len(longer) > len(shorter)


def test_hours_are_counted_from_the_start_and_nothing_is_later_than_the_end() -> None:
    for row in rows_of(model_of(LOAD, 1, 3)):
        assert row["hour"] == ((row["arrival_us"] or FIRST_US) - FIRST_US) // HOUR_US
        assert row["hour"] in (0, 1)


def test_seqs_of_all_namespaces_together_are_unique_and_in_the_order_of_time() -> None:
    rows = [row for index in range(4) for row in rows_of(model_of(LOAD, 1, index), index=index)]
    rows.extend(bookends(AROUND).to_pylist())
    rows.sort(key=lambda row: row["seq"])
    assert len({row["seq"] for row in rows}) == len(rows)
    times = [row["taken_us"] for row in rows]
    assert times == sorted(times)
    kinds = [row["kind"] for row in rows]
    assert kinds[0] == "gap"
    assert set(kinds[1 : kinds.index("base_end")]) == {"base"}
    assert set(kinds[kinds.index("base_end") + 1 :]) == {"created", "changed", "deleted"}


def test_times_of_store_and_recorder_go_only_forward() -> None:
    batches = [
        batch for index in range(8) for batch in generate(model_of(LOAD, 1, index), f"t/n-{index}", index, AROUND)
    ]
    table = pa.Table.from_batches([bookends(AROUND), *batches]).sort_by("seq").combine_chunks()
    assert check_order(table.to_batches(), contiguous=False) == OrderFaults()


def test_lags_are_distributed_as_they_should_be() -> None:
    rows = [row for row in rows_of(model_of(LOAD, 1, 3)) if row["kind"] != "base"]
    lags = sorted(row["arrival_us"] - 1_000 * row["store_ms"] for row in rows)
    # The store counts milliseconds, which adds half of one on average.
    assert lags[len(lags) // 2] == pytest.approx(median(LAGS) + 500, rel=0.2)
    assert lags[0] >= LAGS[0]


def test_as_many_events_come_as_the_rate_says() -> None:
    for index in range(5):
        model = model_of(LOAD, 1, index)
        count = sum(row["kind"] != "base" for row in rows_of(model, index=index))
        assert count == pytest.approx(2 * model.per_hour, rel=0.25)


def test_stretched_gaps_make_fewer_events() -> None:
    model = model_of(LOAD, 1, 3)
    usual = sum(row["kind"] != "base" for row in rows_of(model))
    slow = sum(row["kind"] != "base" for row in rows_of(model, msgspec.structs.replace(AROUND, stretch=4.0)))
    assert slow == pytest.approx(usual / 4, rel=0.35)


def test_days_have_a_middle() -> None:
    around = msgspec.structs.replace(AROUND, duration_us=24 * HOUR_US, daily_amplitude=0.9)
    hours = [row["hour"] for row in rows_of(model_of(LOAD, 1, 3), around) if row["kind"] != "base"]
    night = sum(hour < 3 or hour >= 21 for hour in hours)
    noon = sum(9 <= hour < 15 for hour in hours)
    assert noon > 3 * night


def test_the_number_of_topics_stays_within_its_bounds() -> None:
    model = msgspec.structs.replace(model_of(LOAD, 1, 3), steps=((9.0, 0.0, 1.0),) * 8, topics=10, fewest=8, most=13)
    count = 0
    for row in rows_of(model):
        count += {"base": 1, "created": 1, "changed": 0, "deleted": -1}[row["kind"]]
        assert count <= 13
    assert count >= 8


def test_a_namespace_where_nothing_happens_has_only_its_topics() -> None:
    rows = rows_of(msgspec.structs.replace(model_of(LOAD, 1, 3), per_hour=0.0, topics=4))
    assert [row["kind"] for row in rows] == ["base"] * 4


def test_a_namespace_without_topics_begins_with_a_creation() -> None:
    rows = rows_of(msgspec.structs.replace(model_of(LOAD, 1, 3), topics=0, fewest=0, most=1))
    assert rows[0]["kind"] == "created"
    check_history(rows)


@pytest.mark.parametrize("namespace", ["a/b", "te=na:nt/n.s_-", "t/" + "n" * 255])
def test_odd_names_of_namespaces_have_the_right_buckets(namespace: str) -> None:
    rows = [row for batch in generate(model_of(LOAD, 1, 0), namespace, 0, AROUND) for row in batch.to_pylist()]
    check_history(rows)
