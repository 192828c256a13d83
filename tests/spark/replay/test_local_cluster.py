"""Whole replays on real separate executors: by the command itself, and by spark-submit with a packed environment."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from spark.packing import pack
from tests.e2e.vela_process import VelaServer, environment
from tests.spark.replay.replay_process import LIMIT_S, replaying
from tests.spark.replay.small_traces import write_trace
from tests.spark.small_spark import small_spark

pytestmark = [pytest.mark.integration, pytest.mark.timeout(480)]

CLUSTER = "local-cluster[2,1,1024]"
REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def work_directory_is_left_as_it_was() -> Iterator[None]:
    """Executors of a local cluster keep their logs below the home of Spark, and nothing can tell them otherwise."""
    work = Path(pyspark.__file__).parent / "work"
    before = set(work.glob("app-*"))
    yield
    for directory in set(work.glob("app-*")) - before:
        subprocess.run(["rm", "-r", str(directory)], check=True)


def test_replay_on_separate_executors_converges(tmp_path: Path) -> None:
    with replaying(tmp_path, "--master", CLUSTER, "--max-lateness", "1h") as (replay, _):
        outcome = replay.wait()
        assert outcome.code == 0, outcome.err
        told = json.loads(outcome.out)
        assert (told["watchers"], told["converged"], told["events"]) == (12, 12, 90)
        assert len(told["clocks"]) == 2
        assert told["environment"]["master"] == CLUSTER
        assert replay.left_in_store() == []


def test_packed_environment_serves_executors_with_a_python_that_knows_nothing_of_vela(tmp_path: Path) -> None:
    archive = tmp_path / "environment.tar.gz"
    pack(archive)
    trace = write_trace(tmp_path / "trace")
    bare = f"{sys.base_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    with VelaServer.start(tmp_path / "server") as server:
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("spark-submit")),
                *("--master", CLUSTER, "--archives", f"{archive}#environment"),
                *("--conf", "spark.pyspark.python=./environment/bin/python"),
                *("--conf", f"spark.pyspark.driver.python={sys.executable}"),
                *("--conf", f"spark.executorEnv.VELA_PYTHON={bare}"),
                *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1"),
                str(REPOSITORY / "spark" / "submit.py"),
                *("replay", str(trace), "--target", server.pulsar_url, "--speed", "3"),
                *("--store", f"unix://{server.data_dir}/valkey.sock", "--out", str(tmp_path / "result")),
                *("--watchers", "12", "--connections", "6", "--max-lateness", "1h", "--json"),
            ],
            cwd=tmp_path,
            env=environment({"SPARK_HOME": str(Path(pyspark.__file__).parent), **small_spark(tmp_path / "spark-conf")}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    assert done.returncode == 0, done.stderr[-4_000:]
    told = json.loads(done.stdout[done.stdout.index("{") :])
    assert (told["watchers"], told["converged"], told["events"]) == (12, 12, 90)
