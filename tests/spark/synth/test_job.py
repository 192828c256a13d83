from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from metadata.traces.directories import open_trace
from metadata.traces.manifest import Manifest
from metadata.traces.tables import EVENT_SCHEMA
from protocol.names import NamespaceName
from spark import schemas
from spark.errors import JobError
from spark.profiles import Bursts, Load, TopicsPerNamespace
from spark.synth.distances import distances
from spark.synth.job import SHAPE, Synthesised, events_of, synthesise
from spark.synth.model import HOUR_US
from spark.synth.plans import Plan, Wanted, copy_name, plan_from_profile, plan_from_trace
from spark.synth.shape import plain_timeline
from spark.timeline import timeline
from spark.traces import open_complete, read_events
from tests.spark.synth.histories import check_history
from tests.spark.synth.recordings import bursty_events, write_trace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What Spark has to compile takes long where others compute, too.
pytestmark = pytest.mark.timeout(400)

LOAD = Load(namespaces=6, topics=TopicsPerNamespace(5, 0.5), churn=4, changes=4, split_rate=1, bursts=Bursts(0.5, 3))
TWO_HOURS = Wanted(duration_us=2 * HOUR_US, seed=1)


def rows_of(directory: Path) -> list[dict[str, Any]]:
    return [row for batch in open_trace(directory).batches() for row in batch.to_pylist()]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trace(tmp_path_factory.mktemp("recordings") / "bursty", bursty_events())


# With Spark, a plan from a trace takes seconds, and so does what is made of it: these are shared.


@pytest.fixture(scope="module")
def learned(spark: SparkSession, recording: Path) -> Plan:
    return plan_from_trace(spark, open_complete(recording), 2.0, Wanted(duration_us=5 * HOUR_US, seed=7))


@pytest.fixture(scope="module")
def made(spark: SparkSession, learned: Plan, tmp_path_factory: pytest.TempPathFactory) -> Synthesised:
    """Twice as many namespaces as the recording has, and twice as long."""
    return synthesise(spark, learned, tmp_path_factory.mktemp("made") / "out", partitions=2)


@pytest.mark.slow
def test_the_result_is_close_to_its_source(made: Synthesised) -> None:
    assert {each.of: round(each.distance, 3) for each in made.distances if not each.close} == {}
    assert made.verdict == "the same shape"


@pytest.mark.integration
def test_another_trace_is_far_from_the_source(spark: SparkSession, learned: Plan, tmp_path: Path) -> None:
    other = write_trace(tmp_path / "other", bursty_events(bursts=40, size=15, changes=20))
    measured = plan_from_trace(spark, open_complete(other), 1.0, TWO_HOURS).goal()
    far = {each.of for each in distances(learned.goal(), measured) if not each.close}
    assert {"inter-arrival", "burst sizes", "mix of changes", "events/namespace/hour"} <= far


@pytest.mark.slow
def test_events_lie_in_a_folder_for_each_namespace_and_hour(made: Synthesised) -> None:
    folders = {str(path.parent.relative_to(made.out)) for path in Path(made.out).rglob("*.parquet")}
    namespaces = [f"shop%2Fa%3Db%3Ac.d-{number}" for number in (0, 2)] + [
        f"shop%2Forders-{number}" for number in (1, 3)
    ]
    wanted = {f"data/namespace={name}/hour={hour}" for name in namespaces for hour in range(5)}
    assert folders == {*wanted, "data/namespace=__HIVE_DEFAULT_PARTITION__/hour=0"}
    assert made.files == len(folders)
    assert not list(Path(made.out).rglob("*.crc"))


@pytest.mark.slow
def test_names_survive_and_histories_are_legal(made: Synthesised) -> None:
    rows = rows_of(Path(made.out))
    names = {row["namespace"] for row in rows} - {None}
    assert names == {"shop/a=b:c.d-0", "shop/orders-1", "shop/a=b:c.d-2", "shop/orders-3"}
    for name in names:
        counts = check_history(row for row in rows if row["namespace"] == name)
        assert counts["base"] > 0
    assert [row["kind"] for row in rows if row["namespace"] is None] == ["gap", "base_end"]
    assert rows[0]["kind"] == "gap"
    assert set(rows[0]) == set(EVENT_SCHEMA.names)


@pytest.mark.slow
def test_the_manifest_tells_how_it_was_made(made: Synthesised) -> None:
    manifest = open_complete(Path(made.out)).manifest
    count = made.events + made.topics_at_start + 2
    expected = Manifest(
        "synthetic",
        values=False,
        runs=1,
        events=count,
        seed=7,
        duration_us=5 * HOUR_US,
        namespaces=4,
        first_us=manifest.first_us,
    )
    assert manifest == expected
    shape = json.loads((Path(made.out) / SHAPE).read_bytes())
    assert shape["verdict"] == made.verdict


@pytest.mark.slow
def test_its_timeline_is_what_was_generated(spark: SparkSession, made: Synthesised) -> None:
    events = read_events(spark, open_complete(Path(made.out)))
    columns = ["at_us", "namespace", "topic", "op", "incarnation", "epoch"]
    general = {tuple(row) for row in timeline(events).select(*columns).collect()}
    plain = {tuple(row) for row in plain_timeline(events).select(*columns).collect()}
    assert len(plain) == made.events + made.topics_at_start
    assert general == plain


@pytest.mark.integration
def test_a_synthetic_trace_can_be_learned_from(spark: SparkSession, made: Synthesised) -> None:
    plan = plan_from_trace(spark, open_complete(Path(made.out)), 1.0, TWO_HOURS)
    assert plan.around.namespaces == 4
    assert plan.expected == pytest.approx(made.events * 2 / 5, rel=0.05)


def test_the_number_of_partitions_changes_nothing(spark: SparkSession) -> None:
    plan = plan_from_profile(LOAD, TWO_HOURS)
    one, four = (sorted(tuple(row) for row in events_of(spark, plan, partitions).collect()) for partitions in (1, 4))
    assert one == four
    assert one != sorted(
        tuple(row) for row in events_of(spark, plan_from_profile(LOAD, Wanted(2 * HOUR_US, 2)), 1).collect()
    )
    assert events_of(spark, plan, 1).schema.names == [*schemas.EVENTS.names, "hour"]


def test_about_as_many_events_come_as_were_asked_for(spark: SparkSession) -> None:
    plan = plan_from_profile(LOAD, Wanted(2 * HOUR_US, 1, events=3_000))
    count = events_of(spark, plan, 2).where("kind not in ('base', 'gap', 'base_end')").count()
    assert count == pytest.approx(3_000, rel=0.1)


def test_a_job_that_fails_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    def broken(index: int) -> Any:
        raise ValueError("no model")

    plan = plan_from_profile(LOAD, TWO_HOURS)
    failing = Plan(plan.around, broken, plan.name_of, plan.expected, plan.compared, plan.goal)
    with pytest.raises(JobError, match="Spark could not make the trace"):
        synthesise(spark, failing, tmp_path / "out", partitions=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.integration
def test_a_trace_with_too_few_changes_is_told_how_many_it_takes(spark: SparkSession, tmp_path: Path) -> None:
    small = write_trace(tmp_path / "small", bursty_events(bursts=3))
    with pytest.raises(JobError, match="too few to learn from: record until there are 100 or more"):
        plan_from_trace(spark, open_complete(small), 1.0, TWO_HOURS)


def test_more_events_than_time_are_refused() -> None:
    with pytest.raises(JobError, match="too many for 6 namespaces"):
        plan_from_profile(LOAD, Wanted(1_000_000, 1, events=10**9))


def test_more_than_can_be_numbered_is_refused() -> None:
    load = msgspec.structs.replace(LOAD, namespaces=10_000_000)
    with pytest.raises(JobError, match="more than a trace can number"):
        plan_from_profile(load, Wanted(366 * 24 * HOUR_US, 1))


def test_names_of_copies_are_valid_even_if_their_source_is_as_long_as_can_be() -> None:
    sources = ["t/" + "n" * 255, "t/" + "n" * 254, "t/n", "t/n-1"]
    names = [copy_name(sources, 2, index) for index in range(40)]
    assert len(set(names)) == 40
    assert all(str(NamespaceName.parse(name)) == name for name in names)
